"""Files of measured values: a value on each line, a column of CSV, or a list in JSON."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.files import parse_json, read_regular
from rayio.schema.fields import RefusedError, show
from rayio.units import BYTES, RATE, SECONDS, Dimension

Floats = NDArray[np.float64]

#: The largest file, and the most values in it.
MOST_BYTES, MOST_VALUES = 32 << 20, 1_000_000

_DIMENSIONS = {dimension.name: dimension for dimension in (BYTES, SECONDS, RATE)}


class Value(NamedTuple):
    """A value as written, and the line or entry that has it."""

    place: str
    written: Any


def read(file: str, column: str, dimension: Dimension) -> Floats:
    """Return the values of a file in the base unit; bare numbers are in it. ``column`` names that of a CSV file.

    Raises:
        RefusedError: the file cannot be read, is too large, or has something else than values.
    """
    try:
        status = os.stat(file)  # noqa: PTH116
        known = status.st_mtime_ns, status.st_size
        return _read(file, known, column, dimension.name)
    except OSError as error:
        raise RefusedError(f"cannot be read: {error.strerror or error}", "file", file) from None


@lru_cache(maxsize=16)
def _read(file: str, known: tuple[int, int], column: str, dimension_name: str) -> Floats:
    content = read_regular(file, MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise RefusedError(f"is larger than {MOST_BYTES >> 20} MiB; give a sample of its values", "file", file)
    suffix = Path(file).suffix.lower()
    try:
        values = [*_FORMS.get(suffix, _of_column if column else _of_lines)(content.decode("utf-8-sig"), column)]
    except RefusedError as error:
        raise RefusedError(str(error), error.key or "file", error.value or file) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise RefusedError(f"is no text with values: {error}", "file", file) from None
    if not values:
        raise RefusedError("has no values", "file", file)
    if len(values) > MOST_VALUES:
        raise RefusedError(f"has {len(values)} values; at most {MOST_VALUES} are possible", "file", file)
    dimension = _DIMENSIONS[dimension_name]
    try:
        if any(isinstance(value.written, bool) for value in values):
            raise TypeError
        numbers = np.array([value.written for value in values], np.float64)
    except (ValueError, TypeError):  # with units, or a fault
        numbers = np.array([_number(value, dimension, file) for value in values])
    if not ((numbers >= 0) & (numbers <= dimension.most)).all():
        numbers = np.array([_number(value, dimension, file) for value in values])
    numbers.flags.writeable = False
    return numbers


def _number(value: Value, dimension: Dimension, file: str) -> float:
    try:
        return dimension.bounded(float(value.written) if _is_bare(value.written) else value.written)
    except ValueError as error:
        raise RefusedError(f"{value.place}: {show(value.written)}: {error}", "file", file) from None


def _is_bare(written: Any) -> bool:
    try:
        float(written)
    except (ValueError, TypeError):
        return False
    return not isinstance(written, bool)


def _of_lines(content: str, column: str) -> Iterator[Value]:
    for number, line in enumerate(content.splitlines(), 1):
        if written := line.partition("#")[0].strip():
            yield Value(f"line {number}", written)


def _of_column(content: str, column: str) -> Iterator[Value]:
    rows = csv.reader(content.splitlines())
    names = [name.strip() for name in next(rows, [])]
    if not column and len(names) > 1:
        raise RefusedError(f"has several columns; give column: one of {show(names)}")
    if column and column not in names:
        raise RefusedError(f"no such column; the file has {show(names)}", "column", column)
    place = names.index(column) if column else 0
    if names.count(column) > 1:
        raise RefusedError(f"{names.count(column)} columns have this name", "column", column)
    if not column and names and (_is_bare(names[0]) or names[0][:1].isdigit()):
        yield Value("line 1", names[0])
    for row in rows:
        if row:
            yield Value(f"line {rows.line_num}", row[place].strip() if place < len(row) else "")


def _of_json(content: str, column: str) -> Iterator[Value]:
    try:
        parsed = parse_json(content)
    except ValueError as error:
        raise RefusedError(f"is not JSON: {error}") from None
    if not isinstance(parsed, list):
        raise RefusedError("must be a list of values, or of objects that have a column")
    for number, entry in enumerate(parsed):
        if column and (not isinstance(entry, dict) or column not in entry):
            raise RefusedError(f"[{number}] has no such key", "column", column)
        yield Value(f"[{number}]", entry[column] if column else entry)


_FORMS: dict[str, Callable[[str, str], Iterator[Value]]] = {
    ".json": _of_json, ".csv": _of_column,
}  # fmt: skip
