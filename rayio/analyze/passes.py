"""Passes over the spans of a run: first its ranks, then everything else, each slice read once for all analyses."""

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
    """A sum over the slices of a run."""

    @property
    def columns(self) -> Sequence[str]:
        """Return the columns of spans that it needs."""

    def of(self, part: Part) -> Any:
        """Return the sums of a slice; called in threads, for several slices at a time, it changes nothing."""

    def add(self, part_sums: Any, /) -> None:
        """Add the sums of a slice; slices come in their order."""


def go_through(spans: pa.Table | Slices, *sums: Summed, timed: Timelines | None = None) -> None:
    """Add up every slice of a run, each read once for all of the sums; ``timed`` are its ranks' lives, where known."""

    def of(number: int, table: pa.Table) -> list[Any]:
        part = Part(table, None if timed is None else timed.of_slice(number))
        return [each.of(part) for each in sums]

    columns = dict.fromkeys(name for each in sums for name in each.columns)
    for parts in Slices.of(spans).each(of, *columns):
        for each, part_sums in zip(sums, parts, strict=True):
            each.add(part_sums)


Sum = TypeVar("Sum", bound=Summed)


def summed(spans: pa.Table | Slices, sums: Sum) -> Sum:
    """Return one sum alone over a run."""
    go_through(spans, sums)
    return sums


class Timelines:
    """The lives of all ranks of a run, and their steps by slice.

    The steps of a run of several slices lie in a file: they are too many for memory.
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
        """Return the steps of each slice; ``life`` is a position in ``lives``."""
        for number, first in enumerate(self._first_life[:-1]):
            steps = self._steps(number)
            yield steps if not first else replace(steps, life=steps.life + first)

    @cached_property
    def steps(self) -> Steps:
        """Return all steps, in memory together."""
        return joined([*self.by_slice()])

    def of_slice(self, number: int) -> tuple[Lives, Steps]:
        """Return the lives and steps of one slice; ``life`` is a position among its own."""
        return self._of_slice[number], self._steps(number)

    def _steps(self, number: int) -> Steps:
        kept = self._kept[number]
        return kept if isinstance(kept, Steps) else Steps.of(kept.columns())

    def go_through(self, *sums: Summed) -> None:
        """Add up every slice, see :func:`go_through`."""
        go_through(self.slices, *sums, timed=self)


def _paused(spans: pa.Table) -> tuple[Ints, Ints]:
    """Return when ranks of a slice began checkpoints and evaluations, and when those ended."""
    chosen = np.flatnonzero(
        is_text(spans, "name", "drain_wait", "checkpoint", "evaluate") & is_text(spans, "role", "rank")
    )
    begin = integers(spans, "start_ns", chosen)
    return begin, begin + integers(spans, "duration_ns", chosen)
