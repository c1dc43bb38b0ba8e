"""A run -> its apparent costs, since it was warm: with the waits for processors that are in them."""

from __future__ import annotations

import numpy as np

from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import Steps
from rayio.errors import RunError
from rayio.predict import saving
from rayio.predict.costs import FEW, costs, typical, waited
from rayio.predict.settle import Apparent
from rayio.predict.shown import Shown
from rayio.records.calibrated import BarrierHidden, FewWaits, MemoryBound, Note, PutInTake
from rayio.scenario.model import Costs, StorageParameters

#: Fewer steps than this, per rank and after the warm-up, are too few to learn from.
MIN_STEPS = 10


def costs_of_run(run: Shown, warm: int, model: StorageParameters, notes: list[Note], *, is_busy: bool = False) -> Costs:
    """Return the costs, and add to ``notes`` those that the run could not show."""
    plan, seen = run.plan, run.batches
    loader, has_queue = plan.loader, plan.loader.num_workers > 0
    backlog = loader.assignment != "dynamic" and loader.prefetch_factor > 1
    learned = costs(
        seen, run.steps, warm, payload=plan.payload, backlog=backlog,
        meetings=plan.meetings, is_busy=is_busy,
    )  # fmt: skip
    if has_queue and (waits := int(waited(seen).sum())) < FEW:
        notes.append(FewWaits(waits))
    if has_queue and not backlog:
        notes.append(PutInTake())
    if plan.has_barrier and not learned.barrier:
        notes.append(BarrierHidden())
    if run.is_bound:
        notes.append(MemoryBound())
    return learned.model_copy(update={"checkpoint": saving.beyond_model(run, model)})


def refuse_few(name: str, steps: int, warmup: int) -> None:
    """Refuse a run whose ranks have only so many steps after those of the warm-up.

    Raises:
        RunError: there are too few.
    """
    if steps < MIN_STEPS:
        raise RunError(
            f"{name} has {max(0, steps)} steps per rank after its {warmup} warm-up steps; "
            f"calibrating needs at least {MIN_STEPS}: run more steps or epochs"
        )


def warm_since(steps: Steps, shape: RunShape, name: str) -> int:
    """Return when every rank was warm (ns).

    Raises:
        RunError: there are too few steps after that.
    """
    number = np.bincount(steps.life, minlength=shape.world_size)
    fewest = int(number.min(initial=steps.number)) - shape.warmup_steps
    refuse_few(name, fewest if len(number) <= shape.world_size else 0, shape.warmup_steps)
    first = np.cumsum(number) - number
    warm = steps.end[first + shape.warmup_steps - 1] if shape.warmup_steps else steps.start[first]
    return int(warm.max())


def beside_others(shown: Costs, others: int) -> Costs:
    """Return the costs with what so many ``others`` on the node may have added to receive and step (s)."""
    return shown.model_copy(update={"neighbour": (shown.receive + shown.step) / others}) if others else shown


def apparent(run: Shown, shown: Costs, warm: int) -> Apparent:
    """Return the values that a run shows."""
    read = run.reads
    return Apparent(shown, typical((read.end - read.start)[read.start >= warm]) / 1e9, step_seconds(run, warm))


def step_seconds(run: Shown, warm: int) -> float:
    """Return the mean time of a warm step (s)."""
    steps = run.steps
    kept = steps.start >= warm
    whole = steps.end[kept].max() - steps.start[kept].min()
    ranks = int(steps.life.max(initial=0)) + 1
    return float(whole) / 1e9 / max(1, int(kept.sum()) // ranks)
