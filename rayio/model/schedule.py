"""Checkpoints by the clock; ``rayio/scenario/schedule.py`` has those by steps and epochs."""

from __future__ import annotations


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
