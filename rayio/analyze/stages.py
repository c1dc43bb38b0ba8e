"""Exposed data loading by stage: every ``data_wait`` charged to the stages of its batch, and of those before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rayio.analyze.delays import delays
from rayio.analyze.intervals import BEFORE, Lookup, Occupied, pick, split_exactly
from rayio.analyze.part import KINDS, PUT, Part, WorkDone, groups, pinned, sent
from rayio.analyze.timeline import Ints, Lives, integers, is_text, texts
from rayio.trace.span import RETRY_LANE

if TYPE_CHECKING:
    import pyarrow as pa

#: Stages of a batch, in their order, with their meaning.
STAGES: dict[str, str] = {
    "unleased": "loader's cost: queue → worker, which is free",
    "memory_bound": "the bound on bytes kept the window closed",
    "open": "files being opened",
    "read": "requests in flight",
    "retry": "back-off after an error",
    "decode": "preprocessing",
    "put": "loader's cost: worker → queue",
    "transfer": "loader's cost: between nodes",
    "pin": "copied to page-locked memory",
    "reorder": "ready, waiting for an earlier batch",
    "handoff": "loader's cost: queue → rank",
    "unrecorded": "waiting for a batch, no span says why",
}

#: The only cause of imported results that is no stage: waiting for a batch, for unknown reasons.
UNSAID = "data_wait"

#: Stages of the loader itself: its messages and copies.
OF_LOADER = ("unleased", "put", "transfer", "handoff")

#: Names for people of stages that have another name in files and in JSON.
SHOWN = {"unleased": "queued", "put": "transfer", "transfer": "network", "handoff": "delivery"}


def shown(cause: str) -> str:
    """Return the name of a cause, or of a change to it (``put = 0``), for people.

    >>> shown("handoff"), shown("put = 0"), shown("decode")
    ('delivery', 'transfer = 0', 'decode')
    """
    name, equals, rest = cause.partition(" = ")
    return f"{SHOWN.get(name, name)}{equals}{rest}"


def cut(part: Part, *, payload: bool) -> dict[str, Ints]:
    """Return the data_wait of every step by stage: an array for each stage that occurred, in ns, which sum to the wait.

    A wait is charged over the whole life of the awaited work: from when the worker of the batch last had nothing to do,
    through every batch that kept it busy, to when the rank had this one; in proportion to the time of each stage. The
    position of a stage does not matter: compute hides the first stages, which are no smaller causes.

    ``payload``: batches carry their bytes, so that the way from a reader on another node is ``transfer``.
    """
    spans, (lives, steps), places, leases, begin, over = (
        part.spans, part.timed, part.places, part.leases, part.begin, part.over
    )  # fmt: skip
    bounds = np.flatnonzero(is_text(spans, "name", "memory_bound"))
    moves, fetches = sent(spans, "reader"), sent(spans, "rank")
    ready, ready_at, work = part.ready, over[leases], part.work
    did = work.did
    window = Occupied.union(integers(spans, "rank")[bounds], begin[bounds], over[bounds])
    first, busy_since = _busy_since(work, pick(begin[leases], ready.find(work.place), did.start), window)

    begins, arrived, wanted = steps.start, steps.arrived, places.of_batches(lives, steps)
    last = Lookup(work.place, did.end).find(wanted)
    # A worker is done with a batch where its work ends, not at the end of the call.
    is_put = pick(did.kind, last, begins) == PUT
    done = np.minimum(pick(did.end, last, arrived), arrived)
    since = np.minimum(pick(busy_since, last, begins), begins)
    spent = {stage: np.zeros(steps.number, np.int64) for stage in STAGES}

    # Until its worker was done with it: the worker's stages, for this batch and for those before it.
    mine = np.flatnonzero(last >= 0)
    since = np.minimum(since, done)
    late = np.minimum(did.end[last[mine]] - done[mine], did.end[last[mine]] - did.start[last[mine]])
    length, occurs = did.end - did.start, np.bincount(did.kind, minlength=len(KINDS))
    until, final, kind_of_last = np.zeros(len(length) + 1, np.int64), last[mine] + 1, did.kind[last[mine]]
    begun = first[last[mine]]
    for kind in np.flatnonzero(occurs).tolist():
        np.cumsum(np.where(did.kind == kind, length, 0), out=until[1:])
        spent[KINDS[kind]][mine] += until[final] - until[begun] - np.where(kind_of_last == kind, late, 0)
    idle = done[mine] - since[mine] - sum(column[mine] for column in spent.values())
    bound = np.minimum(_kept_idle(work, window, first, busy_since)[last[mine]], idle)
    spent["memory_bound"][mine] = bound
    spent["unleased"][mine] = idle - bound
    worker = did.group[last[mine]]
    opening = np.minimum(_opening(spans, begin, over, worker, since[mine], done[mine]), spent["read"][mine])
    spent["open"][mine] += opening
    spent["read"][mine] -= opening
    tries = np.flatnonzero(is_text(spans, "name", "retry") & is_text(spans, "role", "reader", "rank"))
    within = {"retry": tries[integers(spans, "lane", tries) >= RETRY_LANE], **delays(spans, "reader", "rank")}
    for cause, chosen in within.items():
        took = _covered(spans, chosen, begin, over, worker, since[mine], done[mine])
        took = np.minimum(took, spent["read"][mine])
        spent.setdefault(cause, np.zeros(steps.number, np.int64))[mine] += took
        spent["read"][mine] -= took

    # Unknown work: a killed worker, or a trace without its spans.
    lost = np.flatnonzero(last < 0)
    done[lost] = np.clip(pick(ready_at, ready.find(wanted[lost]), arrived[lost]), begins[lost], arrived[lost])
    spent["unrecorded"][lost] = done[lost] - begins[lost]
    at_queue = np.clip(pick(ready_at, ready.find(wanted), done), done, arrived)

    # On its way to the queue, and from there to the rank. A batch that lay ready while its rank still had the batch
    # before it was not delayed by earlier stages: its wait is the delivery alone.
    before = np.roll(arrived, 1)
    before[np.flatnonzero(np.diff(steps.life, prepend=-1))] = BEFORE
    lay_ready = (at_queue < before) & (last >= 0)
    for column in spent.values():
        column[lay_ready] = 0
    at_queue, done = np.where(lay_ready, begins, at_queue), np.where(lay_ready, begins, done)
    move = Lookup(places.of(moves), over[moves]).find(wanted)
    moved = _within(pick(begin[moves], move, at_queue), pick(over[moves], move, at_queue), done, at_queue)
    # A rank may fetch the bytes itself: before they are at its queue, or on their way from there.
    fetch = Lookup(places.of(fetches), over[fetches]).find(wanted)
    left, landed = pick(begin[fetches], fetch, arrived), pick(over[fetches], fetch, arrived)
    moved = np.minimum(moved + _within(left, landed, done, at_queue), at_queue - done)
    copies = pinned(spans)
    copy = Lookup(places.of(copies), over[copies]).find(wanted)
    copied = _within(pick(begin[copies], copy, at_queue), pick(over[copies], copy, at_queue), done, at_queue)
    copied = np.minimum(copied, at_queue - done - moved)
    spent["transfer"] += moved
    spent["pin"] += copied
    spent["put"] += np.where(is_put, 0, at_queue - done - moved - copied)
    spent["handoff"] += np.where(is_put, at_queue - done - moved - copied, 0)
    earlier = np.roll(pick(ready_at, ready.find(wanted), begins), 1)
    earlier[np.flatnonzero(np.diff(steps.life, prepend=-1))] = BEFORE
    freed = np.clip(earlier, at_queue, arrived)
    spent["reorder"] += freed - at_queue
    is_far = np.zeros(steps.number, np.bool_)
    if payload:
        is_far = (pick(work.node, last, begins) != _nodes(spans, lives)[steps.life]) & (last >= 0)
    fetched = np.where(is_far & (fetch < 0), arrived - freed, _within(left, landed, freed, arrived))
    spent["transfer"] += fetched
    spent["handoff"] += arrived - freed - fetched
    spent = {stage: ns for stage, ns in spent.items() if ns.any()}
    return dict(zip(spent, split_exactly(arrived - begins, [*spent.values()]), strict=True))


def _within(left: Ints, landed: Ints, since: Ints, until: Ints) -> Ints:
    length: Ints = np.maximum(np.minimum(landed, until) - np.maximum(left, since), 0)
    return length


def _busy_since(work: WorkDone, granted: Ints, window: Occupied) -> tuple[Ints, Ints]:
    """Return for each piece of work when its worker last had nothing to do, and the first work since then.

    A worker has something to do from when it is ``granted`` a batch to when it is done with that. It has nothing to do
    when the window is closed; but while the bound on bytes (``window``, by rank) keeps that closed, its time goes on.
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
    """Return for each piece of work how long the bound on bytes kept its worker idle in the busy time before it."""
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
    """Return how long each worker only opened files between two times: requests have spans at trace.level io."""
    is_request = is_text(spans, "name", "io.open", "io.read")
    chosen = np.flatnonzero(is_request & is_text(spans, "role", "reader", "rank"))
    reads = chosen[texts(spans, "name", ("io.read",), chosen) == 0]
    both, read = (_covered(spans, some, begin, over, worker, since, until) for some in (chosen, reads))
    return both - read


def _covered(spans: pa.Table, chosen: Ints, begin: Ints, over: Ints, worker: Ints, since: Ints, until: Ints) -> Ints:
    """Return how long some spans of each worker, such as retries, cover the time between two moments."""
    if not len(chosen):
        return np.zeros(len(worker), np.int64)
    group = groups(spans, texts(spans, "role", ("reader", "rank"), chosen), chosen)
    tried = Occupied.union(group, begin[chosen], over[chosen])
    both = tried.before(np.tile(worker, 2), np.concatenate([since, until]), 1)[:, 0]
    return both[len(since) :] - both[: len(since)]


def _nodes(spans: pa.Table, lives: Lives) -> Ints:
    chosen = np.flatnonzero(is_text(spans, "role", "rank"))
    at = Lookup(integers(spans, "rank", chosen), integers(spans, "start_ns", chosen)).find(lives.rank)
    return pick(integers(spans, "node", chosen), at, np.full(len(at), -1))
