"""Factors on compute times, by step and rank: warm-up, unequal accelerators, stragglers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rayio import seeds
from rayio.place import MAX_RANKS, MAX_STEPS
from rayio.schema.fields import Reads, RefusedError, Seconds, Section, refusal, show, whole
from rayio.units import format_seconds

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: The most ranks whose slow intervals are tried for a note.
MOST_TRIED = 4096


def _numbers(word: str) -> Reads:
    """Read a list of ranks or nodes, or none."""

    def read(value: Any) -> tuple[int, ...] | None:
        if value is None or value == "none":
            return None
        numbers = list(value) if isinstance(value, (list, tuple)) else []
        if not numbers or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers):
            raise RefusedError(f"must be a list of {word}s, such as [3]")
        if len(numbers) > MAX_RANKS:
            raise RefusedError(f"names {len(numbers)} {word}s; at most {MAX_RANKS} are possible")
        if len(set(numbers)) < len(numbers):
            raise RefusedError(f"names a {word} twice")
        return tuple(sorted(numbers))

    return Reads(read, _NUMBERS)


def _factor(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1e6:
        raise RefusedError("must be a number greater than 0 and at most 1e6, such as 1.5")
    return float(value)


def _chance(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise RefusedError("must be a number greater than 0 and at most 1, such as 0.01")
    return float(value)


def _speeds(value: Any) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, Mapping) or len(value) > MAX_RANKS:
        raise RefusedError("must be a mapping of numbers to speeds, such as {3: 0.5}")
    speeds: dict[int, float] = {}
    for key, speed in value.items():
        number = int(key) if isinstance(key, str) and key.isdecimal() and len(key) <= 9 else key
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise RefusedError("must be a whole number from 0 on, followed by a speed: {3: 0.5}", str(key), speed)
        try:
            speeds[number] = _factor(speed)
        except RefusedError as error:
            raise RefusedError(str(error), str(key), speed) from None
    return tuple(sorted(speeds.items()))


_NUMBERS = {
    "anyOf": [
        {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": MAX_RANKS - 1},
            "minItems": 1,
            "uniqueItems": True,
        },
        {"const": "none"},
        {"type": "null"},
    ]
}
_FACTOR = {"type": "number", "exclusiveMinimum": 0, "maximum": 1e6}
_SPEEDS = {"type": "object", "patternProperties": {r"^\d{1,9}$": _FACTOR}, "additionalProperties": False}
Factor = Annotated[float, Reads(_factor, _FACTOR)]
SpeedOf = Annotated[tuple[tuple[int, float], ...], Reads(_speeds, _SPEEDS, dict)]


class Warmup(Section):
    """The first steps of a run, which take longer: CUDA contexts, compilation, autotuning."""

    steps: Annotated[int, whole(1, MAX_STEPS)] = Field(description="How many first steps of a rank take longer.")
    factor: Factor = Field(description="What their compute times are multiplied by.")


class Speeds(Section):
    """Unequal accelerators: the speed of nodes and ranks relative to ``train.compute``."""

    nodes: SpeedOf = Field(
        (), json_schema_extra={"default": {}}, description="Speed by node, such as {1: 0.8}; 1 for others."
    )
    ranks: SpeedOf = Field(
        (),
        json_schema_extra={"default": {}},
        description="Speed by rank, such as {3: 0.5}, on top of its node's; 1 for others.",
    )

    def of(self, rank: int, node: int) -> float:
        """Return the relative speed of a rank on a node."""
        return dict(self.nodes).get(node, 1.0) * dict(self.ranks).get(rank, 1.0)


class Stragglers(Section):
    """Ranks whose compute times are multiplied by ``factor``: always, by chance, or for a while now and then.

    Without ``ranks`` and ``nodes`` it may hit every rank.
    """

    ranks: Annotated[tuple[int, ...] | None, _numbers("rank")] = Field(
        None, description="Ranks that are slower; none names no rank."
    )
    nodes: Annotated[tuple[int, ...] | None, _numbers("node")] = Field(
        None, description="Nodes whose ranks are slower; none names no node."
    )
    factor: Factor = Field(description="What their compute times are multiplied by.")
    probability: Annotated[
        float, Reads(_chance, {"type": "number", "exclusiveMinimum": 0, "maximum": 1})
    ] = Field(1.0, description="Chance of each step of such a rank to be slow.")  # fmt: skip
    every: Seconds | None = Field(
        None, description="Compute time from one slow interval of a rank to its next; none is always."
    )
    lasts: Seconds | None = Field(None, description="Compute time that a slow interval lasts, before the factor.")

    @model_validator(mode="after")
    def _is_for_somebody(self) -> Self:
        if (self.every is None) != (self.lasts is None):
            raise refusal(RefusedError("must have both every and lasts, or none of them"))
        if self.every is not None and self.lasts is not None and not 0 < self.lasts < self.every:
            raise refusal(RefusedError("must be greater than 0 and less than every", "lasts", self.lasts))
        if self.ranks is None and self.nodes is None and self.probability == 1 and self.every is None:
            raise refusal(RefusedError("must have ranks, nodes, probability, or every and lasts"))
        return self

    def hits(self, rank: int, node: int) -> bool:
        """Return True if a rank on a node may be slow."""
        is_everybody = self.ranks is None and self.nodes is None
        return is_everybody or rank in (self.ranks or ()) or node in (self.nodes or ())

    @property
    def is_constant(self) -> bool:
        """True if every step of such a rank is slow."""
        return self.probability == 1 and self.every is None


@dataclass(frozen=True)
class Pace:
    """The factors on drawn compute times. They follow from seed, rank and step alone, so engines and restarts agree."""

    warmup: Warmup | None = None
    speeds: Speeds | None = None
    stragglers: Stragglers | None = None
    #: The mean of ``train.compute`` (s): intervals are counted in steps of this length.
    mean: float = 0.0

    def constant(self, rank: int, node: int) -> float:
        """Return the factor on all steps of a rank."""
        factor = 1.0 if self.speeds is None else 1 / self.speeds.of(rank, node)
        slow = self.stragglers
        return factor * slow.factor if slow is not None and slow.is_constant and slow.hits(rank, node) else factor

    def varies(self, rank: int, node: int) -> bool:
        """Return True if a rank's steps have different factors."""
        slow = self.stragglers
        return self.warmup is not None or (slow is not None and not slow.is_constant and slow.hits(rank, node))

    def factors(self, seed: int, rank: int, node: int, epoch: int, first: int, steps: Ints) -> Floats:
        """Return the factors of steps of an epoch, beyond the constant one; ``first`` is the epoch's first step."""
        factors = np.ones(len(steps))
        if self.warmup is not None:
            factors[first + steps < self.warmup.steps] *= self.warmup.factor
        slow = self.stragglers
        if slow is None or slow.is_constant or not slow.hits(rank, node):
            return factors
        is_slow = seeds.uniform(seeds.key(seed, "straggler", rank, epoch), steps) <= slow.probability
        if slow.every is not None and slow.lasts is not None:
            begin = seeds.uniform(seeds.key(seed, "interval", rank), np.zeros(1, np.int64)) * slow.every
            is_slow &= (begin + (first + steps) * self.mean) % slow.every < slow.lasts
        factors[is_slow] *= slow.factor
        return factors

    @property
    def most(self) -> float:
        """The largest factor that a step may have, at least 1."""
        slow, warm, speeds = self.stragglers, self.warmup, self.speeds
        slowest = 1.0
        if speeds is not None:
            for each in (speeds.nodes, speeds.ranks):
                slowest /= min((1.0, *(speed for _, speed in each)))
        return slowest * max(1.0, slow.factor if slow else 1.0) * max(1.0, warm.factor if warm else 1.0)

    def contradictions(self, nodes: int, ranks: int, who: str) -> Iterator[str]:
        """Refuse ranks and nodes that do not exist, and intervals of steps without a time."""
        slow, speeds = self.stragglers, self.speeds
        named = [
            ("stragglers.ranks", () if slow is None else slow.ranks or (), ranks, "rank"),
            ("stragglers.nodes", () if slow is None else slow.nodes or (), nodes, "node"),
            ("speeds.ranks", () if speeds is None else [*dict(speeds.ranks)], ranks, "rank"),
            ("speeds.nodes", () if speeds is None else [*dict(speeds.nodes)], nodes, "node"),
        ]
        for key, numbers, most, word in named:
            if numbers and (largest := max(numbers)) >= most:
                written = show(dict(getattr(speeds, key[7:]))) if key.startswith("speeds") else show(numbers)
                there = f"{who} are {word}s 0 to {most - 1}" if most > 1 else f"there is only {word} 0 ({who})"
                yield f"train.{key}={written}: no {word} {largest}; {there}"
        if slow is not None and slow.every is not None and self.mean == 0:
            yield "train.stragglers.every: train.compute takes no time, so no interval passes; use probability"

    def hits_anybody(self, seed: int, node_of: Callable[[int], int], ranks: int, steps: int) -> bool:
        """Return False if no slow interval of any rank has one of so many first steps; True where that is unknown.

        ``node_of`` gives the node of a rank.
        """
        slow = self.stragglers
        if slow is None or slow.every is None or slow.lasts is None or not self.mean or ranks > MOST_TRIED:
            return True
        those = [rank for rank in range(ranks) if slow.hits(rank, node_of(rank))]
        first = np.zeros(1, np.int64)
        begins = [float(seeds.uniform(seeds.key(seed, "interval", rank), first)[0]) * slow.every for rank in those]
        for begin in begins:
            number = 0 if begin < slow.lasts else math.ceil((slow.every - begin) / self.mean)
            is_slow = number < steps and (begin + number * self.mean) % slow.every < slow.lasts
            if is_slow or (steps - 1) * self.mean >= 2 * slow.every - begin:  # after one interval without a step
                return True
        return False

    def idle(self, steps: int, *, hits: bool = True) -> Iterator[str]:
        """Name factors and speeds of 1, and what a run of so many steps never sees, or always."""
        if not hits and self.stragglers is not None and self.stragglers.every is not None:
            every, lasts = format_seconds(self.stragglers.every), format_seconds(self.stragglers.lasts or 0.0)
            yield (
                f"train.stragglers={{every: {every}, lasts: {lasts}}}: no step of the run is in a slow interval; the "
                f"compute of all {steps} takes {format_seconds(steps * self.mean)}"
            )
        if self.warmup is not None and self.warmup.steps >= steps:
            yield f"train.warmup.steps={self.warmup.steps}: the run has {steps} steps, so all of them are slower"
        if self.stragglers is not None and self.stragglers.factor == 1:
            yield "train.stragglers.factor=1: slows nobody down"
        if self.warmup is not None and self.warmup.factor == 1:
            yield "train.warmup.factor=1: changes nothing"
        if self.speeds is not None and all(speed == 1 for _, speed in (*self.speeds.nodes, *self.speeds.ranks)):
            yield "train.speeds: all are 1, so nothing changes"


#: Every step at its drawn time.
USUAL = Pace()
