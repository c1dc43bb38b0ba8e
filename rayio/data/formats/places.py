"""Places of samples in files whose samples differ in size: sums over the samples before, kept for the latest files."""

from __future__ import annotations

import threading
from functools import lru_cache
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.sample import Place
from rayio.data.layout import Layout

#: Files whose places are kept; more if they have fewer records together (32 MiB of offsets).
KEPT_FILES = 32
KEPT_RECORDS = 1 << 22
#: Records whose sizes are computed at once.
TOGETHER = 1 << 14
#: Bytes of an offset in a file.
OFFSET = 8


class Sized(Protocol):
    """A format of records that may differ in size."""

    def __hash__(self) -> int:
        """Formats are keys of caches."""

    def record_sizes(self, layout: Layout, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of the records of ``samples``."""


class _Edges:
    """A table of the offsets in the latest files: a row for each, with the start of each record and the last end."""

    def __init__(self, form: Sized, layout: Layout) -> None:
        self._form, self._layout, width = form, layout, layout.samples_per_file + 1
        self._most = min(layout.num_files, max(KEPT_FILES, KEPT_RECORDS // width))
        self._table = np.zeros((self._most, width), np.int64)
        #: The row of each kept file, the oldest first.
        self._rows: dict[int, int] = {}
        self._lock = threading.Lock()

    def at(self, files: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the offset of record ``index`` of each file."""
        numbers, file = np.unique(files, return_inverse=True)
        starts = np.empty_like(index)
        with self._lock:
            for first in range(0, len(numbers), self._most):
                rows = self._fill(numbers[first : first + self._most].tolist())
                chosen = (file >= first) & (file < first + self._most)
                starts[chosen] = self._table[rows[file[chosen] - first], index[chosen]]
        return starts

    def of(self, number: int) -> NDArray[np.int64]:
        """Return the offsets of a file."""
        with self._lock:
            offsets: NDArray[np.int64] = self._table[self._fill([number])[0]].copy()
        return offsets

    def _fill(self, numbers: list[int]) -> NDArray[np.int64]:
        """Return the rows of some files, no more than are kept; the oldest others make room."""
        rows = self._rows
        if missing := [number for number in numbers if number not in rows]:
            together = max(1, TOGETHER // self._layout.samples_per_file)
            sums = [self._sums(missing[first : first + together]) for first in range(0, len(missing), together)]
            free = [*range(len(rows), min(self._most, len(rows) + len(missing)))]
            wanted = {*numbers}
            oldest = islice((old for old in rows if old not in wanted), len(missing) - len(free))
            free.extend(rows.pop(old) for old in [*oldest])
            self._table[free, 1:] = np.concatenate(sums)
            rows.update(zip(missing, free, strict=True))
        return np.array([rows[number] for number in numbers])

    def _sums(self, files: list[int]) -> NDArray[np.int64]:
        number = self._layout.samples_per_file
        samples = np.array(files)[:, np.newaxis] * number + np.arange(number)
        return np.cumsum(self._form.record_sizes(self._layout, samples), axis=1)


@lru_cache(maxsize=2)
def _edges(form: Sized, layout: Layout) -> _Edges:
    """Return the offsets of a dataset's records: of training, or of evaluation."""
    return _Edges(form, layout)


def edges_of(form: Sized, layout: Layout, number: int) -> NDArray[np.int64]:
    """Return the offset of each record from the first one of file ``number``, and the end of the last."""
    return _edges(form, layout).of(number)


def starts_of(form: Sized, layout: Layout, files: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the offset of record ``index`` of each file from the file's first one; ``index`` may be the end."""
    if layout.samples_per_file == 1:
        sizes: NDArray[np.int64] = index * form.record_sizes(layout, files)
        return sizes
    return _edges(form, layout).at(files, index)


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
