"""Going through the spans of a run: first what its ranks did, then everything else, each slice once for all who ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from rayio.analyze.part import Part
from rayio.analyze.timeline import COLUMNS as OF_TIMELINES
from rayio.analyze.timeline import Ints, Lives, Steps, integers, is_text, joined, timeline
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
    """The lives and steps of all ranks of a run, and which of them are of which of its slices."""

    def __init__(self, spans: pa.Table | Slices) -> None:
        self.slices = Slices.of(spans)
        told = [*self.slices.each(lambda _, table: (timeline(table), _paused(table)), *OF_TIMELINES)]
        begins, ends = (np.concatenate([paused[at] for _, paused in told]) for at in (0, 1))
        #: When each checkpoint and each evaluation began to hold its rank, and when it was over; in no order.
        self.paused: tuple[Ints, Ints] = (begins, ends)
        found = [each for each, _ in told]
        del told
        self._first_life = np.cumsum([0, *(len(lives.rank) for lives, _ in found)]).tolist()
        self._first_step = np.cumsum([0, *(steps.number for _, steps in found)]).tolist()
        self.lives, self.steps = joined(found)

    def of_slice(self, number: int) -> tuple[Lives, Steps]:
        """What was found in one slice."""
        life, step = (slice(*first[number : number + 2]) for first in (self._first_life, self._first_step))
        lives, steps = self.lives, self.steps
        return (
            Lives(
                lives.rank[life], lives.begin[life], lives.end[life],
                {name: ns[life] for name, ns in lives.split.items()},
            ),
            replace(
                steps,
                **{
                    each.name: getattr(steps, each.name)[step]
                    for each in fields(steps) if each.name not in ("life", "parts")
                },
                life=steps.life[step] - life.start,
                parts={name: ns[step] for name, ns in steps.parts.items()},
            ),
        )  # fmt: skip

    def go_through(self, *sums: Summed) -> None:
        """Add up every slice, see :func:`go_through`."""
        go_through(self.slices, *sums, timed=self)


def _paused(spans: pa.Table) -> tuple[Ints, Ints]:
    """When the ranks of a slice did not train."""
    chosen = np.flatnonzero(is_text(spans, "name", "checkpoint", "evaluate") & is_text(spans, "role", "rank"))
    begin = integers(spans, "start_ns", chosen)
    return begin, begin + integers(spans, "duration_ns", chosen)
