"""What a rank needs to know of its own work: steps, compute times, the all-reduce, and when to save."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rayio import seeds
from rayio.model.env import Shard
from rayio.model.saving import Checkpointing
from rayio.model.schedule import Schedule
from rayio.place import Where
from rayio.schema.distribution import Constant
from rayio.seeds import Draws

#: Compute times are drawn this many steps at a time.
BLOCK = 1024

#: No evaluation is due.
NEVER = range(0)


class Training:
    """One rank's training, as parameters."""

    __slots__ = (
        "_block",
        "_drawn",
        "_steps",
        "checkpointing",
        "compute",
        "evaluating",
        "evaluation",
        "factor",
        "rank",
        "seed",
        "sync_seconds",
    )

    def __init__(
        self,
        rank: int,
        steps: tuple[int, ...],
        compute: Draws,
        *,
        seed: int,
        sync_seconds: float = 0.0,
        checkpointing: Checkpointing | None = None,
        evaluation: Training | None = None,
        evaluating: Schedule | None = None,
        factor: float = 1.0,
    ) -> None:
        self.rank = rank
        self._steps = steps
        self.compute = compute
        self.seed = seed
        #: How long the all-reduce takes once every rank is there, in seconds.
        self.sync_seconds = sync_seconds
        self.checkpointing = checkpointing
        #: The evaluations as training without checkpoints, in epochs of their own, and when they are due.
        self.evaluation = evaluation
        self.evaluating = evaluating
        #: What each compute time is multiplied by: that of a straggler.
        self.factor = factor
        self._block: tuple[int, int] = (-1, -1)
        self._drawn: list[float] = []

    @property
    def epochs(self) -> int:
        """How often this rank goes through its share of the dataset."""
        return len(self._steps)

    def steps(self, epoch: int) -> int:
        """Steps of this rank in an epoch."""
        return self._steps[epoch]

    def compute_seconds(self, at: Where) -> float:
        """A step's compute time, drawn at (seed, "compute", rank, epoch, step): ranks differ, engines agree."""
        if isinstance(self.compute, Constant):
            return self.compute.value * self.factor
        _, epoch, step, _ = at
        number, row = divmod(step, BLOCK)
        if (epoch, number) != self._block:
            index = np.arange(number * BLOCK, min((number + 1) * BLOCK, self.steps(epoch)), dtype=np.int64)
            self._drawn = self.compute.draw(seeds.key(self.seed, "compute", self.rank, epoch), index).tolist()
            self._block = (epoch, number)
        return self._drawn[row] * self.factor

    def evaluations(self, at: Where) -> range:
        """The evaluations that follow a step, by their epoch numbers, which go on from those of training."""
        if self.evaluating is None:
            return NEVER
        due = self.evaluating.due(at.epoch, at.step, self.steps(at.epoch))
        return range(self.epochs + due.start, self.epochs + due.stop)

    def next_pause(self, epoch: int, step: int) -> int:
        """The first step of an epoch, from ``step`` on, that a checkpoint or an evaluation follows, or one beyond."""
        steps = self.steps(epoch)
        saved = steps if self.checkpointing is None else self.checkpointing.schedule.next_step(epoch, step, steps)
        return saved if self.evaluating is None else min(saved, self.evaluating.next_step(epoch, step, steps))

    @property
    def snapshot_rate(self) -> float | None:
        """Bytes per second at which a rank copies what it then has written behind; None: it waits for the writing."""
        return self.checkpointing.snapshot_rate if self.checkpointing is not None else None

    def shards(self, at: Where) -> Sequence[Shard]:
        """The checkpoint shards that this rank has to save after a step; none when none is due."""
        return self.checkpointing.shards(at, self.steps(at.epoch)) if self.checkpointing is not None else ()
