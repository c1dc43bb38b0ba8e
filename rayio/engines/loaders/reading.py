"""How another library's loader reads a batch: the readers' own role, in whichever process the loader has for it.

What a reader records cannot go to the run from there. It comes back with the batch, and whoever has the recorder
enters it.
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
from rayio.model.kernel import BlockingKernel
from rayio.model.plan import Plan
from rayio.model.queue import Delivery
from rayio.model.wiring import Wiring
from rayio.place import Where
from rayio.storage.layers.layer import Layer
from rayio.storage.model import Arbiter
from rayio.trace.recorder import Recorder
from rayio.trace.rows import Many

#: Memory for a batch of so many bytes.
Allocate = Callable[[int], NDArray[np.uint8]]


class RecordedSpans(NamedTuple):
    """What a role recorded while it read one batch: spans as ``Recorder.add`` takes them, and requests."""

    spans: list[tuple[Any, ...]]
    many: list[Many]

    def enter(self, recorder: Recorder, writer: int) -> None:
        """Enter it as that of a registered role."""
        for _, *span in self.spans:
            recorder.add(writer, *span)
        for one in self.many:
            recorder.add_many(one._replace(writer=writer))


class Notebook(Recorder):
    """A recorder that holds what is added until it is handed over."""

    def __init__(self) -> None:
        super().__init__()
        self._recorded = RecordedSpans([], [])

    def add(self, writer: int, *span: Any) -> None:
        """Hold a span."""
        self._recorded.spans.append((writer, *span))

    def add_many(self, many: Many) -> None:
        """Hold the requests of one call to storage."""
        self._recorded.many.append(many)

    def hand_over(self) -> RecordedSpans:
        """What was added since the last time."""
        recorded, self._recorded = self._recorded, RecordedSpans([], [])
        return recorded


class Parcel(NamedTuple):
    """A batch on its way to its rank, or the error that came in its place, and what was recorded meanwhile."""

    header: Delivery | RayioError
    #: The bytes of the batch, in memory that ``Allocate`` gave.
    payload: Any
    recorded: RecordedSpans
    #: Who read it, and when that was done (ns).
    worker: int
    pid: int
    done: int


@dataclass(frozen=True)
class Reading:
    """All that a process needs to read a rank's batches; it pickles to a few kilobytes."""

    plan: Plan
    rank: int
    root: str | Path
    #: What to add to ``perf_counter_ns`` for the run's time: processes of a host share that clock.
    anchor: int
    #: Whether the rank's own process reads, which records it as the rank's.
    is_inline: bool = False


class _NoDevices:
    """Another library's loader has no modelled storage, nor readers on other nodes."""

    def arbiter(self, device: int) -> Arbiter:
        raise AssertionError("modelled storage in another library's loader")

    def shared(self, layer: Layer, node: int) -> Any:
        raise AssertionError(f"what users of {layer.name} share, in another library's loader")


class _Buffers:
    """Memory of batches that the loader makes, and frees: nothing comes back."""

    def __init__(self, allocate: Allocate) -> None:
        self.lend = allocate

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        """Leave it to the loader."""


class BatchReader:
    """Reads batches in this process, with the format's own reader or with another one of the same format."""

    def __init__(self, reading: Reading, worker: int, allocate: Allocate, form: Format | None = None) -> None:
        self.worker = worker
        self.notebook = Notebook()
        self.kernel = BlockingKernel(reading.anchor)
        self.wiring = wiring = Wiring(reading.plan, self.kernel, self.notebook, reading.root, _NoDevices(), num_ranks=1)
        self.loading = wiring.loading
        self.loading.buffers = _Buffers(allocate)  # type: ignore[assignment]
        self.loading.format = form or self.loading.format
        self.lane = 1 if reading.is_inline else 0
        self.env = wiring.reading_rank(reading.rank) if reading.is_inline else wiring.reader(reading.rank, worker)

    def read(self, at: Where) -> Parcel:
        """Read one batch. An error of the user's is given, not raised: a loader would wrap it in its own words."""
        header: Delivery | RayioError
        payload = None
        try:
            header = self.kernel.carry_out(roles.load_batch(self.env, self.loading, at, self.worker, self.lane))
            payload, header.payload, header.give_back = header.payload, None, None
        except RayioError as error:
            header = error
        return Parcel(header, payload, self.notebook.hand_over(), self.worker, os.getpid(), self.kernel.now())

    def close(self) -> None:
        """Close the files that it keeps."""
        self.kernel.carry_out(self.wiring.close())
