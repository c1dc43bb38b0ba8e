"""An unnamed file with the spans of a long run by slices, as LZ4-compressed Arrow messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayio.trace.arrow import numbers, plain, texts
from rayio.trace.aside import Unnamed
from rayio.trace.span import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

#: Smaller types of columns than in span files.
_KINDS = {
    "name": "int16", "role": "int8", "index": "int32", "status": "int8", "file": "int32", "attributes": "int32",
}  # fmt: skip

#: Roles whose index begins with the number of a rank.
_OF_RANKS = ("rank", "reader", "queue")


class SliceFile:
    """Spans by slices; spans with one of a few ``names`` are also stored after the last slice.

    Raises:
        StorageError: no space for them.
    """

    def __init__(self, columns: Sequence[str], number: int, names: Sequence[str] = ()) -> None:
        self.number = number
        self._names = frozenset(names)
        self._kinds = {name: np.dtype(_KINDS.get(name, COLUMNS[name])) for name in columns}
        self._texts: dict[str, dict[str, int]] = {name: {} for name in columns if COLUMNS[name] == "text"}
        self._file = Unnamed()
        #: Offset and length of each slice's messages.
        self._messages: list[list[tuple[int, int]]] = [[] for _ in range(number + 1)]

    def keep(self, table: pa.Table, slice_of: NDArray[np.uint16]) -> None:
        """Write spans, each to the slice of its rank; spans of a slice keep their order."""
        import pyarrow as pa

        if not len(table):
            return
        values = {
            name: self._numbers(name, table[name]) if name in self._texts else plain(table[name])
            for name in self._kinds
        }
        few = np.flatnonzero(np.array([name in self._names for name in self._texts["name"]])[values["name"]])
        where = self._where(values, slice_of)
        order = np.concatenate([np.argsort(where, kind="stable"), few])
        batch = pa.record_batch(
            {
                name: numbers(np.take(column, order).astype(self._kinds[name], copy=False))
                for name, column in values.items()
            }
        )
        slices, counts = np.unique(where, return_counts=True)
        options, at = pa.ipc.IpcWriteOptions(compression="lz4"), 0
        for number, many in (*zip(slices.tolist(), counts.tolist(), strict=True), (self.number, len(few))):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
                stream.write_batch(batch.slice(at, many))
            message = np.frombuffer(sink.getvalue(), np.uint8)
            self._messages[number].append((self._file.end, len(message)))
            self._file.append([message])
            at += many

    def table(self, number: int, columns: Sequence[str]) -> pa.Table:
        """Return the spans of a slice, with these columns or all."""
        import pyarrow as pa

        columns = [*dict.fromkeys(columns or self._kinds)]
        places = sorted([*self._kinds].index(name) for name in columns)
        options = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
        tables = [pa.table({name: numbers(np.zeros(0, self._kinds[name])) for name in columns})]
        for begin, size in self._messages[number]:
            message = np.empty(size, np.uint8)
            self._file.read(message.data, begin)
            tables.append(pa.ipc.open_stream(pa.py_buffer(message), options=options).read_all().select(columns))
        table = pa.concat_tables(tables)
        arrays = {}
        for name in columns:
            arrays[name] = column = numbers(plain(table[name]))
            if name in self._texts:  # its codes are known to be in the list
                arrays[name] = pa.DictionaryArray.from_arrays(column, texts(self._texts[name]), safe=False)
        return pa.table(arrays)

    def _numbers(self, name: str, column: pa.ChunkedArray) -> NDArray[Any]:
        known, parts = self._texts[name], [np.zeros(0, np.int32)]
        for chunk in column.chunks:
            codes = [known.setdefault(text, len(known)) for text in chunk.dictionary.to_pylist()]
            parts.append(np.array([*codes, 0], np.int32)[plain(chunk.indices)])
        return np.concatenate(parts)

    def _where(self, values: Mapping[str, NDArray[Any]], slice_of: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """Return the slice of each span: that of its rank, or of the rank whose role wrote it; else the first."""
        rank = values["rank"]
        if len(none := np.flatnonzero(rank < 0)):
            rank = rank.copy()
            roles = np.array([role in _OF_RANKS for role in self._texts["role"]])
            first = [index.partition("-")[0] for index in self._texts["index"]]
            numbers = np.array([int(text) if text.isdecimal() and len(text) < 9 else 0 for text in first])
            wanted = np.where(roles[values["role"][none]], numbers[values["index"][none]], 0)
            rank[none] = np.where(wanted < len(slice_of), wanted, 0)
        return slice_of[rank] if len(slice_of) else np.zeros(len(rank), np.uint16)
