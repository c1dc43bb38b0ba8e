"""Waiting at the barrier that another rank's wait for its batches causes.

Among ranks that meet, only the last one sees that readers are missing: it waits, and holds back all. So each rank
announces with its deadline how long it waited for batches since the last meeting, and learns that of the last rank.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from rayio.model.consumed import Consumed
from rayio.model.env import BarrierPort
from rayio.place import Where
from rayio.scenario.meetings import ALL, Meetings

#: A rank that computed less than others in so many meetings does so again.
MEETINGS = 8


class Deadline(int):
    """A deadline (ns), and the time (ns) that its rank waited for batches since the last meeting."""

    waited = 0

    @classmethod
    def of(cls, deadline: int, waited: int) -> Deadline:
        """Return a deadline with a wait."""
        new = cls(deadline)
        new.waited = waited
        return new


class Consuming(Protocol):
    """A rank's end of a queue that counts its consumption."""

    consumed: Consumed


class HeldBack:
    """A rank's end of the barrier that adds to ``consumed.held`` and ``consumed.made_up``.

    Without waits, the last rank of a meeting would have come at its deadline less its wait. Until then no wait of
    another rank costs anything. Among ranks that meet after several steps the last one is often so by chance: what
    counts is the least of this time in the last ``MEETINGS`` meetings of all ranks, as a share of the time between two.
    If it is more than ``wait``, the rank knows its waits only after a meeting. ``now`` (ns) is the present.
    """

    def __init__(self, port: BarrierPort, consumed: Consumed, meetings: Meetings, wait: float, now: int) -> None:
        self.port = port
        self.consumed = consumed
        self.meetings = meetings
        self.wait = wait
        #: Time lost to waits (ns) at the last meeting of any ranks, and at that of all ranks.
        self._lost = [0, 0]
        #: Number of meetings of all ranks, the deadline of the last one, and the shares of the last ones.
        self._met, self._latest = 0, now
        self._shares: deque[float] = deque(maxlen=MEETINGS)

    async def announce(self, at: Where, deadline: int) -> int:
        """See :class:`rayio.model.env.BarrierPort`."""
        consumed, is_all = self.consumed, self.meetings.group(at.rank, at.epoch, at.step) == ALL
        lost = consumed.lost
        waited = lost - self._lost[is_all]
        latest = await self.port.announce(at, Deadline.of(deadline, waited))
        if isinstance(latest, Deadline):
            longer = (latest - latest.waited) - (deadline - waited)
            if is_all and self.meetings.every > 1:
                longer = self._least(longer, latest - self._latest)
            made_up = max(0, min(waited, longer))
            held = max(0, min(latest - deadline, latest.waited - waited + made_up))
            consumed.made_up += made_up
            consumed.held += held
            lost += held - made_up
        self._lost[False] = lost
        if is_all:
            self._lost[True], self._latest = lost, latest
        return latest

    def _least(self, longer: int, period: int) -> int:
        """Return what the last meetings made up for at least; at this one, ``period`` ns after the one before."""
        if not self.consumed.has_any:  # a restored rank meets before its first step
            return longer
        self._shares.append(longer / max(1, period))
        least = min(self._shares)
        self._met += 1
        self.consumed.met = self._met if least > self.wait else -1
        return round(least * period)
