"""Training loops that another program ran, as values and as spans: what ``rayio.watch`` and traces have of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rayio.errors import DataError
from rayio.trace.recorder import Add, Recorder
from rayio.units import format_seconds

Ints = NDArray[np.int64]

#: Ranks meet at the end of each step if their ends differ by less than this share of a step, in half of the steps.
TOGETHER = 0.1
#: By how much (ns) a request may be before the end of the wait before it: traces round to microseconds.
ROUNDED_NS = 2_000
#: Fewer ends of steps, or a smaller difference (ns), tell nothing of the clocks of two hosts.
FEWEST_ENDS, LEAST_APART_NS = 5, 1_000_000

Of = TypeVar("Of", "RankLoop", "Loads")
#: The fields of loops and loads that are times.
_TIMES = ("begin", "end", "requested", "arrived", "done", "read")


def no_times() -> Ints:
    """Return an array without entries."""
    return np.zeros(0, np.int64)


def in_turn(requested: Ints, arrived: Ints, whose: str) -> Ints:
    """Return the times of requests in order, none before the batch before it had arrived, but for rounding.

    Raises:
        DataError: a batch was requested while another was waited for.
    """
    before = np.append(requested[:1], np.maximum.accumulate(arrived)[:-1])
    if (twice := np.flatnonzero(before - requested > ROUNDED_NS)).size:
        when = format_seconds((requested[twice[0]] - requested[0]) / 1e9)
        raise DataError(
            f"{whose}: it waits for two batches at once, {when} after its first: events that are there twice, or a "
            "DataLoader inside another; give a trace of one loop"
        )
    latest: Ints = np.maximum(requested, before)
    return latest


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a loop, ``checkpoint`` or ``evaluate``, after a step; times in ns."""

    name: str
    epoch: int
    step: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class RankLoop:
    """The loop of a rank: an entry for each step, in the order of time; times in ns since the Unix epoch.

    A batch was ``requested``, ``arrived``, and the work on it was ``done``. ``met`` is how much of the end of that work
    was waiting for other ranks.
    """

    rank: int
    node: int
    pid: int
    begin: int
    end: int
    epoch: Ints
    step: Ints
    requested: Ints
    arrived: Ints
    done: Ints
    met: Ints = field(default_factory=no_times)
    pauses: tuple[Pause, ...] = ()
    #: Why the loop has no whole end, in words; empty for one that has.
    broke_off: str = ""


@dataclass(frozen=True, slots=True)
class Loads:
    """The batches that the workers of a rank loaded: an entry for each, times in ns since the Unix epoch.

    A batch was read from ``begin`` to ``read``, and decoded from then to ``end``. ``worker`` is -1 where the rank
    loaded by itself. ``samples`` and ``nbytes`` are 0 where they are not known.
    """

    rank: int
    worker: Ints
    pid: Ints
    epoch: Ints
    step: Ints
    begin: Ints
    read: Ints
    end: Ints
    samples: Ints
    nbytes: Ints

    def __len__(self) -> int:
        return len(self.begin)


def record(loops: Sequence[RankLoop], loads: Sequence[Loads], recorder: Recorder, window: int, batch_size: int) -> None:
    """Record the spans of loops and of the batches that were loaded for them, of ``batch_size`` samples as a rule.

    ``window`` is the number of batches that workers may be ahead of their rank: a batch is granted to a worker when the
    rank has the one that many steps before.
    """
    of_rank = {load.rank: load for load in loads}
    for loop in loops:
        load = of_rank.get(loop.rank)
        _record_rank(loop, load, recorder)
        if load is not None and len(load):
            _record_loads(loop, load, recorder, window, batch_size)


def _record_rank(loop: RankLoop, load: Loads | None, recorder: Recorder) -> None:
    rank, add = loop.rank, recorder.adder(recorder.register("rank", str(loop.rank), loop.node, loop.pid))
    add("life", loop.begin, loop.end, (rank, -1, -1, 0), 1)
    if len(loop.step):
        add("startup", loop.begin, max(loop.begin, int(loop.requested[0])), (rank, -1, -1, 0))
    sizes = {}
    if load is not None:
        sizes = dict(zip(zip(load.epoch.tolist(), load.step.tolist(), strict=True), load.nbytes.tolist(), strict=True))
    met = loop.met if len(loop.met) else np.zeros(len(loop.step), np.int64)
    columns = (loop.epoch, loop.step, loop.requested, loop.arrived, loop.done, met)
    for epoch, step, requested, arrived, done, waited in zip(*(column.tolist() for column in columns), strict=True):
        place = (rank, epoch, step, 0)
        link = recorder.batch_id(rank, epoch, step)
        add("data_wait", requested, arrived, place, nbytes=sizes.get((epoch, step), 0), link=link)
        add("compute", arrived, done - waited, place)
        if waited:
            add("sync", done - waited, done, place)
    for pause in loop.pauses:
        add(pause.name, pause.begin, pause.end, (rank, pause.epoch, pause.step, 0))


def _record_loads(loop: RankLoop, load: Loads, recorder: Recorder, window: int, batch_size: int) -> None:
    rank = loop.rank
    granted = _granted(loop, load, window)
    queue = recorder.adder(recorder.register("queue", str(rank), loop.node, loop.pid))
    adders: dict[tuple[int, int], Add] = {}
    columns = (
        load.worker, load.pid, load.epoch, load.step, load.begin, load.read, load.end, load.samples, load.nbytes,
        granted,
    )  # fmt: skip
    for worker, pid, epoch, step, begin, read, end, samples, nbytes, since in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        place = (rank, epoch, step, 0)
        if (add := adders.get((worker, pid))) is None:
            own = ("rank", str(rank)) if worker < 0 else ("reader", f"{rank}-{worker}")
            add = adders[worker, pid] = recorder.adder(recorder.register(*own, loop.node, pid))
        lane = int(worker < 0)
        add("read", begin, read, place, lane, nbytes, samples or batch_size)
        if end > read:
            add("decode", read, end, place, lane)
        if worker >= 0:
            queue("lease", min(since, begin), end, place, 1, nbytes)


def _granted(loop: RankLoop, load: Loads, window: int) -> Ints:
    """Return when each loaded batch could begin: when the epoch did, or when the rank had an earlier batch."""
    first: dict[int, int] = {}
    arrived: dict[tuple[int, int], int] = {}
    columns = (loop.epoch, loop.step, loop.requested, loop.arrived)
    for epoch, step, requested, came in zip(*(column.tolist() for column in columns), strict=True):
        first.setdefault(epoch, requested)
        arrived[epoch, step] = came
    own = zip(load.epoch.tolist(), load.step.tolist(), load.begin.tolist(), strict=True)
    return np.array(
        [arrived.get((epoch, step - window), first.get(epoch, begin)) for epoch, step, begin in own], np.int64
    )


def on_one_clock(
    loops: Sequence[RankLoop], loads: Sequence[Loads]
) -> tuple[list[RankLoop], list[Loads], dict[int, int]]:
    """Return loops and loads on the clock of the first host, and how far the others are ahead of it (ns), by node.

    Clocks of hosts are apart if ranks end each step at times that differ by nearly the same amount, which is more than
    half of the steps' ends differ from it: ranks that meet end a step together. Hosts without an entry are left alone.
    """
    apart: dict[int, int] = {}
    first = [loop for loop in loops if loop.node == loops[0].node]
    for node in sorted({loop.node for loop in loops} - {loops[0].node}):
        mine = [loop for loop in loops if loop.node == node]
        ends, own = _ends(first), _ends(mine)
        shared = sorted({*ends} & {*own})
        if len(shared) < FEWEST_ENDS:
            continue
        difference = np.array([own[place] - ends[place] for place in shared])
        usual = float(np.median(np.diff(np.sort(np.array([ends[place] for place in shared])))))
        offset = int(np.median(difference))
        spread = float(np.median(np.abs(difference - offset)))
        if spread < TOGETHER * usual / 2 and abs(offset) > max(2 * spread, LEAST_APART_NS):
            apart[node] = offset
    nodes = {loop.rank: loop.node for loop in loops}
    moved = [_later(loop, -apart.get(loop.node, 0)) for loop in loops]
    before = min(0, *(loop.begin for loop in moved), 0)
    return (
        [_later(loop, -before) for loop in moved],
        [_later(load, -apart.get(nodes[load.rank], 0) - before) for load in loads],
        apart,
    )


def _ends(loops: Sequence[RankLoop]) -> dict[tuple[int, int], int]:
    """Return the time at which the last of some ranks ended each step."""
    ends: dict[tuple[int, int], int] = {}
    for loop in loops:
        for epoch, step, done in zip(loop.epoch.tolist(), loop.step.tolist(), loop.done.tolist(), strict=True):
            ends[epoch, step] = max(ends.get((epoch, step), done), done)
    return ends


def _later(times: Of, ns: int) -> Of:
    """Return loops or loads with all their times ``ns`` later."""
    changed: dict[str, Any] = {name: getattr(times, name) + ns for name in _TIMES if hasattr(times, name)}
    if isinstance(times, RankLoop):
        changed["pauses"] = tuple(replace(each, begin=each.begin + ns, end=each.end + ns) for each in times.pauses)
    return replace(times, **changed)


def with_meetings(loops: Sequence[RankLoop]) -> tuple[list[RankLoop], bool]:
    """Return the loops with the time in which ranks waited for each other, and True if they meet at every step.

    Ranks meet if the work on a step ends at the same time on all of them, as after an all-reduce. Then a rank whose
    batch came before that of the last rank waited at least for so long.
    """
    if len(loops) < 2:
        return [*loops], False
    places = [{*zip(loop.epoch.tolist(), loop.step.tolist(), strict=True)} for loop in loops]
    shared = sorted(set.intersection(*places))
    if not shared:
        return [*loops], False
    rows = [
        {place: row for row, place in enumerate(zip(loop.epoch.tolist(), loop.step.tolist(), strict=True))}
        for loop in loops
    ]
    chosen = np.array([[own[place] for place in shared] for own in rows])
    done, arrived = (
        np.stack([getattr(loop, name)[mine] for loop, mine in zip(loops, chosen, strict=True)])
        for name in ("done", "arrived")
    )
    apart = done.max(axis=0) - done.min(axis=0)
    usual = float(np.median(np.diff(np.sort(done.max(axis=0))))) if len(shared) > 1 else 0.0
    if not usual or float(np.median(apart)) > TOGETHER * usual:
        return [*loops], False
    waited = np.minimum(arrived.max(axis=0) - arrived, done - arrived)
    met = []
    for loop, mine, ns in zip(loops, chosen, waited, strict=True):
        own = np.zeros(len(loop.step), np.int64)
        own[mine] = ns
        met.append(replace(loop, met=own))
    return met, True
