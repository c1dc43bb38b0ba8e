"""A finished sweep as an object."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rayio.analyze.gate import FEW_FAILURES, of_repeats, of_result
from rayio.records.doubts import SETTING, blocking
from rayio.records.sweeps import DONE, FAILED, UNMET, SweepTable
from rayio.signals import INTERRUPTED
from rayio.study.sweeps import choices
from rayio.study.sweeps.points import number_of
from rayio.study.sweeps.sweep_rows import Point, Row, columns, points_of
from rayio.study.sweeps.sweep_table import table_of

if TYPE_CHECKING:
    import pandas as pd


#: A key whose values are a cost.
READER_NODES = "cluster.reader_nodes"


def _sustained(row: Row) -> Row:
    """Return a run with the AU that its workers sustain, where its own is that of the initial prefetch."""
    if row.result is None:
        return row
    lower = [doubt.numbers["au"] for doubt in blocking(of_result(row.result), SETTING) if "au" in doubt.numbers]
    return replace(row, result=replace(row.result, au=min(lower))) if lower else row


@dataclass(frozen=True, repr=False)
class Swept:
    """The rows of a sweep, one for every finished run, its directory and keys, and what follows from them."""

    path: Path
    name: str
    engine: str
    keys: tuple[str, ...]
    rows: tuple[Row, ...]
    missing: int = 0

    @cached_property
    def points(self) -> list[Point]:
        """The points over their repeats, in the order of their values."""
        return points_of(self.rows)

    @property
    def metric(self) -> str:
        """The metric that decides: AU, or goodput if a run had failures, as their time is in no step."""
        results = (row.result for row in self.rows)
        return "goodput" if any(each is not None and each.failures is not None for each in results) else "au"

    @cached_property
    def _is_chance(self) -> bool:
        """True if some point has too few random failures for an average."""
        return any(doubt.code == FEW_FAILURES for point in self.points for doubt in of_repeats(point.measured))

    @cached_property
    def knee(self) -> Point | None:
        """The point of a sweep over one key where diminishing returns of AU begin; see ``choices.knee``.

        None also after failures, and if it would be another one with the AU that workers sustain, where points are in
        doubt.
        """
        if self.metric != "au" or self._is_chance:
            return None
        knee, steady = choices.knee_of(self.points), choices.knee_of(points_of([*map(_sustained, self.rows)]))
        is_sure = knee is not None and steady is not None and knee.index == steady.index
        return self.points[knee.index] if knee is not None and is_sure else None

    @cached_property
    def front(self) -> list[Point]:
        """The Pareto front: the best trade-offs of AU (after failures goodput) against its costs.

        Costs are workers, memory and reader nodes. Points with different numbers of accelerators do different work, and
        are not compared. There is none with too few random failures.
        """
        if self._is_chance:
            return []
        costs = [choices.workers, choices.memory]
        if READER_NODES in self.keys:
            place = self.keys.index(READER_NODES)
            costs.append(lambda point: number_of(point.values[place]))
        best: list[Point] = []
        for ranks in dict.fromkeys(map(choices.accelerators, self.points)):
            alike = [point for point in self.points if choices.accelerators(point) == ranks]
            best += [alike[index] for index in choices.front(alike, *costs, metric=self.metric)]
        chosen = {id(point) for point in best}
        return [point for point in self.points if id(point) in chosen]

    @cached_property
    def table(self) -> SweepTable:
        """The points as a table, with what follows from them."""
        return table_of(self.keys, self.points, self.knee, self.front)

    def frame(self) -> pd.DataFrame:
        """Return a row for every run: swept keys, status, workers, window_bytes, and every metric by its name."""
        import pandas as pd

        return pd.DataFrame(columns(self.keys, [row for point in self.points for row in point.rows]))

    @property
    def exit_code(self) -> int:
        """The exit code of the command.

        0 if a point succeeded, 1 for a bug of rayio or another package, 2 if nothing succeeded, 3 if ``expect:`` was
        unmet everywhere, 4 if samples were not delivered exactly once, 130 if runs are missing.
        """
        if self.missing:
            return INTERRUPTED
        codes = {row.result.exit_code for row in self.rows if row.result is not None}
        if 4 in codes:
            return 4
        if any(row.status == FAILED and (row.error or "").startswith(("our fault", "fault of ")) for row in self.rows):
            return 1
        statuses = {row.status for row in self.rows}
        return 0 if DONE in statuses else 3 if UNMET in statuses else 2
