"""The files of a watched loop (``rayio.trace.loop_files``) -> loops and loaded batches as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rayio.errors import StorageError
from rayio.files import NotAFileError, parse_json, read_regular
from rayio.imports.loops import Ints, Loads, Pause, RankLoop, no_times
from rayio.place import MAX_STEPS
from rayio.trace.loop_files import (
    CHECKPOINT,
    END,
    EVALUATE,
    STEP,
    header_path,
    read_loads,
    read_steps,
    steps_path,
)

_PAUSES = {CHECKPOINT: "checkpoint", EVALUATE: "evaluate"}

#: What each value in a header is.
_WANTED: dict[str, type] = {
    "rank": int, "world_size": int, "job": str, "host": str, "boot_id": str, "pid": int, "cpus": int, "started": str,
    "anchor_ns": int, "begin_ns": int, "is_synchronized": bool, "has_accelerator": bool, "loader": dict,
}  # fmt: skip

#: What a loader tells in whole numbers, and the largest numbers in a header; others are at most those of steps.
_NUMBERS = ("batch_size", "num_workers", "prefetch_factor", "samples", "batches", "ahead", "together")
_MOST = {"anchor_ns": 1 << 61, "begin_ns": 1 << 61, "pid": (1 << 31) - 1, "samples": 1 << 61, "batches": 1 << 61}


@dataclass(frozen=True, slots=True)
class WatchedLoop:
    """The loops of all ranks that recorded anything, and what their loaders tell of themselves."""

    world_size: int
    hosts: tuple[str, ...]
    loops: tuple[RankLoop, ...]
    loads: tuple[Loads, ...]
    #: The header of the lowest rank.
    header: Mapping[str, Any]
    #: True if any load came from within ``rayio.reading()``.
    is_instrumented: bool

    @property
    def facts(self) -> Mapping[str, Any]:
        """The arguments and the length of the loader of the lowest rank."""
        facts: Mapping[str, Any] = self.header["loader"]
        return facts


def read_watched(folder: Path, world_size: int, job: str) -> WatchedLoop:
    """Return what the ranks of a job recorded in a folder.

    Raises:
        StorageError: a file is damaged, or no rank recorded anything.
    """
    headers = {}
    for rank in range(world_size):
        header = _header(header_path(folder, rank))
        if header is not None and header["job"] == job and header["world_size"] == world_size:
            headers[rank] = header
    if not headers:
        raise StorageError(f"{folder} has no rank-00000.json: no rank of this job has begun; watch the loop again")
    hosts = tuple(dict.fromkeys(header["host"] for header in headers.values()))
    anchors: dict[str, int] = {}  # processes of one boot share their clock: one anchor keeps them in order
    loops, loads, is_instrumented = [], [], False
    for rank, header in headers.items():
        anchor = anchors.setdefault(header["boot_id"], header["anchor_ns"])
        loop = _loop(folder, rank, header, anchor, hosts.index(header["host"]))
        load, has_readings = _loads(folder, rank, header, anchor)
        is_instrumented |= has_readings
        loops.append(loop)
        loads.append(load)
    return WatchedLoop(world_size, hosts, (*loops,), (*loads,), headers[min(headers)], is_instrumented)


def bytes_of(folder: Path) -> int:
    """Return the bytes of all rows in a folder: with more of them, spans and results are out of date."""
    return sum(path.stat().st_size for path in folder.glob("rank-*.*s"))


def _header(path: Path) -> dict[str, Any] | None:
    try:
        content = read_regular(path)
    except FileNotFoundError:
        return None
    except NotAFileError as error:
        raise StorageError(f"{path}: {error.strerror}") from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None
    try:
        header = parse_json(content)
    except ValueError as error:
        raise StorageError(f"{path} is not JSON, the file is damaged: {error}") from None
    if not isinstance(header, dict):
        raise StorageError(f"{path} is no header of a rank: the file is damaged")
    for name, kind in _WANTED.items():
        if type(header.get(name)) is not kind:
            raise StorageError(f"{path}: {name}={header.get(name)!r}: the file is damaged")
    for name, number in (header | header["loader"]).items():
        most = _MOST.get(name, MAX_STEPS)
        if (name in _NUMBERS and type(number) is not int) or (type(number) is int and abs(number) > most):
            raise StorageError(f"{path}: {name}={number!r}: the file is damaged")
    return header


def _loop(folder: Path, rank: int, header: Mapping[str, Any], anchor: int, node: int) -> RankLoop:
    path = steps_path(folder, rank)
    rows = read_steps(path) if path.exists() else None
    begin = int(header["begin_ns"]) + anchor
    if rows is None or not len(rows):
        none = no_times()
        why = "no step recorded"
        return RankLoop(rank, node, header["pid"], begin, begin, none, none, none, none, none, broke_off=why)
    steps = rows[rows["kind"] == STEP]
    epoch, step = (steps[name].astype(np.int64) for name in ("epoch", "step"))
    requested, arrived, done = (steps[name].astype(np.int64) + anchor for name in ("first", "second", "third"))
    pauses = tuple(
        Pause(
            _PAUSES[int(row["kind"])], int(row["epoch"]), int(row["step"]),
            int(row["first"]) + anchor, int(row["second"]) + anchor,
        )
        for row in rows[np.isin(rows["kind"], [*_PAUSES])]
    )  # fmt: skip
    ends = rows[rows["kind"] == END]
    last = max([begin, *done[-1:].tolist(), *(pause.end for pause in pauses)])
    broke_off = "" if len(ends) else "no end recorded: killed, or still training"
    if len(ends) and ends[-1]["second"]:
        broke_off = "its loop ended with an error"
    end = max(last, int(ends[-1]["first"]) + anchor) if len(ends) else last
    return RankLoop(
        rank, node, header["pid"], begin, end, epoch, step, requested, arrived, done, pauses=pauses,
        broke_off=broke_off,
    )  # fmt: skip


def _waited_for(batch: Ints, ahead: int, together: int) -> Ints:
    """Return the step whose wait is for a batch.

    A loop takes ``together`` batches before it works on the first of them, and ``ahead`` more. So the wait of step n is
    for batch n + ``ahead`` where it takes one at a time.
    """
    group = -(-(batch - ahead - together + 1) // together)
    return np.maximum(group, 0) * together


def _loads(folder: Path, rank: int, header: Mapping[str, Any], anchor: int) -> tuple[Loads, bool]:
    """Return what the workers of a rank loaded, and True if any of it was within ``rayio.reading()``.

    PyTorch deals batches to its workers in turn and delivers them in that order. A worker whose iterable dataset is
    exhausted is passed over.
    """
    facts = header["loader"]
    workers = int(facts.get("num_workers") or 0)
    parts = []
    for path in sorted(folder.glob(f"rank-{rank:05d}-worker-*.loads")):
        rows = read_loads(path)
        parts.append((np.full(len(rows), int(path.stem.rpartition("-")[2]), np.int64), rows))
    if not parts or facts.get("in_order") is False:
        none = no_times()
        return Loads(rank, none, none, none, none, none, none, none, none, none), False
    worker = np.concatenate([number for number, _ in parts])
    rows = np.concatenate([rows for _, rows in parts])
    number, epoch = rows["number"].astype(np.int64), rows["epoch"].astype(np.int64)
    step = number * max(workers, 1) + (worker if workers else 0)
    if facts.get("is_iterable"):
        order = np.lexsort((worker, number, epoch))
        starts = np.flatnonzero(np.diff(epoch[order], prepend=-1))
        place = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
        step[order] = place
    step = _waited_for(step, int(facts.get("ahead") or 0), int(facts.get("together") or 1))
    begin, end = rows["begin"] + anchor, rows["end"] + anchor
    length = end - begin
    waited = np.clip(length - rows["cpu"], 0, length)
    read = begin + np.where(rows["reading"] >= 0, np.clip(rows["reading"], 0, length), waited)
    return Loads(
        rank=rank,
        worker=worker if workers else np.full(len(worker), -1),
        pid=rows["pid"].astype(np.int64),
        epoch=epoch,
        step=step,
        begin=begin,
        read=read,
        end=end,
        samples=rows["samples"].astype(np.int64),
        nbytes=np.maximum(rows["bytes"], 0),
    ), bool((rows["reading"] >= 0).any())
