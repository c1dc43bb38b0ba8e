"""Arrow's columns from numpy's arrays and back, without pandas.

``pyarrow.array``, its scalars and ``to_numpy`` load pandas, for half a second in every process that records or reads a
span: to ask whether what they were given is a Series.
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
    """The numbers of an array, which they share."""
    import pyarrow as pa

    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def texts(values: Iterable[str]) -> pa.Array:
    """Texts, one after the other."""
    import pyarrow as pa

    encoded = [value.encode() for value in values]
    ends = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(one) for one in encoded], out=ends[1:])
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def coded(codes: NDArray[Any], values: Iterable[str] | pa.Array) -> pa.Array:
    """Texts by their numbers in a list."""
    import pyarrow as pa

    dictionary = values if isinstance(values, pa.Array) else texts(values)
    return pa.DictionaryArray.from_arrays(numbers(codes.astype(np.int32, copy=False)), dictionary)


def empty_table() -> pa.Table:
    """A table without a span."""
    import pyarrow as pa

    nothing = np.zeros(0, np.int32)
    arrays = [coded(nothing, ()) if kind == "text" else numbers(nothing.astype(kind)) for kind in COLUMNS.values()]
    return pa.Table.from_arrays(arrays, schema=schema())


def plain(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """The numbers of a column, not to be written to."""
    import pyarrow as pa

    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if any(chunk.null_count for chunk in chunks):
        found: NDArray[Any] = column.to_numpy()
        return found
    dtype = np.dtype(column.type.to_pandas_dtype())
    parts = [
        np.frombuffer(chunk.buffers()[1], dtype, len(chunk), chunk.offset * dtype.itemsize)
        for chunk in chunks
        if len(chunk)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype), *parts])


def is_text(column: pa.ChunkedArray, text: str) -> NDArray[np.bool_]:
    """Say of each of a column's texts whether it is this one."""
    parts = [
        np.array([*(one == text for one in chunk.dictionary.to_pylist()), False])[plain(chunk.indices)]
        for chunk in column.chunks
    ]
    return np.concatenate([np.zeros(0, np.bool_), *parts])


def rows(table: pa.Table, are_wanted: NDArray[np.bool_]) -> pa.Table:
    """The rows of a table that are wanted."""
    return table.take(numbers(np.flatnonzero(are_wanted)))
