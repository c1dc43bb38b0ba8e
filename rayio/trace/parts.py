"""Spans on their way into a run directory, buffered until they fill a file."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from rayio.errors import StorageError
from rayio.trace.run_directory import RunDirectory

if TYPE_CHECKING:
    import pyarrow as pa

#: Spans buffered for one file.
PART_ROWS = 1 << 18
#: Seconds after which fewer spans are written too: a killed run loses no more. The first pauses are shorter.
FIRST_SECONDS, PART_SECONDS = 1.0, 10.0


class Parts:
    """A writer of ``spans/part-00000.parquet`` and so on; no span is dropped."""

    def __init__(self, directory: RunDirectory, rows: int = PART_ROWS, stem: str = "part") -> None:
        self.directory = directory
        self.rows = rows
        self.stem = stem
        #: Spans received so far, written or not.
        self.stored = 0
        self._tables: list[pa.Table] = []
        self._buffered = self._files = 0
        self._written_at, self._pause = time.monotonic(), FIRST_SECONDS

    def keep(self, table: pa.Table | None) -> None:
        """Add spans; write a file if there are enough."""
        if table is None:
            return
        self._tables.append(table)
        self._buffered += len(table)
        self.stored += len(table)
        if self._buffered >= self.rows or time.monotonic() - self._written_at > self._pause:
            self.write()

    def write(self, *, is_last: bool = False) -> None:
        """Write the buffered spans; all received spans are on disk on return.

        If they are all spans of the run, the file is written compacted, so that it is not read again.

        Raises:
            StorageError: not written; the spans stay buffered.
        """
        self._written_at = time.monotonic()
        if (table := self.held()) is not None:
            if is_last and not self._files:
                self.directory.write_compacted(table)
            else:
                self.directory.write_spans(table, f"{self.stem}-{self._files:05d}")
            self._files += 1
            self._pause = min(2 * self._pause, PART_SECONDS)
            self._tables, self._buffered = [], 0

    def held(self) -> pa.Table | None:
        """Return the unwritten spans, or None."""
        import pyarrow as pa

        return pa.concat_tables(self._tables) if self._tables else None


def write_what_fits(directory: RunDirectory, table: pa.Table, rows: int = 1 << 12) -> None:
    """Write as many spans as there is space for, in one file or several."""
    for size in (len(table), rows):
        with contextlib.suppress(StorageError):
            for first in range(0, len(table), max(size, 1)):
                directory.write_spans(table.slice(first, size), "part-00000")
            return
