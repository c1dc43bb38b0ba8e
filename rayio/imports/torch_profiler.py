"""Traces of torch.profiler (Kineto, in Chrome's format) -> the loop of each rank: steps, waits for batches, work.

PyTorch marks each batch that a loop takes of a DataLoader, and ``prof.step()`` each step. Work on a batch lasts from
then to the end of its step, or where no steps are marked, until the next batch is requested.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from json import JSONDecodeError, JSONDecoder
from pathlib import Path

import numpy as np

from rayio.errors import DataError
from rayio.imports.loops import Ints, Loads, RankLoop, in_turn, no_times
from rayio.imports.trace_files import TraceFile, files_of, is_process, time_ns

WHAT = "traces that torch.profiler exported (.json or .json.gz, one for each rank)"

_WAIT = re.compile(r"enumerate\(DataLoader\)#(_\w+Iter)\S*\.__next__")
_STEP = re.compile(r"ProfilerStep#\d+")
#: Categories of work on an accelerator.
_DEVICE = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
#: The largest share of the waits in which the accelerator worked that needs no note.
BUSY_MEANWHILE = 0.05


@dataclass(slots=True)
class _Seen:
    """The times of one file, as begins and ends in ns."""

    waits: dict[int | str, array[int]] = field(default_factory=dict)
    steps: array[int] = field(default_factory=lambda: array("q"))
    device: array[int] = field(default_factory=lambda: array("q"))
    #: The latest end of anything else, by thread.
    latest: dict[int | str, int] = field(default_factory=dict)
    is_inline: bool = False
    pid: int = 0
    rank: int | None = None


def read_traces(paths: Sequence[Path]) -> tuple[list[RankLoop], list[Loads], list[str], bool]:
    """Return the loops and loads of traces, notes, and True if ranks load batches by themselves.

    Raises:
        DataError: a file is no trace, names no batch, or two belong to one rank.
    """
    files = files_of(paths, (".json", ".json.gz"), WHAT)
    notes: list[str] = []
    loops: dict[int, RankLoop] = {}
    loads: list[Loads] = []
    busy = []
    is_inline = True
    for number, path in enumerate(files):
        trace = TraceFile(path)
        seen = _seen(trace)
        rank = number if seen.rank is None else seen.rank
        if rank in loops:
            raise DataError(f"{path}: it has rank {rank}, as another file has; give one trace for each rank")
        loop, meanwhile = _loop(path, rank, seen, trace.broke_off)
        loops[rank] = loop
        busy.append(meanwhile)
        is_inline &= seen.is_inline
        if trace.broke_off:
            notes.append(f"{trace.broke_off}: what is before counts")
        if seen.is_inline:
            loads.append(_inline(loop))
    if max(busy) > BUSY_MEANWHILE:
        notes.append(
            f"the accelerator worked in {100 * max(busy):.0f} % of the time in which its rank waited for batches: that "
            "much of the waiting cost nothing"
        )
    return [loops[rank] for rank in sorted(loops)], loads, notes, is_inline


def _seen(trace: TraceFile) -> _Seen:
    seen = _Seen()
    for event in trace.of_object():
        if event.get("ph") != "X":
            continue
        name, thread = str(event.get("name")), event.get("tid")
        begin = time_ns(event, "ts", trace)
        end = begin + time_ns(event, "dur", trace)
        if (match := _WAIT.match(name)) is not None:
            seen.waits.setdefault(_key(thread), array("q")).extend((begin, end))
            seen.is_inline = match[1] == "_SingleProcessDataLoaderIter"
            seen.pid = event["pid"] if is_process(event.get("pid")) else 0
        elif _STEP.match(name):
            if event.get("cat") == "user_annotation":
                seen.steps.extend((begin, end))
        elif event.get("cat") in _DEVICE:
            seen.device.extend((begin, end))
        elif event.get("cat") in ("cpu_op", "user_annotation"):
            seen.latest[_key(thread)] = max(seen.latest.get(_key(thread), 0), end)
    seen.rank = _rank(trace.head)
    return seen


def _key(thread: object) -> int | str:
    return thread if isinstance(thread, int) else str(thread)


def _rank(head: str) -> int | None:
    position = head.find('"distributedInfo"')
    if position < 0:
        return None
    try:
        info, _ = JSONDecoder().raw_decode(head, head.index("{", position))
    except (ValueError, JSONDecodeError):
        return None
    rank = info.get("rank")
    return rank if isinstance(rank, int) and rank >= 0 else None


def _pairs(times: array[int]) -> tuple[Ints, Ints]:
    both = np.array(times, np.int64).reshape(-1, 2)
    both = both[np.argsort(both[:, 0], kind="stable")]
    return both[:, 0], both[:, 1]


def _loop(path: Path, rank: int, seen: _Seen, broke_off: str) -> tuple[RankLoop, float]:
    """Return the loop of a file, and the share of its waits in which the accelerator worked."""
    if not seen.waits:
        raise DataError(
            f"{path}: no enumerate(DataLoader)#...__next__ in it, so no batch is known; profile the loop over a "
            "DataLoader, with ProfilerActivity.CPU"
        )
    thread = max(seen.waits, key=lambda thread: len(seen.waits[thread]))
    requested, arrived = _pairs(seen.waits[thread])
    requested = in_turn(requested, arrived, str(path))
    first, last = _pairs(seen.steps)
    end = max([int(arrived[-1]), seen.latest.get(thread, 0), *last[-1:].tolist()])
    done = np.append(requested[1:], end)
    within = np.searchsorted(first, arrived, side="right") - 1
    is_within = within >= 0
    is_within[is_within] = last[within[is_within]] >= arrived[is_within]
    done[is_within] = np.minimum(done[is_within], last[within[is_within]])
    has_work = done > arrived
    has_work[:-1] = True  # the last request of an epoch gets no batch
    origin = int(min(requested[0], *first[:1].tolist()) if len(first) else requested[0])
    requested, arrived, done = (times[has_work] - origin for times in (requested, arrived, done))
    number = len(requested)
    loop = RankLoop(
        rank=rank, node=0, pid=seen.pid, begin=0, end=max(end - origin, int(done.max(initial=0))),
        epoch=np.zeros(number, np.int64), step=np.arange(number, dtype=np.int64), requested=requested, arrived=arrived,
        done=np.maximum(done, arrived), broke_off="its trace breaks off" if broke_off else "",
    )  # fmt: skip
    return loop, _overlap(requested, arrived, seen.device, origin)


def _overlap(requested: Ints, arrived: Ints, device: array[int], origin: int) -> float:
    if not len(device) or not (arrived - requested).sum():
        return 0.0
    begin, end = _pairs(device)
    begin, end = begin - origin, end - origin
    reached = np.maximum.accumulate(end)
    begin = np.maximum(begin, np.append(begin[:1], reached[:-1]))  # concurrent kernels count once
    busy = np.maximum(end - begin, 0)
    until = np.append(0, np.cumsum(busy))

    def before(moment: Ints) -> Ints:
        place = np.searchsorted(begin, moment, side="right")
        inside = np.where(place > 0, np.clip(moment - begin[place - 1], 0, busy[place - 1]), 0)
        total: Ints = until[np.maximum(place - 1, 0)] + inside
        return total

    return float((before(arrived) - before(requested)).sum() / (arrived - requested).sum())


def _inline(loop: RankLoop) -> Loads:
    """Return what a rank without workers loaded: it does so while it waits."""
    number = len(loop.step)
    none = np.zeros(number, np.int64)
    return Loads(
        loop.rank, none - 1, none + loop.pid, loop.epoch, loop.step, loop.requested, loop.arrived, loop.arrived,
        none, none,
    ) if number else Loads(loop.rank, *(no_times() for _ in range(9)))  # fmt: skip
