"""Bins of equal length over time, and their coverage by intervals: exact, in whole nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.timeline import Ints


@dataclass(frozen=True, slots=True)
class Bins:
    """``number`` bins of ``width`` ns from ``begin`` on; the last one may reach beyond the end."""

    begin: int
    width: int
    number: int

    @classmethod
    def over(cls, begin: int, end: int, most: int) -> Bins:
        """Return at most ``most`` bins over a stretch, none shorter than 1 ns."""
        span = max(end - begin, 1)
        width = -(-span // max(most, 1))
        return cls(begin, width, -(-span // width))

    @property
    def seconds(self) -> float:
        """Return the length of all of them together."""
        return self.number * self.width / 1e9

    def of(self, moment: Ints) -> Ints:
        """Return the bin of each moment; one before the first or after the last counts there."""
        return np.clip((moment - self.begin) // self.width, 0, self.number - 1)

    def covered(self, row: Ints, rows: int, start: Ints, end: Ints) -> NDArray[np.int64]:
        """Return by row and bin the sum of interval lengths in that bin: ns, of shape (rows, number).

        Time outside of the bins is left out; intervals may overlap, and then count each.
        """
        last = self.begin + self.number * self.width
        start, end = np.clip(start, self.begin, last) - self.begin, np.clip(end, self.begin, last) - self.begin
        held = end > start
        row, start, end = row[held], start[held], end[held]
        # A whole bin for each interval that is on at its left edge, corrected in the bins where one begins or ends.
        edges = self.number + 1
        first, final = start // self.width, end // self.width
        begins, ends = row * edges + first, row * edges + final
        on = np.bincount(begins, minlength=rows * edges) - np.bincount(ends, minlength=rows * edges)
        covered = np.zeros(rows * edges, np.int64)
        np.add.at(covered, begins, first * self.width - start)
        np.add.at(covered, ends, end - final * self.width)
        whole = np.cumsum(on.reshape(rows, edges), axis=1) * self.width
        answer: NDArray[np.int64] = (covered.reshape(rows, edges) + whole)[:, : self.number]
        return answer
