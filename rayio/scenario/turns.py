"""The turns of workers that own files (``loader.assignment: by_file``): whose batch each step of a rank is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

BY_FILE = "by_file"
#: Shuffles of ``by_file``: files in order, files shuffled, and samples shuffled within a worker's stream too.
SHUFFLES = ("none", "file", "buffer")


class Turns(NamedTuple):
    """The steps of a rank whose workers each own files: they take turns, and one whose files are read is skipped.

    Workers differ by at most one file, so the first ``more`` of them have ``last`` batches and the others ``first``.
    With ``loader.drop_last: false`` the last batch of a worker may be smaller, as with PyTorch's IterableDataset.
    """

    workers: int
    #: Files of each worker, and the number of workers with one more.
    files: int
    more: int
    #: Batches of a worker, and of one with one more file.
    first: int
    last: int
    #: Samples of a file and of a batch.
    samples_per_file: int
    batch_size: int

    @classmethod
    def of(
        cls, num_files: int, workers: int, samples_per_file: int, batch_size: int, *, drop_last: bool = True
    ) -> Turns:
        """Return the turns of a rank with ``num_files`` files."""
        files, more = divmod(num_files, workers)
        samples = np.array([files, files + 1]) * samples_per_file
        first, last = (samples // batch_size if drop_last else -(-samples // batch_size)).tolist()
        return cls(workers, files, more, first, last, samples_per_file, batch_size)

    @property
    def even(self) -> int:
        """Steps until a worker has no batch left."""
        return self.workers * self.first

    @property
    def steps(self) -> int:
        """Steps of the rank."""
        return self.even + self.more * (self.last - self.first)

    @property
    def idle(self) -> int:
        """Workers without a file."""
        return self.workers - self.more if self.files == 0 else 0

    def worker(self, step: int) -> int:
        """Return the worker that reads a step."""
        return step % self.workers if step < self.even else (step - self.even) % self.more

    def batch(self, step: int) -> int:
        """Return the number of that batch among the worker's."""
        return step // self.workers if step < self.even else self.first + (step - self.even) // self.more

    def size(self, step: int) -> int:
        """Return the samples of a step."""
        left = self.files_of(self.worker(step)) * self.samples_per_file - self.batch(step) * self.batch_size
        return min(self.batch_size, left)

    @property
    def short(self) -> list[int]:
        """Return the steps with fewer samples than others: last batches of workers."""
        last = range(self.even + max(0, self.steps - self.even - self.more), self.steps)
        steps = [*range(max(0, self.even - self.workers), self.even), *last]
        return [step for step in steps if self.size(step) < self.batch_size]

    def samples(self, steps: int) -> int:
        """Return the samples of the first steps."""
        return steps * self.batch_size - sum(self.batch_size - self.size(step) for step in self.short if step < steps)

    def files_of(self, worker: int) -> int:
        """Return the number of a worker's files."""
        return self.files + (worker < self.more)
