"""Layout: a dataset as files of equal sample counts, described by a handful of numbers and never listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, overload

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.errors import DataError
from rayio.scenario import derive
from rayio.scenario.derive import MAX_SAMPLE_BYTES
from rayio.schema.choice import NO_OPTIONS
from rayio.schema.fields import Section
from rayio.seeds import Draws
from rayio.storage.listing import Listing

#: Files in one folder by default; a directory of a million entries is slow on every file system.
FILES_PER_FOLDER = 1000
#: Files whose numbers differ only in the last three digits.
THOUSAND = 1000


class SampleBytes(Draws, Protocol):
    """A distribution of sample sizes in bytes, with one draw for each file."""

    @property
    def expected(self) -> float:
        """Mean size in bytes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of one step of one rank, in order of delivery: arrays of equal length, one entry a sample.

    The arrays may be views of a shared block: treat them as read-only.
    """

    epoch: int
    rank: int
    step: int
    #: Sample ids, 0 to ``num_samples - 1``.
    samples: NDArray[np.int64]
    #: Number of the file that holds each sample, and the sample's place in it.
    files: NDArray[np.int64]
    index: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    #: The stream with a shuffle buffer that these samples leave; None without one.
    upcoming: Upcoming | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes of all samples: the length of the buffer that a format fills."""
        return int(self.nbytes.sum())


@dataclass(frozen=True, slots=True)
class Upcoming:
    """The stream of a worker with a shuffle buffer, and where a batch is in it."""

    #: Epoch, rank and worker.
    of: tuple[int, int, int]
    #: Place of the batch's first sample among those that leave the buffer, samples of the buffer and of the stream.
    first: int
    buffer: int
    length: int
    #: Returns the samples at places of the stream, in the order of its files.
    samples: Callable[[int, int], Batch]


@dataclass(frozen=True, slots=True)
class Layout:
    """A dataset of ``num_files`` files with ``samples_per_file`` samples each.

    Sizes are drawn at the address ``(seed, "sample_bytes")``, one for all samples of a file, or one for each sample:
    nothing is stored per file.

    Raises:
        DataError: a count is not positive.
    """

    num_files: int
    samples_per_file: int
    sample_bytes: SampleBytes
    seed: int
    extension: str = ".npz"
    options: Section = NO_OPTIONS
    #: Factor by which zlib shrinks the bytes of samples.
    compressibility: float = 1.0
    files_per_folder: int = FILES_PER_FOLDER
    #: "per_file", or "per_sample".
    sizes: str = "per_file"
    #: True if another program wrote the files; then those that were listed, unless they are not on this machine.
    is_external: bool = False
    listing: Listing | None = None

    def __post_init__(self) -> None:
        for name in ("num_files", "samples_per_file"):
            if getattr(self, name) < 1:
                raise DataError(f"dataset.{name} must be at least 1, not {getattr(self, name)}")

    @property
    def num_samples(self) -> int:
        """Samples in all files."""
        return self.num_files * self.samples_per_file

    def path(self, file: int) -> str:
        """Return a file's path relative to the dataset's folder, with forward slashes."""
        if self.listing is not None:
            return self.listing.names[file]
        return f"{file // self.files_per_folder:06d}/{file:09d}{self.extension}"

    def names_of(self, files: list[int]) -> list[str]:
        """Return the paths of some files."""
        if self.listing is not None:
            return [self.listing.names[file] for file in files]
        number, extension, endings = self.files_per_folder, self.extension, _endings()
        if number % THOUSAND:
            return ["%06d/%09d%s" % (file // number, file, extension) for file in files]  # noqa: UP031 (a third faster)
        return [f"{_beginning(file // THOUSAND, number)}{endings[file % THOUSAND]}{extension}" for file in files]

    def paths(self, files: NDArray[np.int64]) -> Paths:
        """Return the paths of files, each computed when it is needed."""
        return Paths(self, files)

    def sample_bytes_of(self, files: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of every sample in each of ``files`` (any shape), in O(len).

        With sizes per sample the numbers are those of samples.

        Draws are rounded to whole bytes, at least 16: the id and the checksum of a sample. Encoded samples need more.

        Raises:
            DataError: the distribution draws a size that no file can have.
        """
        drawn = self.sample_bytes.draw(seeds.key(self.seed, "sample_bytes"), files)
        if drawn.size and not drawn.max() <= MAX_SAMPLE_BYTES:
            raise DataError(f"dataset.sample_bytes draws a sample of {drawn.max():g} bytes; check its parameters")
        return np.maximum(np.rint(drawn).astype(np.int64), derive.least_sample_bytes(self.options))

    def sizes_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the stored bytes of each of ``samples`` (any shape)."""
        if self.listing is not None:
            return self._listed_bytes_of(samples, self.listing)
        return self.sample_bytes_of(samples if self.sizes == "per_sample" else samples // self.samples_per_file)

    def delivered_bytes_of(self, samples: NDArray[np.int64], files: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes read and delivered of each of ``samples``, which lie in ``files``."""
        if self.listing is not None:
            return self._listed_bytes_of(samples, self.listing)
        return self.read_bytes_of(samples if self.sizes == "per_sample" else files)

    def _listed_bytes_of(self, samples: NDArray[np.int64], listing: Listing) -> NDArray[np.int64]:
        """Return the bytes of samples that are even parts of their files."""
        files, index = self.locate(samples)
        sizes, number = listing.sizes[files], self.samples_per_file
        parts: NDArray[np.int64] = (index + 1) * sizes // number - index * sizes // number
        return parts

    def read_bytes_of(self, files: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes read and delivered of every sample in each of ``files``: fewer if columns are left out."""
        sizes: NDArray[np.int64] = derive.read_bytes(self.options, self.sample_bytes_of(files))
        return sizes

    @property
    def stored(self) -> Layout:
        """The layout of the stored files: the same dataset without options that affect only reading."""
        reading = self.options.reading
        if not reading & self.options.model_fields_set:
            return self
        left = {key: getattr(self.options, key) for key in self.options.model_fields_set - reading}
        return replace(self, options=type(self.options)(**left))

    def locate(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return each sample's file and its index in that file (both of the shape of ``samples``)."""
        if self.samples_per_file == 1:
            return samples, np.zeros_like(samples)
        files = samples // self.samples_per_file
        return files, samples - files * self.samples_per_file

    def whole_file(self, file: int, first: int = 0, last: int | None = None) -> Batch:
        """Return a batch of a file's samples from ``first`` to ``last`` (exclusive), to verify or copy them."""
        index = np.arange(first, self.samples_per_file if last is None else last, dtype=np.int64)
        files = np.full_like(index, file)
        samples = index + file * self.samples_per_file
        return Batch(-1, -1, -1, samples, files, index, self.delivered_bytes_of(samples, files))


@lru_cache(maxsize=1 << 14)
def _beginning(thousand: int, files_per_folder: int) -> str:
    """Return the path of the files of a thousand up to their last three digits; a folder has whole thousands."""
    return f"{thousand * THOUSAND // files_per_folder:06d}/{thousand:06d}"


@lru_cache(maxsize=1)
def _endings() -> list[str]:
    """Return numbers of three digits: looking one up takes a quarter of formatting it."""
    return [f"{number:03d}" for number in range(THOUSAND)]


class Paths(Sequence[str]):
    """A list of the paths of files, each computed when it is needed: a text costs more than all else of a request."""

    def __init__(self, layout: Layout, numbers: NDArray[np.int64]) -> None:
        self.layout = layout
        #: The number of each file in the dataset.
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [*map(self.layout.path, self.numbers[place].tolist())]
        return self.layout.path(int(self.numbers[place]))

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.names_of(self.numbers.tolist()))
