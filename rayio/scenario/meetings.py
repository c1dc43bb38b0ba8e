"""The steps after which ranks wait for each other, and which ranks do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayio.scenario import derive
from rayio.scenario.schedule import PerEpoch, in_epoch

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario

Ints = NDArray[np.int64]

#: Numbers of groups: all ranks, or nobody; ``1 + n`` is the n-th replica of a model.
ALL, NOBODY = 0, -1


@dataclass(frozen=True)
class Meetings:
    """Which ranks meet after which steps of an epoch.

    All ranks meet after every ``every`` steps, and after the last step of an epoch. Between such meetings the ``parts``
    ranks of a model's replica meet after each step, because none of them can compute a step without the others.

    >>> divided = Meetings(ranks=4, epochs=1, steps=5, every=2, parts=2)
    >>> [divided.group(3, 0, step) for step in range(5)], divided.parties(0, 1, ALL), divided.parties(0, 0, 2)
    ([2, 0, 2, 0, 0], 4, 2)
    """

    ranks: int
    epochs: int
    #: Steps of every rank in an epoch, the number of ranks with more, and how many more these have.
    steps: PerEpoch
    larger: PerEpoch = 0
    more: PerEpoch = 1
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

    def group(self, rank: int, epoch: int, step: int) -> int:
        """Return the number of the group that a rank meets after a step."""
        every = self.every
        if every == 1 or (every and ((step + 1) % every == 0 or step >= in_epoch(self.steps, epoch) - 1)):
            return ALL
        return 1 + rank // self.parts if self.parts > 1 else NOBODY

    def groups(self, rank: Ints, epoch: Ints, step: Ints) -> Ints:
        """Return :meth:`group` of many steps."""
        apart = 1 + rank // self.parts if self.parts > 1 else np.full(len(step), NOBODY)
        if not self.every:
            return apart
        steps = np.asarray(self.steps)
        last = (steps if steps.ndim == 0 else steps[np.clip(epoch, 0, len(steps) - 1)]) - 1
        of_all: Ints = np.where(((step + 1) % self.every == 0) | (step >= last), ALL, apart)
        return of_all

    def parties(self, epoch: int, step: int, group: int = ALL) -> int:
        """Return the number of ranks of a group that meet after a step: those with steps left."""
        if epoch >= self.epochs:
            return 0
        if group != ALL:
            return self.parts
        if step < (steps := in_epoch(self.steps, epoch)):
            return self.ranks
        return in_epoch(self.larger, epoch) if step < steps + in_epoch(self.more, epoch) else 0

    def seconds_after(self, epoch: int, step: int) -> float | None:
        """Return how long a step's meeting lasts beyond its last arrival, in seconds; None without a meeting."""
        group = self.group(0, epoch, step)
        return None if group == NOBODY else self.seconds if group == ALL else 0.0

    @property
    def at_once(self) -> int:
        """The most groups that may meet after steps of about the same time."""
        return 1 + (self.ranks // self.parts if self.parts > 1 else 0)


def allreduce_seconds(scenario: Scenario) -> float:
    """Return the seconds of an all-reduce, beyond the part that compute hides (``sync.AllReduce``)."""
    sync = scenario.train.sync
    hidden: float = getattr(sync, "overlap", 0.0) * derive.compute_seconds(scenario)
    return max(0.0, sync.seconds(scenario.topology.data_parallel) - hidden)


def meeting_period(scenario: Scenario) -> int:
    """Return the steps from one meeting of all ranks to the next: ``train.accumulate × train.sync.every``; 0: never."""
    train = scenario.train
    return train.accumulate * getattr(train.sync, "every", 1) if train.sync.meets else 0


def meetings_of(scenario: Scenario) -> Meetings:
    """Return which ranks wait for each other, and after which steps."""
    if (alone := derive.phases(scenario)) is not None:  # before each checkpoint
        every = min(1, meeting_period(scenario))
        return Meetings(ranks=derive.world_size(scenario), epochs=1, steps=alone.writes + alone.reads, every=every)
    by_epoch = derive.rank_steps_by_epoch(scenario)
    larger = tuple(derive.larger_shares(scenario) if most > fewest else 0 for fewest, most in by_epoch)
    more = tuple(max(1, most - fewest) for fewest, most in by_epoch)
    return Meetings(
        ranks=derive.world_size(scenario),
        epochs=scenario.train.epochs,
        steps=tuple(fewest for fewest, _ in by_epoch) if len(by_epoch) > 1 else by_epoch[0][0],
        larger=larger if len(larger) > 1 else larger[0],
        more=more if len(more) > 1 else more[0],
        every=meeting_period(scenario),
        parts=scenario.topology.parts,
        seconds=allreduce_seconds(scenario),
    )
