"""Span files: Parquet with encodings for spans; about six bytes a span at 1 ns resolution, four at 1 us.

A file's metadata has the schema version and the names of the files that it replaces. Compaction writes the new file
before it removes the old ones, so a crash in between loses nothing and counts nothing twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rayio.errors import StorageError
from rayio.files import NotAFileError, check_regular
from rayio.trace.arrow import coded, numbers, plain, taken
from rayio.trace.order import order_by
from rayio.trace.rows import NOTHING
from rayio.trace.span import ADDED, COLUMNS, LEAST, SCHEMA_VERSION, schema

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns of repeated values, stored as dictionaries; the others are stored as differences of neighbours.
_DICTIONARY = [name for name, kind in COLUMNS.items() if kind == "text"] + [
    "node", "lane", "attempt", "requests", "parent", "pid", "thread",
]  # fmt: skip

#: In this order similar spans are adjacent: half the bytes of time order.
ORDER = ("role", "name", "index", "start_ns")

#: Beginning of the names of compacted files, which alone replace others.
COMPACTED = "spans-"

_VERSION, _REPLACES = b"rayio.span_schema", b"rayio.replaces"

#: Times in whole microseconds are stored in these columns.
_MICROSECONDS = {"start_ns": "start_us", "duration_ns": "duration_us"}


def write(file: Path | BinaryIO, table: pa.Table, replaces: Iterable[str] = ()) -> None:
    """Write a table of spans into a file; ``replaces`` names the files of the folder that it replaces.

    Raises:
        OSError: the file cannot be written; the caller removes the rest of it.
    """
    import pyarrow.parquet as pq

    table = (table if table.schema.equals(schema()) else table.cast(schema())).unify_dictionaries()
    times = [plain(table[name]) for name in _MICROSECONDS]
    if len(table) and not any((ns % 1000).any() for ns in times):
        for (name, stored), ns in zip(_MICROSECONDS.items(), times, strict=True):
            table = table.set_column(table.schema.get_field_index(name), stored, numbers(ns // 1000))
    table = table.replace_schema_metadata(
        {_VERSION: str(SCHEMA_VERSION).encode(), _REPLACES: json.dumps(sorted(replaces)).encode()}
    )
    pq.write_table(
        table,
        file,
        compression="zstd",
        use_dictionary=_DICTIONARY,
        column_encoding={name: "DELTA_BINARY_PACKED" for name in table.column_names if name not in _DICTIONARY},
        write_page_checksum=True,
    )


class SpanFile:
    """A span file with a valid footer; pages are verified when they are read."""

    def __init__(self, path: Path) -> None:
        """Read the footer.

        Raises:
            DamagedError: truncated, or no span file.
            StorageError: a newer version of rayio wrote it.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        try:
            check_regular(path)
            metadata = pq.read_metadata(path)
            entries = metadata.metadata or {}
            self.version = int(entries[_VERSION])
            self.replaces: frozenset[str] = frozenset(json.loads(entries.get(_REPLACES, b"[]")))
        except NotAFileError as error:
            raise StorageError(f"{path}: {error.strerror}, or remove it") from None
        except (pa.ArrowException, OSError, KeyError, ValueError, TypeError):
            raise DamagedError(path.name) from None
        if self.version > SCHEMA_VERSION:
            raise StorageError(
                f"{path} has spans of schema version {self.version}; this rayio reads up to {SCHEMA_VERSION}: update it"
            )
        self.num_rows: int = metadata.num_rows
        self._stored = set(metadata.schema.to_arrow_schema().names)

    def read(self, columns: Sequence[str] = tuple(COLUMNS)) -> pa.Table:
        """Return some columns of every span, in the file's order; columns that an older version lacks are filled.

        Raises:
            DamagedError: a page is damaged, or a column is missing or of another type.
            StorageError: a column has a value that no span has.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        stored_columns = {name: self.stored(name) for name in columns}
        stored = {name: source[0] for name, source in stored_columns.items() if source is not None}
        try:
            with pq.ParquetFile(self.path, page_checksum_verification=True) as file:
                table = file.read(columns=list(stored.values()))
            for name, column in stored.items():
                if empty := table[column].null_count:
                    raise self._impossible(name, f"lacks {empty} value{'s' * (empty != 1)}")
            arrays = {}
            for name in columns:
                if (source := stored_columns[name]) is None:
                    arrays[name] = _filled(name, len(table) if stored else self.num_rows)
                elif source[1] != 1:
                    arrays[name] = pa.chunked_array([numbers(plain(table[source[0]]) * source[1])])
                else:
                    arrays[name] = table[name]
            wanted = pa.schema([schema().field(name) for name in columns], schema().metadata)
            table = pa.table(arrays)
            if table.schema.equals(wanted):  # a cast imports pyarrow.compute, a twentieth of the start of a command
                table = table.replace_schema_metadata(wanted.metadata)
            else:
                table = table.cast(wanted)
        except (pa.ArrowException, OSError, KeyError, ValueError):
            raise DamagedError(self.path.name) from None
        for name in LEAST.keys() & stored.keys():
            least = min((int(plain(chunk).min()) for chunk in table[name].chunks if len(chunk)), default=LEAST[name])
            if least < LEAST[name]:
                raise self._impossible(name, f"has {least}, below {LEAST[name]}")
        return table

    def _impossible(self, column: str, what: str) -> StorageError:
        return StorageError(f"{self.path}: column {column} {what}: restore the file, or remove it")

    def stored(self, column: str) -> tuple[str, int] | None:
        """Return the file's column that stores ``column``, and its factor; None if the file's version lacks it.

        Raises:
            DamagedError: the column is missing.
        """
        if any(version > self.version and column in names for version, names in ADDED.items()):
            return None
        for name, factor in ((_MICROSECONDS.get(column, ""), 1000), (column, 1)):
            if name in self._stored:
                return name, factor
        raise DamagedError(self.path.name)


class DamagedError(Exception):
    """A span file cannot be read; the argument is its name."""


def among(paths: Iterable[Path]) -> tuple[list[SpanFile], list[str]]:
    """Return a folder's current span files by name, and the names of damaged ones."""
    files, damaged = _all(paths)
    gone = _replaced(files)
    return [file for file in files if file.path.name not in gone], [name for name in damaged if name not in gone]


def is_compacted(name: str) -> bool:
    """Return True for the name of a compacted file."""
    return name.startswith(COMPACTED)


def replaced(paths: Iterable[Path]) -> frozenset[str]:
    """Return the names that files of a folder replace; files of these names do not count.

    Only compacted files replace others, so no other is read: a long run has thousands.
    """
    return _replaced(_all(path for path in paths if is_compacted(path.name))[0])


def _all(paths: Iterable[Path]) -> tuple[list[SpanFile], list[str]]:
    files, damaged = [], []
    for path in paths:
        try:
            files.append(SpanFile(path))
        except DamagedError as error:
            damaged.append(str(error))
    return files, damaged


def _replaced(files: Iterable[SpanFile]) -> frozenset[str]:
    return frozenset(name for file in files for name in file.replaces)


def ordered(tables: list[pa.Table], by: Sequence[str]) -> pa.Table:
    """Return the spans of some tables sorted, and empty the list; each column is freed once it is sorted.

    Texts sort by their place in the dictionary, which also groups equal ones.
    """
    import pyarrow as pa

    table = pa.concat_tables(tables).unify_dictionaries()
    tables.clear()
    columns, kinds = [], table.schema
    if not len(table):
        return table.combine_chunks()
    order = order_by(*(_key(table[name], COLUMNS[name] == "text") for name in by))
    while table.num_columns:
        columns.append(taken(table.select([0]), order).column(0))
        table = table.remove_column(0)
    return pa.Table.from_arrays(columns, schema=kinds)


def _key(column: pa.ChunkedArray, is_text: bool) -> NDArray[Any]:
    return np.concatenate([plain(chunk.indices if is_text else chunk) for chunk in column.chunks])


def give_back() -> None:
    """Release the memory that Arrow keeps for further tables."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


def together(*tables: pa.Table) -> pa.Table:
    """Return tables of spans joined and sorted by start."""
    return ordered([*tables], ["start_ns"])


def _filled(name: str, number: int) -> pa.Array:
    value = NOTHING[name]
    if isinstance(value, str):
        return coded(np.zeros(number, np.int32), [value])
    return numbers(np.full(number, value, COLUMNS[name]))
