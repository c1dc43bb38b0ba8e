"""The part of a run's plan that its numbers depend on: ranks, batches, epochs, and the steps that every rank has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rayio.analyze.timeline import Ints
from rayio.data.sampler import Sampler
from rayio.scenario import derive
from rayio.scenario.meetings import Meetings, meetings_of
from rayio.scenario.model import Scenario


@dataclass(frozen=True, slots=True)
class RunShape:
    """The part of the plan that numbers depend on; ``batch_size`` is samples per rank and step.

    ``steps_of`` and ``samples_of`` are those of each rank in an epoch with ``drop_last: false``; empty, every rank has
    ``steps_per_epoch`` whole batches.
    """

    world_size: int
    batch_size: int
    warmup_steps: int
    epochs: int
    #: Those of the longest epoch.
    steps_per_epoch: int
    steps_of: tuple[int, ...] = ()
    samples_of: tuple[int, ...] = ()
    #: ``train.steps`` by epoch where epochs differ; empty, they are equal.
    caps: tuple[int, ...] = ()
    #: Whether ranks wait for each other at every step.
    meets: bool = True
    #: The steps after which they do; None: all ranks, after every step.
    meetings: Meetings | None = None
    #: Batches that readers may be ahead of their rank; 0 where it reads by itself.
    prefetched: int = 0
    #: The most workers of a rank.
    workers: int = 0
    #: Ranks that read the same samples: those of one replica of a divided model.
    ranks_of_sample: int = 1

    @classmethod
    def of(cls, scenario: Scenario) -> RunShape:
        """Return the shape of a scenario's run."""
        sampler, ranks = Sampler.from_scenario(scenario), range(derive.world_size(scenario))
        longest = 0 if not isinstance(scenario.train.steps, tuple) else scenario.train.steps.index(scenario.train.cap)
        differ = not scenario.loader.drop_last
        return cls(
            world_size=derive.world_size(scenario),
            batch_size=scenario.loader.batch_size,
            warmup_steps=scenario.train.warmup_steps,
            epochs=derive.epochs(scenario),
            steps_per_epoch=derive.steps_per_epoch(scenario),
            steps_of=tuple(sampler.steps(longest, rank) for rank in ranks) if differ else (),
            samples_of=tuple(sampler.samples(longest, rank) for rank in ranks) if differ else (),
            caps=scenario.train.steps if isinstance(scenario.train.steps, tuple) else (),
            meets=scenario.train.sync.meets,
            meetings=meetings_of(scenario),
            prefetched=derive.window_steps(scenario),
            workers=scenario.loader.max_workers,
            ranks_of_sample=derive.ranks_of_sample(scenario),
        )

    @property
    def shared_by(self) -> int | None:
        """The ranks that read each sample, as a result has them: None if it is one."""
        return self.ranks_of_sample if self.ranks_of_sample > 1 else None

    def steps(self, rank: Ints) -> Ints:
        """Return the steps in an epoch of each of these ranks; a column for each epoch if epochs differ."""
        each = np.array(self.steps_of)[rank] if self.steps_of else np.full(len(rank), self.steps_per_epoch)
        return np.minimum(each[:, None], np.array(self.caps)) if self.caps else each

    def planned(self, rank: Ints) -> Ints:
        """Return the steps in the run of each of these ranks."""
        each = self.steps(rank)
        total: Ints = each.sum(axis=1) if self.caps else self.epochs * each
        return total

    def samples(self, rank: Ints, step: Ints) -> Ints:
        """Return the samples of each of these steps of an epoch: a rank's last batch may be smaller."""
        whole = np.full(len(rank), self.batch_size)
        return np.minimum(whole, np.array(self.samples_of)[rank] - step * whole) if self.samples_of else whole
