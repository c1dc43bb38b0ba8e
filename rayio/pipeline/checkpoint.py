"""Which checkpoint is due when, who saves which part of it, and how many bytes that is."""

from __future__ import annotations

from collections.abc import Sequence

from rayio.pipeline.env import Shard, Where
from rayio.scenario import derive
from rayio.scenario.model import Checkpoint, Scenario


class Checkpointing:
    """The checkpoints of a run: any rank can work out any of them.

    ``writers: rank_zero``: rank 0 saves the whole state through one writer. ``all_ranks``: every rank saves a whole
    copy through a writer of its own. ``{dedicated: N}``: rank 0 has the state cut into N parts, saved at the same time
    by N writers.
    """

    def __init__(self, scenario: Scenario, section: Checkpoint) -> None:
        self.section = section
        #: Folder of the checkpoints, relative to the run's root.
        self.path = section.path
        #: Bytes that each writer saves, by number.
        self.sizes = derive.checkpoint_shards(scenario)
        self._steps_per_epoch = derive.steps_per_epoch(scenario)
        self._period = derive.checkpoint_period(scenario)

    def is_due(self, epoch: int, step: int) -> bool:
        """Say whether a checkpoint follows this step. Steps are counted over all epochs."""
        return (epoch * self._steps_per_epoch + step + 1) % self._period == 0

    def shards(self, at: Where) -> Sequence[Shard]:
        """Give the shards that rank ``at.rank`` saves after this step."""
        if not self.is_due(at.epoch, at.step):
            return ()
        if self.section.writers == "all_ranks":
            return (self._shard(at, f"rank-{at.rank:05d}.bin", at.rank),)
        if at.rank != 0:
            return ()
        return tuple(self._shard(at, f"shard-{number:05d}.bin", number) for number in range(len(self.sizes)))

    def _shard(self, at: Where, name: str, writer: int) -> Shard:
        path = f"epoch-{at.epoch:04d}-step-{at.step:08d}/{name}"
        return Shard(path, self.sizes[writer], self.section.request_bytes, self.section.fsync, writer)
