"""Checkpoints: when they are due, which rank saves which part, and its bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rayio.model.env import COMPLETER, Shard
from rayio.model.manifest import Identity, Manifest, Restored
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
    identity: Identity
    #: The checkpoint that the run begins with, on modelled storage a placeholder; None without one.
    restored: Restored | None = None
    #: True if the run may replace checkpoints: then their manifests are removed first.
    is_replacing: bool = False

    def shards(self, at: Where, steps: int) -> Sequence[Shard]:
        """Return the shards that rank ``at.rank``, with ``steps`` steps in this epoch, saves after this step."""
        due = self.schedule.due(at.epoch, at.step, steps)
        if not due:
            return ()
        numbers = self.writers.of_rank(at.rank, self.topology)
        return tuple(self._shard(number_due, number) for number_due in due for number in numbers)

    def _shard(self, due: int, writer: int) -> Shard:
        return self._shard_in(checkpoint_folder(*self.schedule.step(due)), writer)

    def _shard_in(self, folder: str, writer: int) -> Shard:
        path = f"{folder}/{self.writers.file_name(writer)}"
        return Shard(path, self.sizes[writer], self.request_bytes, self.fsync, writer)

    def writers_of(self, ranks: Iterable[int]) -> Sequence[int]:
        """Return the numbers of the writers of some ranks' shards, and of the one that completes checkpoints."""
        writers = {writer for rank in ranks for writer in self.writers.of_rank(rank, self.topology)}
        return sorted(writers | {COMPLETER}) if writers else ()

    @property
    def files(self) -> dict[str, int]:
        """The names of the files of one checkpoint, with their bytes."""
        shards = (self._shard_in("", writer) for writer in range(len(self.sizes)))
        return {shard.path.removeprefix("/"): shard.num_bytes for shard in shards}

    def restored_shards(self, restored: Restored, rank: int) -> Sequence[Shard]:
        """Return the shards of a checkpoint that a rank reads: those that it would save."""
        numbers = self.writers.of_rank(rank, self.topology)
        shards = (self._shard_in(restored.folder, number) for number in numbers)
        return tuple(shard._replace(period=restored.request_bytes) for shard in shards)

    def manifest(self, place: tuple[int, int], run: str, attempt: int, now: int) -> Manifest:
        """Return the manifest of the checkpoint after a step, given as (epoch, step), at the time ``now`` (ns)."""
        of = self.identity
        return Manifest(
            run=run, attempt=attempt, epoch=place[0], step=place[1], saved_ns=now, scenario=of.scenario,
            model=of.model, layout=of.layout, request_bytes=self.request_bytes, files=self.files,
        )  # fmt: skip
