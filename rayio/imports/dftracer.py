"""Traces of DFTracer (.pfw, .pfw.gz), which DLIO writes too -> the loop of each rank, and what its workers loaded.

Names of events by DFTracer's conventions for training (``fetch.iter``, ``compute``, ``item``, ``capture`` ...), and by
those of earlier versions of DLIO (``_train.iter``, ``TorchFramework.compute``, ``TorchDataset.__getitem__``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rayio.errors import DataError
from rayio.imports.loops import Ints, Loads, Pause, RankLoop, in_turn, on_one_clock
from rayio.imports.trace_files import MOST, TraceFile, files_of, is_process, time_ns
from rayio.units import format_seconds

WHAT = "traces of DFTracer (.pfw or .pfw.gz), or their folder"

#: Calls of the operating system that count as reading a file.
_CALLS = ("POSIX", "STDIO")
_READS = frozenset(
    ("read", "pread", "pread64", "readv", "fread", "open", "open64", "openat", "fopen", "close", "fclose")
)
_WITH_BYTES = frozenset(("read", "pread", "pread64", "readv", "fread"))

#: The name that DLIO gives to the traces of a rank, and to those of its workers: the number of the rank, and of all.
_OF_RANK = re.compile(r"trace-([0-9]{1,7})-of-([0-9]{1,7})(-[0-9a-z-]+)?\.pfw(\.gz)?")

#: Phases of an event with begin and length: a letter, and since version 2 a number.
_COMPLETE = ("X", 1)
#: Units of time of a trace in ns, by the name that version 2 writes at its begin.
_UNITS = {"NS": 1, "US": 1000}

#: The share of batches that must have been read before their rank got them, or nobody knows which worker read which.
IN_TIME = 0.9


@dataclass(slots=True)
class _Item:
    """A sample that a process loaded; times in ns."""

    begin: int
    end: int
    called: int
    prepared: int
    nbytes: int
    step: int


class _Key(NamedTuple):
    """A process: its host by DFTracer's hash, its number, and the rank that its file is named after (-1: none)."""

    host: str
    pid: int
    rank: int


@dataclass(slots=True)
class _Process:
    """The events of a process."""

    key: _Key
    #: (begin, end, number of the step, epoch) of each wait for a batch.
    waits: list[tuple[int, int, int]] = field(default_factory=list)
    works: list[tuple[int, int]] = field(default_factory=list)
    blocks: list[tuple[int, int]] = field(default_factory=list)
    pauses: list[tuple[str, int, int]] = field(default_factory=list)
    items: list[_Item] = field(default_factory=list)
    first: int = 1 << 62
    last: int = 0
    #: Of the sample that is being loaded, by thread: (time in calls, bytes, time of preprocessing).
    pending: dict[Any, list[int]] = field(default_factory=dict)
    #: Numbers of the processes that it forked, each with its place among them.
    forked: dict[int, int] = field(default_factory=dict)
    #: The number of the process that made it; -1 if unknown.
    parent: int = -1

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self.key.pid


def read_traces(
    paths: Sequence[Path], batch_size: int | None
) -> tuple[list[RankLoop], list[Loads], dict[str, Any], list[str], str]:
    """Return loops, loads, what is known of the loader, notes, and why no reads are known (empty if they are).

    Raises:
        DataError: a file is no trace of DFTracer, no process waited for a batch, or two have one rank.
    """
    processes: dict[_Key, _Process] = {}
    notes: list[str] = []
    size = 0
    files = files_of(paths, (".pfw", ".pfw.gz"), WHAT)
    for path in files:
        trace, named = TraceFile(path), _OF_RANK.fullmatch(path.name)
        size = max(size, int(named[2]) if named else 0)
        for event in trace.of_lines():
            _enter(event, trace, processes, int(named[1]) if named else -1)
        if trace.broke_off:
            notes.append(f"{trace.broke_off}: what is before counts")
    ranks = [process for process in processes.values() if process.waits]
    if not ranks:
        raise DataError(
            f"{files[0]}: no process waited for a batch (fetch.iter, or _train.iter of DLIO) in {len(files)} files; "
            "mark the loop with dft_ai.dataloader.fetch.iter"
        )
    ranks = _in_order(ranks)
    if len(ranks) < size:
        notes.append(f"{len(ranks)} of {size} ranks have a trace here: ranks are numbered anew, without the others")
    origin = min(process.first for process in processes.values())
    hosts = [*dict.fromkeys(process.key.host for process in ranks)]
    loops = [_loop(rank, hosts.index(process.key.host), process, origin) for rank, process in enumerate(ranks)]
    workers = [process for process in processes.values() if process.items]
    loads, facts, without = _loads(loops, ranks, workers, origin, batch_size)
    loops, loads, apart = on_one_clock(loops, loads)
    notes += [f"the clock of host {hosts[node]} is {_shown(ns)} the first one's: corrected, by the ends of steps that "
              "ranks end together" for node, ns in apart.items()]  # fmt: skip
    if len(hosts) > 1 and not apart:
        notes.append(
            f"{len(hosts)} hosts: their clocks are taken as equal, because nothing shows how far apart they are"
        )
    if not without and not any(item.called or item.prepared for process in workers for item in process.items):
        notes.append("read is all the time of a sample: the trace has no calls of the operating system in it")
    return loops, loads, facts, notes, without


def _shown(ns: int) -> str:
    return f"{format_seconds(abs(ns) / 1e9)} {'ahead of' if ns > 0 else 'behind'}"


def _in_order(ranks: Sequence[_Process]) -> list[_Process]:
    """Return the processes of ranks by their rank, if their files are named after it; else as they are.

    Raises:
        DataError: two processes have one rank.
    """
    numbers = [process.key.rank for process in ranks]
    if -1 in numbers:
        return [*ranks]
    if twice := sorted({number for number in numbers if numbers.count(number) > 1}):
        pids = ", ".join(str(process.pid) for process in ranks if process.key.rank == twice[0])
        raise DataError(f"rank {twice[0]} has several processes that wait for batches ({pids}): traces of two runs?")
    return sorted(ranks, key=lambda process: process.key.rank)


def _enter(event: dict[str, Any], trace: TraceFile, processes: dict[_Key, _Process], rank: int) -> None:
    name, kind = str(event.get("name")), str(event.get("cat"))
    given = event.get("args")
    known: dict[str, Any] = given if isinstance(given, dict) else {}
    if (kind, name, known.get("name")) == ("dftracer", "CM", "time_metric"):
        _set_unit(trace, str(known.get("value")))
    if event.get("ph") not in _COMPLETE:
        return
    begin = time_ns(event, "ts", trace)
    end = begin + time_ns(event, "dur", trace)
    pid = event.get("pid")
    if not is_process(pid):
        raise DataError(f"{trace.path}, line {trace.line}: pid={pid!r} is no number of a process")
    key = _Key(str(known.get("hhash")), pid, rank)
    process = processes.get(key) or processes.setdefault(key, _Process(key))
    process.first, process.last = min(process.first, begin), max(process.last, end)
    if name == "_train.iter" or (kind == "dataloader" and name in ("fetch.iter", "fetch")):
        process.waits.append((begin, end, _whole(known, "count", "step")))
    elif name == "_train" or (kind == "dataloader" and name == "fetch.block"):
        process.blocks.append((begin, end))
    elif (kind, name) == ("compute", "compute") or (name.endswith("Framework.compute")):
        process.works.append((begin, end))
    elif kind == "pipeline" and name == "evaluate":
        process.pauses.append(("evaluate", begin, end))
    elif kind == "checkpoint" and name == "capture":
        process.pauses.append(("checkpoint", begin, end))
    elif kind in _CALLS and name == "fork":
        process.forked[_whole(known, "ret")] = len(process.forked)
    elif (kind, name) == ("dftracer", "start"):
        process.parent = _whole(known, "ppid")
    else:
        _enter_work(process, event.get("tid"), name, kind, known, begin, end)


def _set_unit(trace: TraceFile, unit: str) -> None:
    """Set the unit of a trace's times.

    Raises:
        DataError: steps cannot be told apart in it.
    """
    if unit not in _UNITS:
        raise DataError(f"{trace.path}, line {trace.line}: its times are in {unit}; trace with DFTRACER_TIME_METRIC=US")
    trace.unit_ns = _UNITS[unit]


def _enter_work(
    process: _Process, thread: object, name: str, kind: str, known: dict[str, Any], begin: int, end: int
) -> None:
    """Enter work on a sample: an event is written when it ends, so a sample comes after what was done for it."""
    thread = thread if isinstance(thread, int) else str(thread)
    pending = process.pending.setdefault(thread, [0, 0, 0])
    if kind in _CALLS and name in _READS:
        pending[0] += end - begin
        pending[1] += max(0, _whole(known, "ret", "size")) if name in _WITH_BYTES else 0
    elif kind == "data" and name.startswith("preprocess"):
        pending[2] += end - begin
    elif (kind == "data" and name == "item") or name.endswith("Dataset.__getitem__"):
        process.items.append(_Item(begin, end, *(pending[0], pending[2], pending[1]), _whole(known, "step")))
        process.pending[thread] = [0, 0, 0]


def _whole(known: dict[str, Any], *names: str) -> int:
    for name in names:
        value = known.get(name)
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST:
            return value
    return -1


def _loop(rank: int, node: int, process: _Process, origin: int) -> RankLoop:
    evaluated = [(begin, end) for name, begin, end in process.pauses if name == "evaluate"]
    waits = [
        wait
        for wait in sorted(process.waits)
        if not any(begin <= wait[0] and wait[1] <= end for begin, end in evaluated)
    ]
    works = np.array(sorted(process.works or process.blocks), np.int64).reshape(-1, 2)
    epochs, steps, epoch, step, before = [], [], 0, -1, 0
    for _, _, number in waits:
        if number >= 0 and number <= before:  # the count begins anew with each epoch
            epoch, step = epoch + 1, -1
        step += 1
        before = number
        epochs.append(epoch)
        steps.append(step)
    requested, arrived = (np.array([wait[place] for wait in waits], np.int64) for place in (0, 1))
    requested = in_turn(requested, arrived, f"process {process.pid}")
    limit = np.append(requested[1:], process.last)
    done = limit.copy()
    if len(works):  # the last work that began before the next request
        last = np.searchsorted(works[:, 0], limit, side="left") - 1
        has_own = (last >= 0) & (works[last, 0] >= arrived)
        done[has_own] = np.minimum(works[last[has_own], 1], limit[has_own])
    pauses = []
    for name, begin, end in process.pauses:
        place = max(0, int(np.searchsorted(requested, begin)) - 1)
        done[place] = min(int(done[place]), max(begin, int(arrived[place])))
        pauses.append(Pause(name, epochs[place], steps[place], begin - origin, end - origin))
    return RankLoop(
        rank=rank, node=node, pid=process.pid, begin=process.first - origin, end=process.last - origin,
        epoch=np.array(epochs, np.int64), step=np.array(steps, np.int64), requested=requested - origin,
        arrived=arrived - origin, done=done - origin, pauses=tuple(pauses),
    )  # fmt: skip


def _loads(
    loops: Sequence[RankLoop], ranks: Sequence[_Process], workers: Sequence[_Process], origin: int, batch: int | None
) -> tuple[list[Loads], dict[str, Any], str]:
    """Return the batches of workers, what that tells of the loader, and why there are none."""
    facts: dict[str, Any] = {"is_dataloader": True, "num_workers": 0}
    if not workers:
        return [], facts, "the trace has no samples (item, or __getitem__) in it"
    batches = {id(process): _batches(process, batch) for process in workers}
    workers = [process for process in workers if batches[id(process)]]
    if not workers:
        return [], facts, "samples have no step; give --batch-size"
    of_ranks = _whose(ranks, workers)
    if isinstance(of_ranks, str):
        return [], facts, of_ranks
    loads = []
    for loop, rank, own in zip(loops, ranks, of_ranks, strict=True):
        if not own:
            return [], facts, f"rank {loop.rank} has no samples in the trace, and others have"
        is_inline = len(own) == 1 and own[0] is rank
        rows = _in_turn(loop, rank, [process for process in own if process is not rank] or own, batches, origin)
        places = zip(loop.epoch.tolist(), loop.step.tolist(), strict=True)
        taken = dict(zip(places, loop.arrived.tolist(), strict=True))
        late = sum(row[6] > taken.get((row[2], row[3]), 1 << 62) for row in rows)
        if late > (1 - IN_TIME) * len(rows):
            of = f"batches of rank {loop.rank}" if len(ranks) > 1 else "batches"
            return [], facts, f"{of} do not go to workers in turn, so nobody can tell which worker read which"
        workers_of_rank = 0 if is_inline else 1 + max(row[0] for row in rows)
        facts["num_workers"] = max(facts["num_workers"], workers_of_rank)
        facts["batch_size"] = batch or max(facts.get("batch_size", 0), *(row[7] for row in rows))
        columns: list[Ints] = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
        worker, *others = columns
        loads.append(Loads(loop.rank, worker * 0 - 1 if is_inline else worker, *others))
    return loads, facts, ""


def _whose(ranks: Sequence[_Process], workers: Sequence[_Process]) -> list[list[_Process]] | str:
    """Return the workers of each rank, or why they are unknown.

    A rank's own process is its worker if it loads samples. Others belong to the rank that their
    file is named after, or that forked them or is their parent.
    """
    if len(ranks) == 1:
        return [[*workers]]
    numbers = {id(process): number for number, process in enumerate(ranks)}
    by_file = {process.key.rank: number for number, process in enumerate(ranks) if process.key.rank >= 0}
    by_fork = {(process.key.host, child): number for number, process in enumerate(ranks) for child in process.forked}
    by_pid = {(process.key.host, process.pid): number for number, process in enumerate(ranks)}
    own: list[list[_Process]] = [[] for _ in ranks]
    for worker in workers:
        number = numbers.get(id(worker), by_file.get(worker.key.rank))
        if number is None:
            host, pid, _ = worker.key
            number = by_fork.get((host, pid), by_pid.get((host, worker.parent)))
        if number is None:
            return (
                f"nobody can tell whose worker process {worker.pid} is, of {len(ranks)} ranks: no file is named "
                "trace-RANK-of-RANKS-PID.pfw after it, as DLIO does, and neither its fork nor its parent is recorded"
            )
        own[number].append(worker)
    return own


def _batches(process: _Process, size: int | None) -> list[list[_Item]]:
    """Return the samples of a process by batch: by their steps, or as many as a batch has."""
    items = sorted(process.items, key=lambda item: item.begin)
    batches: list[list[_Item]] = []
    for item in items:
        own = batches[-1] if batches else None
        if own is None or (len(own) == size if size else item.step != own[0].step):
            batches.append([item])
        else:
            own.append(item)
    return batches if size or all(item.step >= 0 for item in items) else []


def _starts(loop: RankLoop) -> list[int]:
    """Return when workers may begin on each epoch: once its iterator is made, which no event shows.

    That is after the last batch of the epoch before, and after an evaluation, which has other batches.
    """
    starts = [0]
    for epoch in range(1, int(loop.epoch.max(initial=0)) + 1):
        requested = int(loop.requested[loop.epoch == epoch][0])
        evaluated = [pause.end for pause in loop.pauses if pause.name == "evaluate" and pause.end <= requested]
        starts.append(max(int(loop.arrived[loop.epoch == epoch - 1][-1]), *evaluated, starts[-1]))
    return starts


def _in_turn(
    loop: RankLoop, rank: _Process, workers: Sequence[_Process], batches: dict[int, list[list[_Item]]], origin: int
) -> list[tuple[int, ...]]:
    """Return a row for each batch: worker, pid, epoch, step, begin, read, end, samples, bytes.

    PyTorch deals an epoch's batches to its workers in turn, in the order in which it made them. Without calls of fork
    that is taken to be the order in which they begin.
    """
    starts = _starts(loop)
    begun = sorted(workers, key=lambda each: (rank.forked.get(each.pid, -1), batches[id(each)][0][0].begin))
    order = {id(each): n for n, each in enumerate(begun)}
    rows: list[tuple[int, ...]] = []
    for epoch, start in enumerate(starts):
        until = starts[epoch + 1] if epoch + 1 < len(starts) else 1 << 62
        own = {
            id(process): [made for made in batches[id(process)] if start <= made[0].begin - origin < until]
            for process in workers
        }
        active = sorted((process for process in workers if own[id(process)]), key=lambda each: order[id(each)])
        for worker, process in enumerate(active):
            for number, made in enumerate(own[id(process)]):
                begin, end = made[0].begin - origin, made[-1].end - origin
                length = end - begin
                called, prepared = (sum(getattr(item, name) for item in made) for name in ("called", "prepared"))
                read = length - prepared if prepared else called or length
                rows.append((
                    worker, process.pid, epoch, number * len(active) + worker, begin,
                    begin + min(max(read, 0), length), end, len(made), sum(item.nbytes for item in made),
                ))  # fmt: skip
    return rows
