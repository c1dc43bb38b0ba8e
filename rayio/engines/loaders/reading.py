"""Reads of a batch by another library's loader: the readers' role, in the loader's process.

Its spans return with the batch, and the process with the recorder records them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats import Format
from rayio.errors import RayioError
from rayio.model import roles
from rayio.model.cpu_account import ProcessCpu, Stopwatch
from rayio.model.kernel import BlockingKernel
from rayio.model.plan import Plan
from rayio.model.queue import Delivery
from rayio.model.wiring import Wiring
from rayio.place import Where
from rayio.storage.layers.layer import Layer
from rayio.storage.model import Arbiter
from rayio.trace.recorder import Recorder
from rayio.trace.rows import Many

#: Allocates memory for a batch, of a number of bytes.
Allocate = Callable[[int], NDArray[np.uint8]]


class RecordedSpans(NamedTuple):
    """The spans of a role while it read one batch: arguments of ``Recorder.add``, and requests."""

    spans: list[tuple[Any, ...]]
    many: list[Many]

    def enter(self, recorder: Recorder, writer: int) -> None:
        """Record the spans as those of a registered role."""
        for _, *span in self.spans:
            recorder.add(writer, *span)
        for many in self.many:
            recorder.add_many(many._replace(writer=writer))


class Notebook(Recorder):
    """A recorder that buffers spans until they are handed over."""

    def __init__(self) -> None:
        super().__init__()
        self._recorded = RecordedSpans([], [])

    def add(self, writer: int, *span: Any) -> None:
        """Buffer a span."""
        self._recorded.spans.append((writer, *span))

    def add_many(self, many: Many) -> None:
        """Buffer the requests of one call to storage."""
        self._recorded.many.append(many)

    def hand_over(self) -> RecordedSpans:
        """Return the spans added since the last call."""
        recorded, self._recorded = self._recorded, RecordedSpans([], [])
        return recorded


class Parcel(NamedTuple):
    """A batch on its way to its rank, or an error in its place, with the spans of the read."""

    header: Delivery | RayioError
    #: The bytes of the batch, in memory from ``Allocate``.
    payload: Any
    recorded: RecordedSpans
    #: The worker that read it, and the time of the end (ns).
    worker: int
    pid: int
    done: int
    #: The CPU time of its process since its first batch.
    cpu: ProcessCpu


@dataclass(frozen=True)
class Reading:
    """The parameters of a process that reads a rank's batches; it pickles to a few kilobytes."""

    plan: Plan
    rank: int
    root: str | Path
    #: The difference from ``perf_counter_ns`` to the run's time; processes of a host share it.
    anchor: int
    #: True if the rank's process reads, whose spans are the rank's.
    is_inline: bool = False


class _NoDevices:
    """A refusal: another library's loader has neither modelled storage nor readers on other nodes."""

    def arbiter(self, device: int) -> Arbiter:
        raise AssertionError("modelled storage in another library's loader")

    def shared(self, layer: Layer, node: int) -> Any:
        raise AssertionError(f"what users of {layer.name} share, in another library's loader")

    async def book(self, number: int, is_needed: bool) -> None:
        raise AssertionError("checkpoints in another library's loader")


class _Buffers:
    def __init__(self, allocate: Allocate) -> None:
        self.lend = allocate

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        """Do nothing: the loader frees it."""


class BatchReader:
    """A reader of batches in this process, with the format's reader or another one of the same format."""

    def __init__(self, reading: Reading, worker: int, allocate: Allocate, form: Format | None = None) -> None:
        self.worker = worker
        self.notebook = Notebook()
        self.kernel = BlockingKernel(reading.anchor)
        self.wiring = wiring = Wiring(reading.plan, self.kernel, self.notebook, reading.root, _NoDevices(), num_ranks=1)
        self.loading = wiring.loading
        self.loading.buffers = _Buffers(allocate)  # type: ignore[assignment]
        self.loading.format = form or self.loading.format
        #: The rank's own process counts its time itself.
        role = "rank" if reading.is_inline else "reader"
        self.cpu = Stopwatch(role, "", self.wiring.read_cpu, self.wiring.decode_cpu)
        self.is_inline = reading.is_inline
        self.lane = 1 if reading.is_inline else 0
        self.env = wiring.reading_rank(reading.rank) if reading.is_inline else wiring.reader(reading.rank, worker)

    def read(self, at: Where) -> Parcel:
        """Return one batch. User errors are returned, not raised: a loader would wrap them."""
        header: Delivery | RayioError
        payload = None
        self.cpu.begin()
        try:
            header = self.kernel.carry_out(roles.load_batch(self.env, self.loading, at, self.worker, self.lane))
            payload, header.payload, header.give_back = header.payload, None, None
        except RayioError as error:
            header = error
        cpu = self.cpu.read()
        assert cpu is not None
        cpu = cpu._replace(seconds=0.0) if self.is_inline else cpu
        return Parcel(header, payload, self.notebook.hand_over(), self.worker, os.getpid(), self.kernel.now(), cpu)

    def close(self) -> None:
        """Close the files kept open."""
        self.kernel.carry_out(self.wiring.close())
