"""The bottleneck at the end of a capacity search, and changes of the scenario that would help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rayio.analyze.gate import not_reproduced
from rayio.errors import RayioError
from rayio.model.planning import storage_of
from rayio.predict.calibrate import calibrate
from rayio.predict.changes import offered
from rayio.records.doubts import Doubt
from rayio.records.sizing import CapacityChange
from rayio.report.explain import explain
from rayio.report.text.sizing import UNKNOWN
from rayio.reporter import Reporter
from rayio.scenario import checks, derive
from rayio.scenario.change import Change, with_keys
from rayio.scenario.layers import layers_of
from rayio.scenario.model import Costs, Scenario, StorageParameters
from rayio.session.conclude import in_memory
from rayio.session.execute import simulate
from rayio.study.sizing.questions import Question
from rayio.study.sizing.search import largest
from rayio.study.sizing.trials import ROUNDING, au_of

Like = Callable[[Scenario], Scenario]

#: Rank-steps that suffice to find the bottleneck.
ENOUGH_STEPS = 20_000
#: The fewest prefetch windows of such a run.
WINDOWS = 12
#: Target AU for the explanation: every point misses it, so a bottleneck is always named.
MISSED = 1.0
#: The least AU that a listed change adds.
WORTH = 0.005


def binding(scenario: Scenario, run: Path | None, reporter: Reporter) -> str | None:
    """Return a sentence on what keeps a point from its target; None if unknown.

    It explains the point's run, or a simulated one if ``run`` is None.
    """
    try:
        if run is not None:
            return explain(run, target_au=MISSED, reporter=reporter).sentence
        with TemporaryDirectory(prefix="rayio-") as folder:
            simulate(shortened(scenario), out=Path(folder) / "run", root=folder)
            return explain(Path(folder) / "run", simulate=False, target_au=MISSED, reporter=reporter).sentence
    except RayioError:
        return None


def learned(scenario: Scenario, run: Path, measured: float | None, formula: str) -> Like | Doubt | str:
    """Return a change that applies a run's calibrated storage, processors and costs; or why there is none.

    There is none if the run's ``scenario``, simulated with them, does not have the ``measured`` AU.
    """
    try:
        fitted = calibrate(run).scenario
    except RayioError as error:
        return f"{UNKNOWN}: {error}"

    def like(scenario: Scenario) -> Scenario:
        cluster = scenario.cluster.model_copy(update={"cores": fitted.cluster.cores})
        loader = scenario.loader.model_copy(update={"decode": fitted.loader.decode})
        parts = {"storage": fitted.storage, "costs": fitted.costs, "cluster": cluster, "loader": loader}
        return scenario.model_copy(update=parts)

    simulated = _au(like(scenario), formula)
    if simulated is None or measured is None:
        return f"{UNKNOWN}: the calibrated model, or the run, has too few steps for an AU; use a longer run"
    return not_reproduced(simulated, measured) or like


def shortened(scenario: Scenario) -> Scenario:
    """Return a scenario with fewer epochs and steps if it is long, but enough to find its bottleneck."""
    train, one_epoch = scenario.train, derive.total_rank_steps(scenario) // scenario.train.epochs
    epochs = max(1, min(train.epochs, ENOUGH_STEPS // max(one_epoch, 1)))
    fewest = WINDOWS * derive.window_steps(scenario)
    steps = max(fewest, ENOUGH_STEPS // derive.world_size(scenario)) if one_epoch > ENOUGH_STEPS else train.steps
    return scenario.model_copy(update={"train": train.model_copy(update={"epochs": epochs, "steps": steps})})


@dataclass(frozen=True, slots=True)
class Planned:
    """A point for which changes are offered; it may never have run (see ``rayio/scenario/change.py``)."""

    scenario: Scenario
    was_memory_bound: bool = False
    is_throttled: bool = False

    @property
    def modelled(self) -> StorageParameters:
        """Return the storage that it would have on the virtual clock."""
        return storage_of(self.scenario)

    @property
    def costs(self) -> Costs:
        """Return the loader overhead."""
        return self.scenario.charges

    @property
    def workers(self) -> int:
        """Return the most workers of a rank."""
        return self.scenario.loader.max_workers

    @property
    def has_cores(self) -> bool:
        """Return True if its nodes have equal numbers of cores."""
        return isinstance(self.scenario.cluster.cores, int)


def applied(change: Change, scenario: Scenario) -> Scenario:
    """Return the scenario with a change made.

    Where the window is longer with it, so is the epoch: filling it must not pass for a gain. Caches then hold the same
    part of the dataset.
    """
    changed = change.to(scenario)
    if derive.window_steps(changed) <= derive.window_steps(scenario):
        return changed
    steps = None if scenario.train.steps is None else 2 * scenario.train.steps
    changed = with_keys("dataset", num_files=2 * scenario.dataset.num_files)(with_keys("train", steps=steps)(changed))
    for layer in layers_of(scenario, modelled=True):
        changed = layer.scaled(changed)
    return changed


def changes_at(scenario: Scenario, formula: str, reporter: Reporter) -> list[tuple[Change, float]]:
    """Simulate each change of a point; return those that help with their AU, the most helpful first."""
    helpful = []
    baseline = _au(scenario, formula)
    wanted = offered(Planned(scenario), "capacity")
    for number, change in enumerate(wanted):
        reporter.live(f"finding what would help: {number} of {len(wanted)} changes simulated", number / len(wanted))
        changed = applied(change, scenario)
        try:
            checks.check_simulated(changed)
            au = _au(changed, formula)
        except RayioError:
            continue
        if au is not None and baseline is not None and au - baseline >= WORTH:
            helpful.append((change, au))
    return sorted(helpful, key=lambda entry: (-round(entry[1], 3), entry[0].effort))


def _au(scenario: Scenario, formula: str) -> float | None:
    return au_of(in_memory(shortened(scenario)), formula)


def best_change(
    question: Question,
    changes: Sequence[tuple[Change, float]],
    fails: int,
    target: float,
    formula: str,
    most: int,
    like: Like,
) -> tuple[CapacityChange, ...]:
    """Return the changes as records; the first that reaches the target has the accelerators that hold with it.

    ``like`` returns the calibrated scenario of a point.
    """
    rows = [CapacityChange(change=change.advice, au=au, holds=au >= target - ROUNDING) for change, au in changes]
    index = next((number for number, row in enumerate(rows) if row.holds), None)
    if index is None:
        return tuple(rows)
    change = changes[index][0]

    def holds(value: int) -> bool:
        au = _au(applied(change, like(question.scenario(value))), formula)
        return au is not None and au >= target - ROUNDING

    bracket = largest(holds, most, start=fails)
    accelerators = question.accelerators(max(bracket.holds, fails))
    rows[index] = replace(rows[index], accelerators=accelerators, is_at_least=bracket.fails is None)
    return tuple(rows)
