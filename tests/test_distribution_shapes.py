"""Distributions against theory that is not of our code: Kolmogorov and Smirnov's distance, and expected maxima."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from rayio import seeds
from rayio.schema.distribution import Distribution, Exponential, LogNormal, Normal, Uniform
from rayio.schema.empirical import Empirical, table
from rayio.schema.gamma import Gamma
from rayio.schema.poisson import Poisson
from scenarios import scenario, simulated

Floats = NDArray[np.float64]

DRAWS = 100_000
#: The distance that one of 1000 samples exceeds.
CRITICAL = 1.95 / math.sqrt(DRAWS)

MEASURED = np.sort(np.random.default_rng(3).gamma(2.0, 0.05, 40_000))


def phi(z: float) -> float:
    """The chance that a standard normal is below z."""
    return math.erfc(-z / math.sqrt(2)) / 2


def erlang(shape: int, x: float) -> float:
    """The chance that a sum of exponential waits of mean 1 is below x."""
    return 1 - math.exp(-x) * math.fsum(x**k / math.factorial(k) for k in range(shape))


def of_few(mean: float, count: float) -> float:
    """The chance of at most so many independent events."""
    return math.exp(-mean) * math.fsum(mean**k / math.factorial(k) for k in range(math.floor(count) + 1))


#: Distributions with the chance that a draw is at most x, each in its textbook form.
SHAPES: dict[str, tuple[Distribution, Callable[[float], float]]] = {
    "uniform": (Uniform(low=1, high=5), lambda x: min(1.0, max(0.0, (x - 1) / 4))),
    "exponential": (Exponential(mean=2), lambda x: 1 - math.exp(-x / 2)),
    "normal": (Normal(mean=3, stdev=0.5), lambda x: phi((x - 3) / 0.5)),
    "normal, redrawn": (Normal(mean=1, stdev=2), lambda x: (phi((x - 1) / 2) - phi(-0.5)) / (1 - phi(-0.5))),
    "lognormal": (LogNormal(median=2, sigma=0.5), lambda x: phi(math.log(x / 2) / 0.5)),
    "lognormal by mean": (
        LogNormal(mean=2, stdev=1),
        lambda x: phi((math.log(x) - math.log(4 / math.sqrt(5))) / math.sqrt(math.log(1.25))),
    ),
    "gamma": (Gamma(shape=3, scale=0.5), lambda x: erlang(3, x / 0.5)),
    "gamma by mean": (Gamma(mean=2, stdev=1), lambda x: erlang(4, x / 0.5)),
    "gamma, shape 1": (Gamma(shape=1, scale=2), lambda x: erlang(1, x / 2)),
    "gamma, shape below 1": (Gamma(shape=0.5, scale=2), lambda x: math.erf(math.sqrt(x / 2))),
    "poisson": (Poisson(mean=3), lambda x: of_few(3, x)),
    "poisson of a unit": (Poisson(mean=0.2, unit=0.01), lambda x: of_few(20, round(x / 0.01))),
    "empirical": (
        Empirical(values=tuple(table(MEASURED).tolist()), measured=len(MEASURED)),
        lambda x: float(np.searchsorted(MEASURED, x, side="right")) / len(MEASURED),
    ),
}  # fmt: skip


def distance(drawn: Floats, below: Callable[[float], float]) -> float:
    """Kolmogorov and Smirnov's distance of a sample from a distribution, at the sample's own values."""
    values, counts = np.unique(drawn, return_counts=True)
    chance = np.array([below(value) for value in values.tolist()])
    after = np.cumsum(counts) / len(drawn)
    if len(values) < len(drawn) // 2:  # atoms
        return float(np.abs(after - chance).max())
    return float(np.maximum(np.abs(after - chance), np.abs(after - counts / len(drawn) - chance)).max())


@pytest.mark.parametrize(("distribution", "below"), SHAPES.values(), ids=SHAPES)
def test_draws_have_the_shape_that_is_claimed(distribution: Distribution, below: Callable[[float], float]) -> None:
    drawn = distribution.draw(seeds.key(10, "shape"), np.arange(DRAWS))
    allowed = CRITICAL + (1 / 256 if isinstance(distribution, Empirical) else 0)
    assert distance(drawn, below) < allowed


def test_the_distance_sees_a_wrong_shape() -> None:
    drawn = Gamma(mean=2, stdev=1.05).draw(seeds.key(10, "shape"), np.arange(DRAWS))
    assert distance(drawn, SHAPES["gamma by mean"][1]) > CRITICAL


@pytest.mark.parametrize("shape", [0.05, 0.7, 1.3, 2.5, 40.0])
def test_gamma_agrees_with_numpys(shape: float) -> None:
    ours = np.sort(Gamma(shape=shape, scale=1.0).draw(seeds.key(10, "numpy"), np.arange(DRAWS)))
    theirs = np.sort(np.random.default_rng(1).gamma(shape, 1.0, DRAWS))
    both = np.concatenate([ours, theirs])
    shares = (np.searchsorted(sample, both, side="right") / DRAWS for sample in (ours, theirs))
    assert float(np.abs(np.subtract(*shares)).max()) < CRITICAL * math.sqrt(2)


def expected_maximum(below: Callable[[float], float], number: int, most: float) -> float:
    """The mean of the largest of ``number`` draws: the integral of 1 - F(x)^n, up to ``most``."""
    x = np.linspace(1e-9, most, 20_001)
    height = 1 - np.array([below(each) for each in x.tolist()]) ** number
    return float(np.sum((height[1:] + height[:-1]) / 2) * (x[1] - x[0]))


#: The largest value that matters to the integral.
REACH = {"uniform": 5, "exponential": 60, "normal": 8, "lognormal": 60, "gamma": 30, "gamma by mean": 30}
SIZES = (8, 64, 512, 4096)


@pytest.mark.parametrize("number", SIZES)
@pytest.mark.parametrize("name", REACH)
def test_the_largest_of_many_draws_is_what_theory_expects(name: str, number: int) -> None:
    distribution, below = SHAPES[name]
    rounds = 1_600_000 // number
    keys = (seeds.key(10, "compute", rank) for rank in range(0, number, 8))
    drawn = np.stack([distribution.draw(key, np.arange(rounds * 8)).reshape(8, -1) for key in keys])
    largest = drawn.reshape(-1, rounds).max(axis=0).mean()
    assert largest == pytest.approx(expected_maximum(below, number, REACH[name]), rel=0.02)


def step_time(ranks: int, steps: int) -> float:
    """The mean length of a step of a run on the virtual clock, with gamma compute times of 2 ± 1 s and a barrier."""
    run = simulated(
        scenario(
            cluster__ranks_per_node=ranks, dataset__num_files=ranks, dataset__samples_per_file=steps,
            loader__batch_size=1, loader__num_workers=1, storage__model="memory",
            train={"epochs": 1, "compute": {"kind": "gamma", "mean": "2 s", "stdev": "1 s"}},
        )
    )  # fmt: skip
    ends = {(row["rank"], row["step"]): row["start_ns"] + row["duration_ns"] for row in run.rows("compute", rank=0)}
    for row in run.rows("sync", rank=0):
        ends[row["rank"], row["step"]] = row["start_ns"] + row["duration_ns"]
    assert run.ledger.even
    return float(ends[0, steps - 1] - ends[0, 0]) / 1e9 / (steps - 1)


@pytest.mark.parametrize(
    ("ranks", "steps"),
    [(8, 1500), (64, 120), *(pytest.param(*size, marks=pytest.mark.slow) for size in ((512, 250), (4096, 60)))],
)
def test_a_step_with_a_barrier_takes_the_expected_maximum(ranks: int, steps: int) -> None:
    theory = expected_maximum(SHAPES["gamma by mean"][1], ranks, 30)
    assert step_time(ranks, steps) == pytest.approx(theory, rel=0.02)
