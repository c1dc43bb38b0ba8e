"""A calibrated scenario on the cores of its run: costs without the waits for them, and what full cores can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rayio.analyze.shape import RunShape
from rayio.engines.virtual import simulation
from rayio.model.plan import Plan
from rayio.model.planning import plan_of, storage_of
from rayio.predict.learnable import Learnable
from rayio.predict.processors import SeenCpu
from rayio.predict.replay import UNLIMITED, UNLIMITED_STORAGE, cut
from rayio.predict.run_costs import apparent, beside_others, costs_of_run, step_seconds, warm_since
from rayio.predict.settle import NEAR, Apparent, Free, Most, beside_batches, settle
from rayio.predict.shown import Shown
from rayio.predict.sizes import of_mean
from rayio.records.calibrated import FullBack, LoneBack, Note, NotFull, SimulatedBack
from rayio.scenario.decode import Work
from rayio.scenario.model import Scenario, StorageParameters

if TYPE_CHECKING:
    import pyarrow as pa

#: If a smaller part of the cores was at work, some of that work may not have delayed batches.
BUSY = 0.5
#: A run that uses a smaller part of the cores does not show contention.
FULL = 0.6
#: Costs that a busy run shows without waits for processors: by its shortest steps, and by its CPU times.
KNOWN_WHERE_BUSY = ("step", "barrier", "put")
#: Rounds of fitting contention, and its upper bound.
ROUNDS, MOST = 3, 4.0


def freed(
    scenario: Scenario,
    seen: Apparent,
    requests: float,
    cores: int,
    plan: Plan,
    notes: list[Note],
    *,
    is_busy: bool,
    most: Most,
) -> Scenario:
    """Return the scenario with costs freed of waits for ``cores``; ``requests`` is the mean number of a read.

    With a cost of other ranks, those of ``receive`` and ``step`` are known.
    """
    shape, model = RunShape.of(scenario), scenario.storage.model
    latency = model.first_byte if isinstance(model, StorageParameters) else None

    def changed(free: Free) -> Scenario:
        updated: dict[str, Any] = {"costs": free.costs}
        if isinstance(model, StorageParameters) and latency is not None and free.storage != start.storage:
            first_byte = of_mean(latency, (free.storage or 0.0) / requests)
            updated["storage"] = scenario.storage.model_copy(
                update={"model": model.model_copy(update={"first_byte": first_byte})}
            )
        return scenario.model_copy(update=updated)

    def live(free: Free) -> Apparent:
        wanted = changed(free)
        run = Shown(_simulated(wanted, plan.max_bytes_in_flight), plan)
        warm = warm_since(run.steps, shape, "the simulated run")
        shown_costs = costs_of_run(run, warm, storage_of(wanted), [], is_busy=is_busy)
        # Spans of asynchronous checkpoints do not contain their extra cost.
        if scenario.checkpoint is not None and scenario.checkpoint.asynchronous:
            shown_costs = shown_costs.model_copy(update={"checkpoint": seen.costs.checkpoint})
        return apparent(run, beside_others(shown_costs, most.others if seen.costs.neighbour else 0), warm)

    known = {*(KNOWN_WHERE_BUSY if is_busy else ()), *(("receive", "step") if seen.costs.neighbour else ())}
    start = Free(scenario.charges, None if latency is None else latency.expected * requests)
    settled, shown = settle(start, seen, live, known, most)
    size = scenario.loader.batch_size
    nbytes, decode = size * scenario.dataset.sample_bytes.expected, scenario.loader.decode
    of_batch = settled.costs.cpu_of_batch(size, nbytes)
    of_batch += decode.seconds(size, nbytes) if isinstance(decode, Work) else 0.0
    per_second = scenario.cluster.load / seen.step
    if of_batch * per_second < BUSY * cores:
        settled, shown = beside_batches(settled, shown, seen, live, per_second)
    if shown.step > (1 + NEAR) * seen.step:  # its cores were always busy: its CPU times contain the contention
        cpu = start.costs.cpu.times(max(1 / start.costs.cpu.contention, seen.step / shown.step))
        settled, shown = settle(
            Free(start.costs.model_copy(update={"cpu": cpu}), start.storage), seen, live, known, most
        )
    notes.append(SimulatedBack(cores, shown.step, seen.step))
    return changed(settled)


def as_full(
    scenario: Scenario, runs: Sequence[Learnable], cores: int, notes: list[Note]
) -> tuple[Scenario, tuple[float, ...]]:
    """Return the scenario with the contention of ``runs`` whose cores were full, and the errors of their steps.

    Work takes so many times as long while all cores are busy that the steps of these runs, simulated, take as long as
    they took. Runs that left cores free are ignored; there is no error if all did. Errors are shares of a step.
    """
    shown = [Shown(run.spans, plan_of(run.scenario, modelled=False)) for run in runs]
    seen = []
    for view, run in zip(shown, runs, strict=True):
        step = step_seconds(view, warm_since(view.steps, RunShape.of(run.scenario), run.name))
        worked = SeenCpu.of(run.info, run.name)
        if worked is not None and worked.utilisation(step, cores, run.scenario) >= FULL:
            seen.append((run.scenario, view.plan, step))
    if not seen:
        notes.append(NotFull())
        return scenario, ()
    factors = np.ones(len(seen))
    for _ in range(ROUNDS):
        factors = np.array([_slower(scenario, like, plan, step) for like, plan, step in seen])
        usual = float(np.exp(np.log(factors).mean()))
        if abs(usual - 1) < NEAR / 4:
            break
        scenario = _contended(scenario, usual)
    notes.append(FullBack(len(seen), float(np.abs(factors - 1).max())))
    return scenario, tuple((factors - 1).tolist())


def as_alone(scenario: Scenario, runs: Sequence[Learnable], notes: list[Note]) -> tuple[float, ...]:
    """Return the errors of the simulated steps of lone ``runs``, as shares."""
    errors = errors_of(scenario, runs)
    if errors:
        notes.append(LoneBack(len(runs), max(map(abs, errors))))
    return errors


def errors_of(scenario: Scenario, runs: Sequence[Learnable]) -> tuple[float, ...]:
    """Return by which share the steps of ``runs`` that read from memory took longer than their simulations."""
    errors = []
    for run in runs:
        view = Shown(run.spans, plan_of(run.scenario, modelled=False))
        step = step_seconds(view, warm_since(view.steps, RunShape.of(run.scenario), run.name))
        errors.append(_slower(scenario, run.scenario, view.plan, step) - 1)
    return tuple(errors)


def _slower(scenario: Scenario, like: Scenario, plan: Plan, step: float) -> float:
    """Return by how much longer a run took than its simulation with the costs of ``scenario``, as a factor."""
    changed = {name: getattr(like.loader, name) for name in ("batch_size", "num_workers", "prefetch_factor")}
    if not isinstance(scenario.loader.decode, Work):  # a busy run does not sleep
        changed["decode"] = like.loader.decode
    loader, model = scenario.loader.model_copy(update=changed), scenario.storage.model
    if not (isinstance(model, StorageParameters) and model.bandwidth == UNLIMITED):  # and reads from memory
        model = UNLIMITED_STORAGE
    sections: dict[str, Any] = {
        "loader": loader,
        "storage": scenario.storage.model_copy(update={"model": model}),
        "cluster": like.cluster.model_copy(update={"cores": scenario.cluster.cores}),
        "dataset": like.dataset,
        "train": like.train,
        "checkpoint": None,
    }
    wanted = scenario.model_copy(update=sections)
    run = Shown(_simulated(wanted, plan.max_bytes_in_flight), plan)
    return step / step_seconds(run, warm_since(run.steps, RunShape.of(wanted), "the simulated run"))


def _contended(scenario: Scenario, factor: float) -> Scenario:
    """Return work that takes ``factor`` times as long on full cores; never less than measured CPU time."""
    cpu = scenario.charges.cpu
    cpu = cpu.model_copy(update={"contention": round(min(MOST, max(1.0, cpu.contention * factor)), 4)})
    return scenario.model_copy(update={"costs": scenario.charges.model_copy(update={"cpu": cpu})})


def _simulated(scenario: Scenario, bytes_in_flight: int | None) -> pa.Table:
    if shorter := cut(scenario):
        scenario = scenario.model_copy(update={"train": scenario.train.model_copy(update=shorter)})
    return simulation.spans_of(plan_of(scenario, True, bytes_in_flight))
