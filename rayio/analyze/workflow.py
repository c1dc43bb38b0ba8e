"""When the processes of stages ran, and how long anything read or wrote; from spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rayio.analyze.timeline import Ints, integers, is_text
from rayio.trace.arrow import plain
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa

#: Spans in which a process of a stage, or any role, reads or writes.
OF_STAGES = ("stage_read", "stage_write", "stage_open")
OF_ROLES = (*OF_STAGES, "read", "write", "fsync", "load")


@dataclass(frozen=True, slots=True)
class Pieces:
    """Intervals of time in ns, each with the number of its stage (-1: none)."""

    start: Ints
    end: Ints
    stage: Ints

    def of(self, stage: int) -> Pieces:
        """Return the intervals of a stage."""
        mine = self.stage == stage
        return Pieces(self.start[mine], self.end[mine], self.stage[mine])

    @property
    def covered(self) -> float:
        """Seconds that at least one interval covers."""
        if not len(self.start):
            return 0.0
        order = np.argsort(self.start, kind="stable")
        start, end = self.start[order], np.maximum.accumulate(self.end[order])
        gaps = np.maximum(0, start[1:] - end[:-1])
        return float(end[-1] - start[0] - gaps.sum()) / 1e9

    @property
    def extent(self) -> float | None:
        """Seconds from the first start to the last end; None without intervals."""
        return float(self.end.max() - self.start.min()) / 1e9 if len(self.start) else None

    @property
    def most_at_once(self) -> int:
        """The most intervals that have a time in common; one that ends makes room for one that starts then."""
        times = np.concatenate([self.end, self.start])
        change = np.concatenate([np.full(len(self.end), -1), np.ones(len(self.start), np.int64)])
        return int(np.cumsum(change[np.lexsort((change, times))]).max(initial=0))


@dataclass(frozen=True, slots=True)
class Activity:
    """The lives of processes and ranks, and all reads and writes."""

    lives: Pieces
    moves: Pieces


def activity(spans: pa.Table | Slices, names: Sequence[str]) -> Activity:
    """Return when processes of the stages with these names lived, and when anything read or wrote."""
    lives, moves = list[Pieces](), list[Pieces]()
    columns = ("name", "role", "index", "start_ns", "duration_ns")
    for some in Slices.of(spans).each(lambda _, part: _of_slice(part, names), *columns):
        lives.append(some.lives)
        moves.append(some.moves)
    return Activity(_joined(lives), _joined(moves))


def _of_slice(spans: pa.Table, names: Sequence[str]) -> Activity:
    is_life = is_text(spans, "name", "life") & is_text(spans, "role", "stage", "rank")
    return Activity(_pieces(spans, is_life, names), _pieces(spans, is_text(spans, "name", *OF_ROLES), names))


def _pieces(spans: pa.Table, is_chosen: np.ndarray[tuple[int], np.dtype[np.bool_]], names: Sequence[str]) -> Pieces:
    chosen = np.flatnonzero(is_chosen)
    start, duration = integers(spans, "start_ns", chosen), integers(spans, "duration_ns", chosen)
    of_stage = np.where(is_text(spans, "role", "stage"), _stages(spans, names), -1)
    return Pieces(start, start + duration, of_stage[chosen])


def _stages(spans: pa.Table, names: Sequence[str]) -> Ints:
    """Return the number of the stage that each index names: the index of a process is its stage and its number."""
    known, column = {name: number for number, name in enumerate(names)}, spans["index"].unify_dictionaries()
    if not len(column):
        return np.zeros(0, np.int64)
    texts = column.chunks[0].dictionary.to_pylist()
    number = np.array([known.get(text.rpartition("-")[0], -1) for text in texts], np.int64)
    codes: Ints = number[np.concatenate([plain(chunk.indices) for chunk in column.chunks])]
    return codes


def _joined(parts: Sequence[Pieces]) -> Pieces:
    return Pieces(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("start", "end", "stage")))
