"""The streams of workers that own files: which sample is next, by file, interleaved and shuffled in a buffer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.data.layout import Batch, Layout, Upcoming
from rayio.data.partition import PARTITIONS
from rayio.data.shuffle import SHUFFLES, Sizes
from rayio.scenario.turns import Turns


@dataclass(frozen=True)
class Streams:
    """The files of each rank's workers, in order.

    An epoch's order of files is divided among ranks by the partition, and a rank's files are dealt to its workers in
    turn. A worker reads ``interleave`` files at once, a sample of each in turn; then the next ones.
    """

    num_files: int
    samples_per_file: int
    batch_size: int
    world_size: int
    partition: str
    shuffle: str
    sizes: Sizes
    seed: int
    workers: int
    interleave: int = 1
    drop_last: bool = True

    def turns(self, rank: int) -> Turns:
        """Return whose batch each step of a rank is."""
        return self._turns_of(PARTITIONS[self.partition].share(self.num_files, self.world_size, rank))

    def _turns_of(self, files: int) -> Turns:
        return Turns.of(files, self.workers, self.samples_per_file, self.batch_size, drop_last=self.drop_last)

    def steps(self) -> tuple[int, int]:
        """Return the fewest and most steps of a rank."""
        steps = [self.turns(rank).steps for rank in (0, self.world_size - 1)]
        return min(steps), max(steps)

    def samples(self, epoch: int, rank: int, first: int, number: int) -> NDArray[np.int64]:
        """Return the samples of consecutive steps of a rank, a row each; one that is smaller comes alone."""
        turns = self.turns(rank)
        size = turns.size(first) if number == 1 else self.batch_size
        rows = np.empty((number, size), np.int64)
        steps = range(first, first + number)
        worker = np.array([turns.worker(step) for step in steps])
        begins = np.array([turns.batch(step) for step in steps]) * self.batch_size
        for each in np.unique(worker).tolist():
            mine = worker == each
            places = begins[mine, np.newaxis] + np.arange(size, dtype=np.int64)
            rows[mine] = self.stream(epoch, rank, each, self._shuffled(epoch, rank, each, places))
        return rows

    def _shuffled(self, epoch: int, rank: int, worker: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place in the stream of the samples at these places of the delivery."""
        if self.shuffle != "buffer":
            return places
        number = self.turns(rank).files_of(worker) * self.samples_per_file
        dealt = 0 if PARTITIONS[self.partition].shared else rank  # ranks that read all read it in one order
        return SHUFFLES["buffer"](number, seeds.key(self.seed, "stream", epoch, dealt, worker), places, self.sizes)

    def stream(self, epoch: int, rank: int, worker: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples at places of a worker's stream."""
        per_file = self.samples_per_file
        many = self.turns(rank).files_of(worker)
        group = places // (per_file * self.interleave)
        within = places - group * per_file * self.interleave
        together = np.minimum(self.interleave, many - group * self.interleave)
        number = group * self.interleave + within % together
        files = self._order(epoch)[self._positions(rank)[worker :: self.workers][number]]
        return files * per_file + within // together

    def upcoming(self, layout: Layout, epoch: int, rank: int, step: int) -> Upcoming | None:
        """Return the stream with a shuffle buffer of which a step is a part; None without one."""
        if self.shuffle != "buffer":
            return None
        turns = self.turns(rank)
        worker = turns.worker(step)
        length = turns.files_of(worker) * self.samples_per_file

        def samples(begin: int, end: int) -> Batch:
            ids = self.stream(epoch, rank, worker, np.arange(begin, end, dtype=np.int64))
            files, index = layout.locate(ids)
            return Batch(epoch, rank, step, ids, files, index, layout.delivered_bytes_of(ids, files))

        buffer = min(self.buffer, length)
        return Upcoming((epoch, rank, worker), turns.batch(step) * self.batch_size, buffer, length, samples)

    @property
    def buffer(self) -> int:
        """Samples of a worker's shuffle buffer."""
        return getattr(self.sizes.options, "shuffle_buffer", None) or 1

    def _positions(self, rank: int) -> NDArray[np.int64]:
        share, positions, _ = PARTITIONS[self.partition]
        local = np.arange(share(self.num_files, self.world_size, rank), dtype=np.int64)
        return positions(self.num_files, self.world_size, rank, local)

    def _order(self, epoch: int) -> NDArray[np.int64]:
        return _order(self.num_files, self.seed, epoch, self.shuffle != "none")


@lru_cache(maxsize=4)
def _order(num_files: int, seed: int, epoch: int, is_shuffled: bool) -> NDArray[np.int64]:
    """Return an epoch's order of files."""
    positions = np.arange(num_files, dtype=np.int64)
    key = seeds.key(seed, "shuffle", epoch)
    return SHUFFLES["global" if is_shuffled else "none"](num_files, key, positions, Sizes())
