"""Trials: points that are run, judged against a goal, repeated while undecided, and kept for later searches."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from rayio.analyze.arrays import RunArrays
from rayio.analyze.compare import spread
from rayio.analyze.shape import RunShape
from rayio.analyze.window import Interval
from rayio.errors import RayioError
from rayio.imports.dlio_formulas import dlio
from rayio.machine.calls import answered, in_turn
from rayio.machine.cpu_time import Busy
from rayio.model.engine import engine_named
from rayio.model.ledger import Tally
from rayio.records.run_result import RunResult
from rayio.records.sizing import BROKEN, FAILS, HOLDS, UNDECIDED
from rayio.records.sweeps import DONE, FAILED, UNMET
from rayio.reporter import Reporter
from rayio.scenario import derive
from rayio.scenario.model import Scenario
from rayio.session.conclude import with_spans
from rayio.session.resume import run as run_one
from rayio.signals import deferred
from rayio.study.sweeps.sweep_directory import SweepDirectory
from rayio.study.sweeps.sweep_rows import Row, row_of

if TYPE_CHECKING:
    import pyarrow as pa

    from rayio.session.result import Run

#: The most runs of a point, on the virtual clock (True, each with another seed) or not.
MOST_RUNS = {True: 4, False: 3}
#: The fewest epochs for an interval of AU by DLIO's formula, and the fewest runs that are alike.
FEWEST_EPOCHS = FEWEST_ALIKE = 3
#: Standard deviations in half a 95 % interval. Runs differ, or are alike, if they scatter so many times as much as
#: their intervals say. By chance three runs are alike in 3 % of cases, and four in 1 %.
SIGMAS, APART, ALIKE = 1.96, 2.0, 0.15
#: Tolerance of a goal, for rounding of nanoseconds.
ROUNDING = 1e-9

AU, AU_DLIO = "au", "au_dlio"


@dataclass
class Trial:
    """A point, its runs so far and its status."""

    value: int
    scenario: Scenario
    rows: list[Row] = field(default_factory=list)
    status: str = UNDECIDED

    @property
    def results(self) -> list[RunResult]:
        """The results of its successful runs."""
        return [row.result for row in self.rows if row.result is not None and row.status in (DONE, UNMET)]

    @property
    def error(self) -> str | None:
        """The error of a failed run."""
        return next((row.error for row in self.rows if row.status == FAILED), None)

    def mean(self, formula: str) -> float | None:
        """Return the mean AU of its runs, as a fraction; None if a run has none."""
        known = [au for au in (au_of(result, formula) for result in self.results) if au is not None]
        return fmean(known) if known and len(known) == len(self.results) else None

    def interval(self, formula: str) -> Interval | None:
        """Return the 95 % interval of the mean AU; None with too few steps.

        It combines the intervals of independent runs (by batch means). For DLIO's formula, with one AU per epoch, the
        epochs count as repeats.
        """
        if (mean := self.mean(formula)) is None:
            return None
        if formula == AU:
            return mean_of([(run.au or 0.0, run.au_interval_low, run.au_interval_high) for run in self.results])
        epochs = [au for row in self.rows for au in row.epochs]
        half = spread(epochs).ci95 if len(epochs) >= FEWEST_EPOCHS else None
        return None if half is None else around(mean, half)


def mean_of(runs: Sequence[tuple[float, float | None, float | None]]) -> Interval | None:
    """Return the interval of the mean of independent values (AU, low, high); None if one has no interval.

    The wider side of each interval counts, because the other may be cut at 0 or 1. Where the values differ by more than
    their intervals allow, as on a machine with other work, they alone give the interval (Student's t). So they do where
    they are far more alike: a checkpoint every few steps makes the parts of a run differ, but not runs.

    >>> mean_of([(0.87, 0.84, 0.90), (0.92, 0.88, 0.96)])
    Interval(low=0.87, high=0.92)
    >>> apart = mean_of([(0.86, 0.82, 0.90), (0.94, 0.91, 0.97), (0.95, 0.92, 0.98)])
    >>> round(apart.low, 2), round(apart.high, 2)
    (0.79, 1.04)
    >>> alike = mean_of([(0.66, 0.53, 0.79), (0.656, 0.52, 0.78), (0.658, 0.53, 0.79)])
    >>> round(alike.low, 3), round(alike.high, 3)
    (0.653, 0.663)
    """
    halves = [max(au - low, high - au) for au, low, high in runs if low is not None and high is not None]
    if not halves or len(halves) < len(runs):
        return None
    between, half = spread([au for au, _, _ in runs]), math.sqrt(sum(half**2 for half in halves)) / len(halves)
    scatter, allowed, of_runs = SIGMAS * (between.stdev or 0.0), half * math.sqrt(len(halves)), between.ci95 or 0.0
    if len(runs) >= FEWEST_ALIKE and scatter < ALIKE * allowed:
        return around(between.mean, of_runs)
    return around(between.mean, max(half, of_runs) if scatter > APART * allowed else half)


def around(mean: float, half: float) -> Interval:
    """Return the interval of a mean and half a width."""
    return Interval(mean - half, mean + half)


def au_of(result: RunResult, formula: str) -> float | None:
    """Return a result's AU by rayio's or by DLIO's formula, as a fraction."""
    if formula == AU:
        return result.au
    return None if result.au_dlio is None else result.au_dlio / 100


def judge(trial: Trial, target: float, formula: str) -> str:
    """Return a point's status against a target: holds, fails, undecided or broken."""
    if trial.error is not None:
        return BROKEN
    mean, interval = trial.mean(formula), trial.interval(formula)
    if mean is None:
        return FAILS
    low, high = (mean, mean) if interval is None else (interval.low, interval.high)
    return HOLDS if low >= target - ROUNDING else FAILS if high < target - ROUNDING else UNDECIDED


class Trials:
    """The trials of a search, in a sweep directory."""

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
        #: Runs of this search, without those already in the directory.
        self.made = 0
        self._shown: set[str] = set()

    @property
    def rows(self) -> list[Row]:
        """The finished runs, including those of earlier searches."""
        mine = {row.identity: row for trial in self.tried.values() for row in trial.rows}
        return [*(self.before | mine).values()]

    def try_out(
        self, value: int, scenario: Scenario, watch: Callable[[float], None], values: tuple[Any, ...] | None = None
    ) -> Trial:
        """Run a point until it is decided, and return it.

        ``watch`` is called with the share done, 0 to 1. With several keys, ``values`` are their values and ``value`` is
        the number of the setting.

        Raises:
            StorageError: a run cannot be kept.
        """
        trial = self.tried.setdefault(value, Trial(value, scenario))
        most, point = MOST_RUNS[self.is_virtual], (value,) if values is None else values
        while trial.status == UNDECIDED and (repeat := len(trial.rows)) < most:
            row = self.before.get(Row(point, repeat, DONE).identity)
            if row is not None and row.status != FAILED:
                self._add(trial, row)
            elif self.is_virtual:
                self._simulate(trial, point, range(repeat, most), lambda share: watch(share / most))
            else:
                self._run(trial, point, repeat, lambda share: watch(share / most))
        return trial

    def _add(self, trial: Trial, row: Row) -> None:
        trial.rows.append(row)
        trial.status = judge(trial, self.target, self.formula)

    def _keep(self, trial: Trial, row: Row) -> None:
        """Record a finished run; signals wait."""
        with deferred():
            self.directory.add(row)
            self.made += 1
            self._add(trial, row)

    def _simulate(
        self, trial: Trial, point: tuple[Any, ...], repeats: Sequence[int], watch: Callable[[float], None]
    ) -> None:
        """Simulate a point until it is decided, and record each run."""
        with closing(simulations(trial.scenario, self.formula, repeats, watch)) as runs:
            for repeat, answer in zip(repeats, runs, strict=False):
                if isinstance(answer, RayioError):
                    self._keep(trial, Row(point, repeat, FAILED, str(answer)))
                else:
                    result, epochs = answer
                    self._keep(trial, replace(row_of(point, repeat, trial.scenario, result), epochs=epochs))
                if trial.status != UNDECIDED:
                    return

    def _run(self, trial: Trial, point: tuple[Any, ...], repeat: int, watch: Callable[[float], None]) -> None:
        scenario = trial.scenario
        try:
            path, busy = self.directory.free(f"runs/{trial.value:05d}-{repeat}", scenario.stores), Busy()

            def ended(run: Run) -> None:
                epochs = by_epoch(run.directory.spans(), scenario, self.formula)
                row = row_of(point, repeat, scenario, run.result)
                self._keep(trial, replace(row, epochs=epochs, busy_share=busy.share))

            run_one(
                scenario, engine=self.engine, address=self.address, out=path, root=self.root,
                reporter=Indented(self.reporter, self._shown, watch), ended=ended,
            )  # fmt: skip
        except RayioError as error:
            self._keep(trial, Row(point, repeat, FAILED, str(error)))

    def run_of(self, value: int, repeat: str | int = "") -> str | None:
        """Return the address of a point's last run directory, or that of a ``repeat``; None for simulations or none."""
        scenario, stem = self.tried[value].scenario, f"{value:05d}-{repeat}"
        runs = [] if self.is_virtual else self.directory.runs(stem, scenario.stores)
        return runs[-1] if runs else None

    def run_in_doubt(self, value: int) -> str | None:
        """Return the address of the run with the largest overhead, which a doubt names; the last one if it is gone."""
        shares = {row.repeat: row.result.other_share or 0.0 for row in self.tried[value].rows if row.result is not None}
        worst = max(shares, key=lambda repeat: shares[repeat], default="")
        return self.run_of(value, worst) or self.run_of(value)


def simulations(
    scenario: Scenario, formula: str, repeats: Sequence[int], watch: Callable[[float], None] | None = None
) -> Generator[tuple[RunResult, tuple[float, ...]] | RayioError]:
    """Iterate over the results of a scenario with the seeds of ``repeats``, and over their epochs' AU (`by_epoch`).

    The first is simulated alone, the others at the same time if they are long. ``watch`` is called with the share of
    the first one that is done, 0 to 1.
    """
    began = perf_counter()
    first, *others = (scenario.model_copy(update={"seed": scenario.seed + repeat}) for repeat in repeats)
    answer = answered(lambda: simulated(first, formula, watch))
    seconds = perf_counter() - began
    yield answer
    yield from in_turn([partial(simulated, other, formula) for other in others], seconds)


def simulated(
    scenario: Scenario, formula: str, watch: Callable[[float], None] | None = None
) -> tuple[RunResult, tuple[float, ...]]:
    """Return the result of a simulation, and the AU of its epochs (`by_epoch`)."""
    result, spans = with_spans(scenario, None if watch is None else watching(scenario, watch))
    return result, by_epoch(spans, scenario, formula)


def by_epoch(spans: pa.Table, scenario: Scenario, formula: str) -> tuple[float, ...]:
    """Return the AU of each epoch by DLIO's formula, as fractions; none for another formula."""
    if formula == AU:
        return ()
    run, shape = RunArrays.of_spans(spans), RunShape.of(scenario)
    of_ranks = shape.steps(np.arange(shape.world_size))
    if not run.steps.number:
        return ()
    results = dlio(
        run.steps, batch_size=shape.batch_size, steps_of=of_ranks[run.lives.rank], planned=of_ranks.sum(axis=0)
    )
    return tuple((results.au_percent / 100).tolist())


def watching(scenario: Scenario, watch: Callable[[float], None]) -> Callable[[Sequence[Tally]], None]:
    """Return a function of the ranks' tallies that calls ``watch`` with the share done, 0 to 1."""
    planned = max(derive.total_rank_steps(scenario), 1)
    return lambda tallies: watch(min(sum(tally.steps for tally in tallies) / planned, 1.0))


class Indented(Reporter):
    """A receiver of the progress of one run among others; it shows each line once."""

    def __init__(self, to: Reporter, shown: set[str], watch: Callable[[float], None]) -> None:
        self._to, self._shown, self._watch = to, shown, watch

    def say(self, text: str) -> None:
        """Show a line that was not shown for an earlier run."""
        if text not in self._shown:
            self._shown.add(text)
            self._to.say(text)

    def warn(self, text: str) -> None:
        """Show a warning that was not shown for an earlier run."""
        if text not in self._shown:
            self._shown.add(text)
            self._to.warn(text)

    def failed(self, text: str) -> None:
        """Show what a run left behind."""
        self._to.failed(text)

    def live(self, text: str, share: float | None = None) -> None:
        """Show only the share done."""
        self._watch(share or 0.0)

    def generating(self, files: int, nbytes: int, of_files: int, of_bytes: int) -> None:
        """Show the progress of generating a dataset."""
        self._to.generating(files, nbytes, of_files, of_bytes)

    def generated(self, path: str, written: tuple[int, int], reused: tuple[int, int]) -> None:
        """Show the finished dataset."""
        self._to.generated(path, written, reused)
