"""The bottleneck at the end of a capacity search, and changes of the scenario that would help.

One change at a time is tried first. Where none reaches the target, the most promising ones are tried in pairs, and then
many more workers with many more requests in flight: a setting for which ``advise`` finds the cheapest one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import yaml

from rayio.analyze.gate import not_reproduced
from rayio.analyze.worth import is_worth_proposing
from rayio.errors import RayioError
from rayio.machine.calls import in_order
from rayio.model.planning import storage_of
from rayio.predict.changes import offered
from rayio.records.calibrated import NoBusyRun, NotFull
from rayio.records.doubts import Doubt
from rayio.records.sizing import HOLDS, UNDECIDED, Bottleneck, CapacityChange, Combination
from rayio.records.sizing_notes import CoresUnsure, NotLearned, SizingNote
from rayio.records.sweeps import DONE
from rayio.report.explain import explain
from rayio.report.text.conclusion import bottleneck_in_words
from rayio.report.text.supplying import short_storage
from rayio.reporter import Reporter
from rayio.scenario import checks, derive
from rayio.scenario.change import Change, with_keys
from rayio.scenario.layers import layers_of
from rayio.scenario.loader import MAX_DEPTH
from rayio.scenario.model import Costs, Scenario, StorageParameters
from rayio.scenario.workers import MAX_WORKERS
from rayio.schema.every import Every
from rayio.session.busy_runs import calibrated
from rayio.session.calibration import Calibration
from rayio.session.conclude import in_memory
from rayio.session.execute import simulate
from rayio.study.sizing.questions import Question
from rayio.study.sizing.search import largest
from rayio.study.sizing.trials import MOST_RUNS, ROUNDING, Trial, au_of, judge, simulations
from rayio.study.sweeps.sweep_rows import Row

Like = Callable[[Scenario], Scenario]

#: Rank-steps that suffice to find the bottleneck.
ENOUGH_STEPS = 20_000
#: The fewest prefetch windows of such a run.
WINDOWS = 12
#: The most rank steps that a shortened run has for the sake of one checkpoint or evaluation.
LONGEST_STEPS = 4 * ENOUGH_STEPS
#: Target AU for the explanation: every point misses it, so a bottleneck is always named.
MISSED = 1.0
#: The most helpful changes that are tried in pairs.
PAIRED = 3
#: How many times the workers and the requests in flight of a worker are tried where pairs are not enough.
WIDER, DEEPER = 16, 8
WORKERS, DEPTH = "loader.num_workers", "loader.io_depth"
#: The file of a scenario with what a run on a wall clock taught.
CALIBRATED = "calibrated.yaml"


def bottleneck_of(scenario: Scenario, run: str | None, reporter: Reporter) -> Bottleneck | None:
    """Return what keeps a point from its target; None if unknown.

    It explains the point's run, or a simulated one if ``run`` is None. No change is simulated here: the changes of
    the answer are those that the search tries.
    """
    try:
        if run is not None:
            explained = explain(run, simulate=False, target_au=MISSED, reporter=reporter)
        else:
            with TemporaryDirectory(prefix="rayio-") as folder:
                simulate(shortened(scenario), out=Path(folder) / "run", root=folder)
                explained = explain(Path(folder) / "run", simulate=False, target_au=MISSED, reporter=reporter)
    except RayioError:
        return None
    verdict, limit = explained.verdict, short_storage(explained.verdict, explained.capacity)
    return Bottleneck(
        accelerators=derive.world_size(scenario),
        bound=verdict.bound,
        cause=verdict.cause,
        share=verdict.bound_share,
        resource=None if limit is None else limit.resource,
        sentence=bottleneck_in_words(explained),
    )


def learned(
    scenario: Scenario, run: str, measured: float | None, formula: str, address: str | None, notes: list[SizingNote]
) -> Like | Doubt | NotLearned:
    """Return a change that applies a run's calibrated storage, processors and costs; or why there is none.

    There is none if the run's ``scenario``, simulated with them, does not have the ``measured`` AU. A run on Ray gets a
    busy run on the cluster at ``address``, as in ``rayio calibrate``; where it has none, a note is added to ``notes``.
    """
    try:
        calibration = calibrated(run, address=address)
    except RayioError as error:
        return NotLearned(str(error))
    fitted = calibration.scenario
    notes += _unsure(calibration)

    def like(scenario: Scenario) -> Scenario:
        cluster = scenario.cluster.model_copy(update={"cores": fitted.cluster.cores})
        loader = scenario.loader.model_copy(update={"decode": fitted.loader.decode})
        parts = {"storage": fitted.storage, "costs": fitted.costs, "cluster": cluster, "loader": loader}
        return scenario.model_copy(update=parts)

    simulated = _au(like(scenario), formula)
    if simulated is None or measured is None:
        return NotLearned()
    return not_reproduced(simulated, measured) or like


def _unsure(calibration: Calibration) -> list[SizingNote]:
    """Return a note if CPU times are those of processors that were not full."""
    missing = [note for note in calibration.records if isinstance(note, NoBusyRun | NotFull)]
    cpu = calibration.scenario.charges.cpu
    return [CoresUnsure(note, cpu.at_least, cpu.at_most) for note in missing[:1]]


def shortened(scenario: Scenario) -> Scenario:
    """Return a scenario with fewer epochs and steps if it is long, but enough to find its bottleneck.

    It has as many checkpoints and evaluations a step, if one of each fits into `LONGEST_STEPS`.
    """
    train, of_epoch, ranks = scenario.train, derive.steps_per_epoch(scenario), derive.world_size(scenario)
    enough, period = ENOUGH_STEPS // ranks, max(_periods(scenario).values(), default=0)
    if 0 < period <= LONGEST_STEPS // ranks:
        enough = max(1, enough // period) * period
    epochs = max(1, min(train.epochs, enough // max(of_epoch, 1)))
    steps = max(WINDOWS * derive.window_steps(scenario), enough) if of_epoch > enough else train.caps(epochs)
    short = scenario.model_copy(update={"train": train.model_copy(update={"epochs": epochs, "steps": steps})})
    return _as_often(short, scenario)


def _periods(scenario: Scenario) -> dict[str, int]:
    """Return the steps from one checkpoint and one evaluation to the next, where there are any."""
    saved, tried = scenario.checkpoint, scenario.train.evaluate
    every = {"checkpoint": saved.every if saved else None, "evaluate": tried.every if tried else None}
    return {name: derive.period(scenario, often) for name, often in every.items() if often is not None}


def _as_often(changed: Scenario, scenario: Scenario) -> Scenario:
    """Return a changed scenario with its checkpoints and evaluations after as many steps as in the other one."""
    every = {name: Every(steps=steps) for name, steps in _periods(scenario).items()}
    if (saved := scenario.checkpoint) is not None and saved.every is not None and saved.every.seconds is not None:
        del every["checkpoint"]  # the clock of a shorter run is the same
    if changed.checkpoint is not None and "checkpoint" in every:
        saved = changed.checkpoint.model_copy(update={"every": every["checkpoint"]})
        changed = changed.model_copy(update={"checkpoint": saved})
    if changed.train.evaluate is not None and "evaluate" in every:
        tried = changed.train.evaluate.model_copy(update={"every": every["evaluate"]})
        changed = with_keys("train", evaluate=tried)(changed)
    return changed


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
    part of the dataset, and checkpoints and evaluations come after as many steps.
    """
    changed = change.to(scenario)
    if derive.window_steps(changed) <= derive.window_steps(scenario):
        return changed
    caps = scenario.train.steps
    steps = None if caps is None else tuple(2 * cap for cap in caps) if isinstance(caps, tuple) else 2 * caps
    changed = with_keys("dataset", num_files=2 * scenario.dataset.num_files)(with_keys("train", steps=steps)(changed))
    for layer in layers_of(scenario, modelled=True):
        changed = layer.scaled(changed)
    return _as_often(changed, scenario)


@dataclass(frozen=True, slots=True)
class Tried:
    """A change that helps, with the AU of the same simulation with and without it."""

    change: Change
    au: float
    without: float
    is_pair: bool = False


def changes_at(scenario: Scenario, formula: str, target: float, reporter: Reporter) -> list[Tried]:
    """Simulate each change of a point; return those worth proposing, the most helpful first.

    Where none reaches the target, the best pair of the most helpful ones is the last entry, if it helps more.
    """
    began = perf_counter()
    baseline = _au(scenario, formula)
    seconds = perf_counter() - began

    def helping(changes: Sequence[Change]) -> list[Tried]:
        possible = [(change, applied(change, scenario)) for change in changes]
        possible = [(change, changed) for change, changed in possible if _can_run(changed)]
        calls = [partial(in_memory, shortened(changed)) for _, changed in possible]

        def watch(done: int) -> None:
            reporter.live(
                f"finding what would help: {done} of {len(calls)} changes simulated", done / max(1, len(calls))
            )

        results = [
            (change, au_of(result, formula))
            for (change, _), result in zip(possible, in_order(calls, seconds, watch), strict=True)
            if not isinstance(result, RayioError)
        ]
        return [
            Tried(change, au, baseline)
            for change, au in results
            if au is not None and baseline is not None and is_worth_proposing(baseline, au)
        ]

    helpful = helping(offered(Planned(scenario), "capacity"))
    helpful.sort(key=lambda entry: (-round(entry.au, 3), entry.change.effort))
    if not helpful or any(reaches(entry.au, target) for entry in helpful):
        return helpful
    pairs = helping([together(*pair) for pair in combinations([entry.change for entry in helpful[:PAIRED]], 2)])
    best = max(pairs, key=lambda entry: (round(entry.au, 3), -entry.change.effort), default=None)
    if best is None or not is_worth_proposing(helpful[0].au, best.au):
        return helpful
    return [*helpful, replace(best, is_pair=True)]


def _can_run(scenario: Scenario) -> bool:
    try:
        checks.check_simulated(scenario)
    except RayioError:
        return False
    return True


def together(first: Change, second: Change) -> Change:
    """Return two changes as one; its advice is overrides if both have a key."""
    joint = " " if first.key and second.key else " and "
    return Change(
        f"{first.name} and {second.name}",
        kind=first.kind,
        to=lambda scenario: second.to(first.to(scenario)),
        words=f"{first.advice}{joint}{second.advice}",
        effort=first.effort + second.effort,
    )


def reaches(au: float | None, target: float) -> bool:
    """Return True if an AU is at or above the target."""
    return au is not None and au >= target - ROUNDING


def widest(scenario: Scenario, target: float, formula: str, source: Sequence[str]) -> Combination | None:
    """Return the AU of many more workers with many more requests in flight; None if they cannot be simulated.

    They are tried on the virtual clock with its own model of storage, as ``advise`` does on ``source``: the scenario's
    file and overrides. None also if they reach the target by an effect that is not worth proposing.
    """
    workers, depth = scenario.loader.num_workers, scenario.loader.io_depth
    if not isinstance(workers, int):
        return None
    workers = max(workers, 1)
    most, deepest = min(WIDER * workers, MAX_WORKERS), min(DEEPER * depth, MAX_DEPTH)
    change = Change(
        "more workers and requests", kind="workers", to=with_keys("loader", num_workers=most, io_depth=deepest)
    )
    try:
        changed = applied(change, scenario)
        checks.check_simulated(changed)
        au, without = _au(changed, formula), _au(scenario, formula)
    except RayioError:
        return None
    if reaches(au, target) and not is_worth_proposing(without, au):
        return None
    vary = f"{WORKERS}={workers}..{most},{DEPTH}={depth}..{deepest}"
    command = ("rayio", "advise", *source, "--reach", f"{formula}={target:g}", "--vary", vary)
    return Combination(workers=most, io_depth=deepest, au=au, holds=reaches(au, target), command=command)


def written(question: Question, fails: int) -> list[str]:
    """Return the scenario of a point as ``advise`` takes it: its file, and overrides but those that it varies."""
    fixed = {**question.fixed, question.over: fails}
    overrides = [f"{key}={in_yaml(value)}" for key, value in fixed.items() if key not in (WORKERS, DEPTH)]
    return [str(question.source), *overrides]


def is_held(scenario: Scenario, formula: str, target: float) -> bool:
    """Return True if simulations reach a target, as the points of a search are judged: by their interval."""
    trial = Trial(0, scenario)
    with closing(simulations(scenario, formula, range(MOST_RUNS[True]))) as runs:
        for repeat, answer in enumerate(runs):
            if isinstance(answer, RayioError):
                raise answer
            trial.rows.append(Row((0,), repeat, DONE, result=answer[0]))
            trial.status = judge(trial, target, formula)
            if trial.status != UNDECIDED:
                break
    return trial.status == HOLDS


def in_yaml(value: object) -> str:
    """Return a value of an override as text that is read back as the same value.

    >>> in_yaml("250 ms"), in_yaml({"kind": "exponential", "mean": 0.5}), in_yaml(None)
    ('250 ms', '{kind: exponential, mean: 0.5}', 'null')
    """
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf)
    return text.removesuffix("...\n").strip()


def _au(scenario: Scenario, formula: str) -> float | None:
    return au_of(in_memory(shortened(scenario)), formula)


def best_change(
    question: Question,
    changes: Sequence[Tried],
    fails: int,
    target: float,
    formula: str,
    most: int,
    like: Like,
) -> tuple[CapacityChange, ...]:
    """Return the changes as records; the first that reaches the target has the accelerators that hold with it.

    It has none where its interval contains the target. ``like`` returns the calibrated scenario of a point.
    """
    rows = [
        CapacityChange(
            change=entry.change.advice, au=entry.au, au_without=entry.without, holds=reaches(entry.au, target),
            is_pair=entry.is_pair,
        )
        for entry in changes
    ]  # fmt: skip
    index = next((number for number, row in enumerate(rows) if row.holds), None)
    if index is None:
        return tuple(rows)
    change = changes[index].change

    def holds(value: int) -> bool:
        return is_held(shortened(applied(change, like(question.scenario(value)))), formula, target)

    bracket = largest(holds, most, start=fails)
    if bracket.holds >= fails:  # else the interval of its AU contains the target
        accelerators = question.accelerators(bracket.holds)
        rows[index] = replace(rows[index], accelerators=accelerators, is_at_least=bracket.fails is None)
    return tuple(rows)
