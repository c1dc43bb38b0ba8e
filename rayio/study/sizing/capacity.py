"""The most accelerators that a storage keeps at a target AU: doubled, then bisected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayio.analyze.compare import spread
from rayio.errors import RunError, ScenarioError
from rayio.imports.mlperf_rules import MLPERF, floor_of
from rayio.machine.host import memory_bytes
from rayio.model.engine import engine_named
from rayio.records.doubts import CAPACITY, LIMIT, Doubt, blocking
from rayio.records.hosts import MODEL
from rayio.records.sizing import (
    BROKEN,
    HOLDS,
    UNDECIDED,
    Bottleneck,
    CapacityChange,
    CapacityFound,
    CapacityPoint,
    Combination,
)
from rayio.records.sizing_notes import (
    CacheStays,
    DatasetGrows,
    LargestValid,
    NoIntervals,
    NotLearned,
    NotMonotonic,
    RunRemoved,
    SizingNote,
    StagesRun,
    UndecidedValues,
    ValueFailed,
)
from rayio.report.capacity_page import PAGE, page
from rayio.report.text.sizing import not_storage, storage_in_words
from rayio.report.text.sizing_notes import worded
from rayio.report.text.terms import counted
from rayio.reporter import SILENT, Reporter
from rayio.scenario import derive
from rayio.scenario.layers import layers_of, without_layers
from rayio.scenario.model import Scenario
from rayio.scenario.origin import origin_of
from rayio.scenario.write import to_yaml
from rayio.session.dataset import base_folder
from rayio.storage.address import is_path, join
from rayio.study.sizing.doubts import of_capacity
from rayio.study.sizing.knee import CALIBRATED, Like, best_change, bottleneck_of, changes_at, learned, widest, written
from rayio.study.sizing.mlperf import rules_checked
from rayio.study.sizing.questions import Question
from rayio.study.sizing.search import Bracket, falls, largest
from rayio.study.sizing.trials import AU, AU_DLIO, Trial, Trials
from rayio.study.sweeps.finished import Sweep
from rayio.study.sweeps.sweep_directory import SweepDirectory
from rayio.study.sweeps.sweep_files import write_tables

#: The largest value tried by default: simulated (True), and run (False).
MOST = {True: 1024, False: 32}

RANKS = "cluster.ranks_per_node"


def capacity(
    source: str | Path,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    target_au: float | None = None,
    over: str = RANKS,
    most: int | None = None,
    engine: str = "virtual",
    rules: str | None = None,
    host_memory: int | None = None,
    address: str | None = None,
    out: str | Path | None = None,
    root: str | Path | None = None,
    reporter: Reporter = SILENT,
) -> CapacityFound:
    """Return the largest number of accelerators that a scenario's storage keeps at a target AU.

    A point holds if its 95 % interval is above the target. If the interval contains the target, the point runs again
    (on the virtual clock with another seed), and may stay undecided. After Ctrl-C the answer is partial.

    >>> answer = rayio.capacity("unet3d-small", ["train.epochs=1", "train.steps=30"], most=2, out="capacity/small")
    >>> answer.accelerators, answer.is_at_least, [point.status for point in answer.points]
    (2, True, ['holds', 'holds'])

    Args:
        source: path or packaged name of a scenario.
        overrides: ``section.key=value`` texts, or a mapping of dotted keys to values.
        target_au: AU to keep, 0 to 1; None is 0.9, or that of ``rules``.
        over: key of a whole number to vary, from 1.
        most: largest value to try; None is 1024 simulated, 32 run.
        engine: ``virtual`` (the dataset grows with the accelerators), ``ray`` or ``local`` (the dataset is fixed).
        rules: ``mlperf``: DLIO's AU, 5 epochs of at least 500 steps per accelerator, 5 × ``host_memory`` of data.
        host_memory: bytes of memory of a host, for ``rules``; by default this machine's, when run.
        address: Ray cluster to use, see :func:`rayio.run`.
        out: directory of the runs, resumed if it exists; None is ``capacity/<name>`` below ``root``.
        root: base folder of relative paths.
        reporter: receives progress.

    Raises:
        ScenarioError: the scenario or the key is invalid.
        RunError: the first point failed.
        StorageError: the directory holds another search, or cannot be written.
    """
    is_virtual = engine_named(engine).is_virtual
    if rules is not None and host_memory is None and not is_virtual:
        host_memory = memory_bytes()
    question = Question.of(source, overrides, over, engine, rules, host_memory)
    target = floor_of(question.base, rules) if target_au is None else target_au
    if not 0 < target <= 1:
        raise ScenarioError(f"--target-au {target:g}: must be above 0 and at most 1, such as 0.9")
    if most is not None and most < 1:
        raise ScenarioError(f"--max {most}: must be at least 1")
    return _Searching(question, target, most, address, out, root, reporter).run()


def _unchanged(scenario: Scenario) -> Scenario:
    return scenario


@dataclass(frozen=True, slots=True)
class Help:
    """The bottleneck at the first value that does not hold, and what was tried there."""

    bottleneck: Bottleneck | None = None
    changes: tuple[CapacityChange, ...] = ()
    combination: Combination | None = None
    is_tried: bool = False


class _Searching:
    def __init__(
        self,
        question: Question,
        target: float,
        most: int | None,
        address: str | None,
        out: str | Path | None,
        root: str | Path | None,
        reporter: Reporter,
    ) -> None:
        self.question, self.target, self.reporter = question, target, reporter
        self.is_virtual = engine_named(question.engine).is_virtual
        self.wanted = most or MOST[self.is_virtual]
        self.formula = AU_DLIO if question.rules else AU
        self.root = base_folder(question.base, root)
        self.notes: list[SizingNote] = []
        self.doubts: list[Doubt] = []
        #: The largest value to try, and the reason why a larger one is invalid.
        self.most, self.why = self._most()
        self.directory = SweepDirectory.at(out, f"capacity/{question.base.name}", self.root, self._identity())
        self.trials = Trials(
            self.directory, engine=question.engine, target=target, formula=self.formula, address=address,
            root=self.root, reporter=reporter,
        )  # fmt: skip

    def _identity(self) -> dict[str, Any]:
        content: dict[str, Any] = self.question.base.model_dump(mode="json")
        *sections, last = self.question.over.split(".")
        holder = content
        for section in sections:
            holder = holder[section]
        holder.pop(last)
        if self.question.steps is not None:
            content["dataset"].pop("num_files")
        question = {"engine": self.question.engine, "swept keys": [self.question.over], "formula": self.formula}
        return {**question, "steps": self.question.steps, "scenario": content}

    def _most(self) -> tuple[int, str | None]:
        """Return the largest valid value, and the reason why a larger one is invalid."""
        if (why := self.question.refusal(1)) is not None:
            raise ScenarioError(f"{self.question.over}=1: {why}")
        valid = largest(self.question.is_possible, self.wanted)
        return valid.holds, None if valid.fails is None else self.question.refusal(valid.fails)

    def run(self) -> CapacityFound:
        """Search, find the bottleneck and what would help; return the answer, after Ctrl-C a partial one."""
        bracket, help_found = Bracket(0, None), Help()
        is_finished = False
        try:
            with self.directory, engine_named(self.question.engine).lasting():
                bracket = largest(self._holds, self.most, guess=self._guess)
                self.reporter.live("finding the bottleneck", None)
                if bracket.fails is not None and self.trials.tried[bracket.fails].status != BROKEN:
                    help_found = self._help(bracket.fails)
            is_finished = True
        except KeyboardInterrupt:
            self.reporter.done()
            self.reporter.failed(
                f"interrupted; give the same command to resume: {self.directory.path} has the runs so far"
            )
            bracket = self._so_far()
        self.reporter.done()
        answer = self._answer(bracket, help_found, is_finished)
        if self.trials.rows:
            name, keys = self.question.base.name, (self.question.over,)
            sweep = Sweep(self.directory.path, name, self.question.engine, keys, tuple(self.trials.rows))
            write_tables(sweep)
            self.directory.write(PAGE, page(answer).encode())
        return answer

    def _holds(self, value: int) -> bool:
        scenario = self.question.scenario(value)
        self._show(value, 0.0)
        trial = self.trials.try_out(value, scenario, lambda share: self._show(value, share))
        if trial.status == BROKEN and value == 1:
            raise RunError(f"{self.question.over}=1: {trial.error}")
        return trial.status == HOLDS

    def _guess(self, known: int, failed: int) -> int | None:
        """Return the answer if the accelerators' total throughput stays that of ``failed``."""
        au = self.trials.tried[failed].mean(self.formula)
        return None if au is None else int(failed * au / self.target + 1e-9)

    def _show(self, value: int, share: float) -> None:
        """Show the current point and its share done; not the time left, as undecided points take several runs."""
        judged = [n for n, trial in self.trials.tried.items() if trial.rows]
        text = f"{self.question.over.rpartition('.')[2]}={value}" + (f", {100 * share:.0f} % of it" if share else "")
        if judged:
            known = value if value in judged else max(judged)
            mean = self.trials.tried[known].mean(self.formula)
            text += f"; {counted(len(judged), 'point')} so far" + (
                "" if mean is None else f", AU {100 * mean:.1f} % at {known}"
            )
            if (so_far := self._so_far()).holds:
                text += f"; the answer is at least {so_far.holds}"
                text += "" if so_far.fails is None else f", below {so_far.fails}"
        self.reporter.live(text, None)

    def _so_far(self) -> Bracket:
        """Return the bracket of a search that goes on, or was interrupted."""
        known = [n for n, trial in self.trials.tried.items() if trial.status == HOLDS]
        failed = [n for n, trial in self.trials.tried.items() if trial.rows and trial.status != HOLDS]
        return Bracket(max(known, default=0), min(failed, default=None))

    def _help(self, fails: int) -> Help:
        """Return the bottleneck at the first value that does not hold, and changes that would help."""
        trial = self.trials.tried[fails]
        run = self.trials.run_of(fails)
        like: Like = _unchanged
        if not self.is_virtual and run is None:
            self.notes.append(RunRemoved(self.question.over, fails))
            return Help()
        bottleneck = bottleneck_of(trial.scenario, self.trials.run_in_doubt(fails), self.reporter)
        if run is not None:
            au = trial.mean(self.formula)
            taught = learned(trial.scenario, run, au, self.formula, self.trials.address, self.notes)
            if isinstance(taught, Doubt):
                self.doubts.append(taught)
                return Help(bottleneck)
            if isinstance(taught, NotLearned):
                self.notes.append(taught)
                return Help(bottleneck)
            like = taught
        question, target, formula = self.question, self.target, self.formula
        tried = changes_at(like(trial.scenario), formula, target, self.reporter)
        changes = best_change(question, tried, fails, target, formula, self.most, like)
        combination = None
        if not any(change.holds for change in changes):
            combination = widest(like(trial.scenario), target, formula, self._source(fails, like))
        return Help(bottleneck, changes, combination, is_tried=True)

    def _source(self, fails: int, like: Like) -> list[str]:
        """Return a point's scenario as arguments; on a wall clock that is a file with what its run taught."""
        if self.is_virtual:
            return written(self.question, fails)
        taught = to_yaml(like(self.trials.tried[fails].scenario))
        return [str(self.directory.write(CALIBRATED, taught.encode()))]

    def _answer(self, bracket: Bracket, help_found: Help, is_finished: bool) -> CapacityFound:
        question, base = self.question, self.question.base
        tried = sorted((trial for trial in self.trials.tried.values() if trial.rows), key=lambda trial: trial.value)
        points = tuple(self._point(trial) for trial in tried)
        holds, fails = (self.trials.tried.get(end or 0) for end in (bracket.holds, bracket.fails))
        doubts = of_capacity(holds, fails, self.target, self.formula, self.doubts)
        value = None if blocking(doubts, CAPACITY) else bracket.holds or None
        if blocking(doubts, CAPACITY):
            help_found = Help(help_found.bottleneck)
        modelled = self.is_virtual or base.dataset.is_modelled
        is_in_doubt = bool(blocking(doubts, LIMIT) or not_storage(help_found.bottleneck))
        # Layers in front of the model are no part of its name.
        origin = origin_of(without_layers(base), is_virtual=self.is_virtual, modelled=modelled)
        dataset = base.dataset.path if is_path(self.root) else join(self.root, base.dataset.path)
        return CapacityFound(
            directory=str(self.directory.path),
            scenario=base.name,
            engine=question.engine,
            storage=origin.model.name if origin.model is not None else dataset,
            storage_in_words=storage_in_words(
                origin, base.name, dataset, [h for t in tried for r in t.results for h in r.hosts or ()]
            ),
            over=question.over,
            target_au=self.target,
            formula=self.formula,
            rules=question.rules,
            setting=value,
            accelerators=None if value is None else question.accelerators(value),
            is_at_least=value is not None and (bracket.fails is None or is_in_doubt),
            is_finished=is_finished,
            points=points,
            binds=None if help_found.bottleneck is None else help_found.bottleneck.sentence,
            bottleneck=help_found.bottleneck,
            changes=help_found.changes,
            combination=help_found.combination,
            is_tried=help_found.is_tried,
            notes=worded(self._notes(bracket, points, tried)),
            doubts=doubts,
        )

    def _point(self, trial: Trial) -> CapacityPoint:
        results, interval = trial.results, trial.interval(self.formula)
        scenario = trial.scenario
        rates = [result.samples_per_second for result in results if result.samples_per_second is not None]
        rate = spread(rates).mean if rates else None
        real = [result.fetched for result in results if result.fetched is not None and result.fetched.source != MODEL]
        shares = [fetched.page_cache_share for fetched in real if fetched.page_cache_share is not None]
        busy = [row.busy_share for row in trial.rows if row.busy_share is not None]
        demand = derive.total_read_demand(scenario)
        steps = [result.window_steps for result in results if result.window_steps is not None]
        return CapacityPoint(
            setting=trial.value,
            accelerators=derive.world_size(scenario),
            status=trial.status,
            au=trial.mean(self.formula),
            au_low=None if interval is None else interval.low,
            au_high=None if interval is None else interval.high,
            runs=len(trial.rows),
            steps=sum(steps) if steps else None,
            samples_per_second=rate,
            bytes_per_second=None if rate is None else rate * derive.batch_bytes(scenario) / scenario.loader.batch_size,
            needed_bytes_per_second=demand if demand < 1e300 else None,
            page_cache_share=max(shares) if shares else None,
            busy_share=max(busy) if busy else None,
            error=trial.error,
        )

    def _notes(self, bracket: Bracket, points: Sequence[CapacityPoint], tried: Sequence[Trial]) -> Iterator[SizingNote]:
        """Yield the notes on the numbers."""
        question, key = self.question, self.question.over
        yield from (*question.notes, *self.notes)
        if question.base.stages:
            yield StagesRun()
        if question.steps is not None:
            yield DatasetGrows(question.steps, derive.steps_per_epoch(question.base))
            yield from (CacheStays(layer.name) for layer in layers_of(question.base, modelled=True) if layer.keeps)
        if question.rules == MLPERF:
            yield rules_checked(question.base, question.host_memory)
        if self.why is not None and bracket.fails is None:
            yield LargestValid(key, self.most + 1, self.why)
        if undecided := tuple(point.setting for point in points if point.status == UNDECIDED):
            yield UndecidedValues(key, undecided, max(len(trial.rows) for trial in tried))
        yield from (ValueFailed(key, point.setting, point.error) for point in points if point.error)
        known = [
            (p.setting, p.au, (p.au_high - p.au) if p.au_high is not None else 0.0) for p in points if p.au is not None
        ]
        yield from (NotMonotonic(key, larger, smaller) for smaller, larger in falls(known))
        if any(point.au_low is None and point.au is not None for point in points):
            yield NoIntervals()
