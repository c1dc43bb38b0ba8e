"""The number of a rank's readers: a pure function of observations of its queue (``loader.num_workers: {min, max}``).

Two laws apply. A rank that waits a share w of its time gets 1 - w of the batches that it could take; if readers are the
bottleneck and batches are proportional to them, W / (1 - w) readers are enough. A rank that does not wait has all its
batches read meanwhile: by Little's law the mean number of batches being read is the number of busy readers, and the
others are spare. The first law adds readers, at once to the right number (at most twice as many, for a rank that got
almost nothing); the second removes them.

The number stays stable: a single look adds nothing; no decision precedes the consumption of all batches begun with
another number; readers leave only after ``calm``, and only those that were spare all that time; and a wrong decision
(readers that did not help, or that were missed later) is tried again after twice the time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from rayio.scenario.workers import Autoscaled

#: Added readers must bring at least this part of the batches that they would without another bottleneck.
WORTH = 0.25
#: Additions are judged once there are this many times as many readers: smaller ones are lost in noise.
JUDGED = 1.5
#: Consecutive looks in which added readers must bring too little: of 16 batches one look alone is often wrong.
VAIN = 3
#: Consecutive looks in which a rank that had enough readers must wait too long: one slow read is no trend.
SURE = 2
#: Readers that are missed within so many times ``calm`` should not have left.
MISSED = 4
#: Largest number of doublings of ``calm``.
MOST_DOUBLINGS = 5


class Look(NamedTuple):
    """Observations of a rank's queue while its number of readers was constant; times in seconds."""

    now: float
    seconds: float
    workers: int
    #: Mean number of batches read and not yet consumed.
    ready: float
    #: Mean number of batches being read or waiting for their reader.
    reading: float
    #: Time that the rank waited for batches.
    waited: float
    #: Number of batches that workers delivered.
    read: int
    #: Time that it waited for ranks that waited longer for their batches.
    held: float = 0.0

    @property
    def own(self) -> float:
        """The share of its time that the rank waited for its batches."""
        return min(1.0, max(0.0, self.waited / self.seconds))

    @property
    def share(self) -> float:
        """The share of its time that the rank waited for batches, its own and those of ranks that held it back."""
        return min(1.0, max(0.0, (self.waited + self.held) / self.seconds))

    @property
    def busy(self) -> float:
        """Mean number of readers at work."""
        return min(self.reading, float(self.workers))

    @property
    def enough(self) -> float:
        """The readers that all batches need once no rank waits."""
        return self.busy / (1 - self.share) if self.share < 1 else math.inf

    @property
    def capacity(self) -> float:
        """Batches per second that the readers can read: by Little's law one reader has a batch for ``busy / read``.

        Other ranks may hold back what this rank takes, but not this.
        """
        return self.read / self.seconds * self.workers / max(self.busy, 1e-9)


class Added(NamedTuple):
    """Added readers that are not judged yet: numbers before and after, and the capacity before."""

    before: int
    after: int
    capacity: float
    #: Looks so far in which they brought too little.
    vain: int = 0


class Memory(NamedTuple):
    """State from one look to the next."""

    #: Consecutive looks in which the rank waited too long; the very first one decides alone.
    short: int = 1
    #: Ends of the looks since the last change, with the readers needed in each.
    needs: tuple[tuple[float, int], ...] = ()
    #: Time since when there are enough readers; None if there are not.
    enough_since: float | None = None
    added: Added | None = None
    #: Time before which no reader is added, and the number of vain additions before.
    add_from: float = 0.0
    in_vain: int = 0
    #: Time when readers last left, and how often they were missed afterwards.
    went: float | None = None
    missed: int = 0


class Wanted(NamedTuple):
    """The number of readers that a rank should have, and the reason of a change."""

    workers: int
    why: str = ""


def decide(scaling: Autoscaled, memory: Memory, look: Look) -> tuple[Wanted, Memory]:
    """Return the number of readers after a look, and the new state."""
    return _short(scaling, memory, look) if _is_short(scaling, look) else _enough(scaling, memory, look)


def need(scaling: Autoscaled, look: Look) -> int:
    """Return the readers needed by a look, within the bounds: by the first or the second law."""
    if look.own > scaling.wait:
        enough = look.workers / (1 - look.share) if look.share < 1 else math.inf
        wanted = max(look.workers + 1, min(2 * look.workers, _whole(enough)))
    elif _is_short(scaling, look):
        wanted = min(2 * look.workers, _whole(look.enough))
    else:
        busy = look.enough if look.share > scaling.wait else look.reading
        wanted = min(look.workers, _whole(busy / scaling.busy))
    return min(max(wanted, scaling.min), scaling.max)


def _is_short(scaling: Autoscaled, look: Look) -> bool:
    """Return True for a rank that waits, or that would if the ranks that hold it back did not."""
    return look.own > scaling.wait or (look.share > scaling.wait and _whole(look.enough) > look.workers)


def refused(scaling: Autoscaled, memory: Memory, now: float) -> Memory:
    """Return the state after requested readers did not arrive: no further attempt for a while."""
    return _in_vain(scaling, memory, now)


def _short(scaling: Autoscaled, memory: Memory, look: Look) -> tuple[Wanted, Memory]:
    """Decide for a rank that waits: more readers, unless the last ones did not help."""
    memory = memory._replace(needs=(), enough_since=None, short=memory.short + 1)
    if memory.short < SURE:
        return Wanted(look.workers), memory
    if memory.went is not None and look.now - memory.went < MISSED * _calm(scaling, memory.missed):
        memory = memory._replace(missed=min(memory.missed + 1, MOST_DOUBLINGS))
    memory = memory._replace(went=None)
    added = memory.added if memory.added is not None and memory.added.after == look.workers else None
    if added is not None and added.after >= JUDGED * added.before:
        hoped = added.capacity * (added.after / added.before - 1)
        brought = look.capacity - added.capacity
        if brought < WORTH * hoped and added.vain + 1 < VAIN:
            return Wanted(look.workers), memory._replace(added=added._replace(vain=added.vain + 1))
        if brought < WORTH * hoped:
            why = (
                f"{added.after - added.before} more brought {max(0.0, brought) / added.capacity:.0%} more batches, "
                f"not {hoped / added.capacity:.0%}: something else is the limit"
            )
            return Wanted(added.before, why), _in_vain(scaling, memory, look.now)
        memory, added = memory._replace(added=None, in_vain=0), None
    wanted = need(scaling, look)
    if look.now < memory.add_from or wanted <= look.workers:
        return Wanted(look.workers), memory
    why = f"the rank waited {look.own:.0%} of {look.seconds:.1f} s"
    if (held := look.share - look.own) > 0.005:
        why += f", and {held:.0%} for ranks that waited longer"
    before, capacity = (look.workers, look.capacity) if added is None else (added.before, added.capacity)
    return Wanted(wanted, why), memory._replace(added=Added(before, wanted, capacity))


def _enough(scaling: Autoscaled, memory: Memory, look: Look) -> tuple[Wanted, Memory]:
    """Decide for a rank that does not wait: fewer readers, if fewer were enough for long."""
    calm = _calm(scaling, memory.missed)
    if memory.went is not None and look.now - memory.went >= MISSED * calm:
        memory = memory._replace(went=None, missed=0)
    since = look.now - look.seconds if memory.enough_since is None else memory.enough_since
    kept = tuple(need for need in memory.needs if need[0] > look.now - calm)
    needs = (*kept, (look.now, need(scaling, look)))
    memory = memory._replace(short=0, needs=needs, enough_since=since, added=None, in_vain=0)
    wanted = max(number for _, number in needs)
    if wanted >= look.workers or look.now - since < calm:
        return Wanted(look.workers), memory
    why = f"{look.reading:.1f} were reading at once and {look.ready:.1f} batches lay ready, for {calm:.0f} s"
    return Wanted(wanted, why), memory._replace(went=look.now)


def _in_vain(scaling: Autoscaled, memory: Memory, now: float) -> Memory:
    until = now + _calm(scaling, memory.in_vain)
    return memory._replace(added=None, add_from=until, in_vain=min(memory.in_vain + 1, MOST_DOUBLINGS))


def _calm(scaling: Autoscaled, doublings: int) -> float:
    return scaling.calm * 2.0**doublings


def _whole(number: float) -> int:
    """Return the number rounded up, except for rounding errors."""
    return math.ceil(number - 1e-6) if math.isfinite(number) else 1 << 30
