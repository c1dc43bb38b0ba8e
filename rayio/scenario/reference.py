"""The JSON Schema of scenarios as a page to read: a table of keys for each section."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from rayio.schema.fields import MAX_WHOLE
from rayio.units import format_bytes

_INTRODUCTION = """\
# Scenario reference

Every key of a scenario: its values, its default and its meaning.
`rayio schema --markdown` prints this page, with the kinds of other packages that are installed; `rayio schema` prints
the JSON Schema behind it. [Writing a scenario](scenarios.md) shows how to combine keys, and `rayio show` prints the
numbers that follow from them.

A *quantity* is a number with a unit: `4 MiB` or `4 MB` (bytes), `323 ms` or `2 min` (time), `3 GB/s` (bytes per
second). A bare number is bytes, seconds or bytes per second. Sizes end at 4096 PiB and times at 10⁹ s (32 years); rates
are from 1 B/s to 10¹⁸ B/s. Whole numbers without an end in these tables end at 2⁶³ - 1. All of a run may take 146 years
and have 2²⁰ roles (ranks, workers, queues, writers).
"""

_DISTRIBUTIONS = """\
## Distributions

Where a table has *distribution*, a quantity is a constant value, and a mapping is a distribution that is drawn
each time. Draws depend only on `seed`: equal scenarios have equal draws on every engine.
"""

Schema = Mapping[str, Any]


def to_markdown(schema: Schema) -> str:
    """Return a page of Markdown: each section of a scenario as a heading and a table of its keys.

    Args:
        schema: the JSON Schema of scenarios, as ``json_schema`` gives it.
    """
    page = _Page(schema.get("$defs", {}))
    sections = {key: page.section(inner) or _named_section(inner) for key, inner in schema["properties"].items()}
    plain = {key: inner for key, inner in schema["properties"].items() if sections[key] is None}
    lines = [
        _INTRODUCTION,
        "## The scenario itself",
        "",
        *page.table(plain, "", required=("name",)),
        *page.variants(plain, ""),
    ]
    for key, section in sections.items():
        if section is not None:
            lines += ["", f"## {key}", "", _prose(section.get("description", "")), ""]
            table = page.table(section["properties"], f"{key}.")
            if _named_section(inner := schema["properties"][key]):
                table[2:2] = page.table({key: inner}, "")[2:]
            lines += table
            lines += page.variants(section["properties"], f"{key}.")
    lines += ["", _DISTRIBUTIONS, "| kind | keys | meaning |", "|---|---|---|"]
    lines += [f"| `{_kind(kind)}` | {_keys(kind)} | {_about(kind)} |" for kind in page.kinds]
    return "\n".join(lines) + "\n"


def _named_section(value: Schema) -> Schema | None:
    """Return the section that is an alternative to a name."""
    parts = value.get("anyOf", ())
    has_names = any("enum" in part for part in parts)
    return next((part for part in parts if has_names and "properties" in part), None)


def _is_section(value: Schema) -> bool:
    """Return True if a schema is a section with known keys; conditions (``expect``) may be any of many."""
    return "properties" in value and all("default" in key for key in value["properties"].values())


class _Page:
    def __init__(self, definitions: Schema) -> None:
        self._definitions = definitions
        #: The kinds of a distribution, as the first key that takes one has them.
        self.kinds: list[Schema] = []

    def section(self, value: Schema) -> Schema | None:
        """Return the section of a key, also of an optional one."""
        for part in (value, *value.get("anyOf", ())):
            if "$ref" in part:
                section: Schema = self._definitions[part["$ref"].rpartition("/")[2]]
                return section
        return None

    def table(self, properties: Schema, prefix: str, *, required: Collection[str] | None = None) -> list[str]:
        """Return the keys of a section as a table; sections in it have dotted keys."""
        lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
        for key, value in self._flat(properties, ""):
            default = "" if required is not None and key not in required else "*required*"
            default = _default(key, value["default"]) if "default" in value else default
            lines.append(f"| `{prefix}{key}` | {self._value(value)} | {default} | {_prose(_described(value))} |")
        return lines

    def variants(self, properties: Schema, prefix: str) -> Iterator[str]:
        """Return a subsection for each key with mappings of several kinds: their meaning, and their keys."""
        for key, value in self._flat(properties, ""):
            parts = (inner for part in value.get("anyOf", ()) for inner in (part, part.get("items", {})))
            kinds = [part for part in parts if "title" in part and not self._is_distribution(part)]
            if kinds:
                yield from ("", f"### {prefix}{key}", "")
            yield from (f"- `{_name(part)}`: {_prose(_described(part))}" for part in kinds)
            for part in kinds:
                if inner := {
                    n: key for n, key in part.get("properties", {}).items() if n != "kind" or "const" not in key
                }:
                    yield from ("", f"Keys of `{_name(part)}`:", "", *self.table(inner, ""))
                    yield from self._inner(inner)

    def _inner(self, properties: Schema) -> Iterator[str]:
        """Yield a table for each key of a list's mappings that is a mapping itself."""
        for key, value in properties.items():
            for part in value.get("anyOf", ()):
                if "title" in part and "properties" in part:
                    yield from ("", f"Keys of `{key}`:", "", *self.table(part["properties"], f"{key}."))

    def _flat(self, properties: Schema, prefix: str) -> Iterator[tuple[str, Schema]]:
        for key, value in properties.items():
            if (section := value if _is_section(value) else self.section(value)) is not None:
                if "anyOf" in value:
                    yield prefix + key, value
                yield from self._flat(section["properties"], f"{prefix}{key}.")
            else:
                yield prefix + key, value

    def _value(self, value: Schema) -> str:
        texts: list[str] = []
        for part in value.get("anyOf", [value]):
            for text in self._part(part):
                if text not in texts:
                    texts.append(text)
        if "number" in texts and "text" in texts:
            texts = [text for text in texts if text not in ("number", "text")]
            texts.insert(0, "quantity")
        if "distribution" in texts:
            texts = ["[distribution](#distributions)", *(t for t in texts if t not in ("distribution", "quantity"))]
        return ", ".join(texts)

    def _part(self, part: Schema) -> list[str]:
        if "enum" in part:
            return [_shown(name) for name in part["enum"]]
        if "const" in part:
            return [_shown(part["const"])]
        if "$ref" in part:
            return ["a mapping"]
        match part.get("type"):
            case "integer":
                least, most = part.get("minimum"), part.get("maximum", MAX_WHOLE)
                if least is not None and most < MAX_WHOLE:
                    return [f"whole number, {least} to {most}"]
                return [f"whole number ≥ {least}" if least is not None else "whole number"]
            case "number":
                return ["number"]
            case "string":
                return ["text"]
            case "null":
                return ["`none`"]
            case "array":
                return ["list"]
            case "object" if self._is_distribution(part):
                if _kind(part) not in map(_kind, self.kinds):  # times and sizes have different bounds
                    self.kinds.append(part)
                return ["distribution"]
            case "object":
                name = _name(part)
                return [f"`{name}`"] if "…" in name else []
        return ["anything"]

    def _is_distribution(self, part: Schema) -> bool:
        """Return True if the kinds are those of a distribution, whose schema has no class name."""
        return "title" not in part and "kind" in part.get("properties", {})


def _kind(part: Schema) -> str:
    return str(part["properties"]["kind"]["const"])


def _described(value: Schema) -> str:
    return str(value.get("description", ""))


def _name(part: Schema) -> str:
    """Return a mapping of a kind as written; only the kind if it has no other key."""
    properties = part.get("properties", {})
    kind, inner = properties.get("kind", {}).get("const"), [key for key in properties if key != "kind"]
    if kind is not None:
        return f"{{kind: {kind}, …}}" if inner else kind
    return f"{{{inner[0]}: …}}" if len(inner) == 1 else "{…}"


def _about(kind: Schema) -> str:
    return _prose(_described(kind["properties"]["kind"]))


def _keys(kind: Schema) -> str:
    return ", ".join(f"`{key}`" for key in kind["properties"] if key != "kind")


def _prose(text: str) -> str:
    """Return a description in one line, with Markdown's code."""
    return " ".join(text.replace("``", "`").split()).replace("|", "\\|").replace("<", "&lt;")


def _shown(value: Any) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _default(key: str, default: Any) -> str:
    if default is None:
        return "`none`"
    if isinstance(default, Mapping):
        filled = {name: inner for name, inner in default.items() if inner is not None}
        if filled.keys() == {"kind", "value"}:
            return f"`{filled['value']:g}`"
        if [*filled] == ["kind"]:
            return f"`{filled['kind']}`"
        return "`{" + ", ".join(f"{name}: {inner}" for name, inner in filled.items()) + "}`"
    if isinstance(default, (int, float)) and not isinstance(default, bool):
        return f"`{format_bytes(default)}`" if key.endswith("bytes") and default else f"`{default:g}`"
    return _shown(default) if default != "" else ""
