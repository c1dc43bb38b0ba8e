"""``rayio.watch``: record the steps of a user's own training loop into a run directory, one folder for all ranks.

Each rank appends rows to its own files (``rayio.trace.loop_files``). The first command that opens the run makes spans,
a scenario and results of them (``rayio.session.watched``), so the training imports nothing but this.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import Any

from rayio.engines.loaders.watched_facts import (
    boot_id,
    check_arguments,
    facts_of,
    has_accelerator,
    job_here,
    ranks_here,
)
from rayio.engines.loaders.watched_workers import OnStart, Timed, is_dataloader, starts_workers, time_in_place
from rayio.errors import RunError, StorageError
from rayio.files import replacing
from rayio.trace import loop_files
from rayio.trace.loop_files import CHECKPOINT, END, ENGINE, EVALUATE, FOLDER, STEP, pack_step
from rayio.version import __version__

#: Rows are written after this time (ns), or so many bytes of them: a killed rank loses no more.
FLUSH_NS, FLUSH_BYTES = 1_000_000_000, 1 << 14

#: Pauses of a loop, by name.
PAUSES = {"checkpoint": CHECKPOINT, "evaluate": EVALUATE}

NO_WATCH = "{call}: no loop is watched; call rayio.watch(loader, out=...) first, and iterate over what it returns"
NOT_A_STEP = "rayio.step() came twice for one batch, or before the first; call it once, after the work on each batch"


#: The watch of this process.
_current: Watch | None = None


class Watch:
    """A watched loader: iterate over it in place of the loader, and call ``rayio.step()`` after the work on a batch.

    A framework that iterates by itself calls :meth:`begin_epoch`, :meth:`got_batch` and ``rayio.step()`` instead.
    Everything else is the loader's own: its length, ``dataset``, ``sampler``.
    """

    def __init__(self, loader: Any, folder: Path, rank: int, synchronize: Callable[[], Any] | None) -> None:
        self._loader, self._folder, self._rank = loader, folder, rank
        self._synchronize = synchronize
        self._pid = os.getpid()
        self._file = loop_files.append(loop_files.steps_path(folder, rank))
        self._rows = bytearray()
        self._flushed = self._requested = self._arrived = perf_counter_ns()
        self._epoch, self._number = -1, 0
        self._has_batch = False
        self._in_place: Timed | None = None
        self._on_start: OnStart | None = None
        if is_dataloader(loader):
            starter = starts_workers(loader)
            if loader.num_workers:
                self._on_start = starter.worker_init_fn = OnStart(starter.worker_init_fn, str(folder), rank)
            elif hasattr(starter, "_get_iterator"):
                starter._get_iterator = partial(self._timed, starter._get_iterator)

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch, and return its batches."""
        self.begin_epoch()
        return _Batches(self, iter(self._loader))

    def _timed(self, iterate: Callable[[], Any]) -> Any:
        """Return the iterator of a loader without workers, with its fetcher timed."""
        batches = iterate()
        if self._in_place is not None:
            self._in_place.close()
        if self._file >= 0:
            self._in_place = time_in_place(batches, str(self._folder), self._rank, max(self._epoch, 0))
        return batches

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the loader."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close(failed=error is not None)

    def begin_epoch(self) -> None:
        """Begin an epoch: the loader's iterator is made next."""
        now = perf_counter_ns()
        if self._has_batch:
            self._end_step(now)
        self._epoch += 1
        self._number = 0
        if self._on_start is not None:
            self._on_start.epoch = self._epoch
        self._requested = now

    def got_batch(self) -> None:
        """Record that a batch is there, which was requested when the step before was done."""
        now = perf_counter_ns()
        if self._has_batch:  # nobody called step()
            self._end_step(now)
            self._requested = now
        self._arrived = now
        self._has_batch = True

    def step(self) -> None:
        """Record that the work on a batch is done; see :func:`step`."""
        if self._synchronize is not None:
            self._synchronize()
        now = perf_counter_ns()
        if not self._has_batch:
            raise RunError(NOT_A_STEP)
        self._end_step(now)
        self._requested = now

    @contextmanager
    def pause(self, name: str) -> Iterator[None]:
        """Record a pause of the loop; see :func:`pause`."""
        begin = perf_counter_ns()
        if self._has_batch:
            self._end_step(begin)
        try:
            yield
        finally:
            now = self._requested = perf_counter_ns()
            self._rows += pack_step(PAUSES[name], max(self._epoch, 0), max(self._number - 1, 0), 0, begin, now, 0)

    def paused(self, name: str) -> None:
        """Record that the time since the last step was a pause (``checkpoint`` or ``evaluate``), and no wait for data.

        This is for frameworks that tell only when a pause is over.
        """
        now = perf_counter_ns()
        if not self._has_batch:
            place = max(self._epoch, 0), max(self._number - 1, 0)
            self._rows += pack_step(PAUSES[name], *place, 0, self._requested, now, 0)
            self._requested = now

    def _end_step(self, now: int) -> None:
        self._has_batch = False
        self._rows += pack_step(STEP, self._epoch, self._number, 0, self._requested, self._arrived, now)
        self._number += 1
        if now - self._flushed > FLUSH_NS or len(self._rows) >= FLUSH_BYTES:
            self._flush(now)

    def _flush(self, now: int) -> None:
        self._flushed = now
        with suppress(OSError):  # a full disk must not end the training
            os.write(self._file, self._rows)
        self._rows.clear()

    def close(self, *, failed: bool = False) -> None:
        """End the watch: all that was recorded is on disk. At the end of a program this happens by itself."""
        global _current
        if _current is self:
            _current = None
        if self._file < 0 or self._pid != os.getpid():
            return
        now = perf_counter_ns()
        if self._has_batch and not failed:
            self._end_step(now)
        self._rows += pack_step(END, 0, 0, 0, now, int(failed), 0)
        self._flush(now)
        os.close(self._file)
        self._file = -1
        if self._in_place is not None:
            self._in_place.close()
        if self._on_start is not None:
            starts_workers(self._loader).worker_init_fn = self._on_start.then
        elif is_dataloader(self._loader):
            vars(starts_workers(self._loader)).pop("_get_iterator", None)


class _Batches:
    """The batches of an epoch of a watched loader."""

    def __init__(self, watch: Watch, batches: Iterator[Any]) -> None:
        self._watch, self._batches = watch, batches
        self._is_first = True

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        watch, now = self._watch, perf_counter_ns()
        if watch._has_batch:  # nobody called step(): the work ended here
            watch._end_step(now)
        if not self._is_first:  # the first one was requested when the epoch began
            watch._requested = now
        self._is_first = False
        batch = next(self._batches)
        watch._arrived = perf_counter_ns()
        watch._has_batch = True
        return batch


def watch(
    loader: Any,
    out: str | Path,
    *,
    batch_size: int | None = None,
    accumulate: int = 1,
    synchronize: Callable[[], Any] | None = None,
) -> Watch:
    """Return a loader whose use by a training loop is recorded into the run directory ``out``.

    >>> loader = rayio.watch([1, 2, 3], out="runs/mine", batch_size=1)
    >>> for batch in loader:
    ...     rayio.step()
    >>> loader.close()
    >>> rayio.Run.open("runs/mine").result.steps
    3

    Args:
        loader: a DataLoader of PyTorch, or anything to iterate over.
        out: run directory to make, the same for all ranks, which are those of ``RANK`` and ``WORLD_SIZE``.
        batch_size: samples of a batch, where the loader does not tell.
        accumulate: batches that the loop takes before it works on the first of them, as Transformers' Trainer does
            with ``gradient_accumulation_steps``; a step is the work on one of them.
        synchronize: called before a step ends, such as ``torch.cuda.synchronize``: work on an accelerator goes on
            after its calls have returned.

    Raises:
        RunError: this process watches a loop already, an argument cannot be, or ``RANK`` and ``WORLD_SIZE`` are no
            ranks.
        StorageError: ``out`` holds something already, or cannot be written.
    """
    global _current
    if _current is not None and _current._pid == os.getpid():
        raise RunError(
            f"rayio.watch: this process watches a loop already, into {_current._folder.parent}; call it once, before "
            "the loop over epochs, or end it by close()"
        )
    check_arguments(loader, out, batch_size, accumulate)
    if "://" in str(out):
        raise StorageError(f"rayio.watch: out={out} is no folder of this machine; give a folder, and copy it later")
    rank, world_size = ranks_here()
    folder = _prepared(Path(out), rank, world_size)
    header = {
        "rank": rank,
        "world_size": world_size,
        "job": job_here(world_size),
        "host": platform.node(),
        "boot_id": boot_id(),
        "pid": os.getpid(),
        "cpus": len(os.sched_getaffinity(0)),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "anchor_ns": time.time_ns() - perf_counter_ns(),
        "begin_ns": perf_counter_ns(),
        "is_synchronized": synchronize is not None,
        "has_accelerator": has_accelerator(),
        "loader": facts_of(loader, batch_size, accumulate),
    }
    try:
        _write_json(loop_files.header_path(folder, rank), header)
        _current = Watch(loader, folder, rank, synchronize)
    except OSError as error:
        raise StorageError(f"cannot write {folder}: {error.strerror}; give out= another folder") from None
    return _current


def step() -> None:
    """Record that the work on a batch is done: call it once, after the work on each batch of a watched loader.

    Raises:
        RunError: no loop is watched, or no batch came since the last call.
    """
    if _current is None:
        raise RunError(NO_WATCH.format(call="rayio.step()"))
    _current.step()


@contextmanager
def pause(name: str) -> Iterator[None]:
    """Return a context in which a watched loop writes a ``checkpoint`` or does an ``evaluate``.

    Raises:
        RunError: no loop is watched, or the name is another.
    """
    if name not in PAUSES:
        raise RunError(f"rayio.pause({name!r}): there are {' and '.join(PAUSES)}")
    if _current is None:
        raise RunError(NO_WATCH.format(call=f"rayio.pause({name!r})"))
    with _current.pause(name):
        yield


@atexit.register
def _end() -> None:
    if _current is not None:
        _current.close(failed=getattr(sys, "last_value", None) is not None)


def _prepared(out: Path, rank: int, world_size: int) -> Path:
    """Return the folder for the files of all ranks; rank 0 makes the run directory.

    Raises:
        StorageError: the folder holds a run, or something else, or cannot be made.
    """
    folder = out / FOLDER
    try:
        there = [path.name for path in out.iterdir()] if out.exists() else []
        own = [loop_files.header_path(folder, rank), loop_files.steps_path(folder, rank)]
        if any(path.exists() for path in own) or (rank == 0 and "run.json" in there):
            raise StorageError(f"rayio.watch: {out} already holds a run; give out= another folder, or remove it")
        if [name for name in there if name not in (FOLDER, "run.json")]:
            raise StorageError(f"rayio.watch: {out} is not empty and holds no run; give out= another folder")
        folder.mkdir(parents=True, exist_ok=True)
        if rank == 0:
            _write_json(
                out / "run.json",
                {
                    "version": 1,
                    "rayio": __version__,
                    "engine": ENGINE,
                    "world_size": world_size,
                    "job": job_here(world_size),
                },
            )
    except OSError as error:
        raise StorageError(f"cannot write {out}: {error.strerror}; give out= another folder") from None
    return folder


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with replacing(path, path.with_name(f".{path.name}.{os.getpid()}.partial")) as partial:
        partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
