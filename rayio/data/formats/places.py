"""Places of samples in files whose samples differ in size: sums over the samples before, kept for the latest files."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.sample import Place
from rayio.data.layout import Layout

#: Files of which every offset is kept.
KEPT_FILES = 32
#: Offsets that are kept of all files (32 MiB): of every record, or of one in so many.
KEPT_OFFSETS = 1 << 22
MOST_APART = 64
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


def _sums(form: Sized, layout: Layout, files: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the offset of each record from the first one of its file, and the end of the last: a row for each file."""
    number = layout.samples_per_file
    samples = files[:, np.newaxis] * number + np.arange(number)
    sums = np.zeros((len(files), number + 1), np.int64)
    np.cumsum(form.record_sizes(layout, samples), axis=1, out=sums[:, 1:])
    return sums


class _Offsets:
    """Offsets of records ``apart`` in the latest files, in a table with a row for each; sizes are added from there."""

    def __init__(self, form: Sized, layout: Layout) -> None:
        self._form, self._layout, number, self._apart = form, layout, layout.samples_per_file, 1
        while self._apart < min(MOST_APART, number) and layout.num_files * self._width > KEPT_OFFSETS:
            self._apart *= 2
        self._most = min(layout.num_files, max(KEPT_FILES, KEPT_OFFSETS // self._width))
        self._table = np.zeros((self._most, self._width), np.int64)
        #: The file of each row, whose number has the row as the remainder by the number of rows; -1 for none.
        self._files = np.full(self._most, -1, np.int64)
        self._lock = threading.Lock()

    @property
    def _width(self) -> int:
        return self._layout.samples_per_file // self._apart + 1

    def at(self, files: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the offset of record ``index`` of each file."""
        starts, column, turns = np.empty_like(index), index // self._apart, files // self._most
        has_all = self._most == self._layout.num_files
        with self._lock:
            for turn in (0,) if has_all else np.unique(turns).tolist():  # files of one turn have separate rows
                chosen = turns == turn
                rows = files[chosen] - turn * self._most
                self._fill(rows, turn)
                starts[chosen] = self._table[rows, column[chosen]]
        if self._apart > 1:
            back = np.arange(1, self._apart)
            is_between = back <= (index - column * self._apart)[:, np.newaxis]
            sizes = np.zeros(is_between.shape, np.int64)
            samples = (files * self._layout.samples_per_file + index)[:, np.newaxis] - back
            sizes[is_between] = self._form.record_sizes(self._layout, samples[is_between])
            starts += sizes.sum(axis=1)
        return starts

    def _fill(self, rows: NDArray[np.int64], turn: int) -> None:
        """Fill rows with the files of a turn, where they have others."""
        is_missing = self._files[rows] != rows + turn * self._most
        if not is_missing.any():
            return
        missing = np.unique(rows[is_missing])
        together = max(1, TOGETHER // self._layout.samples_per_file)
        for first in range(0, len(missing), together):
            some = missing[first : first + together]
            files = some + turn * self._most
            sums = _sums(self._form, self._layout, files)
            self._files[some] = -1
            self._table[some] = sums[:, :: self._apart]
            self._files[some] = files


@lru_cache(maxsize=2)
def _offsets(form: Sized, layout: Layout) -> _Offsets:
    """Return the offsets of a dataset's records: of training, or of evaluation."""
    return _Offsets(form, layout)


@lru_cache(maxsize=KEPT_FILES)
def edges_of(form: Sized, layout: Layout, number: int) -> NDArray[np.int64]:
    """Return the offset of each record from the first one of file ``number``, and the end of the last."""
    edges: NDArray[np.int64] = _sums(form, layout, np.array([number]))[0]
    return edges


def starts_of(form: Sized, layout: Layout, files: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the offset of record ``index`` of each file from the file's first one; ``index`` may be the end."""
    if layout.samples_per_file == 1:
        sizes: NDArray[np.int64] = index * form.record_sizes(layout, files)
        return sizes
    return _offsets(form, layout).at(files, index)


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
