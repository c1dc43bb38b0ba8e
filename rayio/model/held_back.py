"""Waiting at the barrier that another rank's wait for its batches causes.

Among ranks that meet, only the last one sees that readers are missing: it waits, and holds back all. So each rank
announces with its deadline how long it waited for batches since the last meeting, and learns that of the last rank.
"""

from __future__ import annotations

from typing import Protocol

from rayio.model.consumed import Consumed
from rayio.model.env import BarrierPort
from rayio.place import Where
from rayio.scenario.meetings import ALL, Meetings


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
    another rank costs anything. If this time is more than ``wait`` of that between two meetings of all ranks, the rank
    knows its waits only after a meeting, as all do before the first one. ``now`` (ns) is the present.
    """

    def __init__(self, port: BarrierPort, consumed: Consumed, meetings: Meetings, wait: float, now: int) -> None:
        self.port = port
        self.consumed = consumed
        self.meetings = meetings
        self.wait = wait
        #: Time lost to waits (ns) at the last meeting of any ranks, and at that of all ranks.
        self._lost = [0, 0]
        #: Number of meetings of all ranks, and the deadline of the last one.
        self._met, self._latest = 0, now
        if meetings.every > 1:
            consumed.met = 0

    async def announce(self, at: Where, deadline: int) -> int:
        """See :class:`rayio.model.env.BarrierPort`."""
        consumed, is_all = self.consumed, self.meetings.group(at.rank, at.epoch, at.step) == ALL
        lost = consumed.lost
        waited = lost - self._lost[is_all]
        latest = await self.port.announce(at, Deadline.of(deadline, waited))
        longer = 0
        if isinstance(latest, Deadline):
            longer = (latest - latest.waited) - (deadline - waited)
            made_up = max(0, min(waited, longer))
            held = max(0, min(latest - deadline, latest.waited - waited + made_up))
            consumed.made_up += made_up
            consumed.held += held
            lost += held - made_up
        self._lost[False] = lost
        if is_all:
            self._lost[True] = lost
            if self.meetings.every > 1 and consumed.has_any:  # a restored rank meets before its first step
                self._met += 1
                consumed.met = self._met if longer > self.wait * (latest - self._latest) else -1
            self._latest = latest
        return latest
