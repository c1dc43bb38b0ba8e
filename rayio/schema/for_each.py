"""Values of one number for all nodes or epochs, or of a list with a number for each."""

from __future__ import annotations

from typing import Any

from rayio.schema.fields import JsonSchema, Reads, RefusedError, whole


def for_each(what: str, most: int, *, or_none: bool = False) -> Reads:
    """Read a whole number from 1 to ``most``, or a list with one for each ``what``; or none."""
    single = whole(1, most, or_none=or_none)

    def read(value: Any) -> int | tuple[int, ...] | None:
        if not isinstance(value, (list, tuple)):
            number: int | None = single.read(value)
            return number
        if not value or not all(type(number) is int and 1 <= number <= most for number in value):
            raise RefusedError(f"must have a whole number from 1 to {most} for each {what}")
        return tuple(value)

    number: JsonSchema = {"type": "integer", "minimum": 1, "maximum": most}
    none: list[JsonSchema] = [{"const": "none"}, {"type": "null"}] if or_none else []
    schema: JsonSchema = {"anyOf": [number, {"type": "array", "items": number, "minItems": 1}, *none]}
    return Reads(read, schema, write=lambda value: list(value) if isinstance(value, tuple) else value)
