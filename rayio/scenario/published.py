"""The section ``published``: what a publication reports of a workload, for ``rayio check-published``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import Field

from rayio.scenario.facts import FACTS, RATIO, Measure
from rayio.schema.fields import JsonSchema, Reads, RefusedError, Section, Text, choice, each
from rayio.units import BYTES, Dimension

#: Facts of a scenario: each is a row of a table.
MAX_FACTS = 100
#: Difference within which a fact agrees, by default.
TOLERANCE = "10 %"
_VALUE = re.compile(r"\s*([<>]?)\s*([\d._]+(?:[eE][+-]?\d+)?)\s*(\S*)\s*")


def _number(text: Any, dimension: Dimension) -> tuple[str, float, str]:
    """Return bound, number in base units and unit of a written value.

    Raises:
        RefusedError: no number, none above 0, or without its unit.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        text = str(text)
    match = _VALUE.fullmatch(text) if isinstance(text, str) else None
    unit = match[3] if match else ""
    if match is None or unit not in dimension.units:
        raise RefusedError(
            f"must be a number with its unit, such as {dimension.example}"
            if "" not in dimension.units
            else f"must be a number, such as {dimension.example}"
        )
    try:
        number = dimension.parse(f"{match[2]} {unit}".strip())
    except ValueError as error:
        raise RefusedError(str(error)) from None
    if not 0 < number <= dimension.most:
        raise RefusedError("must be greater than 0")
    return match[1], number, unit


def _fact_name(value: Any) -> str:
    if not isinstance(value, str) or value not in FACTS:
        near = get_close_matches(str(value), FACTS, n=3)
        raise RefusedError(f"no fact is named so; did you mean {', '.join(near)}?" if near else
                           f"no fact is named so; there are {', '.join(FACTS)}")  # fmt: skip
    return str(value)


def _tolerance(value: Any) -> str:
    try:
        bound, number, _ = _number(value, _SHARES)
    except RefusedError:
        bound, number = "", 0.0
    if bound or not 0 < number <= 1:
        raise RefusedError("must be a share above 0 %, at most 100 %, such as 10 %")
    return str(value)


def _size(value: Any) -> str | None:
    if value is not None:
        _number(value, BYTES)
    return None if value is None else str(value)


def _overrides(value: Any) -> str:
    if not isinstance(value, str) or not all(re.fullmatch(r"[\w.]+=.+", part) for part in value.split()):
        raise RefusedError("must be overrides as on the command line, such as loader.shuffle=none")
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise RefusedError("must be a number with its unit, such as 7 %")
    return str(value)


_SHARES = FACTS["io_share"].dimension
_NUMBER_OR_TEXT: JsonSchema = {"type": ["string", "number"]}


class Fact(Section):
    """A published number, and how it is compared with the simulated one."""

    fact: Annotated[str, Reads(_fact_name, {"enum": [*FACTS]})] = Field(description="What was measured.")
    value: Annotated[str, Reads(_text, _NUMBER_OR_TEXT)] = Field(
        description="The published number with its unit; < 1 % and > 1 × are bounds."
    )
    size: Annotated[str | None, Reads(_size, _NUMBER_OR_TEXT)] = Field(
        None, description="Of fact requests_of: the size of the requests that count."
    )
    against: Annotated[str, Reads(_overrides, {"type": "string", "pattern": r"^([\w.]+=\S+(\s+|$))*$"})] = Field(
        "",
        description="Overrides of another scenario: the number is then this scenario's divided by that one's, in ×.",
    )
    tolerance: Annotated[str, Reads(_tolerance, _NUMBER_OR_TEXT)] = Field(
        TOLERANCE, description="The largest difference that is agreement."
    )
    kind: Annotated[Literal["checked", "input", "assumed"], choice("checked", "input", "assumed")] = Field(
        "checked",
        description="checked: compared; input: a number of the scenario or of its storage; assumed: it follows from a "
        "number that no source has.",
    )
    contradicts: Text = Field("", description="Why the source's own numbers do not allow this one; never compared.")
    differs: Text = Field("", description="Why the simulated number is another one.")
    source: Text = Field("", description="Where the number was published; by default as the scenario's source says.")

    @property
    def measure(self) -> Measure:
        """The measure of the fact."""
        return FACTS[self.fact]

    @property
    def _parts(self) -> tuple[str, float, str]:
        return _number(self.value, RATIO if self.against else self.measure.dimension)

    @property
    def bound(self) -> str:
        """``<``, ``>``, or nothing."""
        return self._parts[0]

    @property
    def number(self) -> float:
        """The published number in base units."""
        return self._parts[1]

    @property
    def unit(self) -> str:
        """The unit in which it was written."""
        return self._parts[2]

    @property
    def worth(self) -> float:
        """The unit in base units."""
        return float((RATIO if self.against else self.measure.dimension).units[self.unit])

    @property
    def share(self) -> float:
        """The tolerance, 0 to 1."""
        return _number(self.tolerance, _SHARES)[1]

    @property
    def size_bytes(self) -> float:
        """The size of fact requests_of; 0 for others."""
        return 0.0 if self.size is None else _number(self.size, BYTES)[1]

    @property
    def overrides(self) -> list[str]:
        """The overrides of ``against``."""
        return self.against.split()


def _fact(value: Any) -> Fact:
    fact = Fact.model_validate(value)
    try:
        fact._parts  # noqa: B018  # parsed once the fact is known
    except RefusedError as error:
        raise RefusedError(str(error), "value", fact.value) from None
    if fact.measure.is_sized != (fact.size is not None):
        raise RefusedError(
            f"{fact.fact} needs size, such as 256 KiB" if fact.measure.is_sized else f"{fact.fact} has no size",
            "size", fact.size,
        )  # fmt: skip
    reasons = [key for key in ("contradicts", "differs") if getattr(fact, key)]
    if len(reasons) > 1 or (reasons and fact.kind != "checked"):
        others = " and ".join([*reasons, *([f"kind={fact.kind}"] if fact.kind != "checked" else [])])
        raise RefusedError(f"{others} exclude each other", reasons[0], getattr(fact, reasons[0]))
    return fact


def _facts(value: Any) -> tuple[Fact, ...]:
    if value is None or value == "none":
        return ()
    if not isinstance(value, (list, tuple)) or not all(isinstance(fact, (Mapping, Fact)) for fact in value):
        raise RefusedError("must be a list of mappings with fact, value and source")
    if len(value) > MAX_FACTS:
        raise RefusedError(f"has {len(value)} facts; {MAX_FACTS} are the most")
    return each(value, _fact)


def _schema() -> JsonSchema:
    return {"anyOf": [{"type": "array", "items": Fact.model_json_schema()}, {"const": "none"}, {"type": "null"}]}


Published = Annotated[
    tuple[Fact, ...],
    Reads(_facts, _schema, lambda facts: [fact.model_dump(mode="json", exclude_defaults=True) for fact in facts]),
]
