"""A sweep from its command to its tables: check every point, make the missing runs, record each result."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

from rayio.errors import ContradictionError, RayioError, ScenarioError
from rayio.machine.calls import answered, answers, in_processes
from rayio.model.engine import engine_named
from rayio.records.sweeps import DONE, FAILED, IMPOSSIBLE
from rayio.reporter import SILENT, Reporter
from rayio.scenario import checks
from rayio.scenario.load import loading
from rayio.scenario.model import Scenario
from rayio.schema.fields import MAX_WHOLE
from rayio.session.conclude import in_memory
from rayio.session.dataset import base_folder
from rayio.session.resume import run as run_one
from rayio.signals import deferred
from rayio.study.sweeps.finished import Sweep
from rayio.study.sweeps.points import Points, grid, listed
from rayio.study.sweeps.sweep_directory import SweepDirectory
from rayio.study.sweeps.sweep_files import write
from rayio.study.sweeps.sweep_rows import Row, row_of

#: So many runs are simulated in processes without a look at how long the first one takes.
MANY_RUNS = 8


def sweep(
    source: str | Path,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    points: str | Path | None = None,
    engine: str = "virtual",
    repeat: int = 1,
    processes: int | None = None,
    address: str | None = None,
    out: str | Path | None = None,
    root: str | Path | None = None,
    reporter: Reporter = SILENT,
) -> Sweep:
    """Run a scenario at every combination of the values of its swept keys and return the sweep.

    It writes ``sweep.csv``, ``sweep.parquet`` and ``sweep.html``, after Ctrl-C partial ones.

    >>> rows = rayio.sweep("unet3d-small", {"loader.num_workers": [1, 4]}, out="sweeps/workers").frame()
    >>> rows["loader.num_workers"].tolist(), (rows.au > 0.5).all().item()
    ([1, 4], True)

    Args:
        source: path or packaged name of a scenario.
        overrides: texts ``section.key=value`` and ``section.key=value,value,...`` (``1..4`` are whole numbers), or a
            mapping of dotted keys to a value or a list of values. A key with several values is swept.
        points: a CSV or YAML file with the points, instead of lists.
        engine: ``virtual`` (all cores), ``ray`` or ``local`` (one run after the other).
        repeat: runs of each point. On the virtual clock repeat n has the scenario's seed + n, elsewhere the same seed.
        processes: simulations in parallel; None is one per CPU.
        address: Ray cluster to use, see :func:`rayio.run`.
        out: directory of the sweep, resumed if it exists; None is ``sweeps/<name>`` below ``root``.
        root: base folder of relative paths.
        reporter: receives progress.

    Raises:
        ScenarioError: a key or value is invalid; nothing has run.
        StorageError: the directory holds a sweep of another scenario, or cannot be written.
    """
    chosen = grid(overrides) if points is None else listed(points, overrides)
    if not chosen.keys:
        raise ScenarioError("nothing to sweep; give a key several values, such as loader.num_workers=1,2,4")
    swept = _Sweeping(source, chosen, engine, repeat, processes, address, out, root, reporter).run()
    write(swept)
    return swept


class _Sweeping:
    def __init__(
        self,
        source: str | Path,
        points: Points,
        engine: str,
        repeat: int,
        processes: int | None,
        address: str | None,
        out: str | Path | None,
        root: str | Path | None,
        reporter: Reporter,
    ) -> None:
        self.points, self.engine, self.repeat, self.address, self.reporter = points, engine, repeat, address, reporter
        self.is_virtual = engine_named(engine).is_virtual
        self.load = loading(source)
        self.base = self._base()
        self.root = base_folder(self.base, root)
        self.processes = processes or len(os.sched_getaffinity(0))
        #: Valid runs, and rows of contradictory points.
        self.runs: dict[tuple[str, int], tuple[tuple[Any, ...], int, Scenario]] = {}
        self.rows: dict[tuple[str, int], Row] = {}
        #: Runs that were missing at the start, and those made since.
        self.todo = self.made = 0
        self._check_all()
        self.directory = SweepDirectory.at(out, f"sweeps/{self.base.name}", self.root, self._identity())

    def _base(self) -> Scenario:
        """Return the scenario that all points share; if it is invalid without their values, the first valid point."""
        error: RayioError | None = None
        for overrides in (self.points.fixed, *map(self.points.overrides, self.points.rows[:1000])):
            try:
                return self.load(overrides)
            except ScenarioError as refused:
                error = error or refused
        assert error is not None
        raise error

    def _identity(self) -> dict[str, Any]:
        content: dict[str, Any] = self.base.model_dump(mode="json")
        for key in self.points.keys:
            *sections, last = key.split(".")
            holder: Any = content
            for section in sections:
                holder = holder.get(section) if isinstance(holder, dict) else None
            if isinstance(holder, dict):
                holder.pop(last, None)
        return {"engine": self.engine, "swept keys": list(self.points.keys), "scenario": content}

    def _check_all(self) -> None:
        """Refuse invalid keys and values before anything runs; a contradictory point becomes a row."""
        for values in self.points.rows:
            try:
                scenario = self.load(self.points.overrides(values))
                if self.is_virtual:
                    checks.check_simulated(scenario)
                if scenario.seed + self.repeat - 1 > MAX_WHOLE:
                    raise ScenarioError(f"seed={scenario.seed}: too large for {self.repeat} repeats")
            except ContradictionError as error:
                row = Row(values, 0, IMPOSSIBLE, str(error))
                self.rows[row.identity] = row
                continue
            for number in range(self.repeat):
                seeded = scenario.model_copy(update={"seed": scenario.seed + number}) if self.is_virtual else scenario
                self.runs[Row(values, number, DONE).identity] = (values, number, seeded)

    def run(self) -> Sweep:
        """Make the missing runs; return the sweep."""
        before = {row.identity: row for row in self.directory.rows(len(self.points.keys))}
        self.rows = before | self.rows
        todo = [key for key in self.runs if key not in before or before[key].status in (FAILED, IMPOSSIBLE)]
        if len(todo) < len(self.runs):
            done = len(self.runs) - len(todo)
            self.reporter.say(f"resuming: {done} of {len(self.runs)} runs are in {self.directory.path}")
        self.todo = len(todo)
        self.reporter.live(f"0/{len(todo)} runs", 0.0)
        try:
            with self.directory, engine_named(self.engine).lasting():
                for key, row in self.rows.items():
                    if key not in before:
                        self.directory.add(row)
                if self.is_virtual:
                    for row in self._simulated(todo):
                        self._keep(row)
                else:
                    for key in todo:
                        self._run_one(key)
        except KeyboardInterrupt:
            self.reporter.done()
            self.reporter.say(
                f"interrupted; give the same command to resume: {self.directory.path} has {self.made} of {self.todo} "
                "runs"
            )
        self.reporter.done()
        missing = sum(key not in self.rows for key in self.runs)
        return Sweep(
            self.directory.path, self.base.name, self.engine, self.points.keys, tuple(self.rows.values()), missing
        )

    def _keep(self, row: Row) -> None:
        """Record a finished run; signals wait."""
        with deferred():
            self.rows[row.identity] = row
            self.directory.add(row)
            self.made += 1
        self.reporter.live(f"{self.made}/{self.todo} runs", self.made / self.todo)

    def _simulated(self, todo: list[tuple[str, int]]) -> Iterator[Row]:
        runs = [partial(in_memory, self.runs[key][2]) for key in todo]
        processes = min(self.processes, len(runs))
        if processes > 1 and len(runs) >= MANY_RUNS:
            replies = in_processes(enumerate(runs), processes)
        elif runs:
            began, first = perf_counter(), answered(runs[0])
            others = answers(runs[1:], perf_counter() - began, processes)
            replies = chain([(0, first)], ((1 + number, answer) for number, answer in others))
        else:
            return
        for index, answer in replies:
            values, number, scenario = self.runs[todo[index]]
            if isinstance(answer, RayioError):
                yield Row(values, number, FAILED, str(answer))
            else:
                yield row_of(values, number, scenario, answer)

    def _run_one(self, key: tuple[str, int]) -> None:
        values, number, scenario = self.runs[key]
        path = self.directory.free(f"runs/{list(self.runs).index(key):05d}", scenario.stores)
        try:
            run_one(
                scenario, engine=self.engine, address=self.address, out=path, root=self.root,
                ended=lambda run: self._keep(row_of(values, number, scenario, run.result)),
            )  # fmt: skip
        except RayioError as error:
            self._keep(Row(values, number, FAILED, str(error)))
