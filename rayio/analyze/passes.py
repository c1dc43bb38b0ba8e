"""Going through the spans of a run: first what its ranks did, then everything else, each slice once for all who ask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from rayio.analyze.part import Part
from rayio.analyze.timeline import COLUMNS as OF_TIMELINES
from rayio.analyze.timeline import Ints, Lives, Steps, integers, is_text, joined, timeline, together
from rayio.trace.aside import Kept, Unnamed
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa


class Summed(Protocol):
    """What is summed up over the slices of a run."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of spans that it looks at."""

    def of(self, part: Part) -> Any:
        """What it takes of a slice; it is asked in threads, of several slices at a time, and changes nothing."""

    def add(self, found: Any) -> None:
        """Add what it took of a slice; slices come in their order."""


def go_through(spans: pa.Table | Slices, *sums: Summed, timed: Timelines | None = None) -> None:
    """Add up every slice of a run, each read once for all of the sums; ``timed`` is known of its ranks, if anything."""

    def of(number: int, table: pa.Table) -> list[Any]:
        part = Part(table, None if timed is None else timed.of_slice(number))
        return [one.of(part) for one in sums]

    columns = dict.fromkeys(name for one in sums for name in one.columns)
    for found in Slices.of(spans).each(of, *columns):
        for one, taken in zip(sums, found, strict=True):
            one.add(taken)


One = TypeVar("One", bound=Summed)


def summed(spans: pa.Table | Slices, one: One) -> One:
    """Go through a run for one sum alone."""
    go_through(spans, one)
    return one


class Timelines:
    """The lives of all ranks of a run, and their steps by the slices that the run is read in.

    Steps of a run of several slices are laid aside in a file: they are too many to be held together.
    """

    def __init__(self, spans: pa.Table | Slices) -> None:
        self.slices = Slices.of(spans)
        file = Unnamed() if self.slices.number > 1 else None
        self._kept: list[Steps | Kept] = []
        lives: list[Lives] = []
        paused: list[tuple[Ints, Ints]] = []
        numbers = [0]
        for (its_lives, steps), pauses in self.slices.each(
            lambda _, table: (timeline(table), _paused(table)), *OF_TIMELINES
        ):
            lives.append(its_lives)
            paused.append(pauses)
            numbers.append(steps.number)
            self._kept.append(steps if file is None else file.keep(steps.columns()))
        begins, ends = (np.concatenate([each[at] for each in paused]) for at in (0, 1))
        #: When each checkpoint and each evaluation began to hold its rank, and when it was over; in no order.
        self.paused: tuple[Ints, Ints] = (begins, ends)
        self.number = sum(numbers)
        self._of_slice = lives
        self._first_life = np.cumsum([0, *(len(each.rank) for each in lives)]).tolist()
        self.lives = together(lives)

    def by_slice(self) -> Iterator[Steps]:
        """The steps of each slice; ``life`` is a position in ``lives``."""
        for number, first in enumerate(self._first_life[:-1]):
            steps = self._steps(number)
            yield steps if not first else replace(steps, life=steps.life + first)

    @cached_property
    def steps(self) -> Steps:
        """All of them, held together."""
        return joined([*self.by_slice()])

    def of_slice(self, number: int) -> tuple[Lives, Steps]:
        """What was found in one slice; ``life`` is a position among its own."""
        return self._of_slice[number], self._steps(number)

    def _steps(self, number: int) -> Steps:
        kept = self._kept[number]
        return kept if isinstance(kept, Steps) else Steps.of(kept.columns())

    def go_through(self, *sums: Summed) -> None:
        """Add up every slice, see :func:`go_through`."""
        go_through(self.slices, *sums, timed=self)


def _paused(spans: pa.Table) -> tuple[Ints, Ints]:
    """When the ranks of a slice did not train."""
    chosen = np.flatnonzero(is_text(spans, "name", "checkpoint", "evaluate") & is_text(spans, "role", "rank"))
    begin = integers(spans, "start_ns", chosen)
    return begin, begin + integers(spans, "duration_ns", chosen)
