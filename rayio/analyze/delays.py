"""Times in which a layer of storage delayed reads (spans named ``delay``), by cause."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.timeline import Ints, integers, is_text, texts
from rayio.kinds import LAYERS

if TYPE_CHECKING:
    import pyarrow as pa

#: The column with the cause of a delay; only runs with delays need it.
ATTRIBUTES = "attributes"


def columns_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that delays need in a run with spans of these names."""
    return (ATTRIBUTES,) if "delay" in names else ()


def delays(spans: pa.Table, *roles: str) -> dict[str, Ints]:
    """Return by cause the positions of the delays that some roles recorded."""
    chosen = np.flatnonzero(is_text(spans, "name", "delay") & is_text(spans, "role", *roles))
    if not len(chosen):
        return {}
    known = sorted({text for chunk in spans.column(ATTRIBUTES).chunks for text in chunk.dictionary.to_pylist()})
    causes = [attribute_of(text, "cause") for text in known]
    code, by_cause = texts(spans, ATTRIBUTES, (*known,), chosen), dict[str, Ints]()
    for cause in sorted({*causes} - {""}):
        mine = np.array([place for place, name in enumerate(causes) if name == cause])
        if (inside := np.isin(code, mine)).any():
            by_cause[cause] = chosen[inside]
    return by_cause


def delayed(spans: pa.Table, shape: tuple[int, int, int]) -> dict[str, NDArray[np.float64]]:
    """Return by cause the seconds that the reads of each (rank, epoch, step) were delayed."""
    by_cause = {}
    for cause, chosen in delays(spans, "reader", "rank").items():
        seconds, place = np.zeros(shape), [integers(spans, name, chosen) for name in ("rank", "epoch", "step")]
        inside = np.logical_and.reduce([(at >= 0) & (at < size) for at, size in zip(place, shape, strict=True)])
        np.add.at(seconds, tuple(at[inside] for at in place), integers(spans, "duration_ns", chosen)[inside] / 1e9)
        by_cause[cause] = seconds
    return by_cause


def meanings(causes: Iterable[str]) -> dict[str, str]:
    """Return the meaning of each cause that belongs to a layer; a layer that is not installed has a general one."""
    known = {name: text for layer in LAYERS.usable().values() for name, text in layer.causes.items()}
    return {cause: known.get(cause, "held up by a layer of storage that is not installed here") for cause in causes}


def attribute_of(attributes: str, name: str) -> str:
    """Return one of a span's attributes as text; empty where it is missing, or no JSON."""
    try:
        parsed = json.loads(attributes or "{}")
    except (ValueError, RecursionError):
        return ""
    return str(parsed.get(name, "")) if isinstance(parsed, dict) else ""
