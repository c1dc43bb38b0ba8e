"""Conversions between Arrow's columns and numpy's arrays, without pandas.

``pyarrow.array``, its scalars and ``to_numpy`` import pandas to test for a Series: half a second in every process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayio.trace.span import COLUMNS, schema

if TYPE_CHECKING:
    import pyarrow as pa


def numbers(values: NDArray[Any]) -> pa.Array:
    """Return an array's numbers as a column, without a copy."""
    import pyarrow as pa

    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def texts(values: Iterable[str]) -> pa.Array:
    """Return a column of texts."""
    import pyarrow as pa

    encoded = [value.encode() for value in values]
    ends = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(text) for text in encoded], out=ends[1:])
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def coded(codes: NDArray[Any], values: Iterable[str] | pa.Array) -> pa.Array:
    """Return a column of texts by their numbers in a list."""
    import pyarrow as pa

    dictionary = values if isinstance(values, pa.Array) else texts(values)
    return pa.DictionaryArray.from_arrays(numbers(codes.astype(np.int32, copy=False)), dictionary)


def empty_table() -> pa.Table:
    """Return a table without spans."""
    import pyarrow as pa

    nothing = np.zeros(0, np.int32)
    arrays = [coded(nothing, ()) if kind == "text" else numbers(nothing.astype(kind)) for kind in COLUMNS.values()]
    return pa.Table.from_arrays(arrays, schema=schema())


def plain(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """Return a column's numbers, read-only."""
    import pyarrow as pa

    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if any(chunk.null_count for chunk in chunks):
        values: NDArray[Any] = column.to_numpy()
        return values
    dtype = np.dtype(column.type.to_pandas_dtype())
    parts = [
        np.frombuffer(chunk.buffers()[1], dtype, len(chunk), chunk.offset * dtype.itemsize)
        for chunk in chunks
        if len(chunk)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype), *parts])


def is_text(column: pa.ChunkedArray, *among: str) -> NDArray[np.bool_]:
    """Return which rows of a dictionary column have one of a few texts."""
    masks: list[NDArray[np.bool_]] = [np.zeros(0, np.bool_)]
    for chunk in column.chunks:
        codes = plain(chunk.indices)
        wanted = [code for code, text in enumerate(chunk.dictionary.to_pylist()) if text in among]
        is_any = codes == wanted[0] if wanted else np.zeros(len(codes), np.bool_)
        for code in wanted[1:]:
            is_any |= codes == code
        masks.append(is_any)
    return masks[1] if len(masks) == 2 else np.concatenate(masks)


def rows(table: pa.Table, are_wanted: NDArray[np.bool_]) -> pa.Table:
    """Return the wanted rows of a table."""
    return taken(table, np.flatnonzero(are_wanted))


def taken(table: pa.Table, chosen: NDArray[np.int64]) -> pa.Table:
    """Return rows of a table by number, by numpy where it can: ``pa.Table.take`` imports pyarrow.compute, 30 ms."""
    import pyarrow as pa

    columns = []
    for column in table.columns:
        kind = column.type.index_type if (is_coded := pa.types.is_dictionary(column.type)) else column.type
        if column.null_count or not column.num_chunks or not pa.types.is_integer(kind):
            return table.take(numbers(chosen))
        if not is_coded:
            columns.append(numbers(plain(column)[chosen]))
            continue
        chunks = column.unify_dictionaries().chunks
        codes = np.concatenate([plain(chunk.indices) for chunk in chunks]) if len(chunks) > 1 else None
        chosen_codes = (plain(chunks[0].indices) if codes is None else codes)[chosen]
        columns.append(pa.DictionaryArray.from_arrays(numbers(chosen_codes), chunks[0].dictionary))
    return pa.Table.from_arrays(columns, schema=table.schema)


def to_ipc(table: pa.Table) -> bytes:
    """Return a table as an Arrow IPC stream, compressed with LZ4, for a message.

    Arrow's threads would take five times the CPU time for the few spans of a message.
    """
    import pyarrow as pa

    sink, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
        stream.write_table(table.unify_dictionaries())
    return bytes(sink.getvalue())


def from_ipc(message: bytes) -> pa.Table:
    """Return the table of a message from :func:`to_ipc`."""
    import pyarrow as pa

    return pa.ipc.open_stream(message, options=pa.ipc.IpcReadOptions(use_threads=False)).read_all()
