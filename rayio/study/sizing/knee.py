"""What binds where a search ends, and what one change of the scenario would move it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rayio.errors import RayioError
from rayio.model.planning import storage_of
from rayio.predict.calibrate import calibrate
from rayio.predict.changes import offered
from rayio.predict.counterfactual import COMES_BACK
from rayio.records.sizing import CapacityChange
from rayio.report.explain import explain
from rayio.report.text.sizing import UNKNOWN
from rayio.reporter import Reporter
from rayio.scenario import checks, derive
from rayio.scenario.change import Change, with_keys
from rayio.scenario.model import Costs, Scenario, StorageParameters
from rayio.scenario.section_changes import twice_cached
from rayio.session.conclude import in_memory
from rayio.session.execute import simulate
from rayio.study.sizing.questions import Question
from rayio.study.sizing.search import largest
from rayio.study.sizing.trials import ROUNDING, au_of

#: Makes of a scenario what is simulated of it.
Like = Callable[[Scenario], Scenario]

#: Rank-steps that are enough to say what binds.
ENOUGH_STEPS = 20_000
#: Windows of prefetching that it keeps at least.
WINDOWS = 12
#: A point that misses its target, by whatever formula, misses this AU: however little costs most, it is named.
MISSED = 1.0
#: AU that a change must add to be worth a line.
WORTH = 0.005


def binding(scenario: Scenario, run: Path | None, reporter: Reporter) -> str | None:
    """Say what keeps a point from its target: of its run directory, else of one that is simulated for it.

    None where nobody can.
    """
    try:
        if run is not None:
            return explain(run, target_au=MISSED, reporter=reporter).sentence
        with TemporaryDirectory(prefix="rayio-") as folder:
            simulate(shortened(scenario), out=Path(folder) / "run", root=folder)
            # what would change it comes after
            return explain(Path(folder) / "run", simulate=False, target_au=MISSED, reporter=reporter).sentence
    except RayioError:
        return None


def learned(scenario: Scenario, run: Path, made: float | None, formula: str) -> Like | str:
    """What gives a scenario the storage, the processors and the costs that a run on a wall clock had.

    A sentence why there is none, where the run's ``scenario``, simulated with them, has not the AU that was ``made``.
    """
    try:
        taught = calibrate(run).scenario
    except RayioError as error:
        return f"{UNKNOWN}: {error}"

    def like(one: Scenario) -> Scenario:
        cluster = one.cluster.model_copy(update={"cores": taught.cluster.cores})
        loader = one.loader.model_copy(update={"decode": taught.loader.decode})
        told = {"storage": taught.storage, "costs": taught.costs, "cluster": cluster, "loader": loader}
        return one.model_copy(update=told)

    au = _au(like(scenario), formula)
    if au is None or made is None or abs(au - made) > COMES_BACK:
        was, is_now = ("unknown" if one is None else f"{100 * one:.1f} %" for one in (made, au))
        return f"{UNKNOWN}: the calibrated model gives AU {is_now}, the run had {was}"
    return like


def shortened(scenario: Scenario) -> Scenario:
    """The same with fewer epochs, then steps, where it is long: enough to see what it waits for."""
    train, one_epoch = scenario.train, derive.total_rank_steps(scenario) // scenario.train.epochs
    epochs = max(1, min(train.epochs, ENOUGH_STEPS // max(one_epoch, 1)))
    fewest = WINDOWS * derive.window_steps(scenario)
    steps = max(fewest, ENOUGH_STEPS // derive.world_size(scenario)) if one_epoch > ENOUGH_STEPS else train.steps
    return scenario.model_copy(update={"train": train.model_copy(update={"epochs": epochs, "steps": steps})})


@dataclass(frozen=True, slots=True)
class Planned:
    """A point that may never have run: what changes are offered for (see ``rayio/scenario/change.py``)."""

    scenario: Scenario
    was_memory_bound: bool = False
    is_throttled: bool = False

    @property
    def modelled(self) -> StorageParameters:
        """The storage that it would have on the virtual clock."""
        return storage_of(self.scenario)

    @property
    def costs(self) -> Costs:
        """What its loader would take beside reading."""
        return self.scenario.charges

    @property
    def workers(self) -> int:
        """Readers of a rank, at most."""
        return self.scenario.loader.max_workers

    @property
    def has_cores(self) -> bool:
        """Whether its nodes have so many cores each."""
        return isinstance(self.scenario.cluster.cores, int)


def made(change: Change, scenario: Scenario) -> Scenario:
    """Return the scenario with a change made.

    Where the window is longer with it, so is the epoch: filling it must not pass for a gain. Caches then hold the same
    part of the dataset.
    """
    changed = change.to(scenario)
    if derive.window_steps(changed) <= derive.window_steps(scenario):
        return changed
    steps = None if scenario.train.steps is None else 2 * scenario.train.steps
    changed = with_keys("dataset", num_files=2 * scenario.dataset.num_files)(with_keys("train", steps=steps)(changed))
    return changed if scenario.storage.cache is None else twice_cached(changed)


def changes_at(scenario: Scenario, formula: str, reporter: Reporter) -> list[tuple[Change, float]]:
    """Simulate each change of a point; return those that help with their AU, the most helpful first."""
    found = []
    as_it_is = _au(scenario, formula)
    wanted = offered(Planned(scenario), "capacity")
    for number, change in enumerate(wanted):
        reporter.live(f"what would move it: {number} of {len(wanted)} changes simulated", number / len(wanted))
        changed = made(change, scenario)
        try:
            checks.check_simulated(changed)
            au = _au(changed, formula)
        except RayioError:
            continue
        if au is not None and as_it_is is not None and au - as_it_is >= WORTH:
            found.append((change, au))
    return sorted(found, key=lambda one: (-round(one[1], 3), one[0].effort))


def _au(scenario: Scenario, formula: str) -> float | None:
    return au_of(in_memory(shortened(scenario)), formula)


def best_change(
    question: Question,
    found: Sequence[tuple[Change, float]],
    fails: int,
    target: float,
    formula: str,
    most: int,
    like: Like,
) -> tuple[CapacityChange, ...]:
    """Write the changes down; of the first that keeps the target, how many accelerators hold with it.

    ``like`` makes what is simulated of the scenario of a point.
    """
    rows = [CapacityChange(change=change.advice, au=au, holds=au >= target - ROUNDING) for change, au in found]
    place = next((number for number, row in enumerate(rows) if row.holds), None)
    if place is None:
        return tuple(rows)
    change = found[place][0]

    def holds(value: int) -> bool:
        au = _au(made(change, like(question.scenario(value))), formula)
        return au is not None and au >= target - ROUNDING

    bracket = largest(holds, most, start=fails)
    accelerators = question.accelerators(max(bracket.holds, fails))
    rows[place] = replace(rows[place], accelerators=accelerators, is_at_least=bracket.fails is None)
    return tuple(rows)
