"""The time of each batch in PyTorch's worker processes, for a watched loop: the user's batches are not touched.

A worker's fetcher, which calls the dataset and the collation, is timed as a whole. Only this module knows PyTorch's
names for it. Where a later PyTorch has other names, nothing is recorded, and a note on the run tells so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns, thread_time_ns
from types import TracebackType
from typing import Any

from rayio.trace.loop_files import append, loads_path, pack_load


class Reading:
    """A stretch of a dataset's ``__getitem__`` that reads; the rest of the batch's time is decoding.

    Of nested or repeated ones, the sum of the outermost counts.
    """

    #: Time within (ns) and depth now, of this process.
    spent = 0
    number = 0
    depth = 0
    begun = 0

    def __enter__(self) -> Reading:
        cls = Reading
        if not cls.depth:
            cls.begun = perf_counter_ns()
        cls.depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        cls = Reading
        cls.depth -= 1
        if not cls.depth:
            cls.spent += perf_counter_ns() - cls.begun
            cls.number += 1


_READING = Reading()


def reading() -> Reading:
    """Return a context in which a dataset reads, so that a watched loop tells reading from decoding.

    >>> with rayio.reading():
    ...     content = b"".join(bytes(3) for _ in range(4))

    Without it, the time that a worker does not spend on a processor counts as reading.
    """
    return _READING


class Timed:
    """A fetcher's ``fetch`` that appends a row to a file for every batch."""

    def __init__(self, fetch: Callable[[Any], Any], file: int, epoch: int) -> None:
        self.fetch, self.file, self.epoch = fetch, file, epoch
        self.number = 0
        self.pid = os.getpid()
        self.counters = -1
        with suppress(OSError):
            self.counters = os.open("/proc/thread-self/io", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close its files; without them it records nothing more."""
        for file in (self.file, self.counters):
            with suppress(OSError):
                os.close(file)
        self.file = self.counters = -1

    def __call__(self, index: Any) -> Any:
        """Return the batch of an index, or the dataset's error."""
        spent, number = Reading.spent, Reading.number
        nbytes, requests, own = self._read_so_far()
        begin, cpu = perf_counter_ns(), thread_time_ns()
        batch = self.fetch(index)
        end, cpu = perf_counter_ns(), thread_time_ns() - cpu
        if nbytes >= 0:
            nbytes_now, requests_now, _ = self._read_so_far()
            nbytes, requests = nbytes_now - nbytes - own, requests_now - requests - 1
        read = Reading.spent - spent if Reading.number > number else -1
        samples = len(index) if isinstance(index, list) else 1
        with suppress(OSError):  # a full disk must not end the training
            row = pack_load(self.epoch, self.number, samples, self.pid, begin, end, read, cpu, nbytes, requests)
            os.write(self.file, row)
        self.number += 1
        return batch

    def _read_so_far(self) -> tuple[int, int, int]:
        """Return the bytes and the calls of ``read`` of this thread, and the bytes that this call itself adds.

        All are -1 where the kernel does not count them.
        """
        if self.counters < 0:
            return -1, -1, -1
        try:
            text = os.pread(self.counters, 256, 0)
            lines = text.split(b"\n")
            return int(lines[0][7:]), int(lines[2][7:]), len(text)
        except (OSError, ValueError, IndexError):
            return -1, -1, -1


class OnStart:
    """A ``worker_init_fn`` that times the fetchers of its worker, then calls the user's own."""

    def __init__(self, then: Callable[[int], Any] | None, folder: str, rank: int) -> None:
        self.then, self.folder, self.rank = then, folder, rank
        #: The epoch in which workers are started next.
        self.epoch = 0

    def __call__(self, worker: int) -> None:
        """Prepare worker ``worker``, in its process."""
        with suppress(OSError):  # no file, no rows: the training goes on
            self._time(append(loads_path(self.folder, self.rank, worker)))
        if self.then is not None:
            self.then(worker)

    def _time(self, file: int) -> None:
        kinds = getattr(sys.modules.get("torch.utils.data.dataloader"), "_DatasetKind", None)
        create = getattr(kinds, "create_fetcher", None)
        if kinds is None or create is None:
            return

        def create_fetcher(*arguments: Any, **named: Any) -> Any:
            fetcher = create(*arguments, **named)
            fetcher.fetch = Timed(fetcher.fetch, file, self.epoch)
            self.epoch += 1  # workers that stay make a fetcher for each epoch
            return fetcher

        kinds.create_fetcher = staticmethod(create_fetcher)


def time_in_place(batches: Any, folder: str, rank: int, epoch: int) -> Timed | None:
    """Time a DataLoader's iterator without workers; return None if it is none."""
    fetcher = getattr(batches, "_dataset_fetcher", None)
    with suppress(OSError):
        if fetcher is not None and hasattr(fetcher, "fetch"):
            timed = fetcher.fetch = Timed(fetcher.fetch, append(loads_path(folder, rank, 0)), epoch)
            return timed
    return None


def is_dataloader(loader: object) -> bool:
    """Return True for PyTorch's DataLoader, without importing torch: who has one has imported it."""
    kind = getattr(sys.modules.get("torch.utils.data"), "DataLoader", None)
    return isinstance(kind, type) and isinstance(loader, kind)


def starts_workers(loader: Any) -> Any:
    """Return the DataLoader that starts the workers of one: another, if a framework wrapped it.

    Accelerate's loaders, which Transformers' Trainer uses, keep it as ``base_dataloader``.
    """
    while is_dataloader(inner := getattr(loader, "base_dataloader", None)):
        loader = inner
    return loader
