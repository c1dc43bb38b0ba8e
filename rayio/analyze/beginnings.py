"""The cost of the first steps of epochs: prefetching starts anew there, so short epochs wait for their first batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.filled import MOST_STEPS, SHOWS
from rayio.analyze.gate import short_epochs
from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import Ints, Steps
from rayio.records.doubts import Doubt

#: The least AU that such delays take.
LOST = 0.1


class FirstSteps:
    """The waits of ranks at the first steps of epochs."""

    def __init__(self) -> None:
        self._parts: list[tuple[Ints, Ints, Ints, Ints]] = []

    def add(self, steps: Steps, inside: NDArray[np.bool_]) -> None:
        """Add the steps of some ranks; those ``inside`` the window count."""
        first = inside & (steps.step == 0)
        waits, meets = steps.parts["data_wait"][first], steps.parts["sync"][first]
        self._parts.append((steps.life[first], steps.epoch[first], waits, meets))

    @property
    def waited(self) -> int:
        """The exposed data loading of all of them, in ns."""
        return sum(int(waits.sum()) for _, _, waits, _ in self._parts)

    def delays(self, ranks: int) -> Ints:
        """Return the time that they took from each rank, in ns.

        That is its own wait, and as much of its wait for the others as the slowest rank waited for its batch.
        """
        delays = np.zeros(ranks, np.int64)
        if not self._parts:
            return delays
        life, epoch, waits, meets = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        slowest = np.zeros(int(epoch.max(initial=-1)) + 1, np.int64)
        np.maximum.at(slowest, epoch, waits)
        np.add.at(delays, life, np.minimum(waits + meets, slowest[epoch]))
        return delays

    def doubt(
        self, computed: Ints, lasted: Ints, steps: int, shape: RunShape, supplied: Callable[[], float | None]
    ) -> Doubt | None:
        """Return the doubt if AU is much higher without these delays.

        ``computed`` and ``lasted`` are the compute and the time of each rank, in ns; ``steps`` is the number of steps
        of all. AU is no higher than that of the batches per second that workers make for a rank (``supplied``). In an
        epoch with fewer steps than workers some have none, and would make more where storage has no limit.
        Epochs are long enough if their first steps take a twentieth of their time.
        """
        if not steps or not (lasted > 0).all() or shape.steps_per_epoch >= MOST_STEPS:
            return None
        delays = self.delays(len(lasted))
        rest = np.maximum(lasted - delays, np.maximum(computed, 1))
        au, without = float(np.mean(computed / lasted)), float(np.mean(computed / rest))
        if without - au <= LOST or (given := supplied()) is None:
            return None
        given *= max(1.0, shape.workers / shape.steps_per_epoch)
        without = min(without, given * int(computed.sum()) / steps / 1e9)
        if without - au <= LOST:
            return None
        of_epoch = int(delays.sum()) / sum(len(life) for life, *_ in self._parts)
        enough = math.ceil(of_epoch * (1 / SHOWS - 1) * steps / int(rest.sum()))
        return short_epochs(steps=shape.steps_per_epoch, au=au, without=without, enough=min(enough, MOST_STEPS))
