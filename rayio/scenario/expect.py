"""The section ``expect``: conditions on the metrics of ``result.json``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any

from rayio.schema.fields import JsonSchema, Reads, RefusedError

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a metric: ``>= 0.90``."""

    operator: str
    value: float

    def holds(self, x: float) -> bool:
        """Return True if ``x`` meets the condition."""
        return _OPERATORS[self.operator](x, self.value)

    def __str__(self) -> str:
        return (
            f"{self.operator} {self.value:g}"
            if float(f"{self.value:g}") == self.value
            else f"{self.operator} {self.value!r}"
        )


class Expectations(dict[str, Condition]):
    """Conditions by the name of a metric of ``result.json``; treat as immutable."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def _expectations(value: Any) -> Expectations:
    if not isinstance(value, Mapping):
        raise RefusedError('must be a mapping of metrics to conditions, such as {au: ">= 0.90"}')
    conditions = Expectations()
    if not value:
        return conditions
    from rayio.records.metric_names import METRICS  # takes long to import, and few scenarios have conditions

    for metric, condition in value.items():
        if metric not in METRICS:
            near = get_close_matches(str(metric), METRICS, n=3) or METRICS[:3]
            raise RefusedError(f"no metric is named so; did you mean {', '.join(near)}?", str(metric), condition)
        if isinstance(condition, Condition):
            conditions[metric] = condition
            continue
        match = re.fullmatch(r"\s*(>=|<=|==|>|<)\s*([-+]?[0-9.]+(?:[eE][-+]?\d+)?)\s*(%?)\s*", str(condition))
        try:
            number = float(match[2]) if match else None
        except ValueError:
            number = None
        if match is None or number is None or math.isinf(number):
            raise RefusedError(
                'must be an operator (>=, <=, >, < or ==) and a number, such as ">= 0.90"', str(metric), condition
            )
        conditions[metric] = made = Condition(match[1], number / 100 if match[3] else number)
        if not 0 <= made.value <= 1 and metric in _shares():
            meant = f"; write {match[1]} {match[2]} % or {match[1]} {number / 100:g}" if 0 <= number <= 100 else ""
            raise RefusedError(f"{metric} is a share, from 0 to 1{meant}", str(metric), condition)
    return conditions


def _shares() -> set[str]:
    """Metrics that are parts of a whole."""
    from rayio.records.record import units
    from rayio.records.run_result import RunResult

    return {name for name, unit, _ in units(RunResult) if unit == "fraction"}


def _schema() -> JsonSchema:
    from rayio.records.metric_names import METRICS
    from rayio.records.record import units
    from rayio.records.run_result import RunResult

    meanings = {name: f": {about}" + (f" ({unit})" if unit else "") for name, unit, about in units(RunResult)}
    return {
        "type": "object",
        "properties": {
            metric: {
                "type": "string",
                "pattern": r"^\s*(>=|<=|==|>|<)\s*[-+]?[0-9.]+([eE][-+]?\d+)?\s*%?\s*$",
                "description": f"A condition such as >= 0.9 on {metric}{meanings.get(metric, '')}.",
            }
            for metric in METRICS
        },
        "additionalProperties": False,
    }


Expect = Annotated[Expectations, Reads(_expectations, _schema, lambda value: {k: str(v) for k, v in value.items()})]
