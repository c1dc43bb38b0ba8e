"""The steps of each epoch, and periodic events: counted over epochs, and equal for ranks with fewer steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

#: Steps of an epoch: one number for all epochs, or a number for each.
PerEpoch = int | tuple[int, ...]


@lru_cache(maxsize=64)
def _firsts(each: tuple[int, ...]) -> Sequence[int]:
    """Return the steps before each epoch, and those of all epochs."""
    return (*accumulate(each, initial=0),)


def in_epoch(each: PerEpoch, epoch: int) -> int:
    """Return the number of an epoch; later ones are as the last."""
    return each if isinstance(each, int) else each[min(epoch, len(each) - 1)]


def place_of(number: int, each: tuple[int, ...]) -> tuple[int, int]:
    """Return epoch and step of a step counted over epochs; ``each`` has the steps of every epoch."""
    firsts = _firsts(each)
    epoch = min(bisect_right(firsts, number), len(each)) - 1
    return epoch, number - firsts[epoch]


@dataclass(frozen=True, slots=True)
class EpochSteps:
    """The steps of each epoch, as the rank with the most has them.

    >>> steps = EpochSteps(3, (5, 2, 4))
    >>> steps.total, steps.before(2), [steps.place(number) for number in (4, 5, 6, 7)]
    (11, 7, [(0, 4), (1, 0), (1, 1), (2, 0)])
    """

    epochs: int
    each: PerEpoch

    @property
    def total(self) -> int:
        """The steps of all epochs."""
        return self.before(self.epochs)

    def of(self, epoch: int) -> int:
        """Return the steps of an epoch."""
        return in_epoch(self.each, epoch)

    def before(self, epoch: int) -> int:
        """Return the steps before an epoch; epochs that the run does not have are as the last."""
        if isinstance(self.each, int):
            return epoch * self.each
        firsts = _firsts(self.each)
        return firsts[min(epoch, len(firsts) - 1)] + max(0, epoch + 1 - len(firsts)) * self.each[-1]

    def place(self, number: int) -> tuple[int, int]:
        """Return epoch and step of a step counted over epochs."""
        return divmod(number, self.each) if isinstance(self.each, int) else place_of(number, self.each)

    def number_done(self, steps: int) -> int:
        """Return the epochs that are over after so many steps."""
        if isinstance(self.each, int):
            return steps // self.each if self.each else self.epochs
        return bisect_right(_firsts(self.each), steps) - 1


@dataclass(frozen=True, slots=True)
class Schedule:
    """Events numbered from 0: one after every ``period`` steps, counted by a rank that has all ``steps``.

    With ``of_epochs`` the period is one of epochs, and so is ``first``, after which the first event is due if that is
    not the period. A rank with fewer steps in an epoch handles events of missing steps after its last one.

    >>> [epoch for epoch, _ in Schedule(2, EpochSteps(8, 10), of_epochs=True, first=3).places()]
    [2, 4, 6]
    """

    period: int
    steps: EpochSteps
    of_epochs: bool = False
    first: int | None = None

    def number_in(self, steps: int) -> int:
        """Return the events of the first ``steps`` steps."""
        passed = self.steps.number_done(steps) if self.of_epochs else steps
        return max(0, (passed - (self.first or self.period)) // self.period + 1)

    def until(self, number: int) -> int:
        """Return the steps until an event, with that after which it is due."""
        passed = (self.first or self.period) + number * self.period
        return self.steps.before(passed) if self.of_epochs else passed

    @property
    def number(self) -> int:
        """The events of the whole run."""
        return self.number_in(self.steps.total)

    def places(self) -> Iterator[tuple[int, int]]:
        """Return the (epoch, step) of every event."""
        return map(self.step, range(self.number))

    @property
    def in_steps(self) -> dict[str, int | None]:
        """The same events as keys of a period in steps, which a cut epoch does not change."""
        period = self.steps.before(self.period) if self.of_epochs else self.period
        return {"steps": period, "first": None if self.first is None else self.until(0)}

    def due(self, epoch: int, step: int, steps: int) -> range:
        """Return the events after this step for a rank with ``steps`` steps in this epoch."""
        first = self.steps.before(epoch) + step
        last = first + 1 if step + 1 < steps else self.steps.before(epoch + 1)
        return range(self.number_in(first), self.number_in(last))

    def next_step(self, epoch: int, step: int, steps: int) -> int:
        """Return the first step of this epoch, from ``step`` on, with an event; ``steps`` without any."""
        first = self.steps.before(epoch)
        due = self.until(self.number_in(first + step)) - 1 - first
        return due if due < steps else steps - 1 if due < self.steps.of(epoch) else steps

    def number_before(self, epoch: int, step: int, steps: int) -> int:
        """Return the number of events before this step, for a rank with ``steps`` in this epoch."""
        if not step:
            return self.number_in(self.steps.before(epoch))
        return self.due(epoch, min(step, steps) - 1, steps).stop

    def step(self, number: int) -> tuple[int, int]:
        """Return the epoch and the step after which an event is due."""
        return self.steps.place(self.until(number) - 1)
