"""Spans on their way into a run directory: held until there are enough of them for a file."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from rayio.errors import StorageError
from rayio.trace.run_directory import RunDirectory

if TYPE_CHECKING:
    import pyarrow as pa

#: Spans that are held in memory before they are written as one file.
PART_ROWS = 1 << 18
#: Seconds after which they are written even when they are few: a run that is killed loses no more.
PART_SECONDS = 10.0


class Parts:
    """Writes ``spans/part-00000.parquet`` and so on; nothing kept is ever dropped."""

    def __init__(self, directory: RunDirectory, rows: int = PART_ROWS, stem: str = "part") -> None:
        self.directory = directory
        self.rows = rows
        self.stem = stem
        #: Spans kept so far, written or not.
        self.stored = 0
        self._tables: list[pa.Table] = []
        self._held = self._files = 0
        self._written_at = time.monotonic()

    def keep(self, table: pa.Table | None) -> None:
        """Take some spans; write a file when there are enough."""
        if table is None:
            return
        self._tables.append(table)
        self._held += len(table)
        self.stored += len(table)
        if self._held >= self.rows or time.monotonic() - self._written_at > PART_SECONDS:
            self.write()

    def write(self, *, is_last: bool = False) -> None:
        """Write what is held; everything kept is on disk when this returns.

        Where that is all there ever was, it goes into a file as compaction makes them: it is written once, and not
        read again.

        Raises:
            StorageError: it could not be written, and is held still.
        """
        self._written_at = time.monotonic()
        if (table := self.held()) is not None:
            if is_last and not self._files:
                self.directory.write_compacted(table)
            else:
                self.directory.write_spans(table, f"{self.stem}-{self._files:05d}")
            self._files += 1
            self._tables, self._held = [], 0

    def held(self) -> pa.Table | None:
        """What is kept and not written yet, or None."""
        import pyarrow as pa

        return pa.concat_tables(self._tables) if self._tables else None


def write_what_fits(directory: RunDirectory, table: pa.Table, rows: int = 1 << 12) -> None:
    """Store as many of some spans as there is space for, in one file or in several."""
    for size in (len(table), rows):
        with contextlib.suppress(StorageError):
            for first in range(0, len(table), max(size, 1)):
                directory.write_spans(table.slice(first, size), "part-00000")
            return
