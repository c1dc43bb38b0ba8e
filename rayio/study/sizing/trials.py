"""Runs made for an answer: each judged against a goal, repeated while it cannot be, and kept for the next time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from rayio.analyze.arrays import RunArrays
from rayio.analyze.compare import spread
from rayio.analyze.shape import RunShape
from rayio.analyze.window import Interval
from rayio.errors import RayioError
from rayio.imports.dlio_formulas import dlio
from rayio.interrupts import held
from rayio.model.engine import engine_named
from rayio.model.ledger import Tally
from rayio.records.run_result import RunResult
from rayio.records.sizing import BROKEN, FAILS, HOLDS, UNDECIDED
from rayio.reporter import Reporter
from rayio.scenario import derive
from rayio.scenario.model import Scenario
from rayio.session.conclude import with_spans
from rayio.session.execute import run as run_one
from rayio.study.sweeps.sweep_directory import SweepDirectory
from rayio.study.sweeps.sweep_rows import DONE, FAILED, UNMET, Row, row_of

if TYPE_CHECKING:
    import pyarrow as pa

    from rayio.session.result import Run

#: Runs of one point until it is called undecided: on the virtual clock each has another seed.
MOST_RUNS = {True: 4, False: 3}
#: Epochs from which on the AU of DLIO's formula has an interval.
FEWEST_EPOCHS = 3
#: A goal that is missed by less is kept: what sums of nanoseconds round.
ROUNDING = 1e-9

AU, AU_DLIO = "au", "au_dlio"


@dataclass
class Trial:
    """One point: its runs so far, and what they say."""

    value: int
    scenario: Scenario
    rows: list[Row] = field(default_factory=list)
    status: str = UNDECIDED

    @property
    def results(self) -> list[RunResult]:
        """The results of its runs that went well."""
        return [row.result for row in self.rows if row.result is not None and row.status in (DONE, UNMET)]

    @property
    def error(self) -> str | None:
        """Why a run of it did not go well."""
        return next((row.error for row in self.rows if row.status == FAILED), None)

    def mean(self, formula: str) -> float | None:
        """The mean AU of its runs, as a fraction; None where one has none."""
        known = [found for found in (au_of(result, formula) for result in self.results) if found is not None]
        return fmean(known) if known and len(known) == len(self.results) else None

    def interval(self, formula: str) -> Interval | None:
        """The 95 % interval of that; None of too few steps.

        Each run's AU has its own, by batch means over its steps, and runs do not depend on each other. The AU of DLIO's
        formula is one number for each epoch: there the epochs are taken as repeats of each other.
        """
        if (mean := self.mean(formula)) is None:
            return None
        if formula == AU:
            return mean_of([(one.au or 0.0, one.au_interval_low, one.au_interval_high) for one in self.results])
        epochs = [one for row in self.rows for one in row.epochs]
        return around(mean, float(spread(epochs)["ci95"])) if len(epochs) >= FEWEST_EPOCHS else None


def mean_of(runs: Sequence[tuple[float, float | None, float | None]]) -> Interval | None:
    """The interval of a mean of independent numbers, each with the ends of its own; None where one has none.

    An end that was cut at 0 or 1 says less than the other: the wider side counts.

    >>> mean_of([(0.83, 0.80, 0.86), (0.96, 0.92, 1.0)])
    Interval(low=0.87, high=0.92)
    """
    halves = [max(au - low, high - au) for au, low, high in runs if low is not None and high is not None]
    if not halves or len(halves) < len(runs):
        return None
    return around(fmean(au for au, _, _ in runs), math.sqrt(sum(half**2 for half in halves)) / len(halves))


def around(mean: float, half: float) -> Interval:
    """The interval of a mean by half its width."""
    return Interval(mean - half, mean + half)


def au_of(result: RunResult, formula: str) -> float | None:
    """The AU of a result by rayio's or by DLIO's formula, as a fraction."""
    if formula == AU:
        return result.au
    return None if result.au_dlio is None else result.au_dlio / 100


def judge(trial: Trial, target: float, formula: str) -> str:
    """Say whether a point keeps a target: for sure, for sure not, or not for sure."""
    if trial.error is not None:
        return BROKEN
    mean, found = trial.mean(formula), trial.interval(formula)
    if mean is None:
        return FAILS
    low, high = (mean, mean) if found is None else (found.low, found.high)
    return HOLDS if low >= target - ROUNDING else FAILS if high < target - ROUNDING else UNDECIDED


class Trials:
    """The runs of one question, in the directory of a sweep over its key."""

    def __init__(
        self,
        directory: SweepDirectory,
        *,
        engine: str,
        target: float,
        formula: str = AU,
        address: str | None = None,
        root: str | None = None,
        reporter: Reporter,
    ) -> None:
        self.directory, self.engine, self.target, self.formula = directory, engine, target, formula
        self.address, self.root, self.reporter = address, root, reporter
        self.is_virtual = engine_named(engine).is_virtual
        self.before = {row.identity: row for row in directory.rows()}
        self.tried: dict[int, Trial] = {}
        #: Runs that were made now, not found in the directory.
        self.made = 0
        self._told: set[str] = set()

    @property
    def rows(self) -> list[Row]:
        """Every run that ended, those of earlier calls too."""
        mine = {row.identity: row for trial in self.tried.values() for row in trial.rows}
        return [*(self.before | mine).values()]

    def try_out(
        self, value: int, scenario: Scenario, watch: Callable[[float], None], values: tuple[Any, ...] | None = None
    ) -> Trial:
        """Run a point until it is judged; ``watch`` is told the share of it that is done.

        ``values`` are those of several keys, of which ``value`` is then the number.

        Raises:
            StorageError: a run cannot be kept.
        """
        trial = self.tried.setdefault(value, Trial(value, scenario))
        most, point = MOST_RUNS[self.is_virtual], (value,) if values is None else values
        for repeat in range(len(trial.rows), most):
            row = self.before.get(Row(point, repeat, DONE).identity)
            if row is None or row.status == FAILED:
                self._run(trial, point, repeat, lambda share: watch(share / most))
            else:
                self._add(trial, row)
            if trial.status != UNDECIDED:
                break
        return trial

    def _add(self, trial: Trial, row: Row) -> None:
        trial.rows.append(row)
        trial.status = judge(trial, self.target, self.formula)

    def _keep(self, trial: Trial, row: Row) -> None:
        """Keep a run that has ended, whatever signal comes."""
        with held():
            self.directory.add(row)
            self.made += 1
            self._add(trial, row)

    def _run(self, trial: Trial, point: tuple[Any, ...], repeat: int, watch: Callable[[float], None]) -> None:
        scenario = trial.scenario
        try:
            if self.is_virtual:
                seeded = scenario.model_copy(update={"seed": scenario.seed + repeat})
                result, spans = with_spans(seeded, watching(seeded, watch))
                self._keep(trial, self._row(point, repeat, seeded, result, spans, None))
                return
            place, busy = _free(self.directory.path / "runs", f"{trial.value:05d}-{repeat}"), Busy()

            def ended(made: Run) -> None:
                self._keep(trial, self._row(point, repeat, scenario, made.result, made.directory.spans(), busy.share))

            run_one(
                scenario, engine=self.engine, address=self.address, out=place, root=self.root,
                reporter=Indented(self.reporter, self._told, watch), ended=ended,
            )  # fmt: skip
        except RayioError as error:
            self._keep(trial, Row(point, repeat, FAILED, str(error)))

    def _row(
        self,
        point: tuple[Any, ...],
        repeat: int,
        scenario: Scenario,
        result: RunResult,
        spans: pa.Table,
        busy: float | None,
    ) -> Row:
        run, shape = RunArrays.of_spans(spans), RunShape.of(scenario)
        epochs = () if self.formula == AU else by_epoch(run, shape)
        return replace(row_of(point, repeat, scenario, result), epochs=epochs, busy_share=busy)

    def run_of(self, value: int) -> Path | None:
        """The run directory of a point, the last that was made; None of simulations."""
        made = sorted((self.directory.path / "runs").glob(f"{value:05d}-*"))
        return made[-1] if made else None


def by_epoch(run: RunArrays, shape: RunShape) -> tuple[float, ...]:
    """AU by DLIO's formula of each epoch, as fractions."""
    of_ranks = shape.steps(np.arange(shape.world_size))
    if not run.steps.number:
        return ()
    found = dlio(run.steps, batch_size=shape.batch_size, steps_of=of_ranks[run.lives.rank], planned=int(of_ranks.sum()))
    return tuple((found.au_percent / 100).tolist())


def watching(scenario: Scenario, watch: Callable[[float], None]) -> Callable[[Sequence[Tally]], None]:
    """Turn what ranks have booked into the share of a simulation that is done."""
    planned = max(derive.total_rank_steps(scenario), 1)
    return lambda tallies: watch(min(sum(tally.steps for tally in tallies) / planned, 1.0))


def _free(folder: Path, name: str) -> Path:
    """A name that no run has: one that was cut short before keeps its own."""
    place, attempt = folder / name, 0
    while place.exists():
        attempt += 1
        place = folder / f"{name}-{attempt}"
    return place


class Indented(Reporter):
    """Tells how far a run among others is; what was told of an earlier run is not told again."""

    def __init__(self, to: Reporter, told: set[str], watch: Callable[[float], None]) -> None:
        self._to, self._told, self._watch = to, told, watch

    def say(self, text: str) -> None:
        """Tell what is new."""
        if text not in self._told:
            self._told.add(text)
            self._to.say(text)

    def live(self, text: str, share: float | None = None) -> None:
        """Tell the share alone: the text is of one run."""
        self._watch(share or 0.0)

    def generating(self, files: int, nbytes: int, of_files: int, of_bytes: int) -> None:
        """Tell how far the dataset is."""
        self._to.generating(files, nbytes, of_files, of_bytes)

    def generated(self, path: str, written: tuple[int, int], reused: tuple[int, int]) -> None:
        """Tell what a dataset came to."""
        self._to.generated(path, written, reused)


class Busy:
    """How busy the processors of this machine are from now on, all programs together."""

    def __init__(self) -> None:
        self._before = processor_times()

    @property
    def share(self) -> float | None:
        """Busy time over all time since then, of all processors; None where the kernel does not say it."""
        after = processor_times()
        if not self._before or not after or (total := after[1] - self._before[1]) <= 0:
            return None
        return (after[0] - self._before[0]) / total


def processor_times(path: Path = Path("/proc/stat")) -> tuple[int, int] | None:
    """The busy and all ticks of this machine's processors since it started; None where the kernel does not say."""
    try:
        ticks = [int(word) for word in path.read_text("ascii").partition("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    idle = sum(ticks[3:5])  # idle, and waiting for devices
    return (sum(ticks) - idle, sum(ticks)) if len(ticks) >= 5 else None
