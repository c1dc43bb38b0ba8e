"""Waiting at the barrier that another rank's wait for its batches causes.

Among ranks that meet, only the last one sees that readers are missing: it waits, and holds back all. So each rank
announces with its deadline how long it waited for batches since the last meeting, and learns that of the last rank.
"""

from __future__ import annotations

from typing import Protocol

from rayio.model.consumed import Consumed
from rayio.model.env import BarrierPort
from rayio.place import Where


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
    """A rank's end of the barrier that adds to ``consumed.held``."""

    def __init__(self, port: BarrierPort, consumed: Consumed) -> None:
        self.port = port
        self.consumed = consumed
        #: Waiting time of the rank (ns) at the last meeting.
        self._before = 0

    async def announce(self, at: Where, deadline: int) -> int:
        """See :class:`rayio.model.env.BarrierPort`."""
        waited, self._before = self.consumed.waited - self._before, self.consumed.waited
        latest = await self.port.announce(at, Deadline.of(deadline, waited))
        if isinstance(latest, Deadline):
            self.consumed.held += max(0, min(latest - deadline, latest.waited - waited))
        return latest
