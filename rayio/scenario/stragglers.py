"""Ranks that are slower than the others, as a scenario names them."""

from __future__ import annotations

from typing import Annotated, Any

from rayio.scenario.fields import Reads, RefusedError, Section


def _ranks(value: Any) -> tuple[int, ...]:
    numbers = list(value) if isinstance(value, (list, tuple)) else []
    if not numbers or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers):
        raise RefusedError("must be a list of ranks, such as [3]")
    if len(set(numbers)) < len(numbers):
        raise RefusedError("names a rank twice")
    return tuple(sorted(numbers))


def _factor(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1e6:
        raise RefusedError("must be a number greater than 0, such as 1.5")
    return float(value)


_RANKS_SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "uniqueItems": True}


class Stragglers(Section):
    """Ranks whose every compute time is ``factor`` times what was drawn for them."""

    ranks: Annotated[tuple[int, ...], Reads(_ranks, _RANKS_SCHEMA)]
    factor: Annotated[float, Reads(_factor, {"type": "number", "exclusiveMinimum": 0})]
