"""HDF5 files whose samples differ in size: ``x`` has their bytes, ``offsets`` the beginning of each.

So do sparse data lie in files, such as larcv's lists of pixels. ``offsets`` has one more number than there are samples.
A reader looks a run of samples up in it, and then reads their bytes. All descriptions lie at the file's start, then
the offsets, the labels ``y`` and the samples.
"""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.hdf5_description import description_of_ragged
from rayio.data.formats.hdf5_several import DATASET_BYTES, FILE_BYTES, RunReads
from rayio.data.formats.places import OFFSET, edges_of, starts_of
from rayio.data.formats.reads import Runs
from rayio.data.formats.sample import LABEL, fill
from rayio.data.layout import Batch, Layout
from rayio.storage.stores.counted import WINDOW_BYTES

#: Bytes of the descriptions of offsets, labels and samples.
HEAD_BYTES = FILE_BYTES + 3 * DATASET_BYTES


def is_ragged(layout: Layout) -> bool:
    """Return True if samples of a file differ in size."""
    return layout.sizes == "per_sample"


def samples_at(layout: Layout) -> int:
    """Return the offset of the first sample in a file."""
    return HEAD_BYTES + (layout.samples_per_file + 1) * OFFSET + layout.samples_per_file * LABEL


def file_bytes(form: Any, layout: Layout, files: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of files."""
    last = np.full_like(files, layout.samples_per_file)
    return samples_at(layout) + starts_of(form, layout, files, last)


def write(form: Any, file: BinaryIO, layout: Layout, whole: Batch) -> None:
    """Write a file."""
    offsets = edges_of(form, layout, int(whole.files[0]))
    file.write(description_of_ragged(int(offsets[-1]), len(whole.samples)))
    file.write(offsets.astype("<i8").data)
    file.write(whole.samples.astype("<i8").data)
    space = np.empty(int(whole.nbytes.max()), np.uint8)
    for sample, nbytes in zip(whole.samples.tolist(), whole.nbytes.tolist(), strict=True):
        fill(space[:nbytes], layout.seed, sample, layout.compressibility)
        file.write(space[:nbytes].data)


def reads(form: Any, layout: Layout, batch: Batch) -> RunReads:
    """Return the reads of a batch that is not empty: of each run of samples their offsets, then their bytes."""
    runs = Runs.of(batch)
    first = runs.order[runs.starts]
    rows, files, index = np.diff(runs.starts, append=len(runs.order)), batch.files[first], batch.index[first]
    nbytes, offsets = (np.zeros((len(first), 3), np.int64) for _ in range(2))
    nbytes[:, 0] = np.where(runs.is_first, np.minimum(form.file_bytes(layout, files), WINDOW_BYTES), 0)
    nbytes[:, 1], offsets[:, 1] = (rows + 1) * OFFSET, HEAD_BYTES + index * OFFSET
    nbytes[:, 2] = np.add.reduceat(batch.nbytes[runs.order], runs.starts)
    offsets[:, 2] = samples_at(layout) + starts_of(form, layout, files, index)
    made = nbytes > 0
    return RunReads(np.repeat(files, made.sum(axis=1)), offsets[made], nbytes[made], runs.is_first)
