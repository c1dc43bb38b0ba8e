"""Checkpoints: when they are due, which rank saves which part, and its bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rayio.model.env import Shard
from rayio.model.schedule import Schedule
from rayio.place import Where, checkpoint_folder
from rayio.scenario.state import State
from rayio.scenario.topology import Topology
from rayio.scenario.writers import Writers


@dataclass(frozen=True)
class Checkpointing:
    """The checkpoints of a run, computable by any rank. The kind of writers assigns the shards."""

    #: Folder of the checkpoints, relative to the run's root.
    path: str
    state: State
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
        return tuple(shard for number_due in due for number in numbers for shard in self._shards(number_due, number))

    def _shards(self, due: int, writer: int) -> Iterator[Shard]:
        epoch, step = self.schedule.step(due)
        for part in self.writers.files(writer, self.state, self.topology):
            path = f"{checkpoint_folder(epoch, step)}/{part.name}"
            yield Shard(path, part.num_bytes, self.request_bytes, self.fsync, writer)

    @property
    def largest(self) -> tuple[int, int, int]:
        """Bytes, requests and files of the writer with the most bytes."""
        writer = max(range(len(self.sizes)), key=self.sizes.__getitem__)
        files = self.writers.files(writer, self.state, self.topology)
        return self.sizes[writer], sum(-(-part.num_bytes // self.request_bytes) for part in files), len(files)
