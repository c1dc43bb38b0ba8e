"""The steps after which ranks wait for each other, and which ranks do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

#: Numbers of groups: all ranks, or nobody; ``1 + n`` is the n-th replica of a model.
ALL, NOBODY = 0, -1


@dataclass(frozen=True)
class Meetings:
    """Which ranks meet after which steps of an epoch.

    All ranks meet after every ``every`` steps, and after the last step of an epoch. Between such meetings the ``parts``
    ranks of a model's replica meet after each step, because none of them can compute a step without the others.

    >>> divided = Meetings(ranks=4, epochs=1, steps=5, every=2, parts=2)
    >>> [divided.group(3, step) for step in range(5)], divided.parties(0, 1, ALL), divided.parties(0, 0, 2)
    ([2, 0, 2, 0, 0], 4, 2)
    """

    ranks: int
    epochs: int
    #: Steps of every rank in an epoch, the number of ranks with more, and how many more these have.
    steps: int
    larger: int = 0
    more: int = 1
    #: Steps from one meeting of all ranks to the next; 0: they never meet.
    every: int = 1
    parts: int = 1
    #: How long the meeting of all ranks lasts beyond its last arrival, in seconds.
    seconds: float = 0.0

    @property
    def are_any(self) -> bool:
        """True if some ranks meet."""
        return self.every > 0 or self.parts > 1

    @property
    def is_every_step(self) -> bool:
        """True if all ranks meet after every step."""
        return self.every == 1

    def group(self, rank: int, step: int) -> int:
        """Return the number of the group that a rank meets after a step."""
        every = self.every
        if every == 1 or (every and ((step + 1) % every == 0 or step >= self.steps - 1)):
            return ALL
        return 1 + rank // self.parts if self.parts > 1 else NOBODY

    def groups(self, rank: Ints, step: Ints) -> Ints:
        """Return :meth:`group` of many steps."""
        apart = 1 + rank // self.parts if self.parts > 1 else np.full(len(step), NOBODY)
        if not self.every:
            return apart
        of_all: Ints = np.where(((step + 1) % self.every == 0) | (step >= self.steps - 1), ALL, apart)
        return of_all

    def parties(self, epoch: int, step: int, group: int = ALL) -> int:
        """Return the number of ranks of a group that meet after a step: those with steps left."""
        if epoch >= self.epochs:
            return 0
        if group != ALL:
            return self.parts
        if step < self.steps:
            return self.ranks
        return self.larger if step < self.steps + self.more else 0

    def seconds_after(self, step: int) -> float | None:
        """Return how long a step's meeting lasts beyond its last arrival, in seconds; None without a meeting."""
        group = self.group(0, step)
        return None if group == NOBODY else self.seconds if group == ALL else 0.0

    @property
    def at_once(self) -> int:
        """The most groups that may meet after steps of about the same time."""
        return 1 + (self.ranks // self.parts if self.parts > 1 else 0)
