"""Span rows of requests and of other libraries: many at once, or with every column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.trace.arrow import coded, numbers, texts
from rayio.trace.span import ADDED, COLUMNS, REQUEST_LANE, REQUESTS, schema

if TYPE_CHECKING:
    import pyarrow as pa

#: A column: an array of numbers, a list of texts, or one value for all rows.
Column = NDArray[Any] | Sequence[str] | int | str

#: The values of empty columns.
NOTHING: dict[str, int | str] = {
    "lane": 0, "rank": -1, "epoch": -1, "step": -1, "attempt": 0, "batch": -1, "bytes": 0, "requests": 0, "parent": 0,
    "link": 0, "status": "ok",
    **{name: value for added in ADDED.values() for name, value in added.items()},
}  # fmt: skip


class Many(NamedTuple):
    """The requests of one call to storage, as spans of one role at one place of the run."""

    writer: int
    place: tuple[int, int, int, int]
    #: Fields start, end, offset, nbytes, file, thread, kind and slot, see :func:`requests_table`.
    rows: NDArray[np.void]
    files: list[str]
    #: Names by ``kind``; then the lane of slot 0.
    names: tuple[str, ...] = REQUESTS
    lane: int = REQUEST_LANE
    #: Values of the column ``attributes`` by ``kind``, or empty.
    attributes: tuple[str, ...] = ()


class Wide(NamedTuple):
    """A span with every column."""

    writer: int
    name: str
    start_ns: int
    end_ns: int
    lane: int
    place: tuple[int, int, int, int]
    parent: int
    status: str
    thread: int
    #: The text, or a function that returns it; called when the recorder is drained.
    attributes: str | Callable[[], str]


def table_of(number: int, columns: Mapping[str, Column | pa.Array]) -> pa.Table:
    """Return a table of spans; missing columns are empty."""
    import pyarrow as pa

    arrays = []
    for name, kind in COLUMNS.items():
        column = columns.get(name, NOTHING.get(name))
        if isinstance(column, pa.Array):
            arrays.append(column)
        elif isinstance(column, str):
            arrays.append(coded(np.zeros(number, np.int32), [column]))
        elif isinstance(column, int):
            arrays.append(numbers(np.full(number, column, kind)))
        elif isinstance(column, np.ndarray):
            arrays.append(numbers(column))
        else:
            arrays.append(texts(column).dictionary_encode())
    return pa.Table.from_arrays(arrays, schema=schema())


def columns_of(many: Sequence[Many]) -> dict[str, Any]:
    """Return the columns of these calls' requests, and ``writer``, ``start`` and ``end``."""
    rows = np.concatenate([call.rows for call in many])
    lengths = [len(call.rows) for call in many]
    place = np.repeat(np.array([call.place for call in many], np.int32), lengths, axis=0)
    names, name = _coded([call.names for call in many], lengths, rows["kind"])
    files, file = _coded([call.files for call in many], lengths, rows["file"])
    attributes_column = {}
    if any(call.attributes for call in many):
        attributes, code = _coded([call.attributes or ("",) * len(call.names) for call in many], lengths, rows["kind"])
        attributes_column["attributes"] = coded(code, attributes)
    is_request = np.array([text in ("io.read", "io.write") for text in names], np.int32)
    return {
        "writer": np.repeat(np.array([call.writer for call in many], np.int32), lengths),
        "start": rows["start"],
        "end": rows["end"],
        "name": coded(name, names),
        "file": coded(file, files),
        "lane": (rows["slot"] + np.repeat([call.lane for call in many], lengths)).astype(np.int16),
        **{column: np.ascontiguousarray(place[:, n]) for n, column in enumerate(("rank", "epoch", "step", "attempt"))},
        "bytes": rows["nbytes"],
        "requests": is_request[name],
        "thread": rows["thread"],
        "offset": rows["offset"],
        **attributes_column,
    }


def wide_columns(spans: Sequence[Wide], pid: int) -> dict[str, Any]:
    """Return the columns of these spans of process ``pid``, and ``writer``, ``start`` and ``end``."""
    place = np.array([span.place for span in spans], np.int32)
    return {
        "writer": np.array([span.writer for span in spans], np.int32),
        "start": np.array([span.start_ns for span in spans], np.int64),
        "end": np.array([span.end_ns for span in spans], np.int64),
        "name": [span.name for span in spans],
        "lane": np.array([span.lane for span in spans], np.int16),
        **{column: np.ascontiguousarray(place[:, n]) for n, column in enumerate(("rank", "epoch", "step", "attempt"))},
        "parent": np.array([span.parent for span in spans], np.int64),
        "status": [span.status for span in spans],
        "thread": np.array([span.thread for span in spans], np.int32),
        "pid": np.full(len(spans), pid, np.int32),
        "attributes": [span.attributes if isinstance(span.attributes, str) else span.attributes() for span in spans],
    }


def _coded(
    lists: Sequence[Sequence[str]], lengths: list[int], places: NDArray[np.int64]
) -> tuple[list[str], NDArray[np.int32]]:
    """Return codes of all lists' texts in one numbering, translated from places in each call's list."""
    codes: dict[str, int] = {}
    numbers = np.array([codes.setdefault(text, len(codes)) for texts in lists for text in texts], np.int32)
    sizes = np.array([len(texts) for texts in lists], np.int64)
    return list(codes), numbers[places + np.repeat(np.cumsum(sizes) - sizes, lengths)]
