"""The measured part of a run: its begin and end, the steps that count, and the precision of AU over so many steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.rounds import Rounds
from rayio.analyze.shape import RunShape
from rayio.analyze.student import t_quantile
from rayio.analyze.timeline import Ints, Lives, Steps, StepsInSlices
from rayio.records.doubts import Remark, remark
from rayio.trace.order import distinct

#: Fewer steps of a rank in the window give no verdict and no interval.
FEWEST_STEPS = 10

#: Batches of steps that an interval is made from (10 to 30 do: Schmeiser, Operations Research 30, 1982).
BATCHES = 10

#: Share of step time above which waiting for the first batches of epochs gets a note.
WORTH_A_WORD = 0.02

#: Share of the exposed data loading above which a note names the first steps of epochs.
MOST = 0.5


@dataclass(frozen=True, slots=True)
class Window:
    """The measured part of a run, in ns.

    It runs from when every rank is warm and begins a step to the end of the last step that all ranks share, with the
    pause (checkpoint, evaluation) that follows it on whichever rank that takes longest.
    """

    begin: int
    end: int
    #: Whether every rank did all its steps.
    is_whole: bool = True

    @property
    def seconds(self) -> float:
        """Return its length."""
        return (self.end - self.begin) / 1e9

    def holds(self, moment: Ints) -> NDArray[np.bool_]:
        """Return which moments are in it; its end is not."""
        return (moment >= self.begin) & (moment < self.end)

    def whole(self, steps: Steps) -> NDArray[np.bool_]:
        """Return which steps are in it from their start to their end."""
        return (steps.start >= self.begin) & (steps.end <= self.end)


class Interval(NamedTuple):
    """The AU of other steps of such a run, in 95 of 100 cases: fractions."""

    low: float
    high: float


#: A window, and the remarks on it.
Noted = tuple[Window | None, list[Remark]]


def find_window(lives: Lives, steps: StepsInSlices, shape: RunShape) -> Noted:
    """Return the window; None with a remark when a rank was never warm or no step is between the two ends."""
    remarks = []
    ranks = len(lives.rank)
    number, warm, last, over = (np.zeros(ranks, np.int64) for _ in range(4))
    for some in steps.by_slice():
        first, final = _edges(some)
        life = some.life[first]
        number[life] = final - first + 1
        # A rank is warm once it met the slowest rank of the last warm-up step, whatever pause follows that step.
        is_warm = np.minimum(first + shape.warmup_steps - 1, final)
        warm[life] = some.computed[is_warm] if shape.warmup_steps else some.start[first]
        last[life], over[life] = (some.epoch[final] << 32) | some.step[final], some.end[final]
    if missing := shape.world_size - ranks:
        remarks.append(remark("ranks_missing", missing=missing, ranks=shape.world_size))
    planned = shape.planned(lives.rank)
    if short := int((number < planned).sum()):
        most = int(shape.planned(np.arange(shape.world_size)).max())
        remarks.append(remark("ranks_unfinished", short=short, ranks=shape.world_size, steps=most))
    if missing or not ranks or (number <= shape.warmup_steps).any():
        remarks.append(remark("no_warm_step", warmup=shape.warmup_steps))
        return None, remarks
    shared = last.max() if not short else last.min()
    if warm.max() >= over.min():
        remarks.append(remark("done_before_warm"))
        return None, remarks
    begins, ends = [], []
    for some in steps.by_slice():
        inside = (some.start >= warm.max()) & ((some.epoch << 32) | some.step <= shared)
        first, final = _edges(some)
        inside &= np.arange(some.number) - np.repeat(first, final - first + 1) >= shape.warmup_steps
        if inside.any():
            begins.append(int(some.start[inside].min()))
            ends.append(int(some.end[inside].max()))
    if not begins:
        remarks.append(remark("no_shared_step"))
        return None, remarks
    return Window(min(begins), max(ends), not short), remarks


def throughput_period(lives: Lives, window: Window | None) -> Window | None:
    """Return the part of a run that throughput is of: the window, or after failures all from the first start on.

    Steps that were done again count in the last attempt, so a window would leave out the time that failures took.
    """
    if window is None or not lives.split["restart"].any():
        return window
    return replace(window, begin=int((lives.begin + lives.split["startup"]).min()))


def _edges(steps: Steps) -> tuple[Ints, Ints]:
    first = np.flatnonzero(np.diff(steps.life, prepend=-1))
    return first, np.append(first[1:], steps.number)[: len(first)] - 1


def settled(steps: Steps, window: Window | None, shape: RunShape) -> tuple[Steps, Ints]:
    """Return the steps with every rank's last one extended to the window's end, and by how many ns each is longer.

    A rank that is done waits for the others, as after every step: the extra time is part of ``sync``. Nothing changes
    where ranks do not wait for each other, and where a run broke off.
    """
    longer = np.zeros(steps.number, np.int64)
    if window is None or not window.is_whole or not shape.meets:
        return steps, longer
    last = np.flatnonzero(np.diff(steps.life, append=-1))
    longer[last] = np.maximum(window.end - steps.end[last], 0)
    parts = {**steps.parts, "sync": steps.parts["sync"] + longer}
    return replace(steps, end=steps.end + longer, parts=parts), longer


def interval(steps: StepsInSlices, window: Window | None, shape: RunShape, au: float | None) -> Interval | None:
    """Return a 95 % interval of AU by batch means; None for fewer than :data:`FEWEST_STEPS` steps of a rank.

    Noise is the difference between a step's compute and the compute that its length predicts, without the part that
    steps at the same place of every epoch share (the first batch, a checkpoint at the end). Successive steps are alike,
    so single ones would promise too much; batches of them, with Student's t, do not: the method of batch means, for a
    ratio (Law, Simulation Modeling and Analysis, section 9.5.3). ``steps`` are the recorded ones, see :func:`settled`:
    the last one has to be like the others at its place.
    """
    if au is None or window is None:
        return None
    rounds = Rounds(steps)
    busy, length = np.zeros(rounds.places), np.zeros(rounds.places)
    is_there = np.zeros(rounds.places, np.bool_)
    for some in steps.by_slice():
        inside = window.whole(settled(some, window, shape)[0])
        number = rounds.place_of(some)[inside]
        is_there[number] = True
        busy += np.bincount(number, some.parts["compute"][inside], rounds.places)
        length += np.bincount(number, some.duration[inside], rounds.places)
    places = np.flatnonzero(is_there)
    if len(places) < FEWEST_STEPS:
        return None
    busy, length = busy[places], length[places]
    place = rounds.places_at(places)
    off = busy - busy.sum() / max(length.sum(), 1) * length
    epochs = len(distinct(place >> 32))
    repeated = 1.0 if epochs == 1 else (epochs - 1) / epochs
    if epochs > 1:
        at = place & 0xFFFFFFFF
        off -= (np.bincount(at, off) / np.maximum(np.bincount(at), 1))[at]
    batches = np.bincount(np.arange(len(place)) * BATCHES // len(place), off)
    spread = math.sqrt(BATCHES * batches.var(ddof=1) / repeated)
    half = t_quantile((BATCHES - 1) * repeated) * spread / max(length.sum(), 1)
    return Interval(max(au - half, 0.0), min(au + half, 1.0))


def filling(waits: int, at_first: int, lasted: int) -> list[Remark]:
    """Return a remark if most of the waiting in the window is for the first batch of an epoch, and is long enough.

    All are ns of the steps in the window: their waits, those of the first steps of epochs, and their length.
    """
    share = first_step_share(waits, at_first)
    if share is None or share <= MOST or waits < WORTH_A_WORD * lasted:
        return []
    return [remark("waits_at_first_steps", percent=100 * share)]


def first_step_share(waits: int, at_first: int) -> float | None:
    """Return the part of the exposed data loading at the first steps of epochs, where prefetching starts anew."""
    return at_first / waits if waits else None
