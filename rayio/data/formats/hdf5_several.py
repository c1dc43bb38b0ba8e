"""HDF5 files with several datasets: samples ``x``, labels ``y`` and weights ``z1``, ``z2`` ..., read for each sample.

So read HEPCNN and others that keep what belongs to a sample in datasets of the same rows. All descriptions lie at the
file's start, then the data of one dataset after the other; ``x`` may be in chunks. Labels and weights are ids of
samples, int64.
"""

from __future__ import annotations

from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.chunks import Hdf5Options, chunk_of, chunk_shape
from rayio.data.formats.hdf5_description import description_of_chunks, description_of_several
from rayio.data.formats.reads import Runs
from rayio.data.formats.sample import LABEL, fill
from rayio.data.layout import Batch, Layout, Paths
from rayio.storage.stores.counted import WINDOW_BYTES

#: Bytes of the description of a file, and of each dataset in it.
FILE_BYTES, DATASET_BYTES = 179, 268


def datasets_of(layout: Layout) -> list[bytes]:
    """Return the names of the datasets that are read for each sample."""
    number = layout.options.datasets if isinstance(layout.options, Hdf5Options) else 1
    return [b"x", b"y", *(b"z%d" % place for place in range(1, number - 1))][:number]


def head_bytes(layout: Layout) -> int:
    """Return the bytes of a file before ``x``: the description of the file, and of each dataset."""
    return FILE_BYTES + DATASET_BYTES * len(datasets_of(layout))


class RunReads(NamedTuple):
    """The reads of a batch, in order: of each file its description, and of each run of rows a read of each dataset."""

    files: NDArray[np.int64]
    offsets: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    #: By run: True for the first of a file.
    is_first: NDArray[np.bool_]

    def places(self, layout: Layout) -> tuple[Paths, NDArray[np.int64], NDArray[np.int64]]:
        """Return the files of the requests, in order, and their offsets."""
        files, file = np.unique(self.files, return_inverse=True)
        return layout.paths(files), file, self.offsets


class Several(NamedTuple):
    """A file with more than one dataset that is read for each sample."""

    names: tuple[bytes, ...]

    @classmethod
    def of(cls, layout: Layout) -> Self | None:
        """Return the datasets of a layout; None for samples alone."""
        names = datasets_of(layout)
        return cls(tuple(names)) if len(names) > 1 else None

    def file_bytes(self, layout: Layout, nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of files with samples of ``nbytes``."""
        rows, columns = chunk_shape(layout, nbytes)
        x = -(-layout.samples_per_file // rows) * rows * -(-nbytes // columns) * columns
        sizes: NDArray[np.int64] = head_bytes(layout) + x + layout.samples_per_file * LABEL * (len(self.names) - 1)
        return sizes

    def write(self, file: BinaryIO, layout: Layout, whole: Batch) -> None:
        """Write a file."""
        shape = num_rows, row_bytes = len(whole.samples), int(whole.nbytes[0])
        rows, columns = (int(edge[0]) for edge in chunk_shape(layout, whole.nbytes[:1]))
        others = self.names[1:]
        if chunk_of(layout) is None:
            file.write(description_of_several(shape, others))
        else:
            file.write(description_of_chunks(shape, (rows, columns), others))
        row = np.zeros(-(-row_bytes // columns) * columns, np.uint8)
        for sample in whole.samples.tolist():
            fill(row[:row_bytes], layout.seed, sample, layout.compressibility)
            file.write(row.data)
        for _ in range(-num_rows % rows):
            file.write(bytes(len(row)))
        for _ in others:
            file.write(whole.samples.astype("<i8").data)

    def reads(self, form: Any, layout: Layout, batch: Batch) -> RunReads:
        """Return the reads of a batch that is not empty."""
        runs = Runs.of(batch)
        first = runs.order[runs.starts]
        rows, each = np.diff(runs.starts, append=len(runs.order)), batch.nbytes[first]
        number, others = layout.samples_per_file, len(self.names) - 1
        files, index = batch.files[first], batch.index[first]
        nbytes, offsets = (np.zeros((len(first), others + 2), np.int64) for _ in range(2))
        nbytes[:, 0] = np.where(runs.is_first, np.minimum(form.file_bytes(layout, files), WINDOW_BYTES), 0)
        head = head_bytes(layout)
        nbytes[:, 1], offsets[:, 1] = rows * each, head + index * each
        for place in range(others):
            nbytes[:, place + 2] = rows * LABEL
            offsets[:, place + 2] = head + number * (each + LABEL * place) + index * LABEL
        made = nbytes > 0
        return RunReads(np.repeat(files, made.sum(axis=1)), offsets[made], nbytes[made], runs.is_first)
