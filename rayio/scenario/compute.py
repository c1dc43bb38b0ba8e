"""Compute times of a step that depend on the batch size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from rayio.registry import Registry
from rayio.scenario.loader import MAX_BATCH
from rayio.schema.distribution import Constant, Distribution, Of
from rayio.schema.fields import Reads, RefusedError, Section, listed
from rayio.units import SECONDS

#: Most batch sizes of a table.
MOST_SIZES = 100

TIMES = Of(SECONDS)


def _table(value: Any) -> tuple[tuple[int, Distribution], ...]:
    if not isinstance(value, Mapping) or not 0 < len(value) <= MOST_SIZES:
        raise RefusedError("must be a mapping of batch sizes to times, such as {4: 50 ms, 8: 90 ms}")
    table: dict[int, Distribution] = {}
    for key, time in value.items():
        size = int(key) if isinstance(key, str) and key.isdecimal() and len(key) <= 9 else key
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_BATCH:
            raise RefusedError(f"must be a batch size from 1 to {MAX_BATCH}", str(key), time)
        try:
            table[size] = TIMES.read(time)
        except ValidationError:
            raise
        except ValueError as error:
            inner, value = (error.key, error.value) if isinstance(error, RefusedError) else ("", None)
            raise RefusedError(str(error), ".".join(filter(None, (str(key), inner))), value or time) from None
    return tuple(sorted(table.items()))


def _written(table: tuple[tuple[int, Distribution], ...]) -> dict[int, Any]:
    return {size: TIMES.write(time) for size, time in table}


@dataclass(frozen=True)
class Between:
    """Times between two distributions, in proportion; both are drawn at the same address."""

    lower: Distribution
    upper: Distribution
    #: 0 is ``lower``, 1 is ``upper``.
    place: float

    def draw(self, address_key: int, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Draw one value for each index below an address."""
        low, high = self.lower.draw(address_key, index), self.upper.draw(address_key, index)
        return low + (high - low) * self.place

    @property
    def expected(self) -> float:
        """The mean, in proportion between both means."""
        return self.lower.expected + (self.upper.expected - self.lower.expected) * self.place


class ByBatchSize(Section):
    """Times by batch size (``loader.batch_size``), linear between the sizes of the table."""

    kind: Literal["by_batch_size"] = "by_batch_size"
    by_batch_size: Annotated[
        tuple[tuple[int, Distribution], ...],
        Reads(_table, {"type": "object", "minProperties": 1, "maxProperties": MOST_SIZES}, _written),
    ] = Field(description="Time of a step of each batch size. Sizes beyond the table are refused.")

    def at(self, batch_size: int) -> Distribution | Between:
        """Return the times of a batch size; beyond the table those of its nearest size."""
        sizes = dict(self.by_batch_size)
        nearest = min(max(batch_size, min(sizes)), max(sizes))
        if nearest in sizes:
            return sizes[nearest]
        low, high = next((low, high) for low, high in pairwise(sizes) if low < nearest < high)
        between = Between(sizes[low], sizes[high], (nearest - low) / (high - low))
        is_plain = isinstance(between.lower, Constant) and isinstance(between.upper, Constant)
        return Constant(value=between.expected) if is_plain else between

    def refusals(self, key: str, batch_key: str, batch_size: int) -> Iterator[str]:
        """Refuse a batch size beyond the table."""
        sizes = [*dict(self.by_batch_size)]
        if not sizes[0] <= batch_size <= sizes[-1]:
            possible = f"{sizes[0]}" if len(sizes) == 1 else f"a size from {sizes[0]} to {sizes[-1]}"
            yield (
                f"{batch_key}={batch_size}: {key}.by_batch_size has times of {listed(sizes)}; add {batch_size}, or use "
                f"{possible}"
            )


#: Kinds of compute times that are no distribution.
COMPUTES: Registry[Any] = Registry("compute", {"by_batch_size": "rayio.scenario.compute:ByBatchSize"})

Compute = Annotated[Distribution | ByBatchSize, Of(SECONDS, COMPUTES)]


def times_at(compute: Distribution | ByBatchSize, batch_size: int) -> Distribution | Between:
    """Return the compute times of steps of a batch size."""
    return compute.at(batch_size) if isinstance(compute, ByBatchSize) else compute
