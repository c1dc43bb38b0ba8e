"""The changes that sections of a scenario offer, each a key or two (see ``change.py``)."""

from __future__ import annotations

from collections.abc import Iterator

from rayio.scenario import derive, evaluation
from rayio.scenario.change import BOTH, Change, Command, Run, with_keys
from rayio.scenario.loader import MAX_BATCH, MAX_WINDOW
from rayio.scenario.model import NoSync, Scenario
from rayio.scenario.sync import AllReduce
from rayio.scenario.workers import MAX_WORKERS, Autoscaled
from rayio.scenario.writers import Dedicated, RankZero, Sharded
from rayio.schema.every import Every
from rayio.units import BYTES, RATE

#: Share of a step's compute behind which an all-reduce is tried to hide: gradients of one layer are reduced while those
#: of others are computed, which is half of a step and more.
OVERLAP = 0.5
#: Bytes that no node has in flight.
UNBOUNDED = 1 << 50


def of_cores(run: Run) -> Iterator[Change]:
    """``cluster.cores``: twice as many on each node."""
    if run.has_cores:
        cores = run.scenario.cluster.cores
        more = tuple(2 * each for each in cores) if isinstance(cores, tuple) else 2 * (cores or 1)
        words = "twice the cores" + ("" if isinstance(more, tuple) else f" ({more} on each node)")
        yield Change(
            "cores × 2", kind="machine", to=with_keys("cluster", cores=more), words=words, helps=("processors",),
            effort=2, tried_by=BOTH,
        )  # fmt: skip


def of_workers(run: Run) -> Iterator[Change]:
    """``loader.num_workers``: more workers and fewer.

    Of readers that come and go: as many as there were on average, for good, and other bounds.
    """
    scaling, number = run.scenario.loader.num_workers, run.workers
    if run.is_throttled:
        return
    if not isinstance(scaling, Autoscaled):
        if (twice := max(1, 2 * number)) <= most_workers(run):
            yield with_workers("workers × 2" if number else "1 worker", twice, tried_by=BOTH)
        if number > 1:
            yield Change(
                "workers ÷ 2", kind="setting", to=with_keys("loader", num_workers=number // 2), effort=-1,
                key=f"loader.num_workers={number // 2}", helps=("input",),
            )  # fmt: skip
        return
    more = [2 * number] if number < scaling.max and 2 * number <= most_workers(run) else []
    for count in (number, *more):
        yield with_workers(f"{count} worker{'s' * (count != 1)} throughout", count)
    most = min(2 * scaling.max, most_workers(run))
    if most > scaling.max:
        yield with_workers("twice the most workers", most, tried_by=("capacity",))
    for name, least, largest in (("max × 2", scaling.min, most), ("min × 2", 2 * scaling.min, scaling.max)):
        if (least, largest) != (scaling.min, scaling.max) and least <= largest:
            bounds = scaling.model_copy(update={"min": least, "max": largest})
            yield Change(
                name, kind="setting", to=with_keys("loader", num_workers=bounds), helps=("input",),
                key=f"loader.num_workers={{min: {least}, max: {largest}}}",
            )  # fmt: skip


def most_workers(run: Run) -> int:
    """Return the most workers that a rank may have with the run's prefetch factor."""
    return min(MAX_WORKERS, MAX_WINDOW // run.scenario.loader.prefetch_factor)


def with_workers(name: str, number: int, tried_by: tuple[Command, ...] = ("explain",)) -> Change:
    """Return the change to another, fixed number of workers per rank."""
    to = with_keys("loader", num_workers=number)
    return Change(name, kind="workers", to=to, key=f"loader.num_workers={number}", effort=1, tried_by=tried_by)


def of_prefetch(run: Run) -> Iterator[Change]:
    """Other keys of ``loader``: more batches and requests in flight."""
    loader = run.scenario.loader
    factor = 2 * loader.prefetch_factor
    if loader.max_workers and loader.max_workers * factor <= MAX_WINDOW:
        yield Change(
            "prefetch × 2", kind="setting", to=with_keys("loader", prefetch_factor=factor),
            key=f"loader.prefetch_factor={factor}", helps=("input", "loader"), tried_by=BOTH,
        )  # fmt: skip
    if run.was_memory_bound:
        yield Change(
            "no bound on bytes", kind="setting", to=with_keys("loader", max_bytes_in_flight=UNBOUNDED), effort=3,
            key=f"loader.max_bytes_in_flight={BYTES.exact(UNBOUNDED)}", removes=("memory_bound",),
            helps=("input", "loader"),
        )  # fmt: skip


def of_sync(run: Run) -> Iterator[Change]:
    """``train.sync``: ranks that never wait for each other, no or another all-reduce, or half as many meetings."""
    train = run.scenario.train
    has_cost = run.costs.barrier > 0  # of a rank alone, too
    if not train.sync.meets or (derive.world_size(run.scenario) == 1 and not has_cost):
        return
    # What ranks lose to each other in all. Training needs it, so it names no bottleneck and is no advice.
    yield Change("no barrier", kind="removal", to=with_keys("train", sync=NoSync()))
    if isinstance(train.sync, AllReduce):
        free, removal = train.sync.model_copy(update={"bytes": 0, "latency": 0.0}), "all-reduce = 0"
        yield Change(removal, kind="removal", to=with_keys("train", sync=free), removes=("allreduce",))
        other = "tree" if train.sync.algorithm == "ring" else "ring"
        for name, key, value in (("all-reduce", "algorithm", other), ("overlap", "overlap", OVERLAP)):
            if key == "algorithm" or train.sync.overlap < OVERLAP:
                yield Change(
                    f"{name} {value}", kind="setting", key=f"train.sync.{key}={value}", helps=("all-reduce",),
                    to=with_keys("train", sync=train.sync.model_copy(update={key: value})), after=(removal,),
                    tried_by=BOTH,
                )  # fmt: skip
    if (twice := 2 * train.accumulate) <= derive.steps_per_epoch(run.scenario):
        yield Change(
            "accumulate × 2", kind="setting", to=with_keys("train", accumulate=twice), key=f"train.accumulate={twice}",
            helps=("all-reduce", "overhead", "straggler"), after=("no barrier",), effort=3, tried_by=BOTH,
        )  # fmt: skip


def of_device_copy(run: Run) -> Iterator[Change]:
    """``train.device_copy``: copies that take no time, or that compute hides."""
    copy = run.scenario.train.device_copy
    if copy is None:
        return
    yield Change(
        "device_copy = 0", kind="removal", to=with_keys("train", device_copy=None), removes=("device_copy",),
        helps=("device-copy",),
    )  # fmt: skip
    if not copy.overlap and run.workers:
        overlapping = with_keys("train", device_copy=copy.model_copy(update={"overlap": True}))
        pinning, key = with_keys("loader", pin_memory=True), "train.device_copy.overlap=true"
        if copy.pageable_bandwidth is None or run.scenario.loader.pin_memory:
            yield Change(
                "copies overlapped", kind="setting", helps=("device-copy",), key=key, to=overlapping, tried_by=BOTH
            )
        else:  # from pinned memory alone
            yield Change(
                "copies overlapped", kind="setting", helps=("device-copy",), key=f"loader.pin_memory=true {key}",
                to=lambda scenario: overlapping(pinning(scenario)), tried_by=BOTH,
            )  # fmt: skip


def of_pinning(run: Run) -> Iterator[Change]:
    """``loader.pin_memory``: copies into page-locked memory that take no time, or none; or such copies."""
    loader, copy = run.scenario.loader, run.scenario.train.device_copy
    if loader.pin_memory:
        yield Change(
            "pin = 0", kind="removal", to=with_keys("loader", pin_bandwidth=RATE.most), removes=("pin",),
            helps=("input",),
        )  # fmt: skip
        if copy is None or not copy.overlap:
            yield Change(
                "no pinned memory", kind="setting", to=with_keys("loader", pin_memory=False), helps=("input",),
                key="loader.pin_memory=false", tried_by=BOTH,
            )  # fmt: skip
    elif copy is not None and copy.pageable_bandwidth is not None:
        yield Change(
            "pinned memory", kind="setting", to=with_keys("loader", pin_memory=True), helps=("device-copy",),
            key="loader.pin_memory=true", tried_by=BOTH,
        )  # fmt: skip


def of_pipeline(run: Run) -> Iterator[Change]:
    """``train.parallelism.microbatches``: so many that stages are never idle, or twice as many."""
    divided = run.scenario.train.parallelism
    if not divided.bubble:
        return
    twice, most = 2 * divided.microbatches, MAX_BATCH
    yield Change(
        "bubble = 0", kind="removal", removes=("bubble",), helps=("pipeline",),
        to=with_keys("train", parallelism=divided.model_copy(update={"microbatches": most})),
    )  # fmt: skip
    if twice <= run.scenario.loader.batch_size:
        yield Change(
            "microbatches × 2", kind="setting", helps=("pipeline",), key=f"train.parallelism.microbatches={twice}",
            to=with_keys("train", parallelism=divided.model_copy(update={"microbatches": twice})), tried_by=BOTH,
        )  # fmt: skip


def of_checkpoint(run: Run) -> Iterator[Change]:
    """``checkpoint``: none; if checkpoints cost time, asynchronous ones, a part from each rank, and half as many."""
    section, number = run.scenario.checkpoint, derive.num_checkpoints(run.scenario)
    every = None if section is None else section.every
    seconds = None if every is None else every.seconds
    if section is None or not (number or seconds):
        return
    yield Change(
        "no checkpoints", kind="removal", to=lambda scenario: scenario.model_copy(update={"checkpoint": None}),
        removes=("checkpoint", "drain_wait"), helps=("checkpoint",), risks_work=True,
    )  # fmt: skip
    if not section.asynchronous:
        yield Change(
            "checkpoints async", kind="setting", to=with_keys("checkpoint", asynchronous=True),
            key="checkpoint.asynchronous=true", helps=("checkpoint",), after=("no checkpoints",), tried_by=BOTH,
        )  # fmt: skip
    ranks = run.scenario.topology.ranks
    is_cut = 1 < ranks <= section.model.num_bytes and isinstance(section.writers, (RankZero, Dedicated))
    if run.modelled is not None and is_cut and section.subset_of is None:  # real storage: unknown for more writers
        yield Change(
            "checkpoints sharded", kind="setting", to=with_keys("checkpoint", writers=Sharded()),
            key="checkpoint.writers=sharded", helps=("checkpoint",), after=("no checkpoints",), tried_by=BOTH,
        )  # fmt: skip
    if number > 1 or seconds:
        rarer = Every(seconds=2 * seconds) if seconds else _rarer(run.scenario, every)
        yield Change(
            "checkpoints ÷ 2", kind="setting", to=with_keys("checkpoint", every=rarer),
            key=f"checkpoint.every={rarer.written}", helps=("checkpoint",), after=("no checkpoints",), risks_work=True,
        )  # fmt: skip


def of_burst(run: Run) -> Iterator[Change]:
    """``checkpoint.burst``: room for all checkpoints, or for twice as many."""
    section = run.scenario.checkpoint
    if section is None or section.burst is None:
        return
    tier, twice = section.burst, 2 * section.burst.capacity
    roomy, larger = (tier.model_copy(update={"capacity": capacity}) for capacity in (1 << 62, twice))
    yield Change(
        "burst = ∞", kind="removal", to=with_keys("checkpoint", burst=roomy), removes=("drain_wait",),
        helps=("checkpoint",), words="a burst tier with room for all",
    )  # fmt: skip
    yield Change(
        "burst × 2", kind="machine", to=with_keys("checkpoint", burst=larger), helps=("checkpoint",), effort=2,
        key=f"checkpoint.burst.capacity={BYTES.exact(twice)}", tried_by=BOTH,
    )  # fmt: skip


def _rarer(scenario: Scenario, every: Every | None) -> Every:
    """Return a period twice as long, in steps where epochs have the same number, with the same first occasion."""
    if every is None:
        return Every(steps=2 * derive.checkpoint_period(scenario))
    if every.epochs and isinstance(derive.epoch_steps(scenario).each, tuple):
        return Every(epochs=2 * every.epochs, first=every.first)
    in_steps = derive.schedule(scenario, every).in_steps
    return Every(steps=2 * derive.checkpoint_period(scenario), first=in_steps["first"])


def of_stages(run: Run) -> Iterator[Change]:
    """``stages``: no processes besides training, which share the modelled storage."""
    if run.scenario.stages and run.modelled is not None:
        yield Change(
            "no stages", kind="removal", to=lambda scenario: scenario.model_copy(update={"stages": ()}),
            words="no stages at the same time", helps=("input",),
        )  # fmt: skip


def of_evaluations(run: Run) -> Iterator[Change]:
    """``train.evaluate``: none, or half as many."""
    section = run.scenario.train.evaluate
    if section is None or evaluation.phase_of(run.scenario) is None:
        return
    yield Change(
        "no evaluations", kind="removal", to=with_keys("train", evaluate=None), removes=("evaluate",),
        helps=("evaluation",),
    )  # fmt: skip
    if evaluation.num_evaluations(run.scenario) > 1:
        every = section.every
        doubled = {"steps": 2 * every.steps} if every.steps else {"epochs": 2 * (every.epochs or 1)}
        rarer = every.model_copy(update=doubled)
        yield Change(
            "evaluations ÷ 2", kind="setting", helps=("evaluation",), after=("no evaluations",),
            to=with_keys("train", evaluate=section.model_copy(update={"every": rarer})),
            key=f"train.evaluate.every={rarer.written}", tried_by=BOTH,
        )  # fmt: skip
