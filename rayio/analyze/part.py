"""A slice of a run for several analyses: its spans, its ranks' steps, and the work of every worker."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.intervals import BEFORE, Lookup, Occupied, pick
from rayio.analyze.timeline import Ints, Lives, Steps, integers, is_text, texts, timeline
from rayio.place import batch_parts
from rayio.trace.arrow import plain
from rayio.trace.order import order_by

if TYPE_CHECKING:
    import pyarrow as pa

#: Spans of a worker that are a stage of their batch by the same name.
WORK = ("open", "read", "retry", "decode", "put", "pin")

#: Kinds on a worker's timeline: its work, time lost with a killed process, and ``put`` as far as it is derived.
KINDS = (*WORK, "unrecorded", "put")
PUT, _UNRECORDED, _DERIVED = WORK.index("put"), len(WORK), len(WORK) + 1
_OVERSHOOT, _LOST = len(WORK), len(WORK) + 1


COLUMNS = (
    "name", "role", "index", "node", "lane", "rank", "epoch", "step", "attempt", "start_ns", "duration_ns", "link",
)  # fmt: skip


class Places:
    """Numbers for (attempt, rank, epoch, step) in 63 bits, for spans and for steps alike."""

    def __init__(self, spans: pa.Table) -> None:
        self._columns = [plain(spans.column(name)) for name in ("attempt", "rank", "epoch", "step")]
        self._sizes = [int(column.max(initial=0)) + 1 for column in self._columns]

    def of(self, chosen: Ints) -> Ints:
        """Return the numbers of some spans' places; -1 where they have none."""
        columns = [column[chosen].astype(np.int64) for column in self._columns]
        return np.where(np.minimum.reduce(columns) < 0, -1, self._number(*columns))

    def of_any_attempt(self, chosen: Ints) -> Ints:
        """Return the numbers of some spans' places without their attempts; -1 where they have none."""
        _, ranks, epochs, steps = self._sizes
        place = self.of(chosen)
        return np.where(place < 0, -1, place % (ranks * epochs * steps))

    def of_links(self, chosen: Ints, link: Ints) -> Ints:
        """Return the numbers of the batches that spans link to, in those spans' attempts; -2 for unknown places."""
        ranks, epochs, steps = batch_parts(link)
        attempt = self._columns[0][chosen].astype(np.int64)
        _, *sizes = self._sizes
        is_there = (link >= 0) & (ranks < sizes[0]) & (epochs < sizes[1]) & (steps < sizes[2])
        return np.where(is_there, self._number(attempt, ranks, epochs, steps), -2)

    def of_batches(self, lives: Lives, steps: Steps) -> Ints:
        """Return the number of the batch that each step got: the linked one, or without links the step's own."""
        rank = lives.rank[steps.life]
        of_rank, of_epoch, of_step = batch_parts(steps.batch)
        is_own = (of_rank == rank) & (of_epoch == steps.epoch)
        linked = np.where(is_own & steps.batch.any(), of_step, steps.step)
        return np.where(linked < self._sizes[3], self._number(steps.attempt, rank, steps.epoch, linked), -1)

    def parts(self, number: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return numbers split into (attempt, rank, epoch, step)."""
        _, ranks, epochs, steps = self._sizes
        number, step = np.divmod(number, steps)
        number, epoch = np.divmod(number, epochs)
        attempt, rank = np.divmod(number, ranks)
        return attempt, rank, epoch, step

    def _number(self, attempt: Ints, rank: Ints, epoch: Ints, step: Ints) -> Ints:
        _, ranks, epochs, steps = self._sizes
        return ((attempt * ranks + rank) * epochs + epoch) * steps + step


@dataclass(frozen=True, slots=True)
class WorkDone:
    """The work of every worker, by worker (group) and time. ``place`` is the batch, ``rank`` whom the worker serves.

    Kinds of ``did`` are positions in :data:`KINDS`.
    """

    did: Occupied
    place: Ints
    rank: Ints
    node: Ints

    @classmethod
    def of(cls, spans: pa.Table, places: Places, ready: Lookup, ready_at: Ints) -> WorkDone:
        """Return the work in some spans. A stage lasts until the next of its batch begins, so that no time is between.

        Without a ``put`` span, ``put`` lasts from the end of the work to when the batch was ready, or was sent to
        another node, or was copied into page-locked memory, or to when the worker began something else.
        """
        chosen = np.flatnonzero(is_text(spans, "role", "reader", "rank"))
        role, lane = texts(spans, "role", ("reader", "rank"), chosen), integers(spans, "lane", chosen)
        name = texts(spans, "name", (*WORK, "overshoot", "lost"), chosen)
        is_work = (name >= 0) & (name < _LOST) & (lane == role)  # a rank's own reading is on lane 1
        mine = np.flatnonzero(is_work | ((name == _LOST) & (role == 0)))
        chosen, role, name = chosen[mine], role[mine], name[mine]
        group = groups(spans, role, chosen)
        start = integers(spans, "start_ns", chosen)
        end = start + integers(spans, "duration_ns", chosen)
        order = order_by(group, start, end)
        chosen, group, start, end = (x[order] for x in (chosen, group, start, end))
        name = name[order]
        # Overhead after a sleep belongs to that sleep; on a rank's lane it may follow a snapshot, or an evaluation.
        follows = np.zeros(len(chosen), np.bool_)
        follows[1:] = (group[1:] == group[:-1]) & (start[1:] == end[:-1])
        kept = (name != _OVERSHOOT) | follows
        if not kept.all():
            chosen, group, start, end = (x[kept] for x in (chosen, group, start, end))
            name = name[kept]
        kind, place = name.astype(np.int64), places.of(chosen)

        goes_on = np.zeros(len(chosen), np.bool_)
        goes_on[:-1] = (group[1:] == group[:-1]) & (place[1:] == place[:-1]) & (place[1:] >= 0)
        following = np.append(start[1:], -BEFORE)[: len(start)]
        following[:-1][group[1:] != group[:-1]] = -BEFORE
        end = np.where(goes_on, following, np.minimum(end, following))
        named = np.maximum.accumulate(np.where(kind != _OVERSHOOT, np.arange(len(kind)), 0))
        kind = np.where(kind[named] >= len(WORK), _UNRECORDED, kind[named])

        at = ready.find(place)
        away, set_out = np.append(sent(spans, "reader", "rank"), pinned(spans)), pick(ready_at, at, end)
        if len(away):
            sent_at = integers(spans, "start_ns", away)
            set_out = np.minimum(set_out, pick(sent_at, Lookup(places.of(away), -sent_at).find(place), set_out))
        puts = np.flatnonzero(~goes_on & (kind != PUT) & (at >= 0) & (set_out > end))
        put_end = np.minimum(set_out[puts], following[puts])
        if len(puts):
            chosen = np.insert(chosen, puts + 1, chosen[puts])
            group = np.insert(group, puts + 1, group[puts])
            start, end = np.insert(start, puts + 1, end[puts]), np.insert(end, puts + 1, put_end)
            kind, place = np.insert(kind, puts + 1, _DERIVED), np.insert(place, puts + 1, place[puts])
        first = np.flatnonzero(np.diff(group, prepend=-1))
        rank = integers(spans, "rank", chosen)  # -1 in what was lost
        if len(first):
            rank = np.repeat(np.maximum.reduceat(rank, first), np.diff(np.append(first, len(rank))))
        return cls(Occupied(group, start, end, kind), place, rank, integers(spans, "node", chosen))


class Part:
    """A slice, with everything that more than one analysis needs computed at most once.

    Its spans have unified dictionaries. ``timed`` are its ranks' lives and steps, where they are known.
    """

    def __init__(self, spans: pa.Table, timed: tuple[Lives, Steps] | None = None) -> None:
        self.spans = spans
        self._timed = timed

    @cached_property
    def timed(self) -> tuple[Lives, Steps]:
        """Return the lives and steps of its ranks."""
        return timeline(self.spans) if self._timed is None else self._timed

    @cached_property
    def begin(self) -> Ints:
        """Return the begin of each span (ns)."""
        return integers(self.spans, "start_ns")

    @cached_property
    def over(self) -> Ints:
        """Return the end of each span (ns)."""
        return self.begin + integers(self.spans, "duration_ns")

    @cached_property
    def places(self) -> Places:
        """Return the places of spans and steps as numbers."""
        return Places(self.spans)

    @cached_property
    def leases(self) -> Ints:
        """Return the positions of the leases among the spans."""
        return np.flatnonzero(is_text(self.spans, "name", "lease"))

    @cached_property
    def ready(self) -> Lookup:
        """Return the lease of each place; where there are several, the last one to end."""
        return Lookup(self.places.of(self.leases), self.over[self.leases])

    @cached_property
    def work(self) -> WorkDone:
        """Return the work of every worker."""
        return WorkDone.of(self.spans, self.places, self.ready, self.over[self.leases])


def groups(spans: pa.Table, role: NDArray[np.int32], chosen: Ints) -> Ints:
    """Return a number for the worker of each chosen span; ``role`` is 0 for readers and 1 for ranks."""
    codes = [plain(chunk.indices) for chunk in spans.column("index").chunks]
    return (np.concatenate(codes) if codes else chosen)[chosen].astype(np.int64) * 2 + role


def sent(spans: pa.Table, *by: str) -> Ints:
    """Return the positions of the spans of batches on their way between nodes that some roles recorded."""
    moves = np.flatnonzero(is_text(spans, "name", "transfer"))
    chosen: Ints = moves[texts(spans, "role", by, moves) >= 0]
    return chosen


def pinned(spans: pa.Table) -> Ints:
    """Return the positions of the spans of batches on their way to page-locked memory at their queue."""
    return np.flatnonzero(is_text(spans, "name", "pin") & is_text(spans, "role", "queue"))
