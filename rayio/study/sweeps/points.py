"""The points of a sweep: a grid over lists of values, or a file of overrides."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rayio.errors import ScenarioError
from rayio.files import read_regular
from rayio.scenario.load import bounded, parsed
from rayio.scenario.source import UNREADABLE, UnfitError, plain, refuse_repeated
from rayio.schema.fields import show
from rayio.units import format_bytes, parse_bytes, parse_rate, parse_seconds

#: The most points of a sweep.
MOST_POINTS = 100_000
#: The most values and bytes of a file with points.
MOST_VALUES, MOST_BYTES = 20 * MOST_POINTS, 64 << 20

_OPEN, _CLOSE = "[{(", "]})"


@dataclass(frozen=True)
class Points:
    """The points of a sweep: ``fixed`` overrides of all points, and a row of the swept ``keys``' values for each."""

    fixed: dict[str, Any]
    keys: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def overrides(self, row: Sequence[Any]) -> dict[str, Any]:
        """Return the overrides of a point; a key left empty in a file keeps its value."""
        return self.fixed | {key: value for key, value in zip(self.keys, row, strict=True) if value is not None}


def grid(overrides: Sequence[str] | Mapping[str, Any]) -> Points:
    """Return every combination of the values of keys with several values; ``1..4`` are whole numbers.

    >>> grid(["loader.num_workers=1..3,8", "train.epochs=2"]).rows
    ((1,), (2,), (3,), (8,))
    >>> grid(["loader.num_workers=1,2,4", "train.epochs=2"]).rows
    ((1,), (2,), (4,))

    Raises:
        ScenarioError: no ``=``, a value twice, or more than :data:`MOST_POINTS` points.
    """
    fixed: dict[str, Any] = {}
    lists: dict[str, list[Any]] = {}
    for key, values in _pairs(overrides):
        if not values:
            raise ScenarioError(f"{key}: has no value; give at least one, such as [1, 2, 4]")
        if len(values) == 1:
            fixed[key] = values[0]
            continue
        lists[key] = values
        places: dict[str, int] = {}
        for number, text in enumerate(map(identity, values)):
            if (before := places.setdefault(text, number)) != number:
                same, value = show(values[before]), show(values[number])
                equal = "" if same == value else f" (it equals {same})"
                raise ScenarioError(f"{key}: {value} is given twice{equal}; give each value once")
    number = 1
    for values in lists.values():
        number *= len(values)
    if number > MOST_POINTS:
        raise ScenarioError(f"the values make {number} points, but a sweep has at most {MOST_POINTS}")
    return Points(fixed, tuple(lists), tuple(itertools.product(*lists.values())))


def listed(path: str | Path, overrides: Sequence[str] | Mapping[str, Any]) -> Points:
    """Return the points of a file: CSV with a column per key, or a YAML list of mappings of keys to values.

    ``overrides`` apply at every point, each with one value.

    Raises:
        ScenarioError: the file is unreadable or invalid, or an override has several values.
    """
    fixed: dict[str, Any] = {}
    for key, values in _pairs(overrides):
        if len(values) != 1:
            raise ScenarioError(f"{key} has {len(values)} values; with --points, the points are those of {path}")
        fixed[key] = values[0]
    try:
        content = read_regular(path, MOST_BYTES + 1)
        text = content.decode("utf-8-sig")  # spreadsheets write a byte-order mark
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ScenarioError(f"--points {path}: cannot be read: {why}") from None
    if len(content) > MOST_BYTES:
        raise ScenarioError(f"--points {path}: is larger than {format_bytes(MOST_BYTES)}; split it into several sweeps")
    points = _of_csv(path, text) if Path(path).suffix.lower() == ".csv" else _of_yaml(path, text)
    if not points:
        raise ScenarioError(f"--points {path}: has no points")
    if len(points) > MOST_POINTS:
        raise ScenarioError(f"--points {path}: has {len(points)} points, but a sweep has at most {MOST_POINTS}")
    keys = tuple(dict.fromkeys(key for point in points for key in point))
    if both := next((key for key in keys if key in fixed), None):
        raise ScenarioError(f"{both} is given on the command line and in {path}; give it once")
    rows = tuple(tuple(point.get(key) for key in keys) for point in points)
    first: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        if (before := first.setdefault(identity(row), number)) != number:
            raise ScenarioError(f"--points {path}: point {number} equals point {before}; give each once")
    return Points(fixed, keys, rows)


def _of_csv(path: str | Path, text: str) -> list[dict[str, Any]]:
    reader = csv.reader(io.StringIO(text), skipinitialspace=True)
    lines = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    if not lines:
        return []
    (_, head), *rows = lines
    head = [name.strip() for name in head]
    if empty := [n for n, name in enumerate(head, 1) if not name]:
        raise ScenarioError(f"--points {path}:1: column {empty[0]} has no key; name one such as loader.num_workers")
    if twice := next((name for n, name in enumerate(head) if name in head[:n]), None):
        raise ScenarioError(f"--points {path}:1: {twice} heads two columns; give it once")
    for number, row in rows:
        if len(row) != len(head):
            raise ScenarioError(f"--points {path}:{number}: {len(row)} cells under {len(head)} keys")
    return [
        {
            key: parsed(cell, f"--points {path}:{number}: {key}")
            for key, cell in zip(head, row, strict=True)
            if cell.strip()
        }
        for number, row in rows
    ]


def _of_yaml(path: str | Path, text: str) -> list[dict[str, Any]]:
    try:
        content = plain(text, MOST_VALUES)
    except (yaml.YAMLError, *UNREADABLE) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        if isinstance(error, UnfitError):
            raise ScenarioError(f"--points {path}{line}: {error.problem}") from None
        raise ScenarioError(f"--points {path}{line}: not YAML; write a list of mappings of keys to values") from None
    if content is None:
        return []
    if not isinstance(content, list):
        raise ScenarioError(f"--points {path}: must be a list of mappings, such as - {{loader.num_workers: 4}}")
    for number, point in enumerate(content, 1):
        if not isinstance(point, dict) or not point:
            raise ScenarioError(
                f"--points {path}: point {number} is {show(point)}; must be a mapping of keys to values"
            )
    return [dict(_flat(point)) for point in content]


def _flat(point: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Iterate over the dotted keys and values of a point; keys may stand below their section."""
    for key, value in point.items():
        if isinstance(value, Mapping) and "." not in str(key) and "kind" not in value:
            for inner, leaf in value.items():
                yield f"{key}.{inner}", leaf
        else:
            yield str(key), value


def _pairs(overrides: Sequence[str] | Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            bounded(value, str(key))
            yield str(key), [*value] if isinstance(value, (list, tuple)) else [value]
        return
    texts = [overrides] if isinstance(overrides, str) else [*overrides]
    refuse_repeated(texts, ", with all of its values: {}=1,2")
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals and key.startswith("~"):  # a removal, of a file of another program
            yield key.strip(), [None]
            continue
        if not equals:
            raise ScenarioError(f"{text}: no '='; write section.key=value or section.key=value,value")
        parts = split(value)
        if len(parts) > 1 and not all(part.strip() for part in parts):
            raise ScenarioError(f"{key.strip()}={value}: a value between commas is empty")
        values: list[Any] = []
        for part in parts:
            numbers = whole_numbers(part, key.strip(), MOST_POINTS)
            values += [parsed(part, key.strip())] if numbers is None else numbers
        yield key.strip(), values


def whole_numbers(text: str, where: str, most: int) -> tuple[int, ...] | None:
    """Return the whole numbers of a range, at most ``most``; None for other text. ``where`` names it in messages.

    >>> whole_numbers("1..4", "loader.num_workers", 100), whole_numbers("../data", "dataset.path", 100)
    ((1, 2, 3, 4), None)

    Raises:
        ScenarioError: the range does not rise, or is too long.
    """
    if (ends := re.fullmatch(r"\s*(-?\d{1,18})\.\.(-?\d{1,18})\s*", text)) is None:
        return None
    first, last = map(int, ends.groups())
    if first >= last or last - first >= most:
        raise ScenarioError(f"{where}={text}: must rise, by less than {most}, such as 1..16")
    return tuple(range(first, last + 1))


def split(text: str) -> list[str]:
    """Return the values of a list, split at commas outside brackets, braces and quotes.

    >>> split("barrier,{kind: allreduce, bytes: 1 MB}")
    ['barrier', '{kind: allreduce, bytes: 1 MB}']
    """
    parts, depth, quote, begin = [], 0, "", 0
    for index, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in _OPEN:
            depth += 1
        elif sign in _CLOSE:
            depth -= 1
        elif sign == "," and depth == 0:
            parts.append(text[begin:index])
            begin = index + 1
    return [*parts, text[begin:]]


def identity(value: Any) -> str:
    """Return a text that is equal for equal values, and for points of equal values.

    >>> identity("10 ms") == identity("10ms") == identity(0.01), identity(True) == identity(1)
    (True, False)
    """
    if isinstance(value, tuple):
        return json.dumps([*map(identity, value)])
    number = None if isinstance(value, int) else number_of(value)
    if number is not None:
        value = int(number) if number.is_integer() else number
    return json.dumps(value, sort_keys=True, default=str)


def written(value: Any) -> str:
    """Return a value as text in a scenario; - for None."""
    return "-" if value is None else value if isinstance(value, str) else show(value)


def number_of(value: Any) -> float | None:
    """Return a value as a number, a quantity in its base unit; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, str):
        for parse in (parse_bytes, parse_seconds, parse_rate):
            try:
                return float(parse(value))
            except ValueError:
                continue
    return None
