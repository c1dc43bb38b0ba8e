"""A scenario as text: resolved YAML that loads to the same scenario, and the JSON Schema for editors."""

from __future__ import annotations

from typing import Any

import yaml

from rayio.scenario.model import Scenario


def to_yaml(scenario: Scenario) -> str:
    """Return YAML of every key with its unit; loading it returns an equal scenario."""
    return yaml.safe_dump(
        _without_null(scenario.model_dump(mode="json")), sort_keys=False, allow_unicode=True, width=120
    )


def _without_null(value: Any) -> Any:
    """Return a mapping without keys that are null, which is their default."""
    if isinstance(value, dict):
        return {key: _without_null(inner) for key, inner in value.items() if inner is not None}
    return value


#: The schema's name; a scenario's first line may name a file of it (``rayio schema > scenario.schema.json``).
SCHEMA_ID = "urn:rayio:scenario:1"


def _complete(properties: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Describe each section where it is used, and allow none for optional ones."""
    for value in properties.values():
        if "$ref" in value:
            value.setdefault("description", definitions[value["$ref"].rpartition("/")[2]].get("description", ""))
        elif any("$ref" in part for part in value.get("anyOf", ())) and {"type": "null"} in value["anyOf"]:
            value["anyOf"].append({"const": "none"})


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a scenario file: with ``extends``, and without keys required that a base may have."""
    schema: dict[str, Any] = _without_required(Scenario.model_json_schema())
    definitions: dict[str, Any] = {}
    schema = {**_without_definitions(schema, definitions), "$defs": definitions}
    first = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, "title": "rayio scenario"}
    schema = first | {key: value for key, value in schema.items() if key not in first}
    for section in (schema, *definitions.values()):
        _complete(section.get("properties", {}), definitions)
    for name, field in Scenario.model_fields.items():
        if not field.is_required():
            schema["properties"][name].setdefault("default", {})
    extends = {"type": "string", "description": "A file or packaged scenario that this one builds on."}
    schema["properties"] = {"extends": extends, **schema["properties"]}
    return schema


def _without_definitions(value: Any, definitions: dict[str, Any]) -> Any:
    """Move the definitions inside kinds to the top: references are relative to the whole schema."""
    if isinstance(value, dict):
        for name, inner in value.get("$defs", {}).items():
            definitions[name] = _without_definitions(inner, definitions)
        return {key: _without_definitions(inner, definitions) for key, inner in value.items() if key != "$defs"}
    return [_without_definitions(item, definitions) for item in value] if isinstance(value, list) else value


def _without_required(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_required(v) for k, v in value.items() if k != "required" or not isinstance(v, list)}
    return [_without_required(item) for item in value] if isinstance(value, list) else value
