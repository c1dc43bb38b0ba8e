"""The Poisson distribution."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from rayio import seeds
from rayio.schema.distribution import Distribution, Floats, Index, Number
from rayio.schema.fields import RefusedError, refusal

#: The largest mean in units; the counts around it are listed.
MOST_UNITS = 1e6


class Poisson(Distribution):
    """A number of independent events times ``unit``; whole seconds or bytes if no unit is given, as in DLIO."""

    quantities = ("mean", "unit")
    kind: Literal["poisson"] = "poisson"
    mean: Number = Field(description="The mean; at most 10^6 units.")
    unit: Number = Field(1.0, description="What one event takes: values are multiples of it. 1 s or 1 B by default.")

    @model_validator(mode="after")
    def _is_countable(self) -> Self:
        if self.unit <= 0:
            raise refusal(RefusedError("must be greater than 0", "unit", self.unit))
        if self.mean > MOST_UNITS * self.unit:
            raise refusal(RefusedError("mean must be at most 10^6 units; use a larger unit, or kind normal"))
        return self

    def draw(self, address_key: int, index: Index) -> Floats:
        """Draw by inversion for each index."""
        least, below = _below(self.mean / self.unit)
        count = np.searchsorted(below, seeds.uniform(address_key, index)).astype(np.float64)
        return (least + count) * self.unit

    @property
    def expected(self) -> float:
        """The mean as given."""
        return self.mean


@lru_cache(maxsize=64)
def _below(mean: float) -> tuple[int, Floats]:
    """Return the first count with a chance worth counting, and from it on the chance of at most each count."""
    reach = 12 * math.sqrt(mean) + 40
    least = max(0, math.floor(mean - reach))
    if mean == 0:
        return 0, np.ones(1)
    chance = [math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(least, math.ceil(mean + reach))]
    below = np.cumsum(chance)
    below[-1] = 1.0
    return least, below
