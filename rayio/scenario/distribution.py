"""Distributions of times and sizes: drawn at an address, never negative, and honest about what is really drawn.

A draw depends on ``(address_key, index)`` alone. A value that cannot be (a negative time, a size above ``max``) is
drawn again at the next attempt's address, never folded or clipped; ``expected`` is the mean of what remains.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema

from rayio import seeds
from rayio.scenario.fields import JsonSchema, NotYetError, Reads, RefusedError, Section, listed, refusal, show
from rayio.units import BYTES, SECONDS, Dimension

Floats = NDArray[np.float64]
Index = NDArray[np.int64]

#: Documented kinds whose part is not built.
KINDS_NOT_YET = ("gamma", "poisson", "empirical")


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e300:
        raise RefusedError("must be a number of at least 0")
    return float(value)


def _sigma(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 10:
        raise RefusedError("must be a number from 0 to 10")
    return float(value)


Number = Annotated[float, Reads(_number, {"type": "number", "minimum": 0})]


class Distribution(Section):
    """A random time in seconds or size in bytes, never negative."""

    #: Fields that carry the unit of the whole (others are plain numbers).
    quantities: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def draw(self, address_key: int, index: Index) -> Floats:
        """Draw one value for each index (any shape) below an address; ``address_key`` comes from ``seeds.key``."""

    @property
    @abstractmethod
    def expected(self) -> float:
        """Mean of the values that are really drawn, after redrawing."""


class Constant(Distribution):
    """The same value always."""

    quantities = ("value",)
    kind: Literal["constant"] = "constant"
    value: Number

    def draw(self, address_key: int, index: Index) -> Floats:
        """Give ``value`` for each index."""
        return np.full(index.shape, self.value)

    @property
    def expected(self) -> float:
        """The value itself."""
        return self.value


class Uniform(Distribution):
    """Every value between ``low`` and ``high`` alike."""

    quantities = ("low", "high")
    kind: Literal["uniform"] = "uniform"
    low: Number
    high: Number

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        if self.high < self.low:
            raise refusal(RefusedError("high must not be below low"))
        return self

    def draw(self, address_key: int, index: Index) -> Floats:
        """Draw between ``low`` and ``high`` for each index."""
        return self.low + (self.high - self.low) * seeds.uniform(address_key, index)

    @property
    def expected(self) -> float:
        """The middle."""
        return (self.low + self.high) / 2


class Exponential(Distribution):
    """Memoryless waiting with a given mean."""

    quantities = ("mean",)
    kind: Literal["exponential"] = "exponential"
    mean: Number

    def draw(self, address_key: int, index: Index) -> Floats:
        """Draw by inversion for each index."""
        return -self.mean * np.log(seeds.uniform(address_key, index))

    @property
    def expected(self) -> float:
        """The mean as given."""
        return self.mean


class Normal(Distribution):
    """A bell curve of which the negative part is drawn again, so its mean is a little above ``mean``."""

    quantities = ("mean", "stdev")
    kind: Literal["normal"] = "normal"
    mean: Number
    stdev: Number

    def draw(self, address_key: int, index: Index) -> Floats:
        """Draw for each index; negative values are drawn again at the next attempt's address."""
        drawn = self.mean + self.stdev * _standard_normal(address_key, index)
        attempt = 0
        while drawn.size and drawn.min() < 0:
            attempt += 1
            again = drawn < 0
            key = seeds.key(address_key, "attempt", attempt)
            drawn[again] = self.mean + self.stdev * _standard_normal(key, index[again])
        return drawn

    @property
    def expected(self) -> float:
        """Mean of the normal truncated at 0: ``mean + stdev * phi(a) / Phi(a)`` with ``a = mean / stdev``."""
        if self.stdev == 0:
            return self.mean
        a = self.mean / self.stdev
        density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
        return self.mean + self.stdev * density / _below(a)


class LogNormal(Distribution):
    """A skewed curve with a long tail, by its ``median`` and ``sigma``, the deviation of its logarithm.

    Values above ``max`` are drawn again; ``max`` may not lie below the median.
    """

    quantities = ("median", "max")
    kind: Literal["lognormal"] = "lognormal"
    median: Number
    sigma: Annotated[float, Reads(_sigma, {"type": "number", "minimum": 0, "maximum": 10})]
    max: Number | None = None

    @model_validator(mode="after")
    def _max_leaves_something(self) -> Self:
        if self.max is not None and self.max < self.median:
            raise refusal(RefusedError("max must not be below median"))
        return self

    def draw(self, address_key: int, index: Index) -> Floats:
        """Draw for each index; values above ``max`` are drawn again at the next attempt's address."""
        drawn = self.median * np.exp(self.sigma * _standard_normal(address_key, index))
        attempt = 0
        while self.max is not None and drawn.size and drawn.max() > self.max:
            attempt += 1
            again = drawn > self.max
            key = seeds.key(address_key, "attempt", attempt)
            drawn[again] = self.median * np.exp(self.sigma * _standard_normal(key, index[again]))
        return drawn

    @property
    def expected(self) -> float:
        """Mean, truncated at ``max``: ``median * exp(sigma^2/2) * Phi(z - sigma) / Phi(z)``, z the max in sigmas."""
        mean = self.median * math.exp(self.sigma**2 / 2)
        if self.max is None or self.sigma == 0 or self.median == 0:
            return mean
        z = math.log(self.max / self.median) / self.sigma
        return mean * _below(z - self.sigma) / _below(z)


def _below(z: float) -> float:
    """Give the probability that a standard normal lies below ``z``, accurate in the far left tail too."""
    return math.erfc(-z / math.sqrt(2)) / 2


def _standard_normal(address_key: int, index: Index) -> Floats:
    """Draw by Box and Muller's method, both uniforms from the halves of one 64-bit word (so |z| stays below 6.8)."""
    words = seeds.words(address_key, index)
    radius = np.log(((words >> np.uint64(32)).astype(np.float64) + 0.5) * 2.0**-32)
    angle = (words & np.uint64(0xFFFFFFFF)).astype(np.float64) * (2 * math.pi * 2.0**-32)
    drawn: Floats = np.sqrt(-2.0 * radius) * np.cos(angle)
    return drawn


KINDS: dict[str, type[Distribution]] = {
    "constant": Constant,
    "normal": Normal,
    "lognormal": LogNormal,
    "uniform": Uniform,
    "exponential": Exponential,
}


@dataclass(frozen=True, eq=False)
class Of:
    """Annotation of a distribution of times or sizes: a bare quantity is a constant, units are parsed inside.

    ``others`` are kinds that may stand in its place and that read their own keys.
    """

    dimension: Dimension
    others: Mapping[str, type[Section]] = field(default_factory=dict)

    def read(self, value: Any) -> Any:
        """Turn what was written into a mapping with ``kind`` and plain numbers."""
        if isinstance(value, Section):
            return value
        if not isinstance(value, Mapping):
            return {"kind": "constant", "value": self.dimension.parse(value)}
        kind = value.get("kind")
        if kind is None:
            raise RefusedError(f"kind is missing; it must be {listed([*KINDS, *self.others])}")
        if kind in KINDS_NOT_YET:
            raise NotYetError(show(kind), "kind")
        if isinstance(kind, str) and kind in self.others:
            return value
        if not isinstance(kind, str) or kind not in KINDS:
            raise RefusedError(f"must be {listed([*KINDS, *self.others])}", "kind", kind)
        numbers = {name: value[name] for name in KINDS[kind].quantities if name in value}
        for name, written in numbers.items():
            try:
                numbers[name] = self.dimension.parse(written)
            except ValueError as error:
                raise RefusedError(str(error), name, written) from None
        return {**value, **numbers}

    def write(self, value: Any) -> Any:
        """Write a distribution with units; a constant as a bare quantity."""
        if isinstance(value, Constant):
            return self.dimension.exact(value.value)
        if not isinstance(value, Distribution):
            return value.model_dump(mode="json", exclude_none=True)
        plain = value.model_dump(exclude_none=True)
        return {k: self.dimension.exact(v) if k in value.quantities else v for k, v in plain.items()}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def validate(value: Any) -> Any:
            try:
                return self.read(value)
            except ValueError as error:
                raise refusal(error) from None

        writes = core_schema.plain_serializer_function_ser_schema(self.write, when_used="json")
        return core_schema.no_info_before_validator_function(validate, handler(source), serialization=writes)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        kinds = []
        for name, kind in KINDS.items():
            fields = [key for key in kind.model_fields if key != "kind"]
            unit: JsonSchema = {"anyOf": [{"type": "number"}, {"type": "string"}]}
            properties = {key: unit if key in kind.quantities else {"type": "number"} for key in fields}
            properties["kind"] = {"const": name}
            kinds.append({"type": "object", "properties": properties, "additionalProperties": False})
        kinds += [other.model_json_schema() for other in self.others.values()]
        return {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}, *kinds]}


AnyDistribution = Annotated[Constant | Normal | LogNormal | Uniform | Exponential, Field(discriminator="kind")]
SecondsDistribution = Annotated[AnyDistribution, Of(SECONDS)]
BytesDistribution = Annotated[AnyDistribution, Of(BYTES)]
