"""What checkpoints and evaluations take of the storage while ranks train: it is not there for training's batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import Ints, integers, is_text
from rayio.analyze.window import Window
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns that this is found from.
COLUMNS = ("name", "role", "lane", "epoch", "start_ns", "duration_ns", "bytes", "requests")
#: Spans in which a rank does not train.
_PAUSES = ("checkpoint", "evaluate")


class Others(NamedTuple):
    """What others than training's batches ask of storage, in each second in which ranks train."""

    nbytes: float = 0.0
    requests: float = 0.0
    #: Those of the requests that read.
    reads: float = 0.0
    #: Batches of evaluations, and files of checkpoints.
    batches: float = 0.0
    files: float = 0.0


#: Nobody else uses it.
ALONE = Others()


def beside_training(spans: Slices, window: Window | None, shape: RunShape) -> Others:
    """Sum up what checkpoint writers and evaluations moved in the window while ranks trained.

    A rank trains unless a checkpoint or an evaluation holds it, or another rank that it has to meet. What is moved
    while only some ranks train counts by their share: the others ask for nothing.
    """
    if window is None or not any(spans.names.get(name) for name in _PAUSES):
        return ALONE
    pauses = _Pauses(spans.named(*_PAUSES), window, shape)
    trained = window.seconds * float(pauses.training(np.array([window.begin]), np.array([window.end]))[0])
    if trained <= 0:
        return ALONE
    found = np.zeros(5)
    for part in spans.parts(*COLUMNS):
        is_write = is_text(part, "name", "write") & is_text(part, "role", "checkpoint_writer")
        is_read = is_text(part, "name", "read") & is_text(part, "role", "reader", "rank")
        is_read &= integers(part, "epoch") >= shape.epochs
        chosen = np.flatnonzero(is_write | is_read)
        if not len(chosen):
            continue
        start, took = integers(part, "start_ns", chosen), integers(part, "duration_ns", chosen)
        inside = pauses.training(start, start + took)
        nbytes, requests = integers(part, "bytes", chosen), integers(part, "requests", chosen)
        reads = is_read[chosen]
        for number, amount in enumerate((nbytes, requests, requests * reads, reads, ~reads)):
            found[number] += float(np.dot(amount.astype(np.float64), inside))
    return Others(*(found / trained).tolist())


class _Pauses:
    """How long ranks did not train until any time, in the mean over them: a line with bends."""

    def __init__(self, spans: pa.Table, window: Window, shape: RunShape) -> None:
        chosen = np.flatnonzero(is_text(spans, "role", "rank"))
        start = integers(spans, "start_ns", chosen)
        end = start + integers(spans, "duration_ns", chosen)
        # In seconds of the window: whole nanoseconds since 1970 are no floats.
        self._window = window
        times = np.concatenate([self._since(start), self._since(end)])
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        held = np.cumsum(np.concatenate([np.ones(len(start)), -np.ones(len(end))])[order])
        held = np.minimum(held, 1.0) if shape.meets else held / shape.world_size
        self._paused = np.append(0.0, np.cumsum(held[:-1] * np.diff(self._times))) if len(times) else self._times

    def _since(self, time: Ints) -> NDArray[np.float64]:
        """Seconds since the window began, of times that are cut to it."""
        return (np.clip(time, self._window.begin, self._window.end) - self._window.begin) / 1e9

    def _between(self, begin: Ints, end: Ints) -> NDArray[np.float64]:
        if not len(self._times):
            return np.zeros(len(begin))
        at = (np.interp(self._since(when), self._times, self._paused) for when in (begin, end))
        first, last = at
        paused: NDArray[np.float64] = last - first
        return paused

    def training(self, begin: Ints, end: Ints) -> NDArray[np.float64]:
        """The part of each stretch of time that lies in the window and in which ranks train, in the mean over them."""
        length = self._since(end) - self._since(begin)
        trained = length - self._between(begin, end)
        whole = np.maximum(end - begin, 1) / 1e9
        part: NDArray[np.float64] = np.clip(trained / whole, 0.0, 1.0)
        return part
