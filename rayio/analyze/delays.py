"""Times in which a layer of storage held up reads (spans named ``delay``), by the cause that each is charged to."""

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

#: The column that says what a delay is charged to; only runs with delays have it read.
ATTRIBUTES = "attributes"


def columns_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that delays need of a run with spans of these names."""
    return (ATTRIBUTES,) if "delay" in names else ()


def delays(spans: pa.Table, *roles: str) -> dict[str, Ints]:
    """Return the positions of the delays that some roles recorded, by their cause."""
    chosen = np.flatnonzero(is_text(spans, "name", "delay") & is_text(spans, "role", *roles))
    if not len(chosen):
        return {}
    said = sorted({text for chunk in spans.column(ATTRIBUTES).chunks for text in chunk.dictionary.to_pylist()})
    causes = [_cause(text) for text in said]
    code, found = texts(spans, ATTRIBUTES, (*said,), chosen), dict[str, Ints]()
    for cause in sorted({*causes} - {""}):
        mine = np.array([place for place, name in enumerate(causes) if name == cause])
        if (inside := np.isin(code, mine)).any():
            found[cause] = chosen[inside]
    return found


def delayed(spans: pa.Table, shape: tuple[int, int, int]) -> dict[str, NDArray[np.float64]]:
    """Return the seconds that the reads of each (rank, epoch, step) were held up, by cause."""
    found = {}
    for cause, chosen in delays(spans, "reader", "rank").items():
        seconds, place = np.zeros(shape), [integers(spans, name, chosen) for name in ("rank", "epoch", "step")]
        inside = np.logical_and.reduce([(at >= 0) & (at < size) for at, size in zip(place, shape, strict=True)])
        np.add.at(seconds, tuple(at[inside] for at in place), integers(spans, "duration_ns", chosen)[inside] / 1e9)
        found[cause] = seconds
    return found


def meanings(causes: Iterable[str]) -> dict[str, str]:
    """Return what causes that are layers' mean; of a layer that is not installed here nobody says it."""
    known = {name: text for layer in LAYERS.usable().values() for name, text in layer.causes.items()}
    return {cause: known.get(cause, "held up by a layer of storage that is not installed here") for cause in causes}


def _cause(attributes: str) -> str:
    try:
        said = json.loads(attributes or "{}")
    except (ValueError, RecursionError):
        return ""
    return str(said.get("cause", "")) if isinstance(said, dict) else ""
