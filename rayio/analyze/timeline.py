"""Spans of ranks -> lives and steps: the time of each phase, in whole nanoseconds.

Everything is arrays: one entry per rank, or one per step. Nothing here loops over spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rayio.trace import arrow
from rayio.trace.arrow import plain
from rayio.trace.order import Ints as Ints
from rayio.trace.order import dense_order, order_by, sums_by

if TYPE_CHECKING:
    import pyarrow as pa

#: Phases on lane 0 of a rank: before its first step, and those of a step in their order.
STEP_PHASES = ("data_wait", "device_copy", "bubble", "compute", "sync", "drain_wait", "checkpoint", "evaluate")
PHASES = ("startup", "restore", "gap", *STEP_PHASES)

COLUMNS = ("name", "role", "lane", "rank", "attempt", "epoch", "step", "start_ns", "duration_ns", "link")

_WAIT, _COMPUTE = PHASES.index("data_wait"), PHASES.index("compute")
_PAUSES = tuple(map(PHASES.index, ("drain_wait", "checkpoint", "evaluate")))
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Lives:
    """Every rank that recorded anything, by ascending rank; times in ns.

    ``split`` has an array for each phase, ``restart`` and ``other``; for each rank they sum to ``end - begin`` exactly.
    """

    rank: Ints
    begin: Ints
    end: Ints
    split: dict[str, Ints]

    @property
    def wall(self) -> int:
        """The length of the run in ns."""
        return self.last - self.first

    @property
    def first(self) -> int:
        """The first rank's begin."""
        return int(self.begin.min()) if len(self.rank) else 0

    @property
    def last(self) -> int:
        """The last rank's end."""
        return int(self.end.max()) if len(self.rank) else 0

    @property
    def whole(self) -> dict[str, Ints]:
        """``split`` over the length of the run: for each rank the parts of :data:`SPLIT` sum to :attr:`wall` exactly.

        A rank that begins after the first one is starting until then, and one that ends before the last has ``ended``.
        """
        startup = self.split["startup"] + self.begin - self.first
        return {**self.split, "startup": startup, "ended": self.last - self.end}


@dataclass(frozen=True, slots=True)
class Steps:
    """Every step that was completed, in its last attempt, sorted by rank and then by time; times in ns.

    A step lasts from when its rank requests its batch to when it requests the next one; the last one to the end of the
    rank. ``life`` is the position of its rank in :class:`Lives`; ``batch`` is the number of its batch (out of order,
    that of another step); ``arrived`` is when the batch was there; ``computed`` is the end of its compute; ``saving``
    is the begin of its checkpoint or evaluation, else its end. ``parts`` has an array for each of
    :data:`STEP_PHASES`.
    """

    life: Ints
    epoch: Ints
    step: Ints
    attempt: Ints
    batch: Ints
    start: Ints
    end: Ints
    arrived: Ints
    computed: Ints
    saving: Ints
    parts: dict[str, Ints]

    @property
    def number(self) -> int:
        """Return the number of steps."""
        return len(self.start)

    @property
    def duration(self) -> Ints:
        """Return step times in ns."""
        return self.end - self.start

    def by_slice(self) -> Iterator[Steps]:
        """Return all of them as one slice; see :class:`StepsInSlices`."""
        yield self

    def columns(self) -> list[Ints]:
        """Return all arrays, in the order that :meth:`of` takes."""
        return [*(getattr(self, name) for name in _OF_STEPS), *(self.parts[name] for name in STEP_PHASES)]

    @classmethod
    def of(cls, columns: Sequence[Ints], first_life: int = 0) -> Steps:
        """Return steps made of columns; lives are numbered from ``first_life`` on."""
        own = dict(zip(_OF_STEPS, columns, strict=False))
        if first_life:
            own["life"] = own["life"] + first_life
        return cls(**own, parts=dict(zip(STEP_PHASES, columns[len(_OF_STEPS) :], strict=True)))


_OF_STEPS = tuple(each.name for each in fields(Steps) if each.name != "parts")


class StepsInSlices(Protocol):
    """The steps of a run, some ranks at a time: those of a rank are together."""

    @property
    def number(self) -> int:
        """Return the number of steps."""

    def by_slice(self) -> Iterator[Steps]:
        """Return the slices, anew with each call; ``life`` is a position among all ranks."""


def texts(
    spans: pa.Table, column: str, among: tuple[str, ...], chosen: NDArray[Any] | None = None
) -> NDArray[np.int32]:
    """Return for each entry of a dictionary column, or each ``chosen`` one, its place in ``among``, -1 for others."""
    numbers: list[NDArray[np.int32]] = []
    chunks = spans.column(column).chunks
    for chunk in chunks:
        known = [among.index(text) if text in among else -1 for text in chunk.dictionary.to_pylist()]
        codes = plain(chunk.indices)
        if chosen is not None and len(chunks) == 1:
            codes = codes[chosen]
        numbers.append(np.array([*known, -1], np.int32)[codes])
    if len(chunks) == 1:
        return numbers[0]
    places = np.concatenate(numbers) if numbers else np.empty(0, np.int32)
    return places if chosen is None else places[chosen]


def is_text(spans: pa.Table, column: str, *among: str) -> NDArray[np.bool_]:
    """Return which entries of a dictionary column are one of a few texts; quicker than :func:`texts`."""
    return arrow.is_text(spans.column(column), *among)


def integers(spans: pa.Table, column: str, chosen: NDArray[Any] | None = None) -> Ints:
    """Return a column of whole numbers as an array of int64, or its ``chosen`` entries."""
    values: NDArray[Any] = plain(spans.column(column))
    return (values if chosen is None else values[chosen]).astype(np.int64, copy=False)


def nearest_rank(number: int, percent: int) -> int:
    """Return the place of a percentile among ``number`` sorted values: always a value that occurred."""
    return -(-number * percent // 100) - 1


def timeline(spans: pa.Table) -> tuple[Lives, Steps]:
    """Return the lives and the steps of every rank from a table of spans, in any order.

    A step that a later attempt completed again counts there; its time in the earlier attempt is ``restart``, as is the
    time between attempts and every start but the first.
    """
    mine = np.flatnonzero(is_text(spans, "role", "rank") & (plain(spans.column("rank")) >= 0))
    rank, attempt = integers(spans, "rank", mine), integers(spans, "attempt", mine)
    start = integers(spans, "start_ns", mine)
    end = start + integers(spans, "duration_ns", mine)
    attempts = int(attempt.max(initial=0)) + 1
    group = rank * attempts + attempt

    # Begin and end of each attempt of each rank; the life span of a killed rank was never recorded.
    begins = np.full((int(rank.max(initial=-1)) + 1) * attempts, _NEVER)
    ends = np.full(len(begins), -_NEVER)
    np.minimum.at(begins, group, start)
    np.maximum.at(ends, group, end)

    phase = texts(spans, "name", PHASES, mine)
    tile = np.flatnonzero((phase >= 0) & (integers(spans, "lane", mine) == 0))
    tiles = mine[tile]
    epoch, step, link = (integers(spans, column, tiles) for column in ("epoch", "step", "link"))
    group, start, end, phase = group[tile], start[tile], end[tile], phase[tile]
    order = _in_time(group, start, epoch, step, phase)
    group, start, end, epoch, step, link = (x[order] for x in (group, start, end, epoch, step, link))
    phase = phase[order]

    # A segment begins with each data_wait and with each attempt; before the first data_wait is start-up.
    is_first = phase == _WAIT
    is_first[:1] = True
    is_first[1:] |= group[1:] != group[:-1]
    first = np.flatnonzero(is_first)
    times, lasted = np.bincount(phase, minlength=len(PHASES)), end - start
    none = np.zeros(len(first), np.int64)  # shared by phases that did not occur
    none.flags.writeable = False
    parts = {name: _spent(phase == code, lasted, first) if times[code] else none for code, name in enumerate(PHASES)}
    computed = np.where(phase == _COMPUTE, end, -_NEVER)
    computed = np.maximum.reduceat(computed, first) if len(first) else computed
    has_computed = computed > -_NEVER
    pauses = np.flatnonzero(np.isin(phase, _PAUSES)) if times[[*_PAUSES]].any() else first[:0]
    saving = np.full(len(first), _NEVER)
    np.minimum.at(saving, np.searchsorted(first, pauses, side="right") - 1, start[pauses])

    owner, begun = group[first], start[first]
    over = ends[owner]
    over[:-1] = np.where(owner[1:] == owner[:-1], begun[1:], over[:-1])
    is_step = phase[first] == _WAIT
    attempt = owner % attempts
    kept, superseded = _last_attempts(owner // attempts, epoch[first], step[first], attempt, is_step & has_computed)
    superseded &= is_step

    by_rank, by_rank_end = begins.reshape(-1, attempts), ends.reshape(-1, attempts)
    present = np.flatnonzero((by_rank < _NEVER).any(axis=1))
    by_rank, by_rank_end = by_rank[present], by_rank_end[present]
    life = np.searchsorted(present, owner // attempts)
    first_attempt = (by_rank < _NEVER).argmax(axis=1)
    lost = superseded | (~is_step & (attempt > first_attempt[life]))
    split = {name: np.zeros(len(present), np.int64) for name in (*PHASES, "restart")}
    for code in np.flatnonzero(times).tolist():
        part = parts[name := PHASES[code]]
        split[name] = sums_by(life, np.where(lost, 0, part) if lost.any() else part, len(present))
    if lost.any():
        split["restart"] = sums_by(life, np.where(lost, over - begun, 0), len(present))
    split["restart"] += _gaps(by_rank, by_rank_end)
    begin, finish = by_rank.min(axis=1, initial=_NEVER), by_rank_end.max(axis=1, initial=-_NEVER)
    split["other"] = finish - begin - sum(split.values())
    lives = Lives(present, begin, finish, split)
    chosen = slice(None) if kept.all() else kept
    nothing = none[chosen]
    steps = Steps(
        life=life[chosen],
        epoch=epoch[first][chosen],
        step=step[first][chosen],
        attempt=attempt[chosen],
        batch=link[first][chosen],
        start=begun[chosen],
        end=over[chosen],
        arrived=end[first][chosen],
        computed=computed[chosen],
        saving=np.minimum(saving, over)[chosen],
        parts={name: nothing if parts[name] is none else parts[name][chosen] for name in STEP_PHASES},
    )
    return lives, steps


def together(lives: Sequence[Lives]) -> Lives:
    """Return the lives of slices as one, in the order of their ranks."""
    if len(lives) == 1:
        return lives[0]
    return Lives(
        np.concatenate([each.rank for each in lives]),
        np.concatenate([each.begin for each in lives]),
        np.concatenate([each.end for each in lives]),
        {name: np.concatenate([each.split[name] for each in lives]) for name in lives[0].split},
    )


def joined(steps: list[Steps]) -> Steps:
    """Return the steps of slices as one; the list is empty afterwards."""
    if len(steps) == 1:
        return steps.pop()
    columns = {each.name: [getattr(some, each.name) for some in steps] for each in fields(Steps)}
    steps.clear()
    shares = {name: [some.pop(name) for some in columns["parts"]] for name in [*columns["parts"][0]]}
    del columns["parts"]
    # Column by column, so that those of a long run are not in memory twice.
    return Steps(
        **{name: np.concatenate(columns.pop(name)) for name in [*columns]},
        parts={name: np.concatenate(shares.pop(name)) for name in [*shares]},
    )


def _in_time(group: Ints, start: Ints, epoch: Ints, step: Ints, phase: NDArray[np.int32]) -> Ints:
    """Return the order of spans by rank and attempt, then time; equal times (virtual clock) by step and phase."""
    order = dense_order(group, epoch, step, phase)
    if order is not None:  # the order of steps, which is that of time where they follow each other
        at, when = group[order], start[order]
        if ((when[1:] >= when[:-1]) | (at[1:] != at[:-1])).all():
            return order
    together = ((epoch + 1) << 36) | ((step + 1) << 4) | phase
    return order_by(group, start, together)


def _spent(are_mine: NDArray[np.bool_], lasted: Ints, first: Ints) -> Ints:
    if np.count_nonzero(are_mine) > len(are_mine) >> 4:
        sums: Ints = np.add.reduceat(np.where(are_mine, lasted, 0), first)
        return sums
    mine = np.flatnonzero(are_mine)
    return sums_by(np.searchsorted(first, mine, side="right") - 1, lasted[mine], len(first))


def _last_attempts(
    rank: Ints, epoch: Ints, step: Ints, attempt: Ints, is_complete: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which segments are their step's last completed attempt, and which are older than it."""
    if not attempt.any():
        return is_complete, np.zeros(len(rank), np.bool_)
    key = (rank << 42) | (np.maximum(epoch, 0) << 30) | np.maximum(step, 0)
    _, number = np.unique(key, return_inverse=True)
    best = np.full(len(key), -1)
    np.maximum.at(best, number[is_complete], attempt[is_complete])
    return is_complete & (attempt == best[number]), attempt < best[number]


def _gaps(begins: Ints, ends: Ints) -> Ints:
    """Return for each rank the time in which no attempt of it was alive, between the first and the last."""
    gaps = np.zeros(len(begins), np.int64)
    over = ends[:, 0] if begins.size else gaps
    for attempt in range(1, begins.shape[1]):
        is_alive, was_alive = begins[:, attempt] < _NEVER, over > -_NEVER
        gaps += np.where(is_alive & was_alive, np.maximum(begins[:, attempt] - over, 0), 0)
        over = np.maximum(over, ends[:, attempt])
    return gaps
