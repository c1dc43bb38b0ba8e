"""Which checkpoint is due when, who saves which part of it, and how many bytes that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rayio.model.env import Shard
from rayio.model.schedule import Schedule
from rayio.place import Where, checkpoint_folder
from rayio.scenario.topology import Topology
from rayio.scenario.writers import Writers


@dataclass(frozen=True)
class Checkpointing:
    """The checkpoints of a run: any rank can work out any of them. Who saves what, the kind of writers says."""

    #: Folder of the checkpoints, relative to the run's root.
    path: str
    writers: Writers
    topology: Topology
    #: Bytes that each writer saves, by number.
    sizes: tuple[int, ...]
    schedule: Schedule
    request_bytes: int
    fsync: bool
    #: Bytes per second of the copy that is written while training goes on; None: training waits for the writing.
    snapshot_rate: float | None

    def shards(self, at: Where, steps: int) -> Sequence[Shard]:
        """The shards that rank ``at.rank``, with ``steps`` steps in this epoch, saves after this step."""
        due = self.schedule.due(at.epoch, at.step, steps)
        if not due:
            return ()
        numbers = self.writers.of_rank(at.rank, self.topology)
        return tuple(self._shard(one, number) for one in due for number in numbers)

    def _shard(self, due: int, writer: int) -> Shard:
        epoch, step = self.schedule.step(due)
        path = f"{checkpoint_folder(epoch, step)}/{self.writers.file_name(writer)}"
        return Shard(path, self.sizes[writer], self.request_bytes, self.fsync, writer)
