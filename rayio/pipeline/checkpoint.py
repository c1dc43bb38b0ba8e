"""Which checkpoint is due when, who saves which part of it, and how many bytes that is."""

from __future__ import annotations

from collections.abc import Sequence

from rayio.pipeline.env import Shard
from rayio.pipeline.schedule import Schedule
from rayio.place import Where, checkpoint_folder
from rayio.scenario import derive
from rayio.scenario.model import Checkpoint, Scenario


class Checkpointing:
    """The checkpoints of a run: any rank can work out any of them. Who saves what, the kind of writers says."""

    def __init__(self, scenario: Scenario, section: Checkpoint) -> None:
        self.section = section
        #: Folder of the checkpoints, relative to the run's root.
        self.path = section.path
        #: Bytes per second of the copy that is written while training goes on; None: training waits for the writing.
        self.snapshot_rate = section.snapshot_bandwidth if section.asynchronous else None
        #: Bytes that each writer saves, by number.
        self.sizes = derive.checkpoint_shards(scenario)
        self.schedule = Schedule(derive.checkpoint_period(scenario), derive.steps_per_epoch(scenario))

    def shards(self, at: Where, steps: int) -> Sequence[Shard]:
        """The shards that rank ``at.rank``, with ``steps`` steps in this epoch, saves after this step."""
        due = self.schedule.due(at.epoch, at.step, steps)
        if not due:
            return ()
        numbers = self.section.writers.of_rank(at.rank, len(self.sizes))
        return tuple(self._shard(one, number) for one in due for number in numbers)

    def _shard(self, due: int, writer: int) -> Shard:
        epoch, step = self.schedule.step(due)
        path = f"{checkpoint_folder(epoch, step)}/{self.section.writers.file_name(writer)}"
        return Shard(path, self.sizes[writer], self.section.request_bytes, self.section.fsync, writer)
