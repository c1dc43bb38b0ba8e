"""``torch.utils.data.DataLoader`` behind a rank: its worker processes read, its queues prefetch, its memory is shared.

The sampler yields addresses (rank, epoch, step); a worker computes the samples from the plan, as readers do. PyTorch's
batching is off (``batch_size=None``): a worker reads a whole batch directly into the shared memory of a tensor, so
nothing is collated. With ``loader.reader: numpy`` it loads sample by sample and collates them into that memory. Only
this module imports torch.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import types
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import spawn
from time import perf_counter_ns
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from rayio.engines.loaders.numpy_reader import NumpyReader
from rayio.engines.loaders.reading import BatchReader, Parcel, Reading
from rayio.engines.loaders.worker_deaths import REPORT_SECONDS, death, means_death, no_shared_memory
from rayio.errors import RayioError, RunError
from rayio.machine.oom import oom_kills
from rayio.model.cpu_account import ProcessCpu, Starts
from rayio.model.env import Env
from rayio.model.pinning import PinThread
from rayio.model.queue import Delivery
from rayio.model.standing import Standing
from rayio.model.threads import Threads
from rayio.place import Where
from rayio.trace.recorder import Recorder

#: The first import of a worker that is not a plain fork, and of the ``forkserver``.
FIRST = "rayio.engines.loaders.worker_start"
PRELOADED = [FIRST, __name__]
#: Seconds for workers to end before they are killed.
CLOSE_SECONDS = 2.0


@dataclass(frozen=True)
class Settings:
    """The arguments of the DataLoader, by PyTorch's names."""

    num_workers: int
    prefetch_factor: int
    persistent_workers: bool
    pin_memory: bool
    in_order: bool
    multiprocessing_context: str
    #: The reader of samples: ``loader.reader``.
    reader: str = "rayio"


class Batches(Dataset[Parcel]):  # type: ignore[misc]
    """The batches of a rank by address: created in the rank's process, used in the workers."""

    def __init__(self, reading: Reading, settings: Settings) -> None:
        self.reading = reading
        self.by_numpy = settings.reader == "numpy"
        window = settings.num_workers * settings.prefetch_factor
        #: The batch that was last read for each place of the window: memory that workers share with their rank.
        self.done = torch.full((max(1, window),), -1, dtype=torch.int64)
        if settings.num_workers:
            with _in_shared_memory():
                self.done.share_memory_()
        #: The reader of this process, once it has read.
        self.reader: BatchReader | None = None
        self._tensor: Any = None
        self._is_shared = False

    def __getitem__(self, at: Where) -> Parcel:
        """Read one."""
        if self.reader is None:
            worker = get_worker_info()
            self._is_shared = worker is not None
            form = NumpyReader(_collate) if self.by_numpy else None
            self.reader = BatchReader(self.reading, 0 if worker is None else worker.id, self._allocate, form)
        parcel = self.reader.read(at)
        self.done[at.step % len(self.done)] = _number(at)
        tensor, self._tensor = self._tensor, None
        return parcel if parcel.payload is None else parcel._replace(payload=tensor)

    def is_done(self, at: Where) -> bool:
        """Return True if a worker has read a batch, so that it is on its way to the rank."""
        return bool(self.done[at.step % len(self.done)] == _number(at))

    def _allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Return the memory of a tensor; a worker's is shared, so that sending it copies nothing."""
        if self._is_shared:
            with _in_shared_memory():
                self._tensor = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(nbytes))
        else:
            self._tensor = torch.empty(nbytes, dtype=torch.uint8)
        view: NDArray[np.uint8] = self._tensor.numpy()
        return view


def _number(at: Where) -> int:
    return at.epoch << 40 | at.step


@contextmanager
def _in_shared_memory() -> Iterator[None]:
    """Word PyTorch's errors of allocating shared memory."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        if (problem := no_shared_memory(error, starting=True)) is None:
            raise
        raise RunError(problem) from None


class Addresses(Sampler[Where]):  # type: ignore[misc]
    """The addresses of an epoch's batches, in order, with the times when PyTorch hands them to workers."""

    def __init__(self, rank: int, steps: tuple[int, ...]) -> None:
        self.steps = steps
        self.first = Where(rank, 0, 0)
        #: Time (``perf_counter_ns``) when each step was handed out.
        self.handed_out: dict[int, int] = {}

    def open(self, first: Where) -> None:
        """Begin an epoch, from a step on."""
        self.first = first
        self.handed_out.clear()

    def __iter__(self) -> Iterator[Where]:
        """Yield the addresses."""
        first = self.first
        for step in range(first.step, self.steps[first.epoch]):
            self.handed_out[step] = perf_counter_ns()
            yield first._replace(step=step)

    def __len__(self) -> int:
        return self.steps[self.first.epoch] - self.first.step


class DataLoaderQueue:
    """A rank's end of its DataLoader.

    PyTorch runs in one thread of the rank's process, because taking a batch blocks. It is not the main thread, so
    PyTorch installs no signal handler that would raise within a role. Only a rank that is ``alone`` in its process
    takes a batch in place, if it is ready: two changes of thread cost half a millisecond a step, which a loop without
    rayio does not pay. ``queue`` is the environment of a prefetch queue, for its spans; None if the rank reads itself.
    ``pinning`` stands for PyTorch's thread that pins batches, which runs only where there is a GPU.
    ``starts`` counts the CPU time of starting an epoch's workers.
    """

    def __init__(
        self, reading: Reading, steps: tuple[int, ...], settings: Settings, recorder: Recorder, name: str,
        queue: Env | None, *, alone: bool, starts: Starts | None = None, pinning: PinThread | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.alone = alone
        self.node = reading.plan.node_of_rank(reading.rank)
        self.reading = reading
        self.settings = settings
        self.recorder = recorder
        self.queue = queue
        self.pinning = pinning
        self.starts = starts or Starts()
        #: The CPU time of each worker, by its process.
        self.worked: dict[int, ProcessCpu] = {}
        self._addresses = Addresses(reading.rank, steps)
        self._left = 0
        self._epoch: int | None = None
        self._iterator: Any = None
        self._processes: list[Any] = []
        #: Processes that the kernel had killed for memory before this run.
        self._kills = oom_kills()
        #: Time (``perf_counter_ns``) when workers were asked to begin an epoch, until all have answered.
        self._begun: int | None = None
        self._thread = Threads(1, f"rayio-loader-{name}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # users may try more workers than CPUs
            self._batches = Batches(reading, settings)
            self._loader: Any = self._make()

    def _make(self) -> Any:
        settings = self.settings
        options: dict[str, Any] = {"pin_memory": settings.pin_memory}
        if settings.num_workers:
            context = multiprocessing.get_context(settings.multiprocessing_context)
            if settings.multiprocessing_context == "forkserver":
                context.set_forkserver_preload(PRELOADED)
            options |= {
                "prefetch_factor": settings.prefetch_factor,
                "persistent_workers": settings.persistent_workers,
                "multiprocessing_context": context,
                "worker_init_fn": _begin,
                "in_order": settings.in_order,
            }
        return DataLoader(
            self._batches, batch_size=None, sampler=self._addresses, collate_fn=_as_it_is,
            num_workers=settings.num_workers, **options,
        )  # fmt: skip

    async def get(self, at: Where) -> Delivery:
        """Return the next batch of this epoch.

        Raises:
            RayioError: a worker's error of reading.
            RunError: a worker died.
        """
        if self.alone and self._epoch == at.epoch and self._left > 1 and self._is_ready(at):
            parcel = self._next(at)
        else:
            parcel = await asyncio.get_running_loop().run_in_executor(self._thread, self._next, at)
        self.worked[parcel.pid] = parcel.cpu
        if parcel.recorded:
            parcel.recorded.enter(self.recorder, self._writer(parcel))
        delivery = parcel.header
        if isinstance(delivery, RayioError):
            raise delivery
        if parcel.payload.nbytes != delivery.nbytes:
            raise RunError(
                f"rank {at.rank}, epoch {at.epoch}, step {delivery.step}: "
                f"{parcel.payload.nbytes} bytes arrived of {delivery.nbytes}"
            )
        delivery.payload = parcel.payload
        ready = parcel.done if self.pinning is None else await self.pinning.pin(delivery, parcel.done)
        if self.queue is not None:
            granted = self._addresses.handed_out.pop(delivery.step) + self.reading.anchor
            place = at._replace(step=delivery.step)
            self.queue.span("lease", granted, ready, place, lane=1, nbytes=delivery.nbytes)
        return delivery

    def _is_ready(self, at: Where) -> bool:
        """Return True if taking a batch will not wait; False if the order is not fixed."""
        return self.settings.num_workers > 0 and self.settings.in_order and self._batches.is_done(at)

    def standing(self) -> Iterator[Standing]:
        """Yield the batches that workers have: PyTorch deals them out in turn."""
        addresses, states = self._addresses, [_state(process.pid) for process in self._processes]
        first = addresses.first._replace(attempt=0)
        for step, handed_out in list(addresses.handed_out.items()):
            if self.settings.num_workers and states:
                worker = (step - first.step) % self.settings.num_workers
                at, since = first._replace(step=step), handed_out + self.reading.anchor
                by = f"reader-{self.name}-{worker} ({states[worker]})"
                yield Standing("queue", f"queue-{self.name}", "lease", at, since, since, by=by)
        if (begun := self._begun) is not None and self.settings.num_workers:  # the first batch waits for every worker
            at, since = first, begun + self.reading.anchor
            unusual = [number for number, state in enumerate(states) if "," in state]
            worker = unusual[0] if unusual else 0
            by = f"reader-{self.name}-{worker} ({states[worker] if states else 'starting'})"
            yield Standing("queue", f"queue-{self.name}", "lease", at, since, since, by=by)

    def _writer(self, parcel: Parcel) -> int:
        """Return the number of the role that read a batch: the rank, or a worker in its process."""
        if self.queue is None:
            return self.recorder.register("rank", str(self.reading.rank), self.node)
        return self.recorder.register("reader", f"{self.name}-{parcel.worker}", self.node, parcel.pid)

    def _next(self, at: Where) -> Parcel:
        """Return a batch. As in PyTorch, workers start and end with an epoch, unless they are persistent."""
        try:
            if self._epoch != at.epoch:
                self._begin_epoch(at)
            parcel: Parcel = next(self._iterator)
        except (RuntimeError, OSError, EOFError) as error:
            if (cause := self._cause(error)) is None:
                raise
            raise RunError(f"rank {at.rank}: {cause}") from error
        self._left -= 1
        if not self._left and not self.settings.persistent_workers:
            self._iterator = None
        return parcel

    def _begin_epoch(self, at: Where) -> None:
        self._epoch = at.epoch
        self._addresses.open(at)
        self._left = len(self._addresses)
        if not self.settings.persistent_workers:
            self._processes = []  # of the epoch before, which have ended
        self._begun = perf_counter_ns()
        with self.starts.timed(), _without_main(), _spawned_in_silence():
            self._iterator = iter(self._loader)  # also tests persistent workers, which may have died
        self._begun = None
        self._processes = list(getattr(self._iterator, "_workers", ()))

    def _cause(self, error: Exception) -> str | None:
        """Return the cause of an error of DataLoader, if it is not that of a worker's read."""
        if (problem := no_shared_memory(error, starting=self._begun is not None)) is not None:
            return problem
        is_death = means_death(error)
        cause = death(self._processes, self._kills, REPORT_SECONDS if is_death else 0.1)
        if cause is None and is_death:
            cause = f"a DataLoader worker is gone ({' '.join(str(error).split()) or type(error).__name__})"
        if cause is None:
            return None
        over = "the run is over; its spans are in the run directory"
        return f"{cause}, and PyTorch's DataLoader does not replace it: {over}"

    async def close(self) -> None:
        """End the workers: ask them, then kill those that remain."""
        ending = asyncio.get_running_loop().run_in_executor(self._thread, self._end)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(ending), CLOSE_SECONDS)
        for process in self._processes:
            if process.is_alive():
                process.kill()
        self._thread.shutdown(wait=False)

    def _end(self) -> None:
        self._iterator = self._loader = None
        if self._batches.reader is not None:  # the rank reads itself
            self._batches.reader.close()


def _state(pid: int) -> str:
    """Return a worker's process number, with its state if unusual."""
    try:
        state = psutil.Process(pid).status()
    except psutil.Error:
        return f"pid {pid}, gone"
    return f"pid {pid}" + ("" if state in ("running", "sleeping") else f", {state}")


def _collate(samples: Sequence[NDArray[np.uint8]], out: NDArray[np.uint8]) -> None:
    """Copy samples into the memory of a batch by the call of PyTorch's ``default_collate``."""
    torch.stack([torch.from_numpy(sample) for sample in samples], 0, out=torch.from_numpy(out).view(len(samples), -1))


def _as_it_is(parcel: Parcel) -> Parcel:
    return parcel


def _begin(worker: int) -> None:
    """Bind a worker's life to its rank's: it ignores Ctrl-C, which reaches it too, and ends with the rank.

    PyTorch's workers watch their parent, which may be a fork server that lives as long as its forks.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (rank := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_with, args=(rank,), daemon=True).start()


def _end_with(rank: Any) -> None:
    rank.join()
    os._exit(1)


_starting = threading.Lock()


@contextmanager
def _without_main() -> Iterator[None]:
    """Start processes without the program's main module, which workers do not need.

    In a Ray worker it would import Ray, and a script without ``if __name__ == "__main__"`` would start over.
    """
    with _starting:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


@contextmanager
def _spawned_in_silence() -> Iterator[None]:
    """Make ``spawn`` import :data:`FIRST` first, with Ctrl-C blocked until then.

    The import may fail: a process gets its rank's import path from its rank.
    """
    command_line = spawn.get_command_line

    def with_the_first(**arguments: object) -> list[str]:
        command = command_line(**arguments)
        if "-c" in command:
            place = command.index("-c") + 1
            command[place] = f"try:\n    import {FIRST}\nexcept ImportError:\n    pass\n{command[place]}"
        return command

    masked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # handed down by this thread
    spawn.get_command_line = with_the_first
    try:
        yield
    finally:
        spawn.get_command_line = command_line
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
