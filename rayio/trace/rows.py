"""Spans that come many at once, or with more to say than those of a batch: rows of requests, and of other libraries."""

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

#: What a span's columns hold when it has nothing to say.
NOTHING: dict[str, int | str] = {
    "lane": 0, "rank": -1, "epoch": -1, "step": -1, "attempt": 0, "batch": -1, "bytes": 0, "requests": 0, "parent": 0,
    "link": 0, "status": "ok",
    **{name: value for added in ADDED.values() for name, value in added.items()},
}  # fmt: skip


class Many(NamedTuple):
    """Rows of one call to storage, to become spans of one role at one place of the run."""

    writer: int
    place: tuple[int, int, int, int]
    #: Fields start, end, offset, nbytes, file, thread, kind and slot, see :func:`requests_table`.
    rows: NDArray[np.void]
    files: list[str]
    #: Names by ``kind``, and the lane of slot 0.
    names: tuple[str, ...] = REQUESTS
    lane: int = REQUEST_LANE
    #: What the column of that name has, by ``kind`` too; nothing where there are none.
    attributes: tuple[str, ...] = ()


class Wide(NamedTuple):
    """One span with every column."""

    writer: int
    name: str
    start_ns: int
    end_ns: int
    lane: int
    place: tuple[int, int, int, int]
    parent: int
    status: str
    thread: int
    #: The text, or what makes it when the recorder is emptied, off the path of whoever ends a span.
    attributes: str | Callable[[], str]


def table_of(number: int, columns: Mapping[str, Column | pa.Array]) -> pa.Table:
    """Make a table of spans; columns that are missing hold nothing."""
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
    """The columns of the requests of these calls, and ``writer``, ``start`` and ``end``."""
    rows = np.concatenate([one.rows for one in many])
    lengths = [len(one.rows) for one in many]
    place = np.repeat(np.array([one.place for one in many], np.int32), lengths, axis=0)
    names, name = _coded([one.names for one in many], lengths, rows["kind"])
    files, file = _coded([one.files for one in many], lengths, rows["file"])
    said = {}
    if any(one.attributes for one in many):
        attributes, code = _coded([one.attributes or ("",) * len(one.names) for one in many], lengths, rows["kind"])
        said["attributes"] = coded(code, attributes)
    is_request = np.array([text in ("io.read", "io.write") for text in names], np.int32)
    return {
        "writer": np.repeat(np.array([one.writer for one in many], np.int32), lengths),
        "start": rows["start"],
        "end": rows["end"],
        "name": coded(name, names),
        "file": coded(file, files),
        "lane": (rows["slot"] + np.repeat([one.lane for one in many], lengths)).astype(np.int16),
        **{
            column: np.ascontiguousarray(place[:, at]) for at, column in enumerate(("rank", "epoch", "step", "attempt"))
        },
        "bytes": rows["nbytes"],
        "requests": is_request[name],
        "thread": rows["thread"],
        "offset": rows["offset"],
        **said,
    }


def wide_columns(spans: Sequence[Wide], pid: int) -> dict[str, Any]:
    """The columns of these spans of process ``pid``, and ``writer``, ``start`` and ``end``."""
    place = np.array([one.place for one in spans], np.int32)
    return {
        "writer": np.array([one.writer for one in spans], np.int32),
        "start": np.array([one.start_ns for one in spans], np.int64),
        "end": np.array([one.end_ns for one in spans], np.int64),
        "name": [one.name for one in spans],
        "lane": np.array([one.lane for one in spans], np.int16),
        **{
            column: np.ascontiguousarray(place[:, at]) for at, column in enumerate(("rank", "epoch", "step", "attempt"))
        },
        "parent": np.array([one.parent for one in spans], np.int64),
        "status": [one.status for one in spans],
        "thread": np.array([one.thread for one in spans], np.int32),
        "pid": np.full(len(spans), pid, np.int32),
        "attributes": [one.attributes if isinstance(one.attributes, str) else one.attributes() for one in spans],
    }


def _coded(
    lists: Sequence[Sequence[str]], lengths: list[int], places: NDArray[np.int64]
) -> tuple[list[str], NDArray[np.int32]]:
    """Number the texts of all lists together, and turn places in each call's own list into those numbers."""
    codes: dict[str, int] = {}
    numbers = np.array([codes.setdefault(text, len(codes)) for one in lists for text in one], np.int32)
    sizes = np.array([len(one) for one in lists], np.int64)
    return list(codes), numbers[places + np.repeat(np.cumsum(sizes) - sizes, lengths)]
