"""What a rank waited for: every ``data_wait`` charged to the stages of its batch, and of those before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.intervals import BEFORE, Lookup, Occupied, pick, split_exactly
from rayio.analyze.timeline import Ints, Lives, Steps, integers, is_text, texts
from rayio.place import batch_parts
from rayio.trace.arrow import plain
from rayio.trace.order import order_by

if TYPE_CHECKING:
    import pyarrow as pa

#: Where a batch may be, in the order in which it goes through, and what that means.
STAGES: dict[str, str] = {
    "unleased": "loader's cost: queue → worker, which is free",
    "memory_bound": "the bound on bytes kept the window closed",
    "open": "files being opened",
    "read": "requests in flight",
    "retry": "back-off after an error",
    "decode": "preprocessing",
    "put": "loader's cost: worker → queue",
    "transfer": "loader's cost: between nodes",
    "reorder": "ready, waiting for an earlier batch",
    "handoff": "loader's cost: queue → rank",
    "unrecorded": "waiting for a batch, no span says why",
}

#: Stages in which nobody reads or decodes: what the loader itself takes for its messages and copies.
OF_LOADER = ("unleased", "put", "transfer", "handoff")

#: What people read where a stage has another name in files and in JSON, which stay as they are.
SHOWN = {"unleased": "queued", "put": "transfer", "transfer": "network", "handoff": "delivery"}


def shown(cause: str) -> str:
    """The name of a cause, or of a change to it (``put = 0``), for people.

    >>> shown("handoff"), shown("put = 0"), shown("decode")
    ('delivery', 'transfer = 0', 'decode')
    """
    name, equals, rest = cause.partition(" = ")
    return f"{SHOWN.get(name, name)}{equals}{rest}"


#: Spans of a worker that are a stage of their batch by the same name.
WORK = ("open", "read", "retry", "decode", "put")

#: What lies on a worker's timeline: its work, what was lost with a killed process, and ``put`` as far as it is derived.
KINDS = (*WORK, "unrecorded", "put")
_PUT, _UNRECORDED, _DERIVED = WORK.index("put"), len(WORK), len(WORK) + 1
_OVERSHOOT, _LOST = len(WORK), len(WORK) + 1


#: Columns of spans that say in which stage each batch was when.
COLUMNS = (
    "name", "role", "index", "node", "lane", "rank", "epoch", "step", "attempt", "start_ns", "duration_ns", "link",
)  # fmt: skip


class Places:
    """Numbers for (attempt, rank, epoch, step) in 63 bits, for spans and for steps alike."""

    def __init__(self, spans: pa.Table) -> None:
        self._columns = [plain(spans.column(name)) for name in ("attempt", "rank", "epoch", "step")]
        self._sizes = [int(column.max(initial=0)) + 1 for column in self._columns]

    def of(self, chosen: Ints) -> Ints:
        """Number the places of some spans, by position; -1 where they have none."""
        columns = [column[chosen].astype(np.int64) for column in self._columns]
        return np.where(np.minimum.reduce(columns) < 0, -1, self._number(*columns))

    def of_batches(self, lives: Lives, steps: Steps) -> Ints:
        """Number the batch that each step got: the one its wait links to, or where waits have no links its own."""
        rank = lives.rank[steps.life]
        of_rank, of_epoch, of_step = batch_parts(steps.batch)
        is_own = (of_rank == rank) & (of_epoch == steps.epoch)
        linked = np.where(is_own & steps.batch.any(), of_step, steps.step)
        return np.where(linked < self._sizes[3], self._number(steps.attempt, rank, steps.epoch, linked), -1)

    def parts(self, number: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Split numbers into (attempt, rank, epoch, step)."""
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
    """What every worker did, by worker (group) and time. ``place`` is of the batch, ``rank`` whom the worker serves.

    Kinds of ``did`` are positions in :data:`KINDS`.
    """

    did: Occupied
    place: Ints
    rank: Ints
    node: Ints

    @classmethod
    def of(cls, spans: pa.Table, places: Places, ready: Lookup, ready_at: Ints) -> WorkDone:
        """Collect it. A stage lasts until the next of its batch begins, so that what lies between them has a name.

        Where no ``put`` span says how long a batch took into the object store, it is from the end of the work to when
        the batch was ready, or was sent to another node, or to when the worker began something else.
        """
        chosen = np.flatnonzero(is_text(spans, "role", "reader", "rank"))
        role, lane = texts(spans, "role", ("reader", "rank"), chosen), integers(spans, "lane", chosen)
        name = texts(spans, "name", (*WORK, "overshoot", "lost"), chosen)
        is_work = (name >= 0) & (name < _LOST) & (lane == role)  # a rank's own reading is on lane 1
        mine = np.flatnonzero(is_work | ((name == _LOST) & (role == 0)))
        chosen, role, name = chosen[mine], role[mine], name[mine]
        group = _groups(spans, role, chosen)
        start = integers(spans, "start_ns", chosen)
        end = start + integers(spans, "duration_ns", chosen)
        order = order_by(group, start, end)
        chosen, group, start, end = (x[order] for x in (chosen, group, start, end))
        name = name[order]
        # A late wake-up belongs to what was slept; on a rank's lane it may be that of a snapshot, or an evaluation.
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
        sent = _sent(spans, "reader", "rank")
        set_out = pick(ready_at, at, end)
        if len(sent):
            sent_at = integers(spans, "start_ns", sent)
            set_out = np.minimum(set_out, pick(sent_at, Lookup(places.of(sent), -sent_at).find(place), set_out))
        puts = np.flatnonzero(~goes_on & (kind != _PUT) & (at >= 0) & (set_out > end))
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


def cut(spans: pa.Table, lives: Lives, steps: Steps, *, payload: bool) -> NDArray[np.int64]:
    """Charge the data_wait of every step to stages: one row per step, one column per stage, in ns, sums to the wait.

    A wait is charged over the whole life of what was waited for: from when the worker of the batch last had nothing to
    do, through every batch that kept it busy, to when the rank had this one; in proportion to what filled that time.
    Where a stage stands in a batch's way tells nothing: compute hides what comes first, which is no smaller cause.

    ``spans`` have unified dictionaries. ``payload`` says that batches carry their bytes, so that the way from a reader
    on another node is ``transfer``.
    """
    places = Places(spans)
    leases, bounds = (np.flatnonzero(is_text(spans, "name", name)) for name in ("lease", "memory_bound"))
    moves, fetches = _sent(spans, "reader"), _sent(spans, "rank")
    begin = integers(spans, "start_ns")
    over = begin + integers(spans, "duration_ns")
    ready, ready_at = Lookup(places.of(leases), over[leases]), over[leases]
    work = WorkDone.of(spans, places, ready, ready_at)
    did = work.did
    window = Occupied.union(integers(spans, "rank")[bounds], begin[bounds], over[bounds])
    first, busy_since = _busy_since(work, pick(begin[leases], ready.find(work.place), did.start), window)

    asked, arrived, wanted = steps.start, steps.arrived, places.of_batches(lives, steps)
    last = Lookup(work.place, did.end).find(wanted)
    # A worker is done with a batch where its work ends, not where what follows in the same call does.
    is_put = pick(did.kind, last, asked) == _PUT
    done = np.minimum(pick(did.end, last, arrived), arrived)
    since = np.minimum(pick(busy_since, last, asked), asked)
    spent = {stage: np.zeros(steps.number, np.int64) for stage in STAGES}

    # Until its worker was done with it: what that worker did, for this batch and for those before it.
    mine = np.flatnonzero(last >= 0)
    since = np.minimum(since, done)
    late = np.minimum(did.end[last[mine]] - done[mine], did.end[last[mine]] - did.start[last[mine]])
    length = did.end - did.start
    for kind, stage in enumerate(KINDS):
        until = np.append(0, np.cumsum(np.where(did.kind == kind, length, 0)))
        doing = until[last[mine] + 1] - until[first[last[mine]]] - np.where(did.kind[last[mine]] == kind, late, 0)
        spent[stage][mine] += doing
    idle = done[mine] - since[mine] - sum(column[mine] for column in spent.values())
    bound = np.minimum(_kept_idle(work, window, first, busy_since)[last[mine]], idle)
    spent["memory_bound"][mine] = bound
    spent["unleased"][mine] = idle - bound
    worker = did.group[last[mine]]
    opening = np.minimum(_opening(spans, begin, over, worker, since[mine], done[mine]), spent["read"][mine])
    spent["open"][mine] += opening
    spent["read"][mine] -= opening

    # Nothing is known of the work: a killed worker, or a trace without its spans.
    lost = np.flatnonzero(last < 0)
    done[lost] = np.clip(pick(ready_at, ready.find(wanted[lost]), arrived[lost]), asked[lost], arrived[lost])
    spent["unrecorded"][lost] = done[lost] - asked[lost]
    at_queue = np.clip(pick(ready_at, ready.find(wanted), done), done, arrived)

    # On its way to the queue, and from there to the rank. What lay ready while its rank still had the batch before it
    # was kept by nothing that came earlier: its wait is the delivery alone.
    before = np.roll(arrived, 1)
    before[np.flatnonzero(np.diff(steps.life, prepend=-1))] = BEFORE
    lay_ready = (at_queue < before) & (last >= 0)
    for column in spent.values():
        column[lay_ready] = 0
    at_queue, done = np.where(lay_ready, asked, at_queue), np.where(lay_ready, asked, done)
    move = Lookup(places.of(moves), over[moves]).find(wanted)
    moved = _within(pick(begin[moves], move, at_queue), pick(over[moves], move, at_queue), done, at_queue)
    # Where a rank fetched its bytes itself: before they were at its queue, or on their way from there.
    fetch = Lookup(places.of(fetches), over[fetches]).find(wanted)
    left, landed = pick(begin[fetches], fetch, arrived), pick(over[fetches], fetch, arrived)
    moved = np.minimum(moved + _within(left, landed, done, at_queue), at_queue - done)
    spent["transfer"] += moved
    spent["put"] += np.where(is_put, 0, at_queue - done - moved)
    spent["handoff"] += np.where(is_put, at_queue - done - moved, 0)
    earlier = np.roll(pick(ready_at, ready.find(wanted), asked), 1)
    earlier[np.flatnonzero(np.diff(steps.life, prepend=-1))] = BEFORE
    freed = np.clip(earlier, at_queue, arrived)
    spent["reorder"] += freed - at_queue
    is_far = (pick(work.node, last, asked) != _nodes(spans, lives)[steps.life]) & (last >= 0) & payload
    fetched = np.where(is_far & (fetch < 0), arrived - freed, _within(left, landed, freed, arrived))
    spent["transfer"] += fetched
    spent["handoff"] += arrived - freed - fetched
    return split_exactly(arrived - asked, np.stack([*spent.values()], axis=1))


def _sent(spans: pa.Table, *by: str) -> Ints:
    """Positions of the spans of batches on their way between nodes: those that some roles recorded."""
    found = np.flatnonzero(is_text(spans, "name", "transfer"))
    chosen: Ints = found[texts(spans, "role", by, found) >= 0]
    return chosen


def _within(left: Ints, landed: Ints, since: Ints, until: Ints) -> Ints:
    """How much of each way lies between two times."""
    length: Ints = np.maximum(np.minimum(landed, until) - np.maximum(left, since), 0)
    return length


def _busy_since(work: WorkDone, granted: Ints, window: Occupied) -> tuple[Ints, Ints]:
    """Find for each piece of work when its worker last had nothing to do, and the place of the first work since then.

    A worker has something to do from when it is ``granted`` a batch to when it is done with that. It has nothing to do
    when the window is closed, but where the bound on bytes (``window``, by rank) keeps that closed it is kept idle, and
    its time goes on.
    """
    did = work.did
    is_first = np.diff(did.group, prepend=-1) != 0
    free = np.append(BEFORE, did.end[:-1])[: len(did.end)]
    free[is_first] = BEFORE
    since = np.minimum(granted, did.start)
    if len(window.start):
        at = window.place(work.rank, since - 1)
        is_kept = (at >= 0) & (pick(window.group, at, since) == work.rank) & (pick(window.end, at, since) >= since)
        since = np.where(is_kept, np.minimum(pick(window.start, at, since), since), since)
    first = np.maximum.accumulate(np.where(since > free, np.arange(len(since)), 0))
    return first, since[first]


def _kept_idle(work: WorkDone, window: Occupied, first: Ints, since: Ints) -> Ints:
    """Measure for each piece of work how long the bound on bytes kept its worker idle in that busy time before it.

    It counts only where the worker was idle: a busy one is what holds the batch up.
    """
    did, number = work.did, len(work.did.start)
    if not len(window.start) or not number:
        return np.zeros(number, np.int64)
    idle_since = np.append(BEFORE, did.end[:-1])
    is_begin = first == np.arange(number)
    idle_since[is_begin] = since[is_begin]
    closed = window.before(np.tile(work.rank, 2), np.concatenate([idle_since, did.start]), 1)[:, 0]
    gaps = np.append(0, np.cumsum(closed[number:] - closed[:number]))
    kept: Ints = gaps[1:] - gaps[first]
    return kept


def _opening(spans: pa.Table, begin: Ints, over: Ints, worker: Ints, since: Ints, until: Ints) -> Ints:
    """How long each worker only opened files between two times: requests have spans at trace.level io."""
    is_request = is_text(spans, "name", "io.open", "io.read")
    chosen = np.flatnonzero(is_request & is_text(spans, "role", "reader", "rank"))
    if not len(chosen):
        return np.zeros(len(worker), np.int64)
    group = _groups(spans, texts(spans, "role", ("reader", "rank"), chosen), chosen)
    is_read = texts(spans, "name", ("io.read",), chosen) == 0
    reads = chosen[is_read]
    both = Occupied.union(group, begin[chosen], over[chosen])
    read = Occupied.union(group[is_read], begin[reads], over[reads])
    who, when = np.tile(worker, 2), np.concatenate([since, until])
    only = (both.before(who, when, 1) - read.before(who, when, 1))[:, 0]
    return only[len(since) :] - only[: len(since)]


def _groups(spans: pa.Table, role: NDArray[np.int32], chosen: Ints) -> Ints:
    """Number the workers of some spans, each of a ``role``: readers, and ranks that read by themselves."""
    codes = [plain(chunk.indices) for chunk in spans.column("index").chunks]
    return (np.concatenate(codes) if codes else chosen)[chosen].astype(np.int64) * 2 + role


def _nodes(spans: pa.Table, lives: Lives) -> Ints:
    """The node of every rank; -1 for one that no span of its own names."""
    chosen = np.flatnonzero(is_text(spans, "role", "rank"))
    at = Lookup(integers(spans, "rank", chosen), integers(spans, "start_ns", chosen)).find(lives.rank)
    return pick(integers(spans, "node", chosen), at, np.full(len(at), -1))
