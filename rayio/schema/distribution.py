"""Distributions of times and sizes: drawn at an address, never negative, and honest about what is really drawn.

A draw depends on ``(address_key, index)`` alone. A value that cannot be (a negative time, a size above ``max``) is
drawn again at the next attempt's address, never folded or clipped; ``expected`` is the mean of what remains.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from rayio import seeds
from rayio.kinds import DISTRIBUTIONS
from rayio.registry import Registry
from rayio.schema.choice import check_name, described, schema_of_kind, summary
from rayio.schema.fields import JsonSchema, Reads, RefusedError, Section, listed, refusal, refusing, whole
from rayio.units import BYTES, SECONDS, Dimension

Floats = NDArray[np.float64]
Index = NDArray[np.int64]


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
    kind: str

    @classmethod
    def read(cls, value: Mapping[str, Any], dimension: Dimension) -> Self:
        """Return the distribution of a mapping whose quantities are written with units."""
        given = {name: each for name, each in value.items() if each is not None and each != "none"}
        numbers = {name: given[name] for name in cls.quantities if name in given}
        for name, written in numbers.items():
            try:
                numbers[name] = dimension.bounded(written)
            except ValueError as error:
                raise RefusedError(str(error), name, written) from None
        return cls.model_validate({**given, **numbers})

    def written(self, dimension: Dimension) -> dict[str, Any]:
        """Return the mapping that :meth:`read` reads, with units."""
        plain = self.model_dump(exclude_none=True)
        return {key: dimension.exact(value) if key in self.quantities else value for key, value in plain.items()}

    def times(self, factor: float) -> Self:
        """Return the distribution of ``factor`` times the values."""
        values = {name: getattr(self, name) for name in self.quantities}
        return self.model_copy(update={name: value * factor for name, value in values.items() if value is not None})

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
    value: Number = Field(description="The value.")

    def draw(self, address_key: int, index: Index) -> Floats:
        """Repeat ``value`` for each index."""
        return np.full(index.shape, self.value)

    @property
    def expected(self) -> float:
        """The value itself."""
        return self.value


class Uniform(Distribution):
    """Every value between ``low`` and ``high`` alike."""

    quantities = ("low", "high")
    kind: Literal["uniform"] = "uniform"
    low: Number = Field(description="The least.")
    high: Number = Field(description="The most.")

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
    mean: Number = Field(description="The mean.")

    def draw(self, address_key: int, index: Index) -> Floats:
        """Draw by inversion for each index."""
        return -self.mean * np.log(seeds.uniform(address_key, index))

    @property
    def expected(self) -> float:
        """The mean as given."""
        return self.mean


class Ramp(Distribution):
    """A load that grows or shrinks: from ``begin`` to ``end`` over ``steps`` draws, and then again from the beginning.

    A rank's compute times are drawn by step, anew from 0 in each epoch.
    """

    quantities = ("begin", "end")
    kind: Literal["ramp"] = "ramp"
    begin: Number = Field(description="The first value.")
    end: Number = Field(description="The last value.")
    steps: Annotated[int, whole(2)] = Field(description="Draws from the first value to the last.")

    def draw(self, address_key: int, index: Index) -> Floats:
        """The value of each index, in equal steps."""
        place: Floats = index % self.steps / (self.steps - 1)
        return self.begin + (self.end - self.begin) * place

    @property
    def expected(self) -> float:
        """The middle, which is the mean of each whole ramp."""
        return (self.begin + self.end) / 2


class Normal(Distribution):
    """A bell curve of which the negative part is drawn again, so its mean is a little above ``mean``."""

    quantities = ("mean", "stdev")
    kind: Literal["normal"] = "normal"
    mean: Number = Field(description="The mean, before negative values are drawn again.")
    stdev: Number = Field(description="The standard deviation, before negative values are drawn again.")

    def draw(self, address_key: int, index: Index) -> Floats:
        """Draw for each index; negative values are drawn again at the next attempt's address."""
        drawn = self.mean + self.stdev * standard_normal(address_key, index)
        attempt = 0
        while drawn.size and drawn.min() < 0:
            attempt += 1
            again = drawn < 0
            key = seeds.key(address_key, "attempt", attempt)
            drawn[again] = self.mean + self.stdev * standard_normal(key, index[again])
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
    """A skewed curve with a long tail, by ``median`` and ``sigma`` (the deviation of its logarithm), or mean and stdev.

    Values above ``max`` are drawn again; ``max`` may not lie below the median. ``mean`` and ``stdev`` are those without
    a ``max``.
    """

    quantities = ("median", "mean", "stdev", "max")
    kind: Literal["lognormal"] = "lognormal"
    median: Number | None = Field(None, description="The median.")
    sigma: Annotated[float, Reads(_sigma, {"type": "number", "minimum": 0, "maximum": 10})] | None = Field(
        None, description="The standard deviation of the logarithm."
    )
    mean: Number | None = Field(None, description="The mean, instead of median and sigma.")
    stdev: Number | None = Field(None, description="The standard deviation, instead of median and sigma.")
    max: Number | None = Field(None, description="Values above are drawn again; none by default.")

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Self:
        check_pair(self, ("median", "sigma"), ("mean", "stdev"))
        if self.mean is not None and self.stdev is not None and self.stdev > 1e6 * self.mean:
            raise refusal(RefusedError("stdev must be at most 10^6 times the mean"))
        if self.max is not None and self.max < self.centre:
            raise refusal(RefusedError("max must not be below median"))
        return self

    @property
    def centre(self) -> float:
        """The median: ``mean / sqrt(1 + (stdev / mean)^2)`` where the mean is given."""
        if self.median is not None:
            return self.median
        mean, stdev = self.mean or 0.0, self.stdev or 0.0
        return mean / math.sqrt(1 + (stdev / mean) ** 2) if mean > 0 else 0.0

    @property
    def spread(self) -> float:
        """The sigma: ``sqrt(log(1 + (stdev / mean)^2))`` where mean and stdev are given."""
        if self.sigma is not None:
            return self.sigma
        mean, stdev = self.mean or 0.0, self.stdev or 0.0
        return math.sqrt(math.log1p((stdev / mean) ** 2)) if mean > 0 else 0.0

    def draw(self, address_key: int, index: Index) -> Floats:
        """Draw for each index; values above ``max`` are drawn again at the next attempt's address."""
        median, sigma = self.centre, self.spread
        drawn = median * np.exp(sigma * standard_normal(address_key, index))
        attempt = 0
        while self.max is not None and drawn.size and drawn.max() > self.max:
            attempt += 1
            again = drawn > self.max
            key = seeds.key(address_key, "attempt", attempt)
            drawn[again] = median * np.exp(sigma * standard_normal(key, index[again]))
        return drawn

    @property
    def expected(self) -> float:
        """Mean, truncated at ``max``: ``median * exp(sigma^2/2) * Phi(z - sigma) / Phi(z)``, z the max in sigmas."""
        median, sigma = self.centre, self.spread
        mean = median * math.exp(sigma**2 / 2)
        if self.max is None or sigma == 0 or median == 0:
            return mean
        z = math.log(self.max / median) / sigma
        return mean * _below(z - sigma) / _below(z)


def check_pair(section: Section, first: tuple[str, str], second: tuple[str, str]) -> None:
    """Refuse a distribution that has not exactly one of two pairs of parameters."""
    given = {name for name in (*first, *second) if getattr(section, name) is not None}
    if given not in ({*first}, {*second}):
        raise refusal(RefusedError(f"must have {first[0]} and {first[1]}, or {second[0]} and {second[1]}"))


def _below(z: float) -> float:
    """The probability that a standard normal lies below ``z``, accurate in the far left tail too."""
    return math.erfc(-z / math.sqrt(2)) / 2


def standard_normal(address_key: int, index: Index) -> Floats:
    """Draw by Box and Muller's method, both uniforms from the halves of one 64-bit word (so |z| stays below 6.8)."""
    words = seeds.words(address_key, index)
    radius = np.log(((words >> np.uint64(32)).astype(np.float64) + 0.5) * 2.0**-32)
    angle = (words & np.uint64(0xFFFFFFFF)).astype(np.float64) * (2 * math.pi * 2.0**-32)
    drawn: Floats = np.sqrt(-2.0 * radius) * np.cos(angle)
    return drawn


NO_TIME = Constant(value=0.0)


@dataclass(frozen=True, eq=False)
class Of:
    """Annotation of a distribution of times or sizes: a bare quantity is a constant, units are parsed inside.

    ``others`` has kinds that may stand in its place and that read their own keys.
    """

    dimension: Dimension
    others: Registry[Any] | None = None

    def sections(self) -> list[type[Section]]:
        """Classes of the kinds there are."""
        return [*DISTRIBUTIONS.usable().values(), *({} if self.others is None else self.others.usable()).values()]

    def read(self, value: Any) -> Any:
        """Make the distribution, or what stands in its place, of what was written."""
        if isinstance(value, Section):
            return value
        if not isinstance(value, Mapping):
            return Constant(value=self.dimension.bounded(value))
        kind = value.get("kind")
        if not isinstance(kind, str) or kind not in DISTRIBUTIONS.built_in:  # names of other packages take time to find
            others = [] if self.others is None else [*self.others]
            name = next(iter(value)) if kind is None and len(value) == 1 else kind
            if self.others is not None and isinstance(name, str) and name in others:
                check_name(self.others, name, "kind")
                return self.others[name].model_validate(value)
            if kind is None:
                raise RefusedError(f"kind is missing; it must be {listed([*DISTRIBUTIONS, *others])}")
            if not isinstance(kind, str) or (kind not in DISTRIBUTIONS and kind not in DISTRIBUTIONS.later):
                raise RefusedError(f"must be {listed([*DISTRIBUTIONS, *others])}", "kind", kind)
        check_name(DISTRIBUTIONS, kind, "kind")
        return DISTRIBUTIONS[kind].read(value, self.dimension)

    def write(self, value: Any) -> Any:
        """Write a distribution with units; a constant as a bare quantity."""
        if isinstance(value, Constant):
            return self.dimension.exact(value.value)
        if not isinstance(value, Distribution):
            return value.model_dump(mode="json", exclude_none=True)
        return value.written(self.dimension)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        writes = core_schema.plain_serializer_function_ser_schema(self.write, when_used="json")
        return core_schema.no_info_plain_validator_function(refusing(self.read), serialization=writes)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        kinds = []
        for name, kind in DISTRIBUTIONS.usable().items():
            own = kind.model_json_schema()["properties"]
            unit: JsonSchema = {"anyOf": [self.dimension.number, self.dimension.schema]}
            properties = {
                key: described(self._leaf(unit, field) if key in kind.quantities else own[key], field)
                for key, field in kind.model_fields.items()
                if key != "kind"
            }
            properties["kind"] = {"const": name, "description": summary(kind)}
            kinds.append({"type": "object", "properties": properties, "additionalProperties": False})
        kinds += [] if self.others is None else [schema_of_kind(other) for other in self.others.usable().values()]
        return {"anyOf": [self.dimension.number, self.dimension.schema, *kinds]}

    def _leaf(self, unit: JsonSchema, field: FieldInfo) -> JsonSchema:
        if field.is_required():
            return unit
        if field.default is not None:
            return unit | {"default": self.dimension.exact(field.default)}
        return {"anyOf": [*unit["anyOf"], {"const": "none"}, {"type": "null"}], "default": None}


SecondsDistribution = Annotated[Distribution, Of(SECONDS)]
BytesDistribution = Annotated[Distribution, Of(BYTES)]
