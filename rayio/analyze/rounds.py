"""Rounds: steps that ranks take together, in whichever slices they are, and the slowest rank of each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.intervals import BEFORE
from rayio.analyze.timeline import STEP_PHASES, Ints, Steps, StepsInSlices
from rayio.scenario.meetings import ALL, Meetings
from rayio.trace.order import DENSE

#: Phases of a step before its compute that are neither work nor waiting for data.
PREPARING = ("device_copy", "bubble")
#: Phases of a step after its compute that are not waiting for each other.
BLOCKING = tuple(name for name in STEP_PHASES if name not in ("data_wait", *PREPARING, "compute", "sync"))


NOTHING: Mapping[str, Ints] = MappingProxyType({})


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

    ``waits`` are those steps' waits for data by stage; see :data:`~rayio.analyze.stalls.CAUSES`. A round has several
    steps where all ranks do not meet after each (``Meeting``). ``within`` has the causes of waits for other ranks
    within it, by step.
    """

    def __init__(
        self, steps: Steps, waits: Mapping[str, Ints], meeting: Meeting | None = None,
        within: Mapping[str, Ints] = NOTHING,
    ) -> None:  # fmt: skip
        self._steps, self._waits, self._within = steps, waits, within
        self._preparing = [name for name in PREPARING if steps.parts[name].any()]
        self._blocking = [name for name in BLOCKING if steps.parts[name].any()]
        #: The first steps of ranks and of attempts; then of each step's round, and whether its rank began with it.
        is_first = np.ones(steps.number, np.bool_)
        is_first[1:] = (steps.life[1:] != steps.life[:-1]) | (steps.attempt[1:] != steps.attempt[:-1])
        self.is_first = is_first
        self.left = steps.start.copy()
        over = (steps.computed + steps.parts["sync"])[:-1]
        self.left[1:] = np.where(is_first[1:], self.left[1:], over)
        self._begin: Ints | None = None
        if meeting is not None:
            self._begin = meeting.begins(steps, is_first)
            self.is_first, self.left = is_first[self._begin], self.left[self._begin]

    def of(self, chosen: Ints) -> dict[str, Ints]:
        """Return the ns of each cause in the rounds of some steps; causes that begin later are left out."""
        steps, is_first, begin = self._steps, self.is_first[chosen], self._begin
        made = {stage: self._since(ns, chosen, 0) for stage, ns in self._waits.items()}
        made["straggler"] = self._since(steps.parts["compute"], chosen, 0)
        for name in self._preparing:
            made[name] = self._since(steps.parts[name], chosen, 0)
        for name in self._blocking:
            made[name] = self._since(steps.parts[name], chosen, 1, is_first)
        for cause, ns in self._within.items() if begin is not None else ():
            more = self._since(ns, chosen, 0) - ns[chosen]
            made[cause] = made[cause] + more if cause in made else more
        made["other"] = steps.computed[chosen] - self.left[chosen] - sum(made.values())
        return made

    def _since(self, ns: Ints, chosen: Ints, before: int, is_first: NDArray[np.bool_] | None = None) -> Ints:
        """Return the sum over the steps of each chosen one's round, or over those one step ``before``."""
        if self._begin is None:
            return ns[chosen] if is_first is None else np.where(is_first, 0, ns[chosen - 1])
        until = np.concatenate([np.zeros(1, np.int64), np.cumsum(ns)])
        begin = self._begin[chosen]
        if is_first is not None:
            begin = np.where(is_first, begin, begin - 1)
        spent: Ints = until[chosen + 1 - before] - until[begin]
        return spent


class Meeting:
    """The meetings of a run in which all ranks do not meet after every step. ``rank`` has the ranks by life."""

    def __init__(self, meetings: Meetings, rank: Ints) -> None:
        self.meetings = meetings
        self.rank = rank

    @classmethod
    def of(cls, meetings: Meetings | None, rank: Ints) -> Meeting | None:
        """Return the meetings; None where all ranks meet after every step."""
        return None if meetings is None or meetings.is_every_step else cls(meetings, rank)

    def groups(self, steps: Steps) -> Ints:
        """Return the number of the group that each step's rank meets."""
        return self.meetings.groups(self.rank[steps.life], steps.epoch, steps.step)

    def begins(self, steps: Steps, is_first: NDArray[np.bool_]) -> Ints:
        """Return the first step of each step's round: after the last meeting of all, or itself within a replica."""
        is_all, own = self.groups(steps) == ALL, np.arange(steps.number)
        follows = is_first.copy()
        follows[1:] |= is_all[:-1]
        return np.where(is_all, np.maximum.accumulate(np.where(follows, own, 0)), own)


class Late(NamedTuple):
    """The slowest steps of some rounds: their rounds, ends of compute, begins, and durations by cause."""

    round: Ints
    computed: Ints
    left: Ints
    made: dict[str, Ints]


class Slowest:
    """The slowest step of every round; among equals the one of the highest rank."""

    def __init__(self, rounds: Rounds, meetings: Meetings | None = None) -> None:
        self.rounds = rounds
        self.meetings = meetings
        groups = 1 if meetings is None or meetings.is_every_step else meetings.at_once
        self.number = rounds.number * groups
        self.computed = np.full(self.number, BEFORE)
        self.left = np.zeros(self.number, np.int64)
        self.made: dict[str, Ints] = {}

    def place_of(self, steps: Steps, meeting: Meeting | None) -> Ints:
        """Return the number of each step's meeting."""
        place = self.rounds.of(steps)
        return place if meeting is None else place + np.maximum(meeting.groups(steps), 0) * self.rounds.number

    @property
    def has_replicas(self) -> bool:
        """True if all ranks meet after several steps, and the ranks of a replica after each."""
        meetings = self.meetings
        return meetings is not None and meetings.parts > 1 and meetings.every > 1

    def of(self, steps: Steps, waits: Mapping[str, Ints], rank: Ints, within: Mapping[str, Ints] = NOTHING) -> Late:
        """Return the slowest steps of a slice; ``rank`` has its ranks by life. For ``within`` see :class:`Made`."""
        meeting = Meeting.of(self.meetings, rank)
        place = self.place_of(steps, meeting)
        latest = np.full(self.number, BEFORE)
        np.maximum.at(latest, place, steps.computed)
        last = np.flatnonzero(steps.computed == latest[place])
        slowest = np.full(self.number, -1)
        np.maximum.at(slowest, place[last], last)
        there = np.flatnonzero(slowest >= 0)
        chosen, made = slowest[there], Made(steps, waits, meeting, within)
        return Late(there, latest[there], made.left[chosen], made.of(chosen))

    def add(self, late: Late) -> None:
        """Add those of the next slice."""
        newer = late.computed >= self.computed[late.round]
        at = late.round[newer]
        self.computed[at], self.left[at] = late.computed[newer], late.left[newer]
        for name in late.made.keys() - self.made.keys():
            self.made[name] = np.zeros(self.number, np.int64)
        for name, ns in self.made.items():
            ns[at] = late.made[name][newer] if name in late.made else 0
