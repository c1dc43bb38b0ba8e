"""The work of a rank: steps, compute times, the all-reduce, checkpoints and evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rayio import seeds
from rayio.model.checkpoint_ports import Left
from rayio.model.env import Shard
from rayio.model.manifest import Link, Restored
from rayio.model.saving import Checkpointing
from rayio.model.schedule import ByClock
from rayio.place import Where
from rayio.scenario.checkpoint import Phases
from rayio.scenario.device_copy import DeviceCopy
from rayio.scenario.meetings import ALL, Meetings
from rayio.scenario.pace import USUAL, Pace
from rayio.scenario.schedule import Schedule
from rayio.schema.distribution import Constant
from rayio.seeds import Draws

#: Compute times drawn at once.
BLOCK = 1024

NEVER = range(0)


class ComputeTimes(NamedTuple):
    """The compute times of a node's ranks: their distribution, its seed, and what changes them."""

    times: Draws
    seed: int
    pace: Pace = USUAL
    node: int = 0


class Preparing(NamedTuple):
    """The time between a rank's batch and its compute: the copy to its accelerator, and its stage's idle time.

    ``bubble`` is a multiple of the compute time.
    """

    copy: DeviceCopy | None = None
    bubble: float = 0.0


#: A rank that computes as soon as it has a batch.
NOTHING = Preparing()


class Training:
    """One rank's training, as parameters."""

    def __init__(
        self,
        rank: int,
        steps: tuple[int, ...],
        compute: ComputeTimes,
        *,
        meetings: Meetings | None = None,
        preparing: Preparing = NOTHING,
        checkpointing: Checkpointing | None = None,
        evaluation: Training | None = None,
        evaluating: Schedule | None = None,
    ) -> None:
        self.rank = rank
        self._steps = steps
        self.compute, self.seed, self._pace, self._node = compute
        self._meetings = None if meetings is None or meetings.is_every_step else meetings
        #: Duration of the meeting after the last rank's arrival, in seconds; None if nobody meets.
        self.sync_seconds = meetings.seconds if meetings is not None and meetings.every else None
        self.copy, self.bubble = preparing
        self.checkpointing = checkpointing
        #: The evaluations, as training without checkpoints, with their epochs, and their schedule.
        self.evaluation = evaluation
        self.evaluating = evaluating
        #: Factor on all compute times, and whether steps have different ones.
        self.factor = self._pace.constant(rank, self._node)
        self._varies = self._pace.varies(rank, self._node)
        #: The compute time of every step, if all have one; else the drawn ones: epoch, first step, and times.
        self._same: float | None = None
        if isinstance(self.compute, Constant) and not self._varies:
            self._same = self.compute.value * self.factor
        self._epoch = self._first = -1
        self._drawn: list[float] = []

    @property
    def epochs(self) -> int:
        """Number of passes over this rank's share of the dataset."""
        return len(self._steps)

    def steps(self, epoch: int) -> int:
        """Return the steps of this rank in an epoch."""
        return self._steps[epoch]

    def compute_seconds(self, at: Where) -> float:
        """Return a step's compute time, drawn at (seed, "compute", rank, epoch, step): ranks differ, engines agree."""
        if self._same is not None:
            return self._same
        _, epoch, step, _ = at
        row = step - self._first
        if epoch != self._epoch or not 0 <= row < BLOCK:
            self._draw(epoch, step - step % BLOCK)
            row = step % BLOCK
        return self._drawn[row]

    def _draw(self, epoch: int, begin: int) -> None:
        index = np.arange(begin, min(begin + BLOCK, self.steps(epoch)), dtype=np.int64)
        drawn = self.compute.draw(seeds.key(self.seed, "compute", self.rank, epoch), index)
        if self._varies:
            first = sum(self._steps[:epoch])
            drawn = drawn * self._pace.factors(self.seed, self.rank, self._node, epoch, first, index)
        self._drawn = (drawn * self.factor).tolist()
        self._epoch, self._first = epoch, begin

    def sync_after(self, epoch: int, step: int) -> float | None:
        """Return the duration of a step's meeting after the last rank's arrival, in seconds; None without one."""
        return self.sync_seconds if self._meetings is None else self._meetings.seconds_after(epoch, step)

    def checkpoints(self, at: Where) -> range:
        """Return the numbers of the checkpoints after a step."""
        saved = self.checkpointing
        return NEVER if saved is None else saved.schedule.due(at.epoch, at.step, self.steps(at.epoch))

    def clock(self) -> ByClock | None:
        """Return the decisions of a rank that saves by the clock; None if the schedule alone has them."""
        saved = self.checkpointing
        return None if saved is None or saved.seconds is None else ByClock(saved.seconds)

    def sees_all(self, epoch: int, step: int) -> bool:
        """Return True if all ranks learn when a step ended: they meet, or there is one rank."""
        meetings = self._meetings
        return meetings is None or meetings.ranks == 1 or meetings.group(self.rank, epoch, step) == ALL

    def evaluations(self, at: Where) -> range:
        """Return the evaluations after a step, by epoch number, continued from training."""
        if self.evaluating is None:
            return NEVER
        due = self.evaluating.due(at.epoch, at.step, self.steps(at.epoch))
        return range(self.epochs + due.start, self.epochs + due.stop)

    def next_pause(self, epoch: int, step: int) -> int:
        """Return the first step of an epoch, from ``step`` on, before a checkpoint or evaluation, or one beyond."""
        steps = self.steps(epoch)
        of, saved = self.checkpointing, steps
        if of is not None and of.seconds is None:
            saved = of.schedule.next_step(epoch, step, steps)
        return saved if self.evaluating is None else min(saved, self.evaluating.next_step(epoch, step, steps))

    @property
    def snapshot_rate(self) -> float | None:
        """Bytes per second of a rank's copy, which is then written in the background; None: it waits for the write."""
        return self.checkpointing.snapshot_rate if self.checkpointing is not None else None

    @property
    def restored(self) -> Restored | None:
        """The checkpoint that the run begins with."""
        return None if self.checkpointing is None else self.checkpointing.restored

    @property
    def held(self) -> list[Left]:
        """The rank's files that a restore left in the burst tier; see ``Checkpointing.held_of``."""
        return [] if self.checkpointing is None else self.checkpointing.held_of(self.rank)

    @property
    def is_own_restored(self) -> bool:
        """True if this run wrote that checkpoint; modelled ones have no run."""
        saved = self.checkpointing
        return saved is not None and saved.restored is not None and saved.restored.run == saved.run != ""

    @property
    def broadcast_seconds(self) -> float:
        """Time in which rank 0 sends a restored state to all ranks, once all are there."""
        return 0.0 if self.checkpointing is None else self.checkpointing.broadcast_seconds

    @property
    def phases(self) -> Phases | None:
        """Checkpoints alone, without training; None: training."""
        return None if self.checkpointing is None else self.checkpointing.phases

    def shards_of(self, epoch: int, step: int) -> Sequence[Shard]:
        """Return the shards that this rank saves of the checkpoint after a step."""
        return () if self.checkpointing is None else self.checkpointing.shards_of(self.rank, (epoch, step))

    def written(self, epoch: int, step: int) -> Restored:
        """Return a checkpoint that this run has written."""
        assert self.checkpointing is not None
        return self.checkpointing.restored_at(epoch, step)

    def restored_shards(self, restored: Restored, link: Link) -> Sequence[Shard]:
        """Return the shards of a checkpoint of a chain that this rank reads: those that it would save."""
        return () if self.checkpointing is None else self.checkpointing.restored_shards(restored, link, self.rank)

    def shards(self, at: Where, chain: tuple[int, ...] = ()) -> Sequence[Shard]:
        """Return the checkpoint shards that this rank saves after a step; ``chain`` is that of the one before."""
        return self.checkpointing.shards(at, self.steps(at.epoch), chain) if self.checkpointing is not None else ()

    def chain(self, at: Where, chain: tuple[int, ...]) -> tuple[int, ...]:
        """Return the chain of the last checkpoint after a step."""
        for number in self.checkpoints(at):
            assert self.checkpointing is not None
            chain = self.checkpointing.longer(chain, number)
        return chain
