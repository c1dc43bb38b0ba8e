"""A sweep from its command to its tables: check every point, run what is missing, keep each row as it comes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rayio.errors import ContradictionError, RayioError, ScenarioError
from rayio.interrupts import held
from rayio.model.engine import engine_named
from rayio.reporter import SILENT, Reporter
from rayio.scenario import checks
from rayio.scenario.load import loading
from rayio.scenario.model import Scenario
from rayio.schema.fields import MAX_WHOLE
from rayio.session.dataset import base_folder
from rayio.session.execute import run as run_one
from rayio.storage.address import is_path, join
from rayio.study.sweeps import worker
from rayio.study.sweeps.points import Points, grid, listed
from rayio.study.sweeps.sweep_directory import SweepDirectory
from rayio.study.sweeps.sweep_files import write
from rayio.study.sweeps.sweep_rows import DONE, FAILED, IMPOSSIBLE, Row, row_of
from rayio.study.sweeps.swept import Sweep

#: Runs below which more processes than this one would cost more than they save.
FEW_RUNS = 8


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
    """Run a scenario at every combination of the values of its swept keys, and return a row for each.

    >>> rows = rayio.sweep("unet3d-small", {"loader.num_workers": [1, 4]}, out="sweeps/workers").frame()
    >>> rows["loader.num_workers"].tolist(), (rows.au > 0.5).all().item()
    ([1, 4], True)

    Args:
        source: path or packaged name of a scenario.
        overrides: texts ``section.key=value`` and ``section.key=value,value,...``, or a mapping of dotted keys to a
            value or a list of values. A key with several values is swept.
        points: a file with the points, in place of lists: CSV or YAML.
        engine: ``virtual`` (all cores), ``ray`` or ``local`` (one run after the other).
        repeat: runs of each point. On the virtual clock repeat n has the scenario's seed + n, elsewhere the same seed.
        processes: simulations at a time; None takes one per CPU.
        address: Ray cluster to use, see :func:`rayio.run`.
        out: directory of the sweep; one that is there goes on where it was. None is ``sweeps/<name>`` below ``root``.
        root: folder from which relative paths start.
        reporter: who is told how it goes.

    After Ctrl-C the value says what is ``missing``; ``sweep.csv``, ``sweep.parquet`` and ``sweep.html`` are written of
    what there is.

    Raises:
        ScenarioError: a key or value that cannot be, whatever the others are; nothing has run then.
        StorageError: the directory holds a sweep of another scenario, or cannot be written.
    """
    asked = grid(overrides) if points is None else listed(points, overrides)
    if not asked.keys:
        raise ScenarioError("nothing to sweep: give a key several values, such as loader.num_workers=1,2,4")
    found = _Sweeping(source, asked, engine, repeat, processes, address, out, root, reporter).run()
    write(found)
    return found


class _Sweeping:
    """One call of :func:`sweep`."""

    def __init__(
        self,
        source: str | Path,
        asked: Points,
        engine: str,
        repeat: int,
        processes: int | None,
        address: str | None,
        out: str | Path | None,
        root: str | Path | None,
        reporter: Reporter,
    ) -> None:
        self.asked, self.engine, self.repeat, self.address, self.reporter = asked, engine, repeat, address, reporter
        self.is_virtual = engine_named(engine).is_virtual
        self.load = loading(source)
        self.base = self._base()
        self.root = base_folder(self.base, root)
        self.processes = processes or len(os.sched_getaffinity(0))
        place = join(self.root, str(out) if out is not None else f"sweeps/{self.base.name}")
        if not is_path(place):
            raise ScenarioError(f"not yet: --out {place}: a sweep is kept in a folder; its runs' datasets may be there")
        #: Runs to make, and rows of those that cannot be.
        self.runs: dict[tuple[str, int], tuple[tuple[Any, ...], int, Scenario]] = {}
        self.rows: dict[tuple[str, int], Row] = {}
        #: How many are to be made now, and have been.
        self.todo = self.made = 0
        self._check_all()
        self.directory = SweepDirectory.open(Path(place), self._identity())

    def _base(self) -> Scenario:
        """Load the scenario that all points share; where it cannot be without a point's values, the first that can."""
        error: RayioError | None = None
        for overrides in (self.asked.fixed, *map(self.asked.overrides, self.asked.rows[:1000])):
            try:
                return self.load(overrides)
            except ScenarioError as refused:
                error = error or refused
        assert error is not None
        raise error

    def _identity(self) -> dict[str, Any]:
        """What all points share, without the keys that are swept."""
        content: dict[str, Any] = self.base.model_dump(mode="json")
        for key in self.asked.keys:
            *sections, last = key.split(".")
            holder: Any = content
            for section in sections:
                holder = holder.get(section) if isinstance(holder, dict) else None
            if isinstance(holder, dict):
                holder.pop(last, None)
        return {"engine": self.engine, "swept keys": list(self.asked.keys), "scenario": content}

    def _check_all(self) -> None:
        """Refuse bad keys and values before anything runs; a point whose keys contradict each other is a row."""
        for values in self.asked.rows:
            try:
                scenario = self.load(self.asked.overrides(values))
                if self.is_virtual:
                    checks.check_simulated(scenario)
                if scenario.seed + self.repeat - 1 > MAX_WHOLE:
                    raise ScenarioError(f"seed={scenario.seed}: no room for {self.repeat} repeats above it")
            except ContradictionError as error:
                row = Row(values, 0, IMPOSSIBLE, str(error))
                self.rows[row.identity] = row
                continue
            for number in range(self.repeat):
                one = scenario.model_copy(update={"seed": scenario.seed + number}) if self.is_virtual else scenario
                self.runs[Row(values, number, DONE).identity] = (values, number, one)

    def run(self) -> Sweep:
        """Make the runs that have no row yet."""
        before = {row.identity: row for row in self.directory.rows()}
        self.rows = before | self.rows
        todo = [key for key in self.runs if key not in before or before[key].status in (FAILED, IMPOSSIBLE)]
        if len(todo) < len(self.runs):
            self.reporter.say(f"{len(self.runs) - len(todo)} of {len(self.runs)} runs are in {self.directory.path}")
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
                f"{self.made} of {self.todo} runs are done and kept in {self.directory.path}; "
                "the same command goes on there"
            )
        self.reporter.done()
        missing = sum(key not in self.rows for key in self.runs)
        return Sweep(
            self.directory.path, self.base.name, self.engine, self.asked.keys, tuple(self.rows.values()), missing
        )

    def _keep(self, row: Row) -> None:
        """Keep a run that has ended, whatever signal comes."""
        with held():
            self.rows[row.identity] = row
            self.directory.add(row)
            self.made += 1
        self.reporter.live(f"{self.made}/{self.todo} runs", self.made / self.todo)

    def _simulated(self, todo: list[tuple[str, int]]) -> Iterator[Row]:
        scenarios = [self.runs[key][2] for key in todo]
        processes = min(self.processes, len(todo))
        if processes <= 1 or len(todo) < FEW_RUNS:
            answers: Iterator[tuple[int, worker.Answer]] = enumerate(map(worker.simulated, scenarios))
        else:
            answers = worker.in_processes(enumerate(scenarios), processes)
        for place, answer in answers:
            values, number, scenario = self.runs[todo[place]]
            if isinstance(answer, RayioError):
                yield Row(values, number, FAILED, str(answer))
            else:
                yield row_of(values, number, scenario, answer)

    def _run_one(self, key: tuple[str, int]) -> None:
        """Run a point on an engine of its own and keep its row; its run directory stays."""
        values, number, scenario = self.runs[key]
        place = self.directory.path / "runs" / f"{list(self.runs).index(key):05d}"
        attempt = 0
        while place.exists():  # a run that was cut short before has the name
            attempt += 1
            place = place.with_name(f"{place.name.partition('-')[0]}-{attempt}")
        try:
            run_one(
                scenario, engine=self.engine, address=self.address, out=place, root=self.root,
                ended=lambda made: self._keep(row_of(values, number, scenario, made.result)),
            )  # fmt: skip
        except RayioError as error:
            self._keep(Row(values, number, FAILED, str(error)))
