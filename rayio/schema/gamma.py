"""The gamma distribution."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from rayio import seeds
from rayio.schema.distribution import Distribution, Floats, Index, Number, check_pair, standard_normal
from rayio.schema.fields import Reads, RefusedError, refusal

#: Bounds of the shape: below, most draws are too small for a number; above, the spread is.
LEAST_SHAPE, MOST_SHAPE = 0.01, 1e12


def _shape(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not LEAST_SHAPE <= value <= MOST_SHAPE:
        raise RefusedError(f"must be a number from {LEAST_SHAPE:g} to {MOST_SHAPE:g}")
    return float(value)


_SHAPE_SCHEMA = {"type": "number", "minimum": LEAST_SHAPE, "maximum": MOST_SHAPE}


class Gamma(Distribution):
    """A skewed curve, such as a sum of exponential waits: by ``shape`` and ``scale``, or ``mean`` and ``stdev``.

    The mean is ``shape * scale`` and the variance ``shape * scale^2``.
    """

    quantities = ("scale", "mean", "stdev")
    kind: Literal["gamma"] = "gamma"
    shape: Annotated[float, Reads(_shape, _SHAPE_SCHEMA)] | None = Field(None, description="The shape, a number.")
    scale: Number | None = Field(None, description="The scale.")
    mean: Number | None = Field(None, description="The mean, instead of shape and scale.")
    stdev: Number | None = Field(None, description="The standard deviation, instead of shape and scale.")

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Self:
        check_pair(self, ("shape", "scale"), ("mean", "stdev"))
        most = 1 / math.sqrt(LEAST_SHAPE)
        if self.mean is not None and self.stdev is not None and self.stdev > most * self.mean:
            raise refusal(RefusedError(f"stdev must be at most {most:g} times the mean", "stdev", self.stdev))
        return self

    @property
    def parameters(self) -> tuple[float, float]:
        """The shape and the scale; a shape of 0 is a constant of that scale."""
        if self.shape is not None and self.scale is not None:
            return self.shape, self.scale
        mean, stdev = self.mean or 0.0, self.stdev or 0.0
        if mean == 0 or (mean / MOST_SHAPE**0.5) >= stdev:
            return 0.0, mean
        return (mean / stdev) ** 2, stdev * stdev / mean

    def draw(self, address_key: int, index: Index) -> Floats:
        """Draw for each index; refused candidates are drawn again at the next attempt's address.

        Source: Marsaglia and Tsang, "A simple method for generating gamma variables" (ACM TOMS 2000). At least 95 of
        100 candidates are accepted. A shape below 1 is that of ``shape + 1``, times a uniform to the power 1/shape.
        """
        shape, scale = self.parameters
        if shape == 0:
            return np.full(index.shape, scale)
        d = (shape if shape >= 1 else shape + 1) - 1 / 3
        drawn = np.zeros(index.shape)
        left, attempt = np.ones(index.shape, np.bool_), 0
        while left.any():
            key = seeds.key(address_key, "attempt", attempt) if attempt else address_key
            normal = standard_normal(key, index[left])
            cube = (1 + normal / math.sqrt(9 * d)) ** 3
            logarithm = np.log(np.maximum(cube, 1e-300))
            chance = np.log(seeds.uniform(seeds.key(key, "accept"), index[left]))
            accepted = (cube > 0) & (chance < normal * normal / 2 + d * (1 - cube + logarithm))
            drawn[left] = np.where(accepted, d * cube, 0.0)
            left[left] = ~accepted
            attempt += 1
        if shape < 1:
            drawn *= seeds.uniform(seeds.key(address_key, "power"), index) ** (1 / shape)
        return drawn * scale

    @property
    def expected(self) -> float:
        """The mean: ``shape * scale``."""
        shape, scale = self.parameters
        return shape * scale if shape else scale
