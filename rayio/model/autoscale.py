"""How many readers a rank should have: a pure function of what its queue saw (``loader.num_workers: {min, max}``).

Two laws say how many. A rank that waits a share w of its time gets 1 - w of the batches that it could take; where
readers are what it waits for, and batches come in proportion to them, W / (1 - w) of them are enough. A rank that does
not wait has all the batches that it takes read meanwhile: by Little's law the mean number of batches being read is how
many readers are reading at once, and all others are spare. So the first law adds readers, to the right number at once
(no more than twice as many, for a rank that got next to nothing), and the second one takes them away.

What keeps the number still: one look alone adds nothing; nothing is decided before all batches that were begun with
another number of readers are consumed; readers go only after ``calm``, and then only as many as were spare all that
time; and what turned out wrong (readers who came in vain, readers who were missed once they had gone) is tried again
after twice as long.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from rayio.scenario.workers import Autoscaled

#: Readers that are added must bring at least this part of the batches that they would if nothing else was a limit.
WORTH = 0.25
#: Judged is what was added once there are so many times as many: less than that is lost in the noise of reading.
JUDGED = 1.5
#: Looks in a row in which a rank that had enough readers must wait too long: one slow read is no load.
SURE = 2
#: Most times that ``calm`` is doubled.
MOST_DOUBLINGS = 5


class Look(NamedTuple):
    """What a rank's queue saw over a time in which the number of its readers did not change; times in seconds."""

    #: When it ended.
    now: float
    seconds: float
    workers: int
    #: Batches that were read and not yet consumed, on average.
    ready: float
    #: Batches that were being read, or waiting for their reader, on average.
    reading: float
    #: How long the rank waited for batches.
    waited: float
    #: Batches that it took.
    taken: int

    @property
    def share(self) -> float:
        """The share of its time that the rank waited."""
        return min(1.0, self.waited / self.seconds)

    @property
    def rate(self) -> float:
        """Batches per second."""
        return self.taken / self.seconds


class Added(NamedTuple):
    """Readers that were added and are not judged yet: from how many, to how many, and the rate of batches before."""

    before: int
    after: int
    rate: float


class Memory(NamedTuple):
    """What is remembered from one look to the next."""

    #: Looks in a row in which the rank waited too long; the first one ever is believed at once.
    short: int = 1
    #: When each look ended since the last change, and how many readers it would have taken.
    needs: tuple[tuple[float, int], ...] = ()
    #: Since when there are enough readers; None where there are not.
    enough_since: float | None = None
    added: Added | None = None
    #: No reader is added before this time, and how often that was in vain before.
    add_from: float = 0.0
    in_vain: int = 0
    #: When readers last went, and how often they were missed afterwards.
    went: float | None = None
    missed: int = 0


class Wanted(NamedTuple):
    """How many readers a rank should have, and why it is another number than before."""

    workers: int
    why: str = ""


def decide(scaling: Autoscaled, memory: Memory, look: Look) -> tuple[Wanted, Memory]:
    """Say how many readers a rank should have after a look, and what to remember."""
    return _short(scaling, memory, look) if look.share > scaling.wait else _enough(scaling, memory, look)


def need(scaling: Autoscaled, look: Look) -> int:
    """The readers that a look says are needed, within the bounds: by the first law, or by the second."""
    if look.share > scaling.wait:
        enough = look.workers / (1 - look.share) if look.share < 1 else math.inf
        wanted = max(look.workers + 1, min(2 * look.workers, _whole(enough)))
    else:
        wanted = min(look.workers, _whole(look.reading / scaling.busy))
    return min(max(wanted, scaling.min), scaling.max)


def refused(scaling: Autoscaled, memory: Memory, now: float) -> Memory:
    """What to remember where readers were wanted and did not come: nothing is tried again for a while."""
    return _in_vain(scaling, memory, now)


def _short(scaling: Autoscaled, memory: Memory, look: Look) -> tuple[Wanted, Memory]:
    """The rank waits: more readers, unless those before came in vain."""
    memory = memory._replace(needs=(), enough_since=None, short=memory.short + 1)
    if memory.short < SURE:
        return Wanted(look.workers), memory
    if memory.went is not None and look.now - memory.went < _calm(scaling, memory.missed):
        memory = memory._replace(missed=min(memory.missed + 1, MOST_DOUBLINGS))
    memory = memory._replace(went=None)
    added = memory.added if memory.added is not None and memory.added.after == look.workers else None
    if added is not None and added.after >= JUDGED * added.before:
        hoped = added.rate * (added.after / added.before - 1)
        brought = look.rate - added.rate
        if brought < WORTH * hoped:
            why = (
                f"{added.after - added.before} more brought {max(0.0, brought) / added.rate:.0%} more batches, "
                f"not {hoped / added.rate:.0%}: something else is the limit"
            )
            return Wanted(added.before, why), _in_vain(scaling, memory, look.now)
        memory, added = memory._replace(added=None, in_vain=0), None
    wanted = need(scaling, look)
    if look.now < memory.add_from or wanted <= look.workers:
        return Wanted(look.workers), memory
    why = f"the rank waited {look.share:.0%} of {look.seconds:.1f} s"
    before, rate = (look.workers, look.rate) if added is None else (added.before, added.rate)
    return Wanted(wanted, why), memory._replace(added=Added(before, wanted, rate))


def _enough(scaling: Autoscaled, memory: Memory, look: Look) -> tuple[Wanted, Memory]:
    """The rank does not wait: fewer readers, if fewer would have done for long enough."""
    calm = _calm(scaling, memory.missed)
    if memory.went is not None and look.now - memory.went >= calm:
        memory = memory._replace(went=None, missed=0)
    since = look.now - look.seconds if memory.enough_since is None else memory.enough_since
    kept = tuple(one for one in memory.needs if one[0] > look.now - calm)
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
    """Round up, but for what is not more than a rounding error."""
    return math.ceil(number - 1e-6) if math.isfinite(number) else 1 << 30
