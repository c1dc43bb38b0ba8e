"""A file without a name for arrays too large for memory; it ends with the process."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayio.errors import StorageError

#: Buffers per call to the kernel.
_MOST_BUFFERS = 512


class Unnamed:
    """Arrays in an unnamed file, one after the other.

    Raises:
        StorageError: no space for them.
    """

    def __init__(self) -> None:
        try:
            self._file = tempfile.TemporaryFile(prefix="rayio-spans-")  # noqa: SIM115 (closed with this)
        except OSError as error:
            raise _no_space(error) from None
        weakref.finalize(self, self._file.close)
        #: Bytes in the file.
        self.end = 0

    def append(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Append arrays."""
        views = deque(array.data.cast("B") for array in arrays if array.size)
        try:
            while views:
                written = os.pwritev(self._file.fileno(), [*islice(views, _MOST_BUFFERS)], self.end)
                self.end += written
                while views and written >= len(views[0]):
                    written -= len(views.popleft())
                if written:
                    views[0] = views[0][written:]
        except OSError as error:
            raise _no_space(error) from None

    def read(self, view: memoryview, offset: int) -> None:
        """Fill a buffer of bytes from an offset on."""
        done = 0
        while done < len(view):
            done += os.preadv(self._file.fileno(), [view[done:]], offset + done)

    def keep(self, columns: Sequence[NDArray[np.int64]]) -> Kept:
        """Append columns of one length; a column of equal numbers is kept as that number."""
        begin = -(-self.end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self.end = begin
        rows = len(columns[0]) if columns else 0
        alike = [int(column[0]) if rows and (column == column[0]).all() else None for column in columns]
        kept = [column for column, number in zip(columns, alike, strict=True) if number is None]
        self.append([np.ascontiguousarray(column) for column in kept])
        return Kept(self._file.fileno(), begin, alike, rows, self)


class Kept:
    """Integer columns in a file, mapped read-only on each call."""

    def __init__(self, file: int, begin: int, alike: list[int | None], rows: int, owner: Unnamed) -> None:
        self._file, self._begin, self._alike, self._rows, self._owner = file, begin, alike, rows, owner

    def columns(self) -> list[NDArray[np.int64]]:
        """Return all columns; unused ones are never read."""
        if not self._rows:
            return [np.empty(0, np.int64) for _ in self._alike]
        kept = iter(())
        if size := self._alike.count(None) * self._rows * 8:
            mapped = mmap.mmap(self._file, size, prot=mmap.PROT_READ, offset=self._begin)
            kept = iter(np.frombuffer(mapped, np.int64).reshape(-1, self._rows))
        return [
            next(kept) if number is None else np.broadcast_to(np.int64(number), self._rows) for number in self._alike
        ]


def _no_space(error: OSError) -> StorageError:
    where = f"cannot lay spans aside in {tempfile.gettempdir()}: {error.strerror}"
    return StorageError(f"{where}; make space there, or name another folder in TMPDIR")
