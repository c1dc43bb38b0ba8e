"""Which checkpoint is due when, who saves which part of it, and how many bytes that is."""

from __future__ import annotations

from collections.abc import Sequence

from rayio.pipeline.env import Shard, Where
from rayio.pipeline.schedule import Schedule
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
        self.schedule = Schedule(derive.checkpoint_period(scenario), derive.steps_per_epoch(scenario))

    def shards(self, at: Where, steps: int) -> Sequence[Shard]:
        """Give the shards that rank ``at.rank``, with ``steps`` steps in this epoch, saves after this step."""
        due = self.schedule.due(at.epoch, at.step, steps)
        if not due:
            return ()
        if self.section.writers == "all_ranks":
            return tuple(self._shard(one, f"rank-{at.rank:05d}.bin", at.rank) for one in due)
        if at.rank != 0:
            return ()
        numbers = range(len(self.sizes))
        return tuple(self._shard(one, f"shard-{number:05d}.bin", number) for one in due for number in numbers)

    def _shard(self, due: int, name: str, writer: int) -> Shard:
        epoch, step = self.schedule.step(due)
        path = f"epoch-{epoch:04d}-step-{step:08d}/{name}"
        return Shard(path, self.sizes[writer], self.section.request_bytes, self.section.fsync, writer)
