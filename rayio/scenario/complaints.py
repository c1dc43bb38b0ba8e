"""The error line of an invalid scenario: file, line, key path, value, and what is allowed instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rayio.errors import ScenarioError
from rayio.scenario import dlio_keys
from rayio.scenario.model import Scenario
from rayio.scenario.source import KeyPath, Layer, step
from rayio.schema.choice import Choice, Choosing, KindOf
from rayio.schema.distribution import Of
from rayio.schema.fields import Section, listed, show, unless_secret

#: What YAML reads as a number, unless it stands in quotes.
_NOT_TEXT = re.compile(r"[-+]?[0-9]{1,30}(\.[0-9]{1,30})?|\{.*\}|\[.*\]", re.ASCII | re.DOTALL)
#: Pydantic's name of the error that a key is none.
UNKNOWN = "extra_forbidden"


def explain(error: ValidationError, data: Mapping[str, Any], layers: Sequence[Layer]) -> ScenarioError:
    """Return the error with a line for each problem; its message is the one to mend first.

    Unknown keys come before other problems, which they often cause. The name of a kind that cannot be used comes before
    unknown keys, which may be its options. ``data`` was merged from ``layers``; the last one wins.
    """
    details = error.errors(include_url=False)
    unknown = {detail["loc"][:-1] for detail in details if detail["type"] == UNKNOWN}
    details.sort(key=lambda detail: (not _brings(detail, unknown), detail["type"] != UNKNOWN))
    lines: dict[str, tuple[int, int]] = {}
    for detail in details:
        path, _ = _locate(detail["loc"], data)
        number = layers.index(layer := _last(path, layers))
        lines.setdefault(line_of(detail, data, layers), (number, layer.line(path)))
    return one_of(ScenarioError, [*lines], sorted(lines, key=lines.__getitem__))


E = TypeVar("E", bound=ScenarioError)


def one_of(kind: type[E], lines: Sequence[str], problems: Sequence[str]) -> E:
    """Return an error whose message is the first line, and says how many there are; ``problems`` lists all."""
    more = f" ({len(lines) - 1} more; rayio validate lists all)" if len(lines) > 1 else ""
    error = kind(f"{lines[0]}{more}")
    error.listed = tuple(problems)
    return error


def _brings(detail: ErrorDetails, unknown: Collection[tuple[int | str, ...]]) -> bool:
    """Return True if the refused value names a kind whose options stand in a section that has unknown keys."""
    *section, key = detail["loc"] or ("",)
    if detail["type"] not in ("refused", "not_yet"):
        return False
    if key == "path" and ("storage",) in unknown:  # the options of an address's scheme
        return True
    return (
        tuple(section) in unknown
        and len(section) == 1
        and key in [choice.key for choice in choices_of(str(section[0]))]
    )


def choices_of(section: str) -> tuple[Choice, ...]:
    """Keys of a section of the scenario that choose kinds."""
    field = Scenario.model_fields.get(section)
    kind = None if field is None else field.annotation
    return kind.choices if isinstance(kind, type) and issubclass(kind, Choosing) else ()


def line_of(detail: ErrorDetails, data: Mapping[str, Any], layers: Sequence[Layer]) -> str:
    """Return the line for one error of pydantic's."""
    path, sections = _locate(detail["loc"], data)
    context = detail.get("ctx", {})
    value = _at(data, path, detail["input"])
    if context.get("key"):
        path = (*path, context["key"])
        value = _at(data, path, context.get("value"))
    value = unless_secret(path[-1] if path else None, value)
    where = place(path, layers)
    name = dotted(path)
    match detail["type"]:
        case "not_yet":
            return f"{where}: not yet: {name}={context['reason']}"
        case "refused":
            reason = context["reason"]
        case "extra_forbidden":
            if any(path[-1] in section.keys_not_yet for section in sections):
                return f"{where}: not yet: {name}={show(value)}"
            if (hint := dlio_keys.hint(path, value)) is not None:
                return f"{where}: {name}={show(value)}: {hint}"
            return f"{where}: {name}={show(value)}: no such key; {_nearest(path, sections)}"
        case "missing":
            return f"{where}: {name}: is required and missing"
        case "model_type" | "model_attributes_type" | "dict_type":
            if value is None:
                return f"{where}: {name}=null: give it keys, or leave it out for the defaults"
            reason = _mapping(_sections_at(path))
        case _:
            reason = "is not allowed here"
    return f"{where}: {name}={_written(value)}: {reason}" if path else f"{where}: {reason}"


def _written(value: Any) -> str:
    """Return a value for a message; text that would be a number, mapping or list without its quotes has them."""
    return f'"{show(value)}"' if isinstance(value, str) and _NOT_TEXT.fullmatch(value) else show(value)


def _at(data: Mapping[str, Any], path: KeyPath, otherwise: Any) -> Any:
    """Return the value as the user wrote it."""
    node: Any = data
    for key in path:
        if not (inner := step(node, key)):
            return otherwise
        node = inner[0]
    return node


def _mapping(sections: Sequence[type[Section]]) -> str:
    """Return the text that a value must be a mapping: with all keys that it needs, or any of those that it may have."""
    keys = list(dict.fromkeys(key for section in sections for key in section.known_keys()))
    needed = [
        key
        for key in keys
        if all(key in section.model_fields and section.model_fields[key].is_required() for section in sections)
    ]
    if needed:
        return f"must be a mapping with {' and '.join(filter(None, (', '.join(needed[:-1]), needed[-1])))}"
    return f"must be a mapping with {listed(sorted(keys))}" if keys else "must be a mapping"


def dotted(path: KeyPath) -> str:
    """Return a key path as text.

    >>> dotted(("storage", "faults", "stalls", "[1]", "rate"))
    'storage.faults.stalls[1].rate'
    """
    return "".join(key if key[:1] == "[" else f".{show(key)}" for key in path).removeprefix(".")


def place(path: KeyPath, layers: Sequence[Layer]) -> str:
    """Return the file and line, or the override, of a value."""
    return _last(path, layers).where(path)


def _last(path: KeyPath, layers: Sequence[Layer]) -> Layer:
    """Return the last layer with the longest part of a path; an override has a section only if it gives all of it."""

    def depth(layer: Layer) -> int:
        there = layer.depth(path)
        return there if there == len(path) or there >= len(layer.override) else -1

    return max(reversed(layers), key=depth)


def _locate(loc: tuple[int | str, ...], data: Mapping[str, Any]) -> tuple[KeyPath, list[type[Section]]]:
    """Return pydantic's location as a key path without hidden fields, and the sections of its key."""
    path: list[str] = []
    sections: list[type[Section]] = [Scenario]
    node: Any = data
    for number, part in enumerate(loc):
        key = f"[{part}]" if isinstance(part, int) and isinstance(node, (list, tuple)) else str(part)
        inner = step(node, key)
        if number == len(loc) - 1:
            is_written = inner or not any(key in section.unwritten() for section in sections)
            return (*path, key) if is_written else tuple(path), _chosen(sections, node)
        if inner:
            path.append(key)
            sections = _inner_sections(sections, key)
            node = inner[0]
    return tuple(path), sections


def _chosen(sections: list[type[Section]], node: Any) -> list[type[Section]]:
    """Return the section of the kind that a mapping names, if it names one."""
    kind = node.get("kind") if isinstance(node, Mapping) else None
    return [section for section in sections if _kind(section) == kind] or sections


def _kind(section: type[Section]) -> str | None:
    kind = section.model_fields.get("kind")
    return kind.default if kind is not None else None


def _fields_sections(section: type[Section], key: str) -> list[type[Section]]:
    field = section.model_fields.get(key)
    if field is None and issubclass(section, Choosing) and key in (options := section.options_there_are()):
        field = options[key][0].model_fields[key]
    return [] if field is None else [s for part in (field.annotation, *field.metadata) for s in _inside(part)]


def _inside(annotation: Any) -> list[type[Section]]:
    if isinstance(annotation, (KindOf, Of)):
        return annotation.sections()
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [section for part in get_args(annotation) for section in _inside(part)]


def _inner_sections(sections: list[type[Section]], key: str) -> list[type[Section]]:
    """Return the sections that may stand at a key; an entry of a list has those of the list."""
    return sections if key[:1] == "[" else [s for section in sections for s in _fields_sections(section, key)]


def _sections_at(path: KeyPath) -> list[type[Section]]:
    sections: list[type[Section]] = [Scenario]
    for key in path:
        sections = _inner_sections(sections, key)
    return sections


def _nearest(path: KeyPath, sections: Sequence[type[Section]]) -> str:
    """Return a suggestion for an unknown key: a similar name, or the same name in another section."""
    *parents, key = path
    keys = sorted({name for section in sections for name in section.known_keys()})
    if near := get_close_matches(key, keys, n=1, cutoff=0.6):
        return f"did you mean {near[0]}?"
    for name in Scenario.model_fields:
        if any(key in section.known_keys() for section in _fields_sections(Scenario, name)) and [name] != parents:
            return f"did you mean {name}.{key}?"
    return f"{dotted(tuple(parents)) or 'a scenario'} has {', '.join(keys)}"
