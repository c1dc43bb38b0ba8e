"""Rounds: steps that ranks take together, in whichever slices they are, and the slowest rank of each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rayio.analyze.intervals import BEFORE
from rayio.analyze.timeline import STEP_PHASES, Ints, Steps, StepsInSlices
from rayio.trace.order import DENSE

#: Phases of a step that are neither work nor waiting for data or for each other.
BLOCKING = tuple(name for name in STEP_PHASES if name not in ("data_wait", "compute", "sync"))


class Rounds:
    """Numbers for (attempt, epoch, step): the same for every rank, below ``number``, in the order of the three."""

    def __init__(self, steps: StepsInSlices) -> None:
        ranges = [
            [(int(column.min()), int(column.max())) for column in (some.attempt, some.epoch, some.step)]
            for some in steps.by_slice()
            if some.number
        ]
        self._lows = [min(low for low, _ in each) for each in zip(*ranges, strict=True)] or [0, 0, 0]
        highs = [max(high for _, high in each) for each in zip(*ranges, strict=True)] or [0, 0, 0]
        self._sizes = [high - low + 1 for low, high in zip(self._lows, highs, strict=True)]
        self.number = math.prod(self._sizes)
        #: The (epoch, step) that occur, sorted, where most do not; else None, and numbers are places in a full table.
        self._known: Ints | None = None
        if self.number > DENSE * max(steps.number, 1):
            known = np.zeros(0, np.int64)
            for some in steps.by_slice():
                known = np.union1d(known, self._key(some))
            self._known = known
            self.number = self._sizes[0] * len(known)

        self.places = self.number // self._sizes[0]

    def of(self, steps: Steps) -> Ints:
        """Return the number of each step."""
        place = self.place_of(steps)
        if self._sizes[0] > 1:
            place += (steps.attempt - self._lows[0]) * self.places
        return place

    def place_of(self, steps: Steps) -> Ints:
        """Return the number of the (epoch, step) of each step, whatever the attempt, in the order of the two."""
        if self._known is not None:
            known: Ints = np.searchsorted(self._known, self._key(steps))
            return known
        place: Ints = steps.epoch - self._lows[1]
        place *= self._sizes[2]
        place += steps.step
        place -= self._lows[2]
        return place

    def places_at(self, numbers: Ints) -> Ints:
        """Return the place of each number: ``epoch << 32 | step``."""
        if self._known is not None:
            epoch, step = self._known[numbers] >> 32, (self._known[numbers] & 0xFFFFFFFF) + self._lows[2]
        else:
            epoch, step = np.divmod(numbers, self._sizes[2])
            epoch, step = epoch + self._lows[1], step + self._lows[2]
        place: Ints = (epoch << 32) | step
        return place

    def _key(self, steps: Steps) -> Ints:
        key: Ints = (steps.epoch << 32) | (steps.step - self._lows[2])
        return key


class Made:
    """Durations by cause of some steps' rounds: from when their rank left the last barrier to when it computed.

    ``waits`` are those steps' waits for data by stage; see :data:`~rayio.analyze.stalls.CAUSES`.
    """

    def __init__(self, steps: Steps, waits: Mapping[str, Ints]) -> None:
        self._steps, self._waits = steps, waits
        self._blocking = [name for name in BLOCKING if steps.parts[name].any()]
        #: The first steps of ranks and of attempts.
        self.is_first = np.ones(steps.number, np.bool_)
        self.is_first[1:] = (steps.life[1:] != steps.life[:-1]) | (steps.attempt[1:] != steps.attempt[:-1])
        self.left = steps.start.copy()
        over = (steps.computed + steps.parts["sync"])[:-1]
        self.left[1:] = np.where(self.is_first[1:], self.left[1:], over)

    def of(self, chosen: Ints) -> dict[str, Ints]:
        """Return the ns of each cause in the rounds of some steps; causes that begin later are left out."""
        steps, is_first = self._steps, self.is_first[chosen]
        made = {stage: ns[chosen] for stage, ns in self._waits.items()}
        made["straggler"] = steps.parts["compute"][chosen]
        for name in self._blocking:
            made[name] = np.where(is_first, 0, steps.parts[name][chosen - 1])
        made["other"] = steps.computed[chosen] - self.left[chosen] - sum(made.values())
        return made


class Late(NamedTuple):
    """The slowest steps of some rounds: their rounds, ends of compute, begins, and durations by cause."""

    round: Ints
    computed: Ints
    left: Ints
    made: dict[str, Ints]


class Slowest:
    """The slowest step of every round; among equals the one of the highest rank."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds
        self.computed = np.full(rounds.number, BEFORE)
        self.left = np.zeros(rounds.number, np.int64)
        self.made: dict[str, Ints] = {}

    def of(self, steps: Steps, waits: Mapping[str, Ints]) -> Late:
        """Return the slowest steps of a slice."""
        place = self.rounds.of(steps)
        latest = np.full(self.rounds.number, BEFORE)
        np.maximum.at(latest, place, steps.computed)
        last = np.flatnonzero(steps.computed == latest[place])
        slowest = np.full(self.rounds.number, -1)
        np.maximum.at(slowest, place[last], last)
        there = np.flatnonzero(slowest >= 0)
        chosen, made = slowest[there], Made(steps, waits)
        return Late(there, latest[there], made.left[chosen], made.of(chosen))

    def add(self, late: Late) -> None:
        """Add those of the next slice."""
        newer = late.computed >= self.computed[late.round]
        at = late.round[newer]
        self.computed[at], self.left[at] = late.computed[newer], late.left[newer]
        for name in late.made.keys() - self.made.keys():
            self.made[name] = np.zeros(self.rounds.number, np.int64)
        for name, ns in self.made.items():
            ns[at] = late.made[name][newer] if name in late.made else 0
