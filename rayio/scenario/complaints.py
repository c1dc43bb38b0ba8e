"""The error line of an invalid scenario: file, line, key path, value, and what is allowed instead."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rayio.scenario import dlio_keys
from rayio.scenario.model import Scenario
from rayio.scenario.source import KeyPath, Layer
from rayio.schema.choice import Choice, Choosing, KindOf
from rayio.schema.distribution import Of
from rayio.schema.fields import Section, listed, show, unless_secret

#: Pydantic's name of the error that a key is none.
UNKNOWN = "extra_forbidden"


def explain(error: ValidationError, data: Mapping[str, Any], layers: Sequence[Layer]) -> str:
    """Return the line for the first error: unknown keys come before others, which they often cause.

    The name of a kind that cannot be used comes before unknown keys, which may be its options. ``data`` was merged from
    ``layers``; the last one wins.
    """
    details = error.errors(include_url=False)
    unknown = {detail["loc"][:-1] for detail in details if detail["type"] == UNKNOWN}
    details.sort(key=lambda detail: (not _brings(detail, unknown), detail["type"] != UNKNOWN))
    return line_of(details[0], data, layers) + more(len(details))


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


def more(count: int) -> str:
    """Return the number of errors that are not shown, as text."""
    return f" (and {count - 1} more)" if count > 1 else ""


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
    name = ".".join(map(show, path))
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
            keys = sorted({key for section in _sections_at(path) for key in section.known_keys()})
            reason = f"must be a mapping with {listed(keys)}" if keys else "must be a mapping"
        case _:
            reason = "is not allowed here"
    return f"{where}: {name}={show(value)}: {reason}" if path else f"{where}: {reason}"


def _at(data: Mapping[str, Any], path: KeyPath, otherwise: Any) -> Any:
    """Return the value as the user wrote it."""
    node: Any = data
    for key in path:
        if not isinstance(node, Mapping) or key not in node:
            return otherwise
        node = node[key]
    return node


def place(path: KeyPath, layers: Sequence[Layer]) -> str:
    """Return the file and line, or the override, of a value: the last layer with the longest part of its path."""
    best = max(reversed(layers), key=lambda layer: layer.depth(path))
    return best.where(path)


def _locate(loc: tuple[int | str, ...], data: Mapping[str, Any]) -> tuple[KeyPath, list[type[Section]]]:
    """Return pydantic's location as a key path without hidden fields, and the sections of its key."""
    path: list[str] = []
    sections: list[type[Section]] = [Scenario]
    node: Any = data
    for number, key in enumerate(map(str, loc)):
        is_key = isinstance(node, Mapping) and key in node
        if number == len(loc) - 1:
            is_written = is_key or not any(key in section.hidden() for section in sections)
            return (*path, key) if is_written else tuple(path), _chosen(sections, node)
        if is_key:
            path.append(key)
            node = node[key]
            sections = [s for section in sections for s in _fields_sections(section, key)]
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


def _sections_at(path: KeyPath) -> list[type[Section]]:
    sections: list[type[Section]] = [Scenario]
    for key in path:
        sections = [s for section in sections for s in _fields_sections(section, key)]
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
    return f"{'.'.join(parents) or 'a scenario'} has {', '.join(keys)}"
