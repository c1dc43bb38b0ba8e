"""How sure an AU is: stretches of a run's window as repeats of each other (batch means)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from rayio.analyze.arrays import RunArrays
from rayio.analyze.compare import spread
from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import Ints
from rayio.analyze.window import find_window, settled

#: Stretches that a window is cut into, and the fewest that say anything of their spread.
STRETCHES, FEWEST = 10, 3
#: Epochs from which on each epoch is a stretch: what happens once in an epoch is then once in each of them.
ENOUGH_EPOCHS = 4


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95 % interval, as fractions; the ends are equal to the mean where the stretches do not differ."""

    mean: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half its width."""
        return (self.high - self.low) / 2


def stretches(run: RunArrays, shape: RunShape) -> tuple[float, ...]:
    """The AU of consecutive stretches of the window, each the mean over ranks; empty where a rank has no window.

    A run of several epochs is cut at their ends, others into equal numbers of steps. Together they cover the steps that
    AU counts, so that their mean is near AU; only their spread is used.
    """
    steps, ranks = run.steps, len(run.lives.rank)
    window, _ = find_window(run.lives, steps, shape)
    if window is None:
        return ()
    steps, _ = settled(steps, window, shape)
    inside = window.whole(steps)
    epochs = np.unique(steps.epoch[inside])
    if len(epochs) >= ENOUGH_EPOCHS:
        number = np.searchsorted(epochs, steps.epoch)
        many = len(epochs)
    else:
        counted = np.bincount(steps.life[inside], minlength=ranks)
        many = min(STRETCHES, int(counted.min()) // 2)
        if many < FEWEST:
            return ()
        place: Ints = np.cumsum(inside) - inside.astype(
            np.int64
        )  # steps inside before each, of all ranks, which are sorted one by one
        place -= (np.cumsum(counted) - counted)[steps.life]
        number = np.minimum(place * many // counted.min(), many - 1)
    cell = steps.life[inside] * many + number[inside]
    busy, total = (
        np.bincount(cell, weights=ns[inside].astype(np.float64), minlength=ranks * many).reshape(ranks, many)
        for ns in (steps.parts["compute"], steps.duration)
    )
    whole = (total > 0).all(axis=0)
    return tuple((busy[:, whole] / total[:, whole]).mean(axis=0).tolist())


def interval(values: Sequence[float], mean: float | None = None) -> Interval | None:
    """The 95 % interval (Student's t) of what these are repeats of, around ``mean`` or theirs; None of too few.

    >>> found = interval([0.88, 0.90, 0.92])
    >>> round(found.low, 3), round(found.high, 3)
    (0.85, 0.95)
    """
    if len(values) < FEWEST:
        return None
    half = float(spread(values)["ci95"])
    centre = fmean(values) if mean is None else mean
    return Interval(centre, centre - half, centre + half) if math.isfinite(half) else None
