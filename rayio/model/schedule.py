"""Periodic events: counted over epochs, and equal for ranks with fewer steps."""

from __future__ import annotations


class Schedule:
    """Events numbered from 0: one after every ``period`` steps, counted by a rank that has all ``steps_per_epoch``.

    A rank with fewer steps in an epoch handles events of missing steps after its last one.
    """

    def __init__(self, period: int, steps_per_epoch: int) -> None:
        self.period = period
        self.steps_per_epoch = steps_per_epoch

    def due(self, epoch: int, step: int, steps: int) -> range:
        """Return the events after this step for a rank with ``steps`` steps in this epoch."""
        first = epoch * self.steps_per_epoch + step
        last = first if step + 1 < steps else (epoch + 1) * self.steps_per_epoch - 1
        return range(first // self.period, (last + 1) // self.period)

    def next_step(self, epoch: int, step: int, steps: int) -> int:
        """Return the first step of this epoch, from ``step`` on, with an event; ``steps`` without any."""
        first = epoch * self.steps_per_epoch
        due = ((first + step) // self.period + 1) * self.period - 1 - first
        return due if due < steps else steps - 1 if due < self.steps_per_epoch else steps

    def number_before(self, epoch: int, step: int, steps: int) -> int:
        """Return the number of events before this step, for a rank with ``steps`` in this epoch."""
        if not step:
            return epoch * self.steps_per_epoch // self.period
        return self.due(epoch, min(step, steps) - 1, steps).stop

    def step(self, number: int) -> tuple[int, int]:
        """Return the epoch and the step after which an event is due."""
        return divmod((number + 1) * self.period - 1, self.steps_per_epoch)


class ByClock:
    """Checkpoints by the clock, as one rank decides on them: all ranks see the same ends of steps, so they agree.

    Time is cut into intervals, from the first end on. An event is due after the first step that ends in a later one
    than the step before. A rank that misses some ends is right again with the second one that it sees.

    >>> due = ByClock(0.5)
    >>> [due.is_due(round(end * 1e9)) for end in (7.0, 7.4, 7.6, 7.9, 8.9, 9.1)]
    [False, False, True, False, True, True]
    """

    def __init__(self, seconds: float) -> None:
        self._period = max(1, round(seconds * 1e9))
        self._begin: int | None = None
        self._passed = 0

    def is_due(self, end: int) -> bool:
        """Return True if an event is due after the step that all ranks ended at ``end`` (ns)."""
        if self._begin is None:
            self._begin = end
        passed, self._passed = self._passed, (end - self._begin) // self._period
        return self._passed > passed
