"""Frozen values whose fields have a meaning and a unit: written as JSON, read back checked, described by JSON Schema.

A record is a frozen dataclass of numbers, texts, other records, and tuples and dicts of them. Its fields are declared
with :func:`value`. Dataclasses instead of pydantic: nothing here is written by people, and every command
imports it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Self, cast, get_args, get_origin, get_type_hints

Json = dict[str, Any]

_SCALARS: dict[type, tuple[str, str]] = {
    bool: ("boolean", "true or false"),
    int: ("integer", "a number"),
    float: ("number", "a number"),
    str: ("string", "a text"),
    NoneType: ("null", "null"),
}


class DamagedRecordError(ValueError):
    """Why JSON is not a record; the text names the key, what it holds and what was expected."""


def value(
    about: str, unit: str = "", *, default: Any = MISSING, can_be_absent: bool = False, is_required: bool = False
) -> Any:
    """Declare a field of a record.

    Args:
        about: what it says, as the end of a sentence; goes into the schema.
        unit: ``s``, ``bytes``, ``fraction`` (0 to 1), ``percent``, ``steps`` …; empty for what has none.
        default: what a file that lacks it means; without one it must be there.
        can_be_absent: None is written by leaving the key out; the default is then None.
        is_required: a file must have it, although a new record has a default.
    """
    metadata = {"about": about, "unit": unit, "can_be_absent": can_be_absent, "is_required": is_required}
    return field(default=None if can_be_absent else default, metadata=metadata)


class Record(Mapping[str, Any]):
    """A frozen dataclass that is also a read-only mapping of its JSON: ``run.result["au"]`` is ``run.result.au``."""

    __slots__ = ()

    def as_json(self) -> Json:
        """Write it as plain values that ``json.dumps`` takes, in the order of its fields."""
        return {name: _plain(getattr(self, name)) for name in self}

    @classmethod
    def of_json(cls, content: Mapping[str, Any]) -> Self:
        """Read it from what ``json.loads`` gave; keys that are not known are passed over.

        Raises:
            DamagedRecordError: a key is missing or holds another type.
        """
        return cast(Self, _read_record(cls, content, ""))

    def __getitem__(self, key: str) -> Any:
        if all(key != name for name in self):
            raise KeyError(key)
        return _plain(getattr(self, key))

    def __iter__(self) -> Iterator[str]:
        for each in _fields(type(self)):
            if not each.metadata["can_be_absent"] or getattr(self, each.name) is not None:
                yield each.name

    def __len__(self) -> int:
        return sum(1 for _ in self)


def schema(record: type[Record]) -> Json:
    """Describe a record as JSON Schema (draft 2020-12); each property has a ``description`` and, if any, a ``unit``."""
    definitions: Json = {}
    described = _object_schema(record, definitions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **described, "$defs": definitions}


def units(record: type[Record], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Go through the fields of a record and of those in it: dotted name, unit, what it says."""
    for each in _fields(record):
        name = f"{prefix}{each.name}"
        yield name, each.metadata["unit"], each.metadata["about"]
        for inner, suffix in _records_in(_hints(record)[each.name]):
            yield from units(inner, f"{name}{suffix}.")


def nested(record: type[Record]) -> Iterator[tuple[str, type[Record]]]:
    """Go through the records in a record, each once: the place of the first, as ``ranks[]`` or ``operations.*``."""
    seen, found = {record}, [("", record)]
    while found:
        place, outer = found.pop(0)
        yield place, outer
        inner = []
        for each in _fields(outer):
            for one, suffix in _records_in(_hints(outer)[each.name]):
                if one not in seen:
                    seen.add(one)
                    inner.append((f"{place}.{each.name}{suffix}".removeprefix("."), one))
        found = inner + found


def members(record: type[Record]) -> dict[str, Any]:
    """The type of each field of a record."""
    return _hints(record)


def type_name(kind: Any) -> str:
    """Write a field's type for a reader: ``number or null``, ``list of Rank``."""
    names = []
    for choice in _choices(kind):
        if get_origin(choice) is tuple:
            names.append(f"list of {type_name(get_args(choice)[0])}")
        elif get_origin(choice) is dict:
            names.append(f"{type_name(get_args(choice)[1])} by name")
        else:
            names.append("object" if _is_record(choice) else _SCALARS[choice][0])
    return " or ".join(names)


@cache
def _hints(record: type[Record]) -> dict[str, Any]:
    return get_type_hints(record)


@cache
def _fields(record: type[Record]) -> tuple[Field[Any], ...]:
    return fields(cast(Any, record))


def _must_be_there(each: Field[Any]) -> bool:
    """Say whether a file must have a field: what came later, or is left out when unknown, it may lack."""
    return each.default is MISSING or bool(each.metadata["is_required"])


def _plain(held: Any) -> Any:
    if isinstance(held, Record):
        return held.as_json()
    if isinstance(held, dict):
        return {name: _plain(item) for name, item in held.items()}
    return [_plain(item) for item in held] if isinstance(held, tuple) else held


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Record)


def _choices(kind: Any) -> tuple[Any, ...]:
    """Split ``A | None`` into its types."""
    return get_args(kind) if get_origin(kind) is UnionType or isinstance(kind, UnionType) else (kind,)


def _records_in(kind: Any) -> Iterator[tuple[type[Record], str]]:
    for choice in _choices(kind):
        if get_origin(choice) is tuple:
            yield from ((inner, f"[]{suffix}") for inner, suffix in _records_in(get_args(choice)[0]))
        elif get_origin(choice) is dict:
            yield from ((inner, f".*{suffix}") for inner, suffix in _records_in(get_args(choice)[1]))
        elif _is_record(choice):
            yield choice, ""


# --- reading --------------------------------------------------------------------------------------------------------


def _read_record(record: type[Record], content: Any, path: str) -> Record:
    if not isinstance(content, Mapping):
        raise DamagedRecordError(f"{path} is {_short(content)}, expected an object")
    read: Json = {}
    for each in _fields(record):
        place = f"{path}.{each.name}" if path else each.name
        if each.name in content:
            read[each.name] = _read(_hints(record)[each.name], content[each.name], place)
        elif _must_be_there(each):
            raise DamagedRecordError(f"it has no {place}")
    return record(**read)


def _read(kind: Any, content: Any, path: str) -> Any:
    choices = _choices(kind)
    for choice in choices:
        if get_origin(choice) is tuple and isinstance(content, list):
            return tuple(_read(get_args(choice)[0], item, f"{path}[{n}]") for n, item in enumerate(content))
        if get_origin(choice) is dict and isinstance(content, Mapping):
            return {name: _read(get_args(choice)[1], item, f"{path}.{name}") for name, item in content.items()}
        if _is_record(choice) and isinstance(content, Mapping):
            return _read_record(choice, content, path)
        if _is_scalar(choice, content):
            return content
    expected = " or ".join(dict.fromkeys(map(_word, choices)))
    raise DamagedRecordError(f"{path} is {_short(content)}, expected {expected}")


def _is_scalar(kind: Any, content: Any) -> bool:
    if kind is float:  # a whole number stays one
        return isinstance(content, (int, float)) and not isinstance(content, bool)
    return type(content) is kind


def _word(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return "a list"
    if get_origin(kind) is dict:
        return "an object"
    return "an object" if _is_record(kind) else _SCALARS[kind][1]


def _short(content: Any) -> str:
    return json.dumps(content)[:40]


# --- describing -----------------------------------------------------------------------------------------------------


def _object_schema(record: type[Record], definitions: Json) -> Json:
    properties: Json = {}
    for each in _fields(record):
        described: Json = {"description": each.metadata["about"]}
        described |= {"unit": unit} if (unit := each.metadata["unit"]) else {}
        kinds = [
            k for k in _choices(_hints(record)[each.name]) if k is not NoneType or not each.metadata["can_be_absent"]
        ]
        properties[each.name] = described | _kinds_schema(kinds, definitions)
    required = [each.name for each in _fields(record) if _must_be_there(each)]
    about = (record.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    return {"type": "object", "description": about, "properties": properties, "required": required}


def _kinds_schema(kinds: list[Any], definitions: Json) -> Json:
    scalars = [_SCALARS[kind][0] for kind in kinds if kind in _SCALARS]
    schemas: list[Json] = [_kind_schema(kind, definitions) for kind in kinds if kind not in _SCALARS]
    if not schemas:
        return {"type": scalars[0] if len(scalars) == 1 else scalars}
    schemas += [{"type": name} for name in scalars]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _kind_schema(kind: Any, definitions: Json) -> Json:
    if get_origin(kind) is tuple:
        return {"type": "array", "items": _kinds_schema([*_choices(get_args(kind)[0])], definitions)}
    if get_origin(kind) is dict:
        inner = _kinds_schema([*_choices(get_args(kind)[1])], definitions)
        return {"type": "object", "additionalProperties": inner}
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # holds the place, and the order
        definitions[kind.__name__] = _object_schema(kind, definitions)
    return {"$ref": f"#/$defs/{kind.__name__}"}
