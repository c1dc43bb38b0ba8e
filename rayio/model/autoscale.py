"""The number of workers that a rank needs: a pure function of its queue's levels (``loader.num_workers: {min, max}``).

Adding: a rank that waits a share w of its time gets 1 - w of the batches that it could take. If workers are the
bottleneck, W / (1 - w) of them are enough; at most twice as many are added at once. Removing: by Little's law, the mean
number of batches being read is the number of busy workers. All others are spare.

The number stays stable: one look adds no worker; a look begins once all batches begun with another number are consumed;
workers go only if they were spare for ``calm``; after a wrong change, the next one waits twice as long.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from rayio.scenario.workers import Autoscaled

#: Added workers must bring at least this share of the batches that a proportional increase would.
WORTH = 0.25
#: Workers are judged once their number grew by this factor; a smaller effect is lost in the noise of reading.
JUDGED = 1.5
#: Consecutive looks in which a rank must wait too long before workers are added.
SURE = 2
#: ``calm`` is doubled at most this often.
MOST_DOUBLINGS = 5


class Look(NamedTuple):
    """A rank's queue over an interval in which the number of its workers did not change; times in seconds."""

    #: End of the interval.
    now: float
    seconds: float
    workers: int
    #: Mean number of batches that were read and not yet consumed.
    ready: float
    #: Mean number of batches that were being read, or waiting for their worker.
    reading: float
    #: Time that the rank waited for batches.
    waited: float
    #: Batches that the rank took.
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
    """Workers that were added and are not judged yet: their number before and after, and the batches/s before."""

    before: int
    after: int
    rate: float


class Memory(NamedTuple):
    """The state of the scaler between two looks; times in seconds."""

    #: Consecutive looks in which the rank waited too long; the first look of a run counts at once.
    short: int = 1
    #: The end of each look since the last change, and the workers that it needed.
    needs: tuple[tuple[float, int], ...] = ()
    #: Since when there are enough workers; None if there are too few.
    enough_since: float | None = None
    added: Added | None = None
    #: No worker is added before this time; number of additions without effect before.
    add_from: float = 0.0
    in_vain: int = 0
    #: When workers last went, and how often the rank waited too long afterwards.
    went: float | None = None
    missed: int = 0


class Wanted(NamedTuple):
    """A number of workers for a rank, and the reason for the change."""

    workers: int
    why: str = ""


def decide(scaling: Autoscaled, memory: Memory, look: Look) -> tuple[Wanted, Memory]:
    """Return the workers that a rank should have after a look, and the state for the next look."""
    return _short(scaling, memory, look) if look.share > scaling.wait else _enough(scaling, memory, look)


def need(scaling: Autoscaled, look: Look) -> int:
    """Return the workers that a rank needs by one look, within the bounds."""
    if look.share > scaling.wait:
        enough = look.workers / (1 - look.share) if look.share < 1 else math.inf
        wanted = max(look.workers + 1, min(2 * look.workers, _whole(enough)))
    else:
        wanted = min(look.workers, _whole(look.reading / scaling.busy))
    return min(max(wanted, scaling.min), scaling.max)


def refused(scaling: Autoscaled, memory: Memory, now: float) -> Memory:
    """Return the state after wanted workers did not come: no worker is added for some time."""
    return _in_vain(scaling, memory, now)


def _short(scaling: Autoscaled, memory: Memory, look: Look) -> tuple[Wanted, Memory]:
    """Add workers, unless those added before brought nothing."""
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
    """Remove workers that were spare for long enough."""
    calm = _calm(scaling, memory.missed)
    if memory.went is not None and look.now - memory.went >= calm:
        memory = memory._replace(went=None, missed=0)
    since = look.now - look.seconds if memory.enough_since is None else memory.enough_since
    recent = tuple((ended, number) for ended, number in memory.needs if ended > look.now - calm)
    needs = (*recent, (look.now, need(scaling, look)))
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
    """Round up; a rounding error does not count."""
    return math.ceil(number - 1e-6) if math.isfinite(number) else 1 << 30
