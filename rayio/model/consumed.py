"""What a rank has consumed of an epoch, on its side of the queue."""

from __future__ import annotations

from dataclasses import dataclass, field

from rayio.model.queue import Take
from rayio.place import Where


@dataclass(slots=True)
class Consumed:
    """What a rank has consumed of the epoch that it is in."""

    epoch: int = -1
    #: The step at which the rank came to that epoch.
    first: int = 0
    #: Every step below it is consumed.
    low: int = 0
    #: Further steps, consumed out of order.
    extra: set[int] = field(default_factory=set)
    #: How long was waited for all but each epoch's first batch (ns).
    waited: int = 0

    @property
    def number(self) -> int:
        """How many steps of the epoch are behind the rank: consumed, or before its first one."""
        return self.low + len(self.extra)

    @property
    def has_any(self) -> bool:
        """Whether a batch of the epoch has come."""
        return self.number > self.first

    def open(self, at: Where) -> bool:
        """Start over at the first step that is asked of another epoch; return whether it is another."""
        if at.epoch == self.epoch:
            return False
        self.epoch, self.first, self.low = at.epoch, at.step, at.step
        self.extra.clear()
        return True

    def has(self, step: int) -> bool:
        """Say whether a step is consumed."""
        return step < self.low or step in self.extra

    def add(self, step: int) -> None:
        """Note a step as consumed."""
        if step == self.low and not self.extra:
            self.low += 1
            return
        self.extra.add(step)
        while self.low in self.extra:
            self.extra.remove(self.low)
            self.low += 1

    def take(self, want: int, attempt: int, holding: tuple[int, ...] = ()) -> Take:
        """Make the message that tells the queue."""
        return Take(
            self.epoch, self.low, want, tuple(sorted(self.extra)) if self.extra else (), holding, attempt, self.waited
        )
