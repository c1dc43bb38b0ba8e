"""Compute times and meetings against theory: Kolmogorov and Smirnov's distance, expected maxima, all-reduces.

Run with ``python benchmarks/compute.py``. The theory is written here, and is not of rayio's code.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.engines.virtual import simulation
from rayio.model.planning import plan_of
from rayio.scenario.load import build
from rayio.schema.distribution import Distribution, Exponential, LogNormal, Normal, Uniform
from rayio.schema.empirical import Empirical, table
from rayio.schema.gamma import Gamma
from rayio.schema.poisson import Poisson

Below = Callable[[float], float]

DRAWS = 100_000
MEASURED = np.sort(np.random.default_rng(3).gamma(2.0, 0.05, 40_000))


def phi(z: float) -> float:
    """Return the chance that a standard normal is below z."""
    return math.erfc(-z / math.sqrt(2)) / 2


def erlang(shape: int, x: float) -> float:
    """Return the chance that a sum of exponential waits of mean 1 is below x."""
    return 1 - math.exp(-x) * math.fsum(x**k / math.factorial(k) for k in range(shape))


def events(mean: float, count: float) -> float:
    """Return the chance of at most so many independent events."""
    return math.exp(-mean) * math.fsum(mean**k / math.factorial(k) for k in range(math.floor(count) + 1))


SHAPES: dict[str, tuple[Distribution, Below]] = {
    "uniform, 1 to 5": (Uniform(low=1, high=5), lambda x: min(1.0, max(0.0, (x - 1) / 4))),
    "exponential, mean 2": (Exponential(mean=2), lambda x: 1 - math.exp(-x / 2)),
    "normal, 3 ± 0.5": (Normal(mean=3, stdev=0.5), lambda x: phi((x - 3) / 0.5)),
    "lognormal, median 2, sigma 0.5": (LogNormal(median=2, sigma=0.5), lambda x: phi(math.log(x / 2) / 0.5)),
    "lognormal, mean 2 ± 1": (
        LogNormal(mean=2, stdev=1),
        lambda x: phi((math.log(x) - math.log(4 / math.sqrt(5))) / math.sqrt(math.log(1.25))),
    ),
    "gamma, shape 3, scale 0.5": (Gamma(shape=3, scale=0.5), lambda x: erlang(3, x / 0.5)),
    "gamma, mean 2 ± 1": (Gamma(mean=2, stdev=1), lambda x: erlang(4, x / 0.5)),
    "gamma, shape 0.5, scale 2": (Gamma(shape=0.5, scale=2), lambda x: math.erf(math.sqrt(x / 2))),
    "poisson, mean 3": (Poisson(mean=3), lambda x: events(3, x)),
    "empirical, 40 000 values": (
        Empirical(values=tuple(table(MEASURED).tolist()), measured=len(MEASURED)),
        lambda x: float(np.searchsorted(MEASURED, x, side="right")) / len(MEASURED),
    ),
}


def distance(drawn: NDArray[np.float64], below: Below) -> float:
    """Return Kolmogorov and Smirnov's distance of a sample from a distribution."""
    values, counts = np.unique(drawn, return_counts=True)
    chance = np.array([below(value) for value in values.tolist()])
    after = np.cumsum(counts) / len(drawn)
    before = after - counts / len(drawn) if len(values) > len(drawn) // 2 else after
    return float(np.maximum(np.abs(after - chance), np.abs(before - chance)).max())


def expected_maximum(below: Below, number: int, most: float) -> float:
    """Return the mean of the largest of ``number`` draws: the integral of 1 - F(x)^n, up to ``most``."""
    x = np.linspace(1e-9, most, 20_001)
    height = 1 - np.array([below(each) for each in x.tolist()]) ** number
    return float(np.sum((height[1:] + height[:-1]) / 2) * (x[1] - x[0]))


def step_seconds(ranks: int, steps: int) -> float:
    """Return the mean length of a step on the virtual clock, with gamma compute of 2 ± 1 s and a barrier."""
    wanted = build(
        {
            "name": "maximum",
            "cluster": {"ranks_per_node": ranks},
            "dataset": {"path": "model://none", "num_files": ranks, "samples_per_file": steps, "sample_bytes": 1000},
            "loader": {"batch_size": 1, "num_workers": 1},
            "storage": {"model": "memory"},
            "train": {"epochs": 1, "compute": {"kind": "gamma", "mean": "2 s", "stdev": "1 s"}},
        }
    )
    spans = simulation.spans_of(plan_of(wanted, modelled=True)).select(["name", "rank", "step", "start_ns"]).to_pandas()
    begins = spans[(spans["name"] == "compute") & (spans["rank"] == 0)].sort_values("step").start_ns.to_numpy()
    return float(begins[-1] - begins[0]) / 1e9 / (len(begins) - 1)


def main() -> None:
    """Print the tables."""
    print("| distribution | distance of 100 000 draws | exceeded by 1 sample in 1000 |\n|---|---|---|")
    for name, (distribution, below) in SHAPES.items():
        drawn = distribution.draw(seeds.key(10, "shape"), np.arange(DRAWS))
        print(f"| {name} | {distance(drawn, below):.4f} | {1.95 / math.sqrt(DRAWS):.4f} |")
    print("\n| ranks | steps | mean step | expected maximum | difference |\n|---|---|---|---|---|")
    below = SHAPES["gamma, mean 2 ± 1"][1]
    for ranks, steps in ((8, 4000), (64, 1000), (512, 250), (4096, 60)):
        measured, theory = step_seconds(ranks, steps), expected_maximum(below, ranks, 30)
        difference = 100 * (measured / theory - 1)
        print(f"| {ranks} | {steps - 1} | {measured:.3f} s | {theory:.3f} s | {difference:+.1f} % |")


if __name__ == "__main__":
    main()
