"""Descriptions of a run's hosts, before and after: hardware, mounts, bytes from servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rayio.machine.counters import sent_by_servers
from rayio.machine.host import describe
from rayio.machine.mounts import mount_of, mounts_here, source_of
from rayio.model.plan import Plan
from rayio.records.hosts import Host
from rayio.storage.address import is_path, join
from rayio.units import format_bytes

#: The least size of a dataset relative to the memory of the readers' hosts, by the rules of MLPerf Storage.
ENOUGH = 5


class Sighting(NamedTuple):
    """A host at one moment."""

    host: Host
    #: Bytes that servers have sent so far, by mount point with counters.
    sent: dict[str, int]

    @property
    def of(self) -> str:
        """A host's identity: containers of one host have different names, but share its memory."""
        return self.host.boot_id or self.host.name


def addresses(plan: Plan, root: str | Path) -> dict[str, str]:
    """Return the addresses of a run's files, by scenario key."""
    paths = {"dataset.path": plan.training_phase.path}
    if plan.evaluation is not None:
        paths["dataset.eval.path"] = plan.evaluation.path
    if plan.checkpointing is not None:
        paths["checkpoint.path"] = plan.checkpointing.path
        if plan.checkpointing.burst is not None:
            paths["checkpoint.burst.path"] = plan.checkpointing.burst.path
    return {key: join(str(root), path) for key, path in paths.items()}


def look(plan: Plan, root: str | Path) -> Sighting:
    """Return a description of this process's host for the run."""
    paths = {key: path for key, path in addresses(plan, root).items() if is_path(path)}
    mounts = mounts_here()
    used = {mount.point: mount for path in paths.values() if (mount := mount_of(path, mounts)) is not None}
    return Sighting(describe(paths), sent_by_servers(used.values()))


def each_once(sightings: Iterable[Sighting]) -> list[Sighting]:
    """Return one sighting of each host."""
    return [*{sighting.of: sighting for sighting in reversed([*sightings])}.values()][::-1]


def warnings(plan: Plan, root: str | Path, hosts: Sequence[Host]) -> list[str]:
    """Return warnings, a line each, that a run would measure memory, not storage."""
    page_cache, saved = plan.stores.page_cache, plan.checkpointing
    key, what, nbytes = "dataset.path", "the dataset", plan.dataset_bytes
    if saved is not None and saved.phases is not None:
        key, what, nbytes = "checkpoint.path", "all checkpoints", float(sum(saved.sizes) * saved.phases.writes)
    where = addresses(plan, root)[key]
    if not is_path(where) or not hosts:
        return []
    types = {mount.type for host in hosts for mount in host.mounts if mount.key == key}
    if in_memory := {type_ for type_ in types if source_of(type_) == "memory"}:
        problem = f"{where} is on {', '.join(sorted(in_memory))}, which is memory: the run measures memory, not storage"
        dropped = ", and storage.page_cache=drop has no effect there" * (page_cache == "drop")
        return [f"{problem}{dropped}; use a {key} on the storage to measure"]
    memory = sum(host.cache_bytes for host in hosts)
    if page_cache != "use" or nbytes >= memory:
        return []
    of = "" if len(hosts) == 1 else f" of {len(hosts)} hosts"
    return [
        f"{what} ({format_bytes(nbytes)}) fit{'s' * (key == 'dataset.path')} in memory{of} ({format_bytes(memory)}), "
        "so this run measures the page cache, not storage; use storage.page_cache=drop, or at least "
        f"{format_bytes(ENOUGH * memory)} of data ({ENOUGH} × memory)"
    ]
