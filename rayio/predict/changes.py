"""What can be changed about a run that is lived again, one thing at a time: its causes removed, and real changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.shape import RunShape
from rayio.analyze.stages import STAGES
from rayio.analyze.stalls import attribute
from rayio.analyze.stragglers import typical_of
from rayio.analyze.verdict import judge
from rayio.data.asked import requests_per_sample
from rayio.engines.virtual import simulation
from rayio.errors import RayioError
from rayio.kinds import FORMATS
from rayio.model.planning import plan_of, storage_of
from rayio.predict.processors import Worked
from rayio.predict.replay import UNLIMITED, UNLIMITED_STORAGE, Measured, RecordedTimes, Replay, addressed, of_steps
from rayio.scenario import checks, derive, evaluation
from rayio.scenario.costs import CpuCosts
from rayio.scenario.model import Costs, NoSync, Scenario, StorageParameters
from rayio.scenario.workers import MAX_WORKERS, Autoscaled
from rayio.schema.choice import options_of
from rayio.schema.distribution import NO_TIME
from rayio.schema.every import Every
from rayio.seeds import Draws
from rayio.storage.model import REQUESTS_PER_STEP_BITS
from rayio.units import BYTES

#: Part of the time that a change must save to be worth naming.
WORTH = 0.01
#: Processors that are busy for this part of their time have nothing left to give.
FULL = 0.9
#: Formats that are tried in place of the one that there is: each holds the same samples, with its own requests.
OF_SAMPLES = ("npz", "hdf5", "tfrecord")
#: Requests of a sample that another format must save to be tried.
FEWER = 0.9


@dataclass(frozen=True)
class Base:
    """A run made ready to be lived again."""

    scenario: Scenario
    measured: Measured
    #: Storage of the run where it was a model; None for real storage, which is replayed as it was.
    modelled: StorageParameters | None
    #: What ``loader.max_bytes_in_flight: auto`` came to.
    bytes_in_flight: int | None
    was_memory_bound: bool
    #: Which ranks are last in most steps.
    slow: NDArray[np.bool_]
    #: Readers of a rank: on average, where they came and went.
    workers: int
    #: Mean bytes of a batch; None where no span says so.
    batch_bytes: float | None
    #: Whether real storage refused so many requests that nobody knows what it gives other numbers of workers.
    is_throttled: bool = False

    def simulate(self, replay: Replay) -> dict[str, Any]:
        """Live a scenario on the virtual engine, with the times at hand, and judge it.

        ``lasted`` is from the first step's begin to the last one's end, in s.
        """
        plan = plan_of(replay.scenario, True, self.bytes_in_flight, replay.times)
        charged = attribute(simulation.spans_of(plan))
        found = judge(charged, RunShape.of(replay.scenario))
        steps = charged.steps
        found["lasted"] = float(steps.end.max() - steps.start.min()) / 1e9 if steps.number else 0.0
        if found["next"] in STAGES and self._fills_cores(replay, found["samples_per_second"]):
            found["next"] = "processors"
        return found

    def _fills_cores(self, replay: Replay, samples_per_second: float | None) -> bool:
        """Whether a simulated run had next to all that its cores have."""
        worked = Worked.planned(replay.scenario, is_decoded=replay.times.decode is None)
        if worked is None or samples_per_second is None:
            return False
        row = worked.stage(replay.scenario, self.batch_bytes, samples_per_second / replay.scenario.loader.batch_size)
        return row is not None and row["utilisation"] >= FULL


#: Changes what is simulated; the base says what the run measured.
Change = Callable[[Replay, Base], Replay]


def _with(replay: Replay, section: str, **keys: Any) -> Replay:
    changed = getattr(replay.scenario, section).model_copy(update=keys)
    return replace(replay, scenario=replay.scenario.model_copy(update={section: changed}))


def _timed(replay: Replay, **times: Draws) -> Replay:
    return replace(replay, times=replace(replay.times, **times))


def _no_decode(replay: Replay, base: Base) -> Replay:
    return _timed(replay, decode=NO_TIME)


def _unlimited(replay: Replay, base: Base) -> Replay:
    """Modelled storage without limits of bandwidth; its latencies stay."""
    model = storage_of(replay.scenario)
    keys = {"connection_bandwidth": UNLIMITED, "bandwidth": UNLIMITED}
    return _with(replay, "storage", model=model.model_copy(update=keys))


def _limit_gone(**keys: Any) -> Change:
    """Modelled storage without one of its limits; the others stay."""

    def change(replay: Replay, base: Base) -> Replay:
        return _with(replay, "storage", model=storage_of(replay.scenario).model_copy(update=keys))

    return change


def _unthrottled(replay: Replay, base: Base) -> Replay:
    """Modelled storage that refuses nobody; its other limits stay."""
    return _with(replay, "storage", throttle=None)


def _more_prefixes(replay: Replay, base: Base) -> Replay:
    """Twice the prefixes, each with the rates that it had."""
    throttle = replay.scenario.storage.throttle
    more = None if throttle is None else throttle.model_copy(update={"prefixes": 2 * throttle.prefixes})
    return _with(replay, "storage", throttle=more)


def _larger_cache(replay: Replay, base: Base) -> Replay:
    """Twice the memory for samples on each node."""
    (tier,) = replay.scenario.storage.cache or ()
    return _with(replay, "storage", cache=(tier.model_copy(update={"bytes": 2 * tier.bytes}),))


def _no_read(replay: Replay, base: Base) -> Replay:
    """Reads take no time; files that are written take what they took."""
    nothing = addressed(replay.scenario.seed, "first_byte", np.zeros(base.measured.read.shape))
    writes = RecordedTimes(nothing, 1 << REQUESTS_PER_STEP_BITS, base.measured.write)
    unlimited = UNLIMITED_STORAGE.model_copy(update={"scope": storage_of(replay.scenario).scope})
    replay = _costing(replay, replay.scenario.charges.cpu.model_copy(update={"sample": 0.0, "bandwidth": None}))
    return _timed(_with(replay, "storage", model=unlimited, throttle=None, cache=None), first_byte=writes)


def _costing(replay: Replay, cpu: CpuCosts) -> Replay:
    """The same with other costs of processors."""
    costs = replay.scenario.charges.model_copy(update={"cpu": cpu})
    return replace(replay, scenario=replay.scenario.model_copy(update={"costs": costs}))


def _no_stragglers(replay: Replay, base: Base) -> Replay:
    """Every rank's mean compute is at most that of the (lower) median rank; its jitter stays, in proportion.

    Where some ranks are last in most steps, the median is that of the others: most ranks may be slow.
    """
    compute = base.measured.compute
    known = ~np.isnan(compute)
    mean = np.where(known, compute, 0).sum(axis=(1, 2)) / np.maximum(known.sum(axis=(1, 2)), 1)
    slow = base.slow if len(base.slow) == len(mean) else np.zeros(len(mean), np.bool_)
    typical = typical_of(mean, slow)
    factor = np.where(mean > typical, typical / np.where(mean > 0, mean, 1), 1.0)
    return _timed(replay, compute=of_steps(replay.scenario.seed, compute * factor[:, None, None]))


def _no_barrier(replay: Replay, base: Base) -> Replay:
    return _with(replay, "train", sync=NoSync())


def _no_checkpoints(replay: Replay, base: Base) -> Replay:
    return replace(replay, scenario=replay.scenario.model_copy(update={"checkpoint": None}))


def _written_behind(replay: Replay, base: Base) -> Replay:
    """Ranks wait for checkpoints only until the state is copied, at ``checkpoint.snapshot_bandwidth``."""
    return _with(replay, "checkpoint", asynchronous=True)


def _half_as_many(replay: Replay, base: Base) -> Replay:
    """Checkpoints come half as often."""
    return _with(replay, "checkpoint", every=Every(steps=2 * derive.checkpoint_period(replay.scenario)))


def _no_evaluations(replay: Replay, base: Base) -> Replay:
    return _with(replay, "train", evaluate=None)


def _no_loader(replay: Replay, base: Base) -> Replay:
    """The loader's messages and copies take no time; those of barrier, step and checkpoint stay."""
    costs = replay.scenario.charges
    parsing = CpuCosts(sample=costs.cpu.sample, bandwidth=costs.cpu.bandwidth, background=costs.cpu.background)
    kept = Costs(barrier=costs.barrier, step=costs.step, checkpoint=costs.checkpoint, cpu=parsing)
    return replace(replay, scenario=replay.scenario.model_copy(update={"costs": kept}))


def _no_network(replay: Replay, base: Base) -> Replay:
    """The way of batches between nodes takes no time."""
    return _with(replay, "cluster", nic_bandwidth=None, nic_latency=0.0)


def _more_reader_nodes(replay: Replay, base: Base) -> Replay:
    return _with(replay, "cluster", reader_nodes=2 * replay.scenario.cluster.reader_nodes)


def _unbounded(replay: Replay, base: Base) -> Replay:
    return _with(replay, "loader", max_bytes_in_flight=1 << 60)


def _more_cores(replay: Replay, base: Base) -> Replay:
    """Every node has twice the cores."""
    cores = replay.scenario.cluster.cores
    more = tuple(2 * each for each in cores) if isinstance(cores, tuple) else 2 * (cores or 1)
    return _with(replay, "cluster", cores=more)


def with_workers(replay: Replay, number: int) -> Replay:
    """The same with another number of readers per rank, which stay."""
    return _with(replay, "loader", num_workers=number)


def _workers(number: int) -> Change:
    def change(replay: Replay, base: Base) -> Replay:
        return with_workers(replay, number)

    return change


def _bounds(scaling: Autoscaled) -> Change:
    def change(replay: Replay, base: Base) -> Replay:
        return _with(replay, "loader", num_workers=scaling)

    return change


def changes_of_workers(base: Base) -> dict[str, Change]:
    """More readers and fewer; of readers that come and go, as many as there were, for good, and other bounds."""
    scaling, number = base.scenario.loader.num_workers, base.workers
    if not isinstance(scaling, Autoscaled):
        found = {"workers × 2" if number else "1 worker": _workers(max(1, 2 * number))}
        return found | ({"workers ÷ 2": _workers(number // 2)} if number > 1 else {})
    found = {f"{number} worker{'s' * (number != 1)} throughout": _workers(number)}
    if number < scaling.max:
        found[f"{2 * number} workers throughout"] = _workers(2 * number)
    return found | {name: _bounds(other) for name, other in other_bounds(scaling).items()}


def other_bounds(scaling: Autoscaled) -> dict[str, Autoscaled]:
    """The bounds of readers that come and go, each twice as large, by the name of that change."""
    most = min(2 * scaling.max, MAX_WORKERS)
    found = {} if most == scaling.max else {"max × 2": scaling.model_copy(update={"max": most})}
    if 2 * scaling.min <= scaling.max:
        found["min × 2"] = scaling.model_copy(update={"min": 2 * scaling.min})
    return found


def _deeper(replay: Replay, base: Base) -> Replay:
    return _with(replay, "loader", prefetch_factor=2 * replay.scenario.loader.prefetch_factor)


def changes(base: Base) -> dict[str, Change]:
    """The counterfactuals that could matter to a run, by name."""
    scenario, measured = base.scenario, base.measured
    found: dict[str, Change] = {}
    if np.nansum(measured.decode) > 0:
        found["decode = 0"] = _no_decode
    found["read = 0"] = _no_read
    if base.modelled is not None:
        found["bandwidth = ∞"] = _unlimited
        found["connections = ∞"] = _limit_gone(connection_bandwidth=UNLIMITED)
        if base.modelled.requests_per_second is not None:
            found["requests/s = ∞"] = _limit_gone(requests_per_second=None)
        if base.modelled.opens_per_second is not None:
            found["opens/s = ∞"] = _limit_gone(opens_per_second=None)
        if scenario.storage.throttle is not None:
            found["no throttling"] = _unthrottled
            found["prefixes × 2"] = _more_prefixes
        found["latency = 0"] = _limit_gone(first_byte=NO_TIME, open=NO_TIME)
        if (cached := scenario.storage.cache_bytes) is not None and cached < derive.dataset_bytes(scenario):
            found["cache × 2"] = _larger_cache
    if measured.costs.of_loader:
        found["loader = 0"] = _no_loader
    if scenario.cluster.has_network and scenario.cluster.is_crossed:
        found["network = ∞"] = _no_network
        if scenario.cluster.has_reader_tier and not isinstance(scenario.cluster.cores, tuple):
            found["reader_nodes × 2"] = _more_reader_nodes
    if Worked.planned(scenario.model_copy(update={"costs": measured.costs})) is not None:
        found["cores × 2"] = _more_cores
    if not base.is_throttled:
        found |= changes_of_workers(base)
    if scenario.loader.max_workers:
        found["prefetch × 2"] = _deeper
    if base.was_memory_bound:
        found["no bound on bytes"] = _unbounded
    if derive.world_size(scenario) > 1:
        found["no stragglers"] = _no_stragglers
        if scenario.train.sync.meets:
            found["no barrier"] = _no_barrier
    if derive.num_checkpoints(scenario):
        found["no checkpoints"] = _no_checkpoints
    if evaluation.phase_of(scenario) is not None:
        found["no evaluations"] = _no_evaluations
    return found


def further_changes(base: Base, saved: Mapping[str, float]) -> dict[str, Change]:
    """The changes that take part of a cause away, by name: where ``saved``, by removals, says that the cause counts."""
    return _changes_of_requests(base, saved) | _changes_of_checkpoints(base, saved)


def _changes_of_checkpoints(base: Base, saved: Mapping[str, float]) -> dict[str, Change]:
    """When checkpoints are saved, and how long ranks wait for them."""
    found: dict[str, Change] = {}
    if (section := base.scenario.checkpoint) is None or saved.get("no checkpoints", 0.0) < WORTH:
        return found
    if not section.asynchronous:
        found["checkpoints async"] = _written_behind
    if derive.num_checkpoints(base.scenario) > 1:
        found["checkpoints ÷ 2"] = _half_as_many
    return found


def _changes_of_requests(base: Base, saved: Mapping[str, float]) -> dict[str, Change]:
    """How many requests a batch takes, and how many are in flight; of modelled storage alone."""
    if base.modelled is None or max(saved.get(name, 0.0) for name in OF_REQUESTS) < WORTH:
        return {}
    found: dict[str, Change] = {}
    scenario = base.scenario
    now = requests_per_sample(scenario)
    for name in OF_SAMPLES:
        options = options_of(FORMATS[name])()
        if name != scenario.dataset.format and _has_fewer(scenario, now, format=name, options=options):
            found[f"format {name}"] = _of_dataset(format=name, options=options)
    if (chunk := getattr(scenario.dataset.options, "chunk", None)) is not None:
        larger = scenario.dataset.options.model_copy(update={"chunk": 2 * chunk})
        if _has_fewer(scenario, now, options=larger):
            found["chunk × 2"] = _of_dataset(options=larger)
    if saved.get("latency = 0", 0.0) >= WORTH and scenario.loader.io_depth < now * scenario.loader.batch_size:
        found["io_depth × 2"] = _more_in_flight
    return found


#: Removals of what each request takes by itself.
OF_REQUESTS = ("latency = 0", "requests/s = ∞", "no throttling")


def _of_dataset(**keys: Any) -> Change:
    def change(replay: Replay, base: Base) -> Replay:
        return _with(replay, "dataset", **keys)

    return change


def _more_in_flight(replay: Replay, base: Base) -> Replay:
    return _with(replay, "loader", io_depth=2 * replay.scenario.loader.io_depth)


def _has_fewer(scenario: Scenario, now: float, **keys: Any) -> bool:
    """Whether a dataset that is otherwise the same would be read in fewer requests, if it can be at all."""
    changed = scenario.model_copy(update={"dataset": scenario.dataset.model_copy(update=keys)})
    try:
        checks.check(changed)
        return requests_per_sample(changed) < FEWER * now
    except RayioError:
        return False


def keys_of(scenario: Scenario) -> dict[str, str]:
    """The changes that keys of a scenario make, with what to write."""
    loader, chunk = scenario.loader, getattr(scenario.dataset.options, "chunk", None)
    throttle, cached = scenario.storage.throttle, scenario.storage.cache_bytes
    bounds = other_bounds(loader.num_workers) if isinstance(loader.num_workers, Autoscaled) else {}
    return {
        "workers ÷ 2": f"loader.num_workers={loader.max_workers // 2}",
        **{name: f"loader.num_workers={{min: {one.min}, max: {one.max}}}" for name, one in bounds.items()},
        "prefetch × 2": f"loader.prefetch_factor={2 * loader.prefetch_factor}",
        **({} if throttle is None else {"prefixes × 2": f"storage.throttle.prefixes={2 * throttle.prefixes}"}),
        **({} if cached is None else {"cache × 2": f"storage.cache=[{{tier: ram, bytes: {BYTES.exact(2 * cached)}}}]"}),
        "io_depth × 2": f"loader.io_depth={2 * loader.io_depth}",
        **{f"format {name}": f"dataset.format={name}" for name in OF_SAMPLES},
        **({} if chunk is None else {"chunk × 2": f"dataset.chunk={BYTES.exact(2 * chunk)}"}),
        "reader_nodes × 2": f"cluster.reader_nodes={2 * scenario.cluster.reader_nodes}",
        "no bound on bytes": "no bound on bytes (loader.max_bytes_in_flight)",
        "checkpoints async": "checkpoint.asynchronous=true",
        "checkpoints ÷ 2": f"checkpoint.every={{steps: {2 * derive.checkpoint_period(scenario)}}}",
    }
