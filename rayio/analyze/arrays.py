"""The arrays that a run's numbers are computed from, whether spans, slices or an engine yielded them.

Times are whole nanoseconds on one clock. Nothing here depends on tables: an engine without spans can fill these in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from rayio.analyze.timeline import Ints, Lives, Steps, StepsInSlices, integers, is_text, joined, timeline, together
from rayio.trace.aside import Kept, Unnamed
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import DataclassInstance

#: Work of readers, writers and ranks that has an entry for each piece; steps have their own arrays.
TIMED = ("checkpoint", "evaluate", "read", "decode", "write", "fsync", "eval_compute", "eval_data_wait")


@dataclass(frozen=True, slots=True)
class Timed:
    """Pieces of work of one kind, in any order: rank, epoch, end and duration (ns) of each."""

    rank: Ints
    epoch: Ints
    end: Ints
    duration: Ints

    @classmethod
    def of(cls, spans: pa.Table, chosen: Ints) -> Timed:
        """Return the chosen spans as work."""
        rank, epoch, start, duration = (
            integers(spans, column, chosen) for column in ("rank", "epoch", "start_ns", "duration_ns")
        )
        return cls(rank, epoch, start + duration, duration)


@dataclass(frozen=True, slots=True)
class Reads:
    """Bytes that were read, by the number of their batch (as in :class:`Steps`); in any order."""

    batch: Ints
    nbytes: Ints


@dataclass(frozen=True, slots=True)
class RunArrays:
    """A run as arrays: one entry per rank (``lives``), per step (``steps``), per piece of work (``timed``).

    ``timed`` has the kinds of :data:`TIMED` that occurred; ``reads`` is empty where nothing was recorded of readers.
    """

    lives: Lives
    steps: Steps
    timed: Mapping[str, Timed] = field(default_factory=dict)
    reads: Reads = field(default_factory=lambda: Reads(np.empty(0, np.int64), np.empty(0, np.int64)))

    @classmethod
    def of_spans(cls, spans: pa.Table | Slices) -> RunArrays:
        """Return the arrays of spans in any order; spans of other libraries are left out."""
        all_lives, all_steps = list[Lives](), list[Steps]()
        timed, reads, before = dict[str, list[Timed]](), [], 0
        for (its_lives, its_steps), kinds, read in _of_slices(Slices.of(spans)):
            all_steps.append(replace(its_steps, life=its_steps.life + before) if before else its_steps)
            all_lives.append(its_lives)
            before += len(its_lives.rank)
            reads.append(read)
            for kind, work in kinds.items():
                timed.setdefault(kind, []).append(work)
        return cls(
            together(all_lives), joined(all_steps),
            {kind: concatenated(timed.pop(kind)) for kind in TIMED if kind in timed},
            concatenated(reads),
        )  # fmt: skip

    def of(self, kind: str) -> Timed:
        """Return the work of one kind; empty where there was none."""
        return self.timed.get(kind) or Timed(*(np.empty(0, np.int64) for _ in range(4)))

    def by_slice(self) -> Iterator[RunArrays]:
        """Return all of them as one slice; see :class:`LaidAside`."""
        yield self


class LaidAside:
    """A long run's arrays by slice: they lie in a file, and are never in memory together."""

    def __init__(self, slices: Slices) -> None:
        file, lives, first = Unnamed(), list[Lives](), 0
        self._kept: list[tuple[int, Kept, dict[str, Kept], Kept]] = []
        self.number = 0
        for (its_lives, steps), timed, reads in _of_slices(slices):
            works = {kind: file.keep(_columns(work)) for kind, work in timed.items()}
            self._kept.append((first, file.keep(steps.columns()), works, file.keep(_columns(reads))))
            lives.append(its_lives)
            first += len(its_lives.rank)
            self.number += steps.number
        self.lives = together(lives)

    @property
    def steps(self) -> StepsInSlices:
        """Return the steps of all ranks."""
        return _StepsOf(self)

    def by_slice(self) -> Iterator[RunArrays]:
        """Return the slices, anew with each call."""
        for first, steps, timed, reads in self._kept:
            works = {kind: Timed(*work.columns()) for kind, work in timed.items()}
            yield RunArrays(self.lives, Steps.of(steps.columns(), first), works, Reads(*reads.columns()))

    def of(self, kind: str) -> Timed:
        """Return the work of one kind of all ranks."""
        return concatenated([run.of(kind) for run in self.by_slice()])


class _StepsOf:
    def __init__(self, run: LaidAside) -> None:
        self._run = run
        self.number = run.number

    def by_slice(self) -> Iterator[Steps]:
        return (each.steps for each in self._run.by_slice())


#: The arrays of a run, together or some ranks at a time.
RunInSlices = RunArrays | LaidAside


def arrays_of(spans: pa.Table | Slices) -> RunInSlices:
    """Return the arrays of a run: in memory for one slice, in a file for more."""
    slices = Slices.of(spans)
    return RunArrays.of_spans(slices) if slices.number == 1 else LaidAside(slices)


_COLUMNS = (
    "role", "name", "lane", "rank", "attempt", "epoch", "step", "batch", "start_ns", "duration_ns", "bytes", "link",
)  # fmt: skip


def _of_slices(slices: Slices) -> Iterator[tuple[tuple[Lives, Steps], dict[str, Timed], Reads]]:
    kinds = [kind for kind in TIMED if slices.has(kind)]
    return slices.each(lambda _, spans: _of_slice(spans, kinds), *_COLUMNS)


def _of_slice(spans: pa.Table, kinds: Sequence[str]) -> tuple[tuple[Lives, Steps], dict[str, Timed], Reads]:
    chosen = {kind: np.flatnonzero(is_text(spans, "name", kind)) for kind in kinds}
    if (saves := chosen.get("checkpoint")) is not None:
        nbytes = integers(spans, "bytes", saves)  # the wait for the last asynchronous one has none
        chosen["checkpoint"] = saves[nbytes > 0] if nbytes.any() else saves
    reads = chosen.get("read", np.zeros(0, np.int64))
    of_reads = Reads(*(integers(spans, column, reads) for column in ("batch", "bytes")))
    return timeline(spans), {kind: Timed.of(spans, mine) for kind, mine in chosen.items() if len(mine)}, of_reads


def _columns(part: Timed | Reads) -> list[Ints]:
    return [getattr(part, each.name) for each in fields(part)]


Arrays = TypeVar("Arrays", bound="DataclassInstance")


def concatenated(parts: Sequence[Arrays]) -> Arrays:
    """Return one dataclass of arrays with the rows of all parts."""
    kind = type(parts[0])
    return kind(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(kind)))
