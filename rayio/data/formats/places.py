"""Places of samples in files whose samples differ in size: sums over the samples before, kept for the latest files."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.sample import Place
from rayio.data.layout import Layout

#: Files whose places are kept.
KEPT_FILES = 32
#: Bytes of an offset in a file.
OFFSET = 8


class Sized(Protocol):
    """A format of records that may differ in size."""

    def __hash__(self) -> int:
        """Formats are keys of caches."""

    def record_sizes(self, layout: Layout, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of the records of ``samples``."""


@lru_cache(maxsize=KEPT_FILES)
def edges_of(form: Sized, layout: Layout, number: int) -> NDArray[np.int64]:
    """Return the offset of each record from the first one of file ``number``, and the end of the last."""
    samples = np.arange(layout.samples_per_file, dtype=np.int64) + number * layout.samples_per_file
    edges = np.zeros(len(samples) + 1, np.int64)
    np.cumsum(form.record_sizes(layout, samples), out=edges[1:])
    return edges


def starts_of(form: Sized, layout: Layout, files: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the offset of record ``index`` of each file from the file's first one; ``index`` may be the end."""
    if layout.samples_per_file == 1:
        sizes: NDArray[np.int64] = index * form.record_sizes(layout, files)
        return sizes
    starts = np.empty_like(index)
    numbers, file = np.unique(files, return_inverse=True)
    for place, number in enumerate(numbers.tolist()):
        chosen = file == place
        starts[chosen] = edges_of(form, layout, number)[index[chosen]]
    return starts


def check_offsets(offsets: NDArray[np.int64], expected: NDArray[np.int64], first: Place, begins: int) -> None:
    """Compare the offsets of a run of samples, which begin at byte ``begins`` of the file.

    Raises:
        DataError: names the first sample whose offset is another.
    """
    if wrong := np.flatnonzero(offsets != expected).tolist():
        row = max(0, wrong[0] - (wrong[0] == len(expected) - 1))
        raise Place(first.path, first.sample + row, first.row + row).error(
            f"expected offset {expected[wrong[0]]} at byte {begins + wrong[0] * OFFSET}, found {offsets[wrong[0]]}: "
            "the file is corrupted or of another dataset; delete it and generate it again"
        )
