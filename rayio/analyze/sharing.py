"""Storage that checkpoints, evaluations and stages take while ranks train: training's batches cannot use it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.part import Part
from rayio.analyze.passes import Timelines
from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import Ints, integers, is_text
from rayio.analyze.window import Noted, Window, find_window
from rayio.trace.arrow import plain


class Others(NamedTuple):
    """Amounts that checkpoints, evaluations and stages take of storage, per second in which ranks train."""

    nbytes: float = 0.0
    requests: float = 0.0
    #: Read requests among them.
    reads: float = 0.0
    #: Batches of evaluations, and files of checkpoints and stages.
    batches: float = 0.0
    files: float = 0.0


ALONE = Others()


class Beside:
    """Amounts that checkpoint writers, evaluations and stages moved while ranks trained, summed up over slices.

    A rank trains unless a checkpoint or an evaluation holds it, or another rank that it has to meet. While only some
    ranks train, amounts count by their share: the others need no batches. ``window`` is the measured part of the run,
    where it is known; ``has_stages`` is True if processes of stages share the storage.
    """

    columns = ("name", "role", "epoch", "start_ns", "duration_ns", "bytes", "requests")

    def __init__(
        self, timed: Timelines, shape: RunShape, window: Noted | None = None, *, has_stages: bool = False
    ) -> None:
        self.shape = shape
        self._pauses = self._sums = None
        has_others = has_stages or len(timed.paused[0])
        part = (window or find_window(timed.lives, timed, shape))[0] if has_others else None
        if part is None:
            return
        pauses = _Pauses(*timed.paused, part, shape)
        #: Seconds of the window in which ranks trained.
        self.trained = part.seconds * float(pauses.training(np.array([part.begin]), np.array([part.end]))[0])
        if self.trained > 0:
            self._pauses, self._sums = pauses, np.zeros(5)

    def of(self, part: Part) -> NDArray[np.float64] | None:
        """Return the amounts of a slice; None where there are none."""
        if self._pauses is None:
            return None
        spans = part.spans
        is_write = is_text(spans, "name", "write") & is_text(spans, "role", "checkpoint_writer")
        is_read = is_text(spans, "name", "read") & is_text(spans, "role", "reader", "rank")
        is_read &= plain(spans["epoch"]) >= self.shape.epochs
        is_file = is_write | is_text(spans, "name", "stage_read", "stage_write")
        chosen = np.flatnonzero(is_file | is_read)
        if not len(chosen):
            return None
        start, over = part.begin[chosen], part.over[chosen]
        inside = self._pauses.training(start, over)
        nbytes, requests = integers(spans, "bytes", chosen), integers(spans, "requests", chosen)
        batches, files = is_read[chosen], is_file[chosen]
        reads = batches | is_text(spans, "name", "stage_read")[chosen]
        amounts = (nbytes, requests, requests * reads, batches, files)
        return np.array([float(np.dot(amount.astype(np.float64), inside)) for amount in amounts])

    def add(self, sums: NDArray[np.float64] | None) -> None:
        """Add the amounts of a slice."""
        if self._sums is not None and sums is not None:
            self._sums += sums

    def result(self) -> Others:
        """Return the amounts over all slices."""
        return ALONE if self._sums is None else Others(*(self._sums / self.trained).tolist())


class _Pauses:
    """The time in which ranks did not train until any moment, in the mean over them: a line with bends."""

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
        return (np.clip(time, self._window.begin, self._window.end) - self._window.begin) / 1e9

    def _between(self, begin: Ints, end: Ints) -> NDArray[np.float64]:
        if not len(self._times):
            return np.zeros(len(begin))
        at = (np.interp(self._since(when), self._times, self._paused) for when in (begin, end))
        first, last = at
        paused: NDArray[np.float64] = last - first
        return paused

    def training(self, begin: Ints, end: Ints) -> NDArray[np.float64]:
        """Return the part of each stretch in which ranks train, in the window and in the mean over them."""
        length = self._since(end) - self._since(begin)
        trained = length - self._between(begin, end)
        whole = np.maximum(end - begin, 1) / 1e9
        part: NDArray[np.float64] = np.clip(trained / whole, 0.0, 1.0)
        return part
