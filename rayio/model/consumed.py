"""A rank's consumption of an epoch, on its side of the queue."""

from __future__ import annotations

from dataclasses import dataclass, field

from rayio.model.queue import Take
from rayio.place import Taken, Where


@dataclass(slots=True)
class Consumed:
    """A rank's consumption of its current epoch."""

    epoch: int = -1
    #: The rank's first step in that epoch.
    first: int = 0
    #: Every earlier step is consumed.
    low: int = 0
    #: Further steps, consumed out of order.
    extra: set[int] = field(default_factory=set)
    #: The steps that came early before the run went on.
    taken: Taken | None = None
    #: Waiting time (ns) without each epoch's first batch.
    waited: int = 0
    #: The part of it (ns) that cost nothing: ranks that compute longer would have been awaited anyway.
    made_up: int = 0
    #: Waiting time (ns) at the barrier for ranks that had waited longer for their batches.
    held: int = 0
    #: Meetings of all ranks, if the rank's waits are only known after one; -1: they are known at any time.
    met: int = -1

    @property
    def number(self) -> int:
        """Number of steps of the epoch that are consumed, or before the first one."""
        return self.low + len(self.extra)

    @property
    def lost(self) -> int:
        """Waiting time (ns) for batches, the rank's and that of ranks that held it back."""
        return self.waited - self.made_up + self.held

    @property
    def has_any(self) -> bool:
        """True if a batch of the epoch has arrived."""
        return self.number > self.first

    def open(self, at: Where) -> bool:
        """Start another epoch at its first requested step; return True if it is another one."""
        if at.epoch == self.epoch:
            return False
        self.epoch, self.first, self.low = at.epoch, at.step, at.step
        self.extra.clear()
        if self.taken is not None and at.step and self.taken.epoch == at.epoch:
            self.low, self.extra = self.taken.low, {*self.taken.extra}
        return True

    def has(self, step: int) -> bool:
        """Return True if a step is consumed."""
        return step < self.low or step in self.extra

    def add(self, step: int) -> None:
        """Record a step as consumed."""
        if step == self.low and not self.extra:
            self.low += 1
            return
        self.extra.add(step)
        while self.low in self.extra:
            self.extra.remove(self.low)
            self.low += 1

    def take(self, want: int, attempt: int, holding: tuple[int, ...] = ()) -> Take:
        """Return the message for the queue."""
        extra = tuple(sorted(self.extra)) if self.extra else ()
        waited = self.waited - self.made_up
        return Take(self.epoch, self.low, want, extra, holding, attempt, waited, self.held, self.met)
