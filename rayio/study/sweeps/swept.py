"""A sweep that is over, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rayio.interrupts import INTERRUPTED
from rayio.study.sweeps import choices
from rayio.study.sweeps.sweep_rows import DONE, FAILED, UNMET, Point, Row, columns, points_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Sweep:
    """A sweep that is over, or was cut short: its directory, the swept keys, and a row for every run that ended."""

    path: Path
    name: str
    engine: str
    keys: tuple[str, ...]
    rows: tuple[Row, ...]
    #: Runs that were asked for and have no row.
    missing: int = 0

    @cached_property
    def points(self) -> list[Point]:
        """The points over their repeats, in the order of their values."""
        return points_of(self.rows)

    @cached_property
    def knee(self) -> Point | None:
        """The point of a sweep over one key after which more of it brings little AU; see ``choices.knee``."""
        found = choices.knee_of(self.points)
        return None if found is None else self.points[found.place]

    @cached_property
    def front(self) -> list[Point]:
        """The points that no other beats: as much AU with no more readers and memory, and less of one of them."""
        return [self.points[place] for place in sorted(choices.front(self.points, choices.readers, choices.memory))]

    def frame(self) -> pd.DataFrame:
        """A row for every run: swept keys, status, readers, window_bytes, and every metric by its name."""
        import pandas as pd

        return pd.DataFrame(columns(self.keys, [row for point in self.points for row in point.rows]))

    def __repr__(self) -> str:
        missing = f", {self.missing} missing" if self.missing else ""
        found = [au for au in (point.mean("au") for point in self.points) if au is not None]
        au = f", AU {100 * min(found):.1f} to {100 * max(found):.1f} %" if found else ""
        over = f"{self.name} over {', '.join(self.keys)} on the {self.engine} engine"
        return f"<rayio.Sweep {over}: {len(self.rows)} runs{missing}{au}, in {self.path}>"

    @property
    def exit_code(self) -> int:
        """What the command ends with.

        0 when a point went well, 3 when none did as ``expect:`` wants, 4 when a ledger is not even, 1 when rayio or
        another package is at fault, 130 when runs are missing, 2 when nothing went well for other reasons.
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
