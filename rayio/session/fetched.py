"""Sources of the bytes that a run read: devices, servers, page cache or modelled caches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

from rayio import storage
from rayio.machine.mounts import source_of
from rayio.model.ledger import Tally
from rayio.model.plan import Plan
from rayio.model.sighting import Sighting, addresses
from rayio.records.hosts import MODEL, Fetched
from rayio.storage.address import is_path
from rayio.storage.base import Moved
from rayio.units import format_bytes

_HOW = {
    "device": "the kernel counts the bytes that each reading thread fetches from block devices",
    "server": "the kernel counts the bytes that servers send for a mount, to all programs of a host",
    "memory": "the file system is in memory and has no device",
    "network": "all bytes come over the network",
    "other": "estimated from what each read adds to the page cache, because this file system counts nothing",
}
_DIRECT = "every read bypasses the page cache; this file system counts nothing"
_UNKNOWN = "this kernel does not count it"


def fetched(
    plan: Plan, root: str, tallies: Sequence[Tally], before: Sequence[Sighting], after: Sequence[Sighting]
) -> Fetched | None:
    """Return the sources of the bytes read; None if ranks read nothing, or modelled storage has no cache."""
    parts = [tally.moved for tally in tallies if tally.moved is not None]
    if not parts:
        return None
    moved, delivered = reduce(add, parts), sum(tally.nbytes for tally in tallies)
    if plan.modelled:
        return _of_model(plan, moved, delivered)
    read = {key: address for key, address in addresses(plan, root).items() if key.startswith("dataset")}
    return _of_files(plan, moved, delivered, read, before, after)


def loaded(
    plan: Plan, root: str, tallies: Sequence[Tally], before: Sequence[Sighting], after: Sequence[Sighting]
) -> Fetched | None:
    """Return the sources of the bytes of restored checkpoints; None if there are none, or on modelled storage."""
    parts = [tally.loaded for tally in tallies if tally.loaded is not None]
    if not parts or plan.modelled:
        return None
    moved = reduce(add, parts)
    read = {key: address for key, address in addresses(plan, root).items() if key.startswith("checkpoint")}
    return _of_files(plan, moved, moved.requested, read, before, after)


def _of_files(
    plan: Plan,
    moved: Moved,
    delivered: int,
    read: dict[str, str],
    before: Sequence[Sighting],
    after: Sequence[Sighting],
) -> Fetched:
    """Return the sources of bytes read from real storage; ``read`` has the addresses, by key."""
    sources = {source for key, address in read.items() for source in _sources(key, address, plan, before)}
    source = sources.pop() if len(sources) == 1 else "unknown"
    nbytes = _sent(read, before, after) if source == "server" else moved.fetched
    how = _HOW.get(source, _UNKNOWN) if nbytes is not None else _UNKNOWN
    if source == "other" and plan.stores.page_cache == "direct":
        how = _DIRECT
    return Fetched(
        delivered_bytes=delivered,
        read_bytes=moved.requested,
        fetched_bytes=nbytes,
        page_cache_share=None if nbytes is None or not moved.requested else max(0.0, 1 - nbytes / moved.requested),
        source=source,
        how=how,
        page_cache=plan.stores.page_cache,
        unevicted_bytes=moved.unevicted if plan.stores.page_cache == "drop" else None,
    )


def _of_model(plan: Plan, moved: Moved, delivered: int) -> Fetched:
    assert moved.fetched is not None
    return Fetched(
        delivered_bytes=delivered,
        read_bytes=moved.requested,
        fetched_bytes=moved.fetched,
        page_cache_share=1 - moved.fetched / moved.requested if moved.requested else None,
        source=MODEL,
        how="; ".join(layer.keeps for layer in plan.layers if layer.keeps),
        page_cache=plan.stores.page_cache,
    )


def source_notes(sources: Fetched | None, *, is_partial: bool) -> list[str]:
    """Return notes on what the sources lack, or might lack.

    With ``is_partial`` they count no bytes before a restart; ``storage.page_cache: drop`` may leave pages in the cache.
    """
    if sources is None:
        return []
    partial = ["fetched counts the bytes read since the last restart alone"] * is_partial
    if sources.page_cache != "drop" or sources.unevicted_bytes == 0:
        return partial
    if sources.unevicted_bytes is None:
        return [*partial, "storage.page_cache=drop: unknown effect, because this kernel does not report cached pages"]
    why = "the file system is in memory" if sources.source == "memory" else "other programs or workers used them"
    stayed = format_bytes(sources.unevicted_bytes)
    return [*partial, f"storage.page_cache=drop: {stayed} stayed in the page cache, because {why}"]


def _sources(key: str, address: str, plan: Plan, hosts: Sequence[Sighting]) -> set[str]:
    if not is_path(address):
        return {storage.open(address, plan.stores).source}
    return {source_of(mount.type) for host, _ in hosts for mount in host.mounts if mount.key == key}


def _sent(read: dict[str, str], before: Sequence[Sighting], after: Sequence[Sighting]) -> int | None:
    """Return the bytes that servers sent to all hosts during the run, for the mounts of the dataset."""
    late = {sighting.of: sighting.sent for sighting in after}
    total = 0
    for sighting in before:
        for point in {mount.point for mount in sighting.host.mounts if mount.key in read}:
            then, now = sighting.sent.get(point), late.get(sighting.of, {}).get(point)
            if then is None or now is None:
                return None
            total += now - then
    return total
