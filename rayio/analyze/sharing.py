"""What checkpoints and evaluations take of the storage while ranks train: it is not there for training's batches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.part import Part
from rayio.analyze.passes import Timelines
from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import Ints, integers, is_text
from rayio.analyze.window import Found, Window, find_window
from rayio.trace.arrow import plain


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


class Beside:
    """What checkpoint writers and evaluations moved in the window while ranks trained, summed up over slices.

    A rank trains unless a checkpoint or an evaluation holds it, or another rank that it has to meet. What is moved
    while only some ranks train counts by their share: the others ask for nothing. ``found`` is the window, where it is
    known.
    """

    columns = ("name", "role", "epoch", "start_ns", "duration_ns", "bytes", "requests")

    def __init__(self, timed: Timelines, shape: RunShape, found: Found | None = None) -> None:
        self.shape = shape
        self._pauses = self._sums = None
        window = (found or find_window(timed.lives, timed, shape))[0] if len(timed.paused[0]) else None
        if window is None:
            return
        pauses = _Pauses(*timed.paused, window, shape)
        #: Seconds of the window in which ranks trained.
        self.trained = window.seconds * float(pauses.training(np.array([window.begin]), np.array([window.end]))[0])
        if self.trained > 0:
            self._pauses, self._sums = pauses, np.zeros(5)

    def of(self, part: Part) -> NDArray[np.float64] | None:
        """Sum up what others moved in a slice; None where nobody asked for anything."""
        if self._pauses is None:
            return None
        spans = part.spans
        is_write = is_text(spans, "name", "write") & is_text(spans, "role", "checkpoint_writer")
        is_read = is_text(spans, "name", "read") & is_text(spans, "role", "reader", "rank")
        is_read &= plain(spans["epoch"]) >= self.shape.epochs
        chosen = np.flatnonzero(is_write | is_read)
        if not len(chosen):
            return None
        start, over = part.begin[chosen], part.over[chosen]
        inside = self._pauses.training(start, over)
        nbytes, requests = integers(spans, "bytes", chosen), integers(spans, "requests", chosen)
        reads = is_read[chosen]
        amounts = (nbytes, requests, requests * reads, reads, ~reads)
        return np.array([float(np.dot(amount.astype(np.float64), inside)) for amount in amounts])

    def add(self, found: NDArray[np.float64] | None) -> None:
        """Add that of a slice."""
        if self._sums is not None and found is not None:
            self._sums += found

    def found(self) -> Others:
        """What came of it."""
        return ALONE if self._sums is None else Others(*(self._sums / self.trained).tolist())


class _Pauses:
    """How long ranks did not train until any time, in the mean over them: a line with bends."""

    def __init__(self, start: Ints, end: Ints, window: Window, shape: RunShape) -> None:
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
