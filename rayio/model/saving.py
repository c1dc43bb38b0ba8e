"""Checkpoints: when they are due, which rank saves which part, and its bytes."""

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
    """The checkpoints of a run, computable by any rank. The kind of writers assigns the shards."""

    #: Folder of the checkpoints, relative to the run's root.
    path: str
    writers: Writers
    topology: Topology
    #: Bytes of each writer, by number.
    sizes: tuple[int, ...]
    schedule: Schedule
    request_bytes: int
    fsync: bool
    #: Bytes per second of the copy that is written in the background; None: training waits for the write.
    snapshot_rate: float | None

    def shards(self, at: Where, steps: int) -> Sequence[Shard]:
        """Return the shards that rank ``at.rank``, with ``steps`` steps in this epoch, saves after this step."""
        due = self.schedule.due(at.epoch, at.step, steps)
        if not due:
            return ()
        numbers = self.writers.of_rank(at.rank, self.topology)
        return tuple(self._shard(number_due, number) for number_due in due for number in numbers)

    def _shard(self, due: int, writer: int) -> Shard:
        epoch, step = self.schedule.step(due)
        path = f"{checkpoint_folder(epoch, step)}/{self.writers.file_name(writer)}"
        return Shard(path, self.sizes[writer], self.request_bytes, self.fsync, writer)
