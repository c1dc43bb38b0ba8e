"""The turns of workers that own files (``loader.assignment: by_file``): whose batch each step of a rank is."""

from __future__ import annotations

from typing import NamedTuple

BY_FILE = "by_file"
#: Shuffles of ``by_file``: files in order, files shuffled, and samples shuffled within a worker's stream too.
SHUFFLES = ("none", "file", "buffer")


class Turns(NamedTuple):
    """The steps of a rank whose workers each own files: they take turns, and one whose files are read is skipped.

    Workers differ by at most one file, so the first ``more`` of them have ``last`` batches and the others ``first``.
    """

    workers: int
    #: Files of each worker, and the number of workers with one more.
    files: int
    more: int
    #: Whole batches of a worker, and of one with one more file.
    first: int
    last: int

    @classmethod
    def of(cls, num_files: int, workers: int, samples_per_file: int, batch_size: int) -> Turns:
        """Return the turns of a rank with ``num_files`` files."""
        files, more = divmod(num_files, workers)
        batches = (files * samples_per_file // batch_size, (files + 1) * samples_per_file // batch_size)
        return cls(workers, files, more, *batches)

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

    def files_of(self, worker: int) -> int:
        """Return the number of a worker's files."""
        return self.files + (worker < self.more)
