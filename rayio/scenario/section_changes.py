"""The changes that sections of a scenario offer, each a key or two (see ``change.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rayio.scenario import derive, evaluation
from rayio.scenario.change import BOTH, Change, Command, Run, with_keys
from rayio.scenario.model import NoSync
from rayio.scenario.workers import MAX_WORKERS, Autoscaled
from rayio.schema.every import Every
from rayio.units import BYTES

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario


def of_throttle(run: Run) -> Iterator[Change]:
    """``storage.throttle``: storage that refuses nobody, and twice the prefixes, each with the rates that it has."""
    throttle = run.scenario.storage.throttle
    if run.modelled is None or throttle is None:
        return
    yield Change("no throttling", kind="limit", to=with_keys("storage", throttle=None))
    more = throttle.model_copy(update={"prefixes": 2 * throttle.prefixes})
    yield Change(
        "prefixes × 2", kind="setting", to=with_keys("storage", throttle=more), effort=1,
        key=f"storage.throttle.prefixes={more.prefixes}", helps=("input",), tried_by=BOTH,
    )  # fmt: skip


def of_cache(run: Run) -> Iterator[Change]:
    """``storage.cache``: twice the memory for samples on each node."""
    cached = run.scenario.storage.cache_bytes
    if run.modelled is None or cached is None or cached >= derive.dataset_bytes(run.scenario):
        return
    yield Change(
        "cache × 2", kind="setting", to=twice_cached, effort=1, helps=("input",), tried_by=BOTH,
        key=f"storage.cache=[{{tier: ram, bytes: {BYTES.exact(2 * cached)}}}]",
    )  # fmt: skip


def twice_cached(scenario: Scenario) -> Scenario:
    """Return a scenario whose nodes have twice the memory for samples."""
    tiers = tuple(tier.model_copy(update={"bytes": 2 * tier.bytes}) for tier in scenario.storage.cache or ())
    return with_keys("storage", cache=tiers)(scenario)


def of_cluster(run: Run) -> Iterator[Change]:
    """``cluster``: batches that need no time between nodes, more nodes for readers, more cores on each."""
    cluster = run.scenario.cluster
    if cluster.has_network and cluster.is_crossed:
        yield Change(
            "network = ∞", kind="removal", to=with_keys("cluster", nic_bandwidth=None, nic_latency=0.0),
            removes=("transfer",), helps=("loader",),
        )  # fmt: skip
        if cluster.has_reader_tier and not isinstance(cluster.cores, tuple):
            nodes = 2 * cluster.reader_nodes
            yield Change(
                "reader_nodes × 2", kind="machine", to=with_keys("cluster", reader_nodes=nodes),
                key=f"cluster.reader_nodes={nodes}", helps=("loader",),
            )  # fmt: skip
    if run.has_cores:
        cores = cluster.cores
        more = tuple(2 * each for each in cores) if isinstance(cores, tuple) else 2 * (cores or 1)
        words = "twice the cores" + ("" if isinstance(more, tuple) else f" ({more} on each node)")
        yield Change(
            "cores × 2", kind="machine", to=with_keys("cluster", cores=more), words=words, helps=("processors",),
            effort=2, tried_by=BOTH,
        )  # fmt: skip


def of_workers(run: Run) -> Iterator[Change]:
    """``loader.num_workers``: more readers and fewer.

    Of readers that come and go: as many as there were on average, for good, and other bounds.
    """
    scaling, number = run.scenario.loader.num_workers, run.workers
    if run.is_throttled:
        return
    if not isinstance(scaling, Autoscaled):
        yield with_workers("workers × 2" if number else "1 worker", max(1, 2 * number), tried_by=BOTH)
        if number > 1:
            yield Change(
                "workers ÷ 2", kind="setting", to=with_keys("loader", num_workers=number // 2), effort=-1,
                key=f"loader.num_workers={number // 2}", helps=("input",),
            )  # fmt: skip
        return
    for count in (number, *([2 * number] if number < scaling.max else [])):
        yield with_workers(f"{count} worker{'s' * (count != 1)} throughout", count)
    yield with_workers("twice the most workers", 2 * scaling.max, tried_by=("capacity",))
    most = min(2 * scaling.max, MAX_WORKERS)
    for name, least, largest in (("max × 2", scaling.min, most), ("min × 2", 2 * scaling.min, scaling.max)):
        if (least, largest) != (scaling.min, scaling.max) and least <= largest:
            bounds = scaling.model_copy(update={"min": least, "max": largest})
            yield Change(
                name, kind="setting", to=with_keys("loader", num_workers=bounds), helps=("input",),
                key=f"loader.num_workers={{min: {least}, max: {largest}}}",
            )  # fmt: skip


def with_workers(name: str, number: int, tried_by: tuple[Command, ...] = ("explain",)) -> Change:
    """Return the change to another number of readers per rank, which stay."""
    to = with_keys("loader", num_workers=number)
    return Change(name, kind="workers", to=to, key=f"loader.num_workers={number}", effort=1, tried_by=tried_by)


def of_prefetch(run: Run) -> Iterator[Change]:
    """Other keys of ``loader``: more batches and requests in flight."""
    loader = run.scenario.loader
    if loader.max_workers:
        factor = 2 * loader.prefetch_factor
        yield Change(
            "prefetch × 2", kind="setting", to=with_keys("loader", prefetch_factor=factor),
            key=f"loader.prefetch_factor={factor}", helps=("input", "loader"), tried_by=BOTH,
        )  # fmt: skip
    if run.was_memory_bound:
        yield Change(
            "no bound on bytes", kind="setting", to=with_keys("loader", max_bytes_in_flight=1 << 60), effort=3,
            key="no bound on bytes (loader.max_bytes_in_flight)", removes=("memory_bound",), helps=("input", "loader"),
        )  # fmt: skip


def of_sync(run: Run) -> Iterator[Change]:
    """``train.sync``: ranks that never wait for each other."""
    if derive.world_size(run.scenario) > 1 and run.scenario.train.sync.meets:
        yield Change(
            "no barrier", kind="removal", to=with_keys("train", sync=NoSync()), removes=("straggler", "allreduce"),
            helps=("straggler", "all-reduce"),
        )  # fmt: skip


def of_checkpoint(run: Run) -> Iterator[Change]:
    """``checkpoint``: none, and where they cost time: written behind, and half as often."""
    section, number = run.scenario.checkpoint, derive.num_checkpoints(run.scenario)
    if section is None or not number:
        return
    yield Change(
        "no checkpoints", kind="removal", to=lambda scenario: scenario.model_copy(update={"checkpoint": None}),
        removes=("checkpoint",), helps=("checkpoint",),
    )  # fmt: skip
    if not section.asynchronous:
        yield Change(
            "checkpoints async", kind="setting", to=with_keys("checkpoint", asynchronous=True),
            key="checkpoint.asynchronous=true", helps=("checkpoint",), after=("no checkpoints",),
        )  # fmt: skip
    if number > 1:
        steps = 2 * derive.checkpoint_period(run.scenario)
        yield Change(
            "checkpoints ÷ 2", kind="setting", to=with_keys("checkpoint", every=Every(steps=steps)),
            key=f"checkpoint.every={{steps: {steps}}}", helps=("checkpoint",), after=("no checkpoints",),
        )  # fmt: skip


def of_evaluations(run: Run) -> Iterator[Change]:
    """``train.evaluate``: none."""
    if evaluation.phase_of(run.scenario) is not None:
        yield Change(
            "no evaluations", kind="removal", to=with_keys("train", evaluate=None), removes=("evaluate",),
            helps=("evaluation",),
        )  # fmt: skip
