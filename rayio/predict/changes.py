"""The changes that can be made to a run: those of all rooms that offer some, and those of recorded times.

:data:`OFFERS` is the whole list. A change is explained in ``rayio/scenario/change.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.stages import OF_LOADER
from rayio.analyze.stragglers import typical_of
from rayio.data import request_changes
from rayio.data.access.per_sample import PerSampleOptions
from rayio.model.planning import storage_of
from rayio.predict.base import Base
from rayio.predict.replay import UNLIMITED, UNLIMITED_STORAGE, Replay, addressed, of_steps
from rayio.scenario import derive, section_changes
from rayio.scenario.change import Change, Command, Run, with_keys
from rayio.scenario.costs import CpuCosts
from rayio.scenario.layers import layers_of, without_layers
from rayio.scenario.model import Costs, Scenario
from rayio.schema.distribution import NO_TIME

#: The format that has no bytes, and the access that asks nothing of a format.
SYNTHETIC, PER_SAMPLE = "synthetic", "per_sample"
#: The part by which the compute of a step's ranks must differ for equal compute to be simulated.
DIFFERS = 0.005


@dataclass(frozen=True, kw_only=True)
class Retimed(Change):
    """A change of recorded times."""

    times: Callable[[Replay, Base], Replay]


def applied(change: Change, replay: Replay, base: Base) -> Replay:
    """Return the replay with a change made."""
    replay = replace(replay, scenario=change.to(replay.scenario))
    return change.times(replay, base) if isinstance(change, Retimed) else replay


def _stages(run: Run) -> Iterator[Change]:
    """Yield changes to decoding and reading without time; written files keep their times."""
    if not isinstance(run, Base):
        return
    if np.nansum(run.measured.decode) > 0:
        yield Retimed(
            "decode = 0", kind="removal", to=lambda scenario: scenario, removes=("decode",), helps=("decode",),
            times=lambda replay, base: replace(replay, times=replace(replay.times, decode=NO_TIME)),
        )  # fmt: skip
    removes = ("read", "open", "retry")
    if run.modelled is not None and not _delaying(run.scenario):
        yield Change("read = 0", kind="removal", to=_made, removes=removes)
    else:
        yield Retimed("read = 0", kind="removal", to=_no_read, times=_writes, removes=removes)


def _made(scenario: Scenario) -> Scenario:
    """Return the scenario with samples that are made, not read: the model of storage still serves written files.

    How a reader would walk files does not matter then.
    """
    by_index = with_keys("loader", file_access=PER_SAMPLE, file_access_options=PerSampleOptions())
    return by_index(with_keys("dataset", format=SYNTHETIC)(_without_work(scenario)))


def _without_work(scenario: Scenario) -> Scenario:
    cpu = scenario.charges.cpu.model_copy(update={"sample": 0.0, "bandwidth": None})
    return scenario.model_copy(update={"costs": scenario.charges.model_copy(update={"cpu": cpu})})


def _delaying(scenario: Scenario) -> list[str]:
    return [layer.name for layer in layers_of(scenario, modelled=True) if layer.causes]


def _no_read(scenario: Scenario) -> Scenario:
    model = storage_of(scenario)
    unlimited = UNLIMITED_STORAGE.model_copy(update={"scope": model.scope, "gap": model.gap, "servers": model.servers})
    scenario = _without_work(scenario)
    return with_keys("storage", model=unlimited)(without_layers(scenario, but=_delaying(scenario)))


def _writes(replay: Replay, base: Base) -> Replay:
    """Return the replay with reads that take only their delays; written files keep their times."""
    read = np.zeros(base.measured.read.shape)
    if base.modelled is None:
        read = sum(base.measured.delays.values(), read)
    return _reading(replay, base, read)


def _reading(replay: Replay, base: Base, read: NDArray[np.float64]) -> Replay:
    times = addressed(replay.scenario.seed, "first_byte", read)
    return replace(replay, times=replace(replay.times, first_byte=base.measured.first_byte(times)))


def _of_layers(run: Run, *, of_nodes: bool = False) -> Iterator[Change]:
    """Yield the changes of each layer; on real storage a layer's delays are subtracted from recorded reads."""
    for layer in layers_of(run.scenario, modelled=run.modelled is not None):
        for change in layer.changes(run) if layer.is_of_nodes == of_nodes else ():
            causes = {*change.removes} & {*layer.causes}
            if isinstance(run, Base) and run.modelled is None and causes:
                parts = {field.name: getattr(change, field.name) for field in fields(change)}
                yield Retimed(**parts, times=partial(_not_held_up, causes))
            elif not (
                isinstance(run, Base) and run.modelled is None and layer.causes
            ):  # its delays are in recorded reads
                yield change


def _not_held_up(causes: Collection[str], replay: Replay, base: Base) -> Replay:
    gone = sum((seconds for cause, seconds in base.measured.delays.items() if cause in causes), 0.0)
    return _reading(replay, base, np.maximum(base.measured.read - gone, 0.0))


def _modelled_with(**keys: Any) -> Callable[[Scenario], Scenario]:
    return lambda scenario: with_keys("storage", model=storage_of(scenario).model_copy(update=keys))(scenario)


def _modelled_storage(run: Run) -> Iterator[Change]:
    """Yield the limits of modelled storage: none for ``explain``, half as narrow for ``capacity``."""
    if (model := run.modelled) is None:
        return

    def limit(name: str, effort: int = 0, **keys: Any) -> Change:
        return Change(name, kind="limit", to=_modelled_with(**keys), effort=effort)

    def twice(words: str, **keys: Any) -> Change:
        tried_by: tuple[Command, ...] = ("capacity",)
        return Change(words, kind="machine", to=_modelled_with(**keys), words=words, tried_by=tried_by, effort=2)

    yield limit("bandwidth = ∞", 1, connection_bandwidth=UNLIMITED, bandwidth=UNLIMITED)
    yield twice("twice the bandwidth of the storage", bandwidth=2 * model.bandwidth)
    yield limit("connections = ∞", connection_bandwidth=UNLIMITED)
    yield twice("twice the bandwidth of a connection", connection_bandwidth=2 * model.connection_bandwidth)
    if (requests := model.requests_per_second) is not None:
        yield limit("requests/s = ∞", requests_per_second=None)
        yield twice("twice the requests per second", requests_per_second=2 * requests)
    if (opens := model.opens_per_second) is not None:
        yield limit("opens/s = ∞", opens_per_second=None)
        yield twice("twice the opens per second", opens_per_second=2 * opens)
    yield limit("latency = 0", first_byte=NO_TIME, open=NO_TIME)
    halves = {"first_byte": model.first_byte.times(0.5), "open": model.open.times(0.5)}
    yield twice("half the latency of requests and opens", **halves)


def _loader_costs(run: Run) -> Iterator[Change]:
    """Yield a loader whose messages and copies take no time; the costs of barrier, step and checkpoint stay."""

    def to(scenario: Scenario) -> Scenario:
        costs = scenario.charges
        parsing = CpuCosts(sample=costs.cpu.sample, bandwidth=costs.cpu.bandwidth, background=costs.cpu.background)
        kept = Costs(barrier=costs.barrier, step=costs.step, checkpoint=costs.checkpoint, cpu=parsing)
        return scenario.model_copy(update={"costs": kept})

    if run.costs.of_loader:
        yield Change("loader = 0", kind="removal", to=to, removes=OF_LOADER, helps=("loader",))


def _stragglers(run: Run) -> Iterator[Change]:
    """Yield compute without ranks that are last in most steps, and without what a step's ranks differ by."""
    if not isinstance(run, Base) or derive.world_size(run.scenario) < 2:
        return
    if run.slow.any():
        yield Retimed(
            "no slow ranks", kind="removal", to=lambda scenario: scenario, times=_typical_compute,
            removes=("straggler",), helps=("straggler",),
        )  # fmt: skip
    if run.scenario.train.sync.meets and _apart(run.measured.compute) > DIFFERS:
        # It measures the loss: nobody can make it, so it is no advice.
        yield Retimed(
            "equal compute", kind="removal", to=lambda scenario: scenario, times=_equal_compute,
            removes=("straggler",),
        )  # fmt: skip


def _apart(compute: NDArray[np.float64]) -> float:
    """Return by what part the mean compute of a step's ranks is below the longest; all steps together."""
    known = ~np.isnan(compute)
    longest = np.where(known, compute, 0.0).max(axis=0)
    mean = np.where(known, compute, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return 1 - float(mean.sum() / longest.sum()) if longest.any() else 0.0


def _equal_compute(replay: Replay, base: Base) -> Replay:
    """Return the replay in which all ranks of a step compute as long as they did in the mean."""
    compute = base.measured.compute
    known = ~np.isnan(compute)
    mean = np.where(known, compute, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    equal = of_steps(replay.scenario.seed, np.where(known, mean, np.nan))
    return replace(replay, times=replace(replay.times, compute=equal))


def _typical_compute(replay: Replay, base: Base) -> Replay:
    """Return the replay with mean compute at most that of the (lower) median rank; jitter stays in proportion."""
    compute = base.measured.compute
    known = ~np.isnan(compute)
    mean = np.where(known, compute, 0).sum(axis=(1, 2)) / np.maximum(known.sum(axis=(1, 2)), 1)
    slow = base.slow if len(base.slow) == len(mean) else np.zeros(len(mean), np.bool_)
    typical = typical_of(mean, slow)
    factor = np.where(mean > typical, typical / np.where(mean > 0, mean, 1), 1.0)
    shortened = of_steps(replay.scenario.seed, compute * factor[:, None, None])
    return replace(replay, times=replace(replay.times, compute=shortened))


#: All offers of changes, in the order in which results list them.
OFFERS: tuple[Callable[[Run], Iterator[Change]], ...] = (
    _stages,
    _modelled_storage,
    _of_layers,
    _loader_costs,
    partial(_of_layers, of_nodes=True),
    section_changes.of_cores,
    request_changes.of_dataset,
    section_changes.of_workers,
    section_changes.of_prefetch,
    _stragglers,
    section_changes.of_sync,
    section_changes.of_device_copy,
    section_changes.of_pinning,
    section_changes.of_stages,
    section_changes.of_pipeline,
    section_changes.of_checkpoint,
    section_changes.of_burst,
    section_changes.of_evaluations,
)


#: Offers of which each change is tried only after one of these: to make them loads every format.
AFTER = {request_changes.of_dataset: request_changes.AFTER}


def offered(run: Run, command: Command, helped: Collection[str] | None = None) -> list[Change]:
    """Return the changes that a command tries on a run; with ``helped``, those that helped, only what may be of use."""
    offers = [offer for offer in OFFERS if helped is None or offer not in AFTER or {*helped}.intersection(AFTER[offer])]
    return [change for offer in offers for change in offer(run) if command in change.tried_by]
