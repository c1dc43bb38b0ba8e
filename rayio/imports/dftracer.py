"""Traces of DFTracer (.pfw, .pfw.gz), which DLIO writes too -> the loop of each rank, and what its workers loaded.

Names of events by DFTracer's conventions for training (``fetch.iter``, ``compute``, ``item``, ``capture`` ...), and by
those of earlier versions of DLIO (``_train.iter``, ``TorchFramework.compute``, ``TorchDataset.__getitem__``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rayio.errors import DataError
from rayio.imports.loops import Ints, Loads, Pause, RankLoop
from rayio.imports.trace_files import TraceFile, files_of, time_ns

WHAT = "traces of DFTracer (.pfw or .pfw.gz), or their folder"

#: Calls of the operating system that count as reading a file.
_CALLS = ("POSIX", "STDIO")
_READS = frozenset(
    ("read", "pread", "pread64", "readv", "fread", "open", "open64", "openat", "fopen", "close", "fclose")
)
_WITH_BYTES = frozenset(("read", "pread", "pread64", "readv", "fread"))

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


@dataclass(slots=True)
class _Process:
    """The events of a process."""

    pid: int
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


def read_traces(
    paths: Sequence[Path], batch_size: int | None
) -> tuple[list[RankLoop], list[Loads], dict[str, Any], list[str], str]:
    """Return loops, loads, what is known of the loader, notes, and why no reads are known (empty if they are).

    Raises:
        DataError: a file is no trace of DFTracer, or no process waited for a batch.
    """
    processes: dict[tuple[Any, int], _Process] = {}
    notes: list[str] = []
    files = files_of(paths, (".pfw", ".pfw.gz"), WHAT)
    for path in files:
        trace = TraceFile(path)
        for event in trace.of_lines():
            _enter(event, trace, processes)
        if trace.broke_off:
            notes.append(f"{trace.broke_off}: what is before counts")
    ranks = [process for process in processes.values() if process.waits]
    if not ranks:
        raise DataError(
            f"{files[0]}: no process waited for a batch (fetch.iter, or _train.iter of DLIO) in {len(files)} files; "
            "mark the loop with dft_ai.dataloader.fetch.iter"
        )
    origin = min(process.first for process in processes.values())
    loops = [_loop(rank, process, origin) for rank, process in enumerate(ranks)]
    workers = [process for process in processes.values() if process.items]
    loads, facts, without = _loads(loops, ranks, workers, origin, batch_size)
    if not without and not any(item.called or item.prepared for process in workers for item in process.items):
        notes.append("read is all the time of a sample: the trace has no calls of the operating system in it")
    return loops, loads, facts, notes, without


def _enter(event: dict[str, Any], trace: TraceFile, processes: dict[tuple[Any, int], _Process]) -> None:
    if event.get("ph") != "X":
        return
    name, kind = str(event.get("name")), str(event.get("cat"))
    begin = time_ns(event, "ts", trace)
    end = begin + time_ns(event, "dur", trace)
    pid = event.get("pid")
    if isinstance(pid, bool) or not isinstance(pid, int):
        raise DataError(f"{trace.path}, line {trace.line}: pid={pid!r} is no number of a process")
    given = event.get("args")
    known: dict[str, Any] = given if isinstance(given, dict) else {}
    process = processes.setdefault((known.get("hhash"), pid), _Process(pid))
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
    else:
        _enter_work(process, event.get("tid"), name, kind, known, begin, end)


def _enter_work(
    process: _Process, thread: Any, name: str, kind: str, known: dict[str, Any], begin: int, end: int
) -> None:
    """Enter work on a sample: an event is written when it ends, so a sample comes after what was done for it."""
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
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return -1


def _loop(rank: int, process: _Process, origin: int) -> RankLoop:
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
        rank=rank, node=0, pid=process.pid, begin=process.first - origin, end=process.last - origin,
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
    if len(ranks) > 1:
        return [], facts, "with several ranks nobody can tell which worker is whose"
    loop = loops[0]
    is_inline = all(process is ranks[0] for process in workers)
    batches = {id(process): _batches(process, batch) for process in workers}
    workers = [process for process in workers if batches[id(process)]]
    if not workers:
        return [], facts, "samples have no step; give --batch-size"
    rows = _in_turn(loop, [process for process in workers if process is not ranks[0]] or [*workers], batches, origin)
    places = zip(loop.epoch.tolist(), loop.step.tolist(), strict=True)
    taken = dict(zip(places, loop.arrived.tolist(), strict=True))
    late = sum(row[6] > taken.get((row[2], row[3]), 1 << 62) for row in rows)
    if late > (1 - IN_TIME) * len(rows):
        return [], facts, "batches do not go to workers in turn, so nobody can tell which worker read which"
    facts["num_workers"] = 0 if is_inline else 1 + max(row[0] for row in rows)
    facts["batch_size"] = batch or max(row[7] for row in rows)
    columns: list[Ints] = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
    worker, pid, epoch, step, begin, read, end, samples, nbytes = columns
    load = Loads(0, worker * 0 - 1 if is_inline else worker, pid, epoch, step, begin, read, end, samples, nbytes)
    return [load], facts, ""


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


def _in_turn(
    loop: RankLoop, workers: Sequence[_Process], batches: dict[int, list[list[_Item]]], origin: int
) -> list[tuple[int, ...]]:
    """Return a row for each batch: worker, pid, epoch, step, begin, read, end, samples, bytes.

    PyTorch deals an epoch's batches to its workers in turn, first to the one that begins first.
    """
    starts = [int(loop.requested[loop.epoch == epoch][0]) for epoch in range(int(loop.epoch.max(initial=0)) + 1)]
    order = {id(each): n for n, each in enumerate(sorted(workers, key=lambda each: batches[id(each)][0][0].begin))}
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
