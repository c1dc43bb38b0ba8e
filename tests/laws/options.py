"""Options of any kind, drawn from what its own schema says of them: laws name no kind."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st
from pydantic import ValidationError

from rayio.schema.fields import NotYetError, RefusedError, Section


def drawn(section: type[Section], **fixed: Any) -> st.SearchStrategy[Any]:
    """Draw a section of options that agree with each other; keys that need no value often have none."""
    return _keys(section).map(lambda keys: _built(section, keys | fixed)).filter(_is_built)


@cache
def _keys(section: type[Section]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw values of a section's keys, whether they agree or not; laws ask for it in every example."""
    schema = section.model_json_schema()
    needed = schema.get("required", [])
    values = {key: _value(rule) for key, rule in schema.get("properties", {}).items() if "const" not in rule}
    return st.fixed_dictionaries({k: value if k in needed else st.none() | value for k, value in values.items()})


def _value(rule: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Draw what one rule of a JSON schema allows, of numbers such that files are small."""
    if "enum" in rule:
        return st.sampled_from(rule["enum"])
    if "anyOf" in rule:  # a number with a unit, as text, says nothing that the number does not
        return st.one_of([_value(each) for each in rule["anyOf"] if each.get("type") not in ("string", "null")])
    if "const" in rule:
        return st.just(rule["const"])
    if rule.get("type") == "array":
        return st.lists(_value(rule["items"]), min_size=rule.get("minItems", 0), max_size=4)
    if rule.get("type") == "object":
        return st.dictionaries(st.sampled_from("abcd"), _value(rule["additionalProperties"]), min_size=1)
    if rule.get("type") == "string":
        return st.just(rule.get("default", ""))
    least, most = rule.get("minimum", rule.get("exclusiveMinimum", 0)), rule.get("maximum", 1 << 40)
    whole = st.sampled_from([1, 2, 3, 5, 7, 8, 21, 64, 90, 1000]) | st.integers(1, 200)
    return whole.map(lambda number: min(max(number, int(least) + ("exclusiveMinimum" in rule)), int(most)))


def _built(section: type[Section], keys: dict[str, Any]) -> Section | None:
    """Make the section of the keys that have a value; None where they do not agree."""
    try:
        return section(**{key: value for key, value in keys.items() if value is not None})
    except (ValidationError, RefusedError, NotYetError):
        return None


def _is_built(section: Section | None) -> bool:
    return section is not None
