"""Records: frozen dataclasses whose fields have a meaning and a unit, with checked JSON and a JSON Schema.

A record has numbers, texts, other records, and tuples and dicts of them, declared with :func:`value`. Records are not
pydantic models, because every command imports them and no user writes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Self, TypeVar, cast, dataclass_transform, get_args, get_origin, get_type_hints

from rayio.records.printed import escaped

Json = dict[str, Any]

_SCALARS: dict[type, tuple[str, str]] = {
    bool: ("boolean", "true or false"),
    int: ("integer", "a number"),
    float: ("number", "a number"),
    str: ("string", "a text"),
    NoneType: ("null", "null"),
}


class DamagedRecordError(ValueError):
    """An error of JSON that is not a valid record; the text names the key, its value and the expected type."""


def value(
    about: str, unit: str = "", *, default: Any = MISSING, can_be_absent: bool = False, is_required: bool = False
) -> Any:
    """Declare a field of a record.

    Args:
        about: its meaning, as a phrase for the schema.
        unit: ``s``, ``bytes``, ``fraction`` (0 to 1), ``percent``, ``steps`` …; empty without one.
        default: the value if a file lacks the key; without a default the key is required.
        can_be_absent: None, the default, is written by leaving the key out.
        is_required: the key is required in files despite the default.
    """
    metadata = {"about": about, "unit": unit, "can_be_absent": can_be_absent, "is_required": is_required}
    return field(default=None if can_be_absent else default, metadata=metadata)


class Record(Mapping[str, Any]):
    """A frozen dataclass that is also a read-only mapping of its JSON: ``run.result["au"]`` is ``run.result.au``."""

    __slots__ = ()
    #: What writes the record as its command prints it: ``package.module:function``; empty without one.
    worded_by = ""

    def as_text(self) -> str:
        """Return the record as its command prints it; of a record without a command, its JSON."""
        return str(_imported(self.worded_by)(self)) if self.worded_by else json.dumps(self.as_json(), indent=2)

    def __str__(self) -> str:
        return escaped(self.as_text()) if self.worded_by else repr(self)

    def _repr_html_(self) -> str | None:
        return str(_imported("rayio.report.text.notebook:html")(self.as_text())) if self.worded_by else None

    def _repr_mimebundle_(self, **_kinds: Any) -> dict[str, str]:
        """Return what IPython shows in place of the fields, on a page and in a terminal."""
        html = self._repr_html_()
        return {} if html is None else {"text/plain": escaped(self.as_text()), "text/html": html}

    def as_json(self) -> Json:
        """Return the record as plain values for ``json.dumps``, in the order of its fields."""
        return {name: _plain(getattr(self, name)) for name in self}

    @classmethod
    def of_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the record of parsed JSON; unknown keys are ignored.

        Raises:
            DamagedRecordError: a key is missing or has another type.
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

    def __eq__(self, other: object) -> bool:
        return _values(self) == _values(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(_values(self))

    def __repr__(self) -> str:
        shown = (f"{each.name}={getattr(self, each.name)!r}" for each in _fields(type(self)))
        return f"{type(self).__qualname__}({', '.join(shown)})"


R = TypeVar("R", bound=Record)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(cls: type[R]) -> type[R]:
    """Make a class of fields a record; its methods above are those that a dataclass would compile for each class."""
    return dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)(cls)


def _values(of: Record) -> tuple[Any, ...]:
    return tuple(getattr(of, each.name) for each in _fields(type(of)))


def _imported(reference: str) -> Callable[..., Any]:
    module, _, name = reference.partition(":")
    return cast("Callable[..., Any]", getattr(import_module(module), name))


def schema(record: type[Record]) -> Json:
    """Return the JSON Schema (draft 2020-12) of a record, with ``description`` and ``unit`` of each property."""
    definitions: Json = {}
    described = _object_schema(record, definitions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **described, "$defs": definitions}


def units(record: type[Record], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Iterate over the fields of a record and of records in it: dotted name, unit, meaning."""
    for each in _fields(record):
        name = f"{prefix}{each.name}"
        yield name, each.metadata["unit"], each.metadata["about"]
        for inner, suffix in _records_in(_hints(record)[each.name]):
            yield from units(inner, f"{name}{suffix}.")


def nested(record: type[Record]) -> Iterator[tuple[str, type[Record]]]:
    """Iterate over the record types in a record, each once, with the first place such as ``ranks[]``."""
    known, queue = {record}, [("", record)]
    while queue:
        place, outer = queue.pop(0)
        yield place, outer
        inner = []
        for each in _fields(outer):
            for kind, suffix in _records_in(_hints(outer)[each.name]):
                if kind not in known:
                    known.add(kind)
                    inner.append((f"{place}.{each.name}{suffix}".removeprefix("."), kind))
        queue = inner + queue


def members(record: type[Record]) -> dict[str, Any]:
    """Return the type of each field of a record."""
    return _hints(record)


def type_name(kind: Any) -> str:
    """Return a field's type as text: ``number or null``, ``list of Rank``."""
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
    """Return True if files must have a field; later and optional ones may be missing."""
    return each.default is MISSING or bool(each.metadata["is_required"])


def _plain(content: Any) -> Any:
    if isinstance(content, Record):
        return content.as_json()
    if isinstance(content, dict):
        return {name: _plain(item) for name, item in content.items()}
    return [_plain(item) for item in content] if isinstance(content, tuple) else content


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Record)


def _choices(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) is UnionType or isinstance(kind, UnionType) else (kind,)


def _records_in(kind: Any) -> Iterator[tuple[type[Record], str]]:
    for choice in _choices(kind):
        if get_origin(choice) is tuple:
            yield from ((inner, f"[]{suffix}") for inner, suffix in _records_in(get_args(choice)[0]))
        elif get_origin(choice) is dict:
            yield from ((inner, f".*{suffix}") for inner, suffix in _records_in(get_args(choice)[1]))
        elif _is_record(choice):
            yield choice, ""


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
        definitions[kind.__name__] = {}  # keeps the order, and ends recursion
        definitions[kind.__name__] = _object_schema(kind, definitions)
    return {"$ref": f"#/$defs/{kind.__name__}"}
