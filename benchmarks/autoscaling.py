"""What autoscaled workers cost against fixed numbers, on the virtual clock. Goal: 5.9 % lost to 16.

Scenarios are drawn: times of reading and computing, their spread, stragglers, a shared limit, ranks that meet after 1,
4, 16 or 50 steps. ``python benchmarks/autoscaling.py 2000 2030`` draws those of these seeds, and prints a row for each
k, the steps between two meetings: the share of wall time lost to the best fixed number and to 16 workers, workers and
changes of a rank, the best number (of 1, 2, 4, 8 and 16, known after all have run), and what fixed ones take more.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from machine import print_machine

import rayio
from rayio.scenario.load import build

FIXED = (1, 2, 4, 8, 16)
STEPS = 1500


class Outcome(NamedTuple):
    """Wall times with autoscaled and fixed workers in seconds; mean workers and changes of a rank when autoscaled."""

    seconds: float
    fixed: dict[int, float]
    workers: float
    changes: float

    @property
    def best(self) -> int:
        """The fixed number with the shortest wall time."""
        return min(FIXED, key=lambda workers: self.fixed[workers])

    def lost(self, workers: int) -> float:
        """Return the share of the wall time that is lost against a fixed number of workers."""
        return 1 - self.fixed[workers] / self.seconds


def drawn(seed: int, every: tuple[int, ...]) -> dict[str, Any]:
    """Return a scenario without its number of workers."""
    draw = random.Random(seed)
    read, compute = draw.choice([50, 150, 350]), draw.choice([40, 100, 200])
    decode = draw.choice([
        {"kind": "constant", "value": f"{read} ms"}, {"kind": "exponential", "mean": f"{read} ms"},
        {"kind": "lognormal", "median": f"{read} ms", "sigma": 0.8},
    ])  # fmt: skip
    computes = draw.choice([
        f"{compute} ms", {"kind": "lognormal", "median": f"{compute} ms", "sigma": 0.3},
        {"kind": "exponential", "mean": f"{compute} ms"},
    ])  # fmt: skip
    train = {"epochs": 1, "compute": computes, "accumulate": draw.choice(every)}
    kind = draw.random()
    if kind < 0.4:
        train["stragglers"] = {"ranks": [0], "factor": draw.choice([1.3, 2, 5])}
    elif kind < 0.6:
        train["stragglers"] = {"probability": draw.choice([0.01, 0.1]), "factor": draw.choice([3, 10])}
    elif kind < 0.7:
        train["stragglers"] = {"ranks": [1], "factor": 5, "every": "60 s", "lasts": "20 s"}
    ranks, bandwidth = draw.choice([2, 4, 8]), draw.choice(["10 GB/s", "10 GB/s", "30 MB/s"])
    return {
        "name": "drawn", "cluster": {"ranks_per_node": ranks}, "train": train, "trace": {"level": "step"},
        "dataset": {"path": "model://x", "format": "raw", "num_files": STEPS * ranks, "sample_bytes": "1 MB"},
        "storage": {"model": {"first_byte": 0, "connection_bandwidth": "100 GB/s", "bandwidth": bandwidth}},
        "loader": {
            "batch_size": 1, "decode": decode, "prefetch_factor": draw.choice([1, 2, 4]),
            "assignment": draw.choice(["static", "dynamic"]), "in_order": draw.choice([True, True, False]),
        },
    }  # fmt: skip


def outcome(scenario: dict[str, Any], folder: Path) -> Outcome:
    """Simulate a scenario with autoscaled and with fixed workers."""
    runs = {
        str(workers): rayio.simulate(
            build(scenario | {"loader": scenario["loader"] | {"num_workers": workers}}), out=folder / str(number)
        ).result
        for number, workers in enumerate([{"min": 1, "max": 16}, *FIXED])
    }
    auto, *fixed = runs.values()
    assert auto.scaling is not None
    ranks = scenario["cluster"]["ranks_per_node"]
    return Outcome(
        auto.wall_seconds or 0.0, {n: run.wall_seconds or 0.0 for n, run in zip(FIXED, fixed, strict=True)},
        auto.scaling.mean / ranks, auto.scaling.num_changes / ranks,
    )  # fmt: skip


def main(first: int, last: int) -> None:
    """Print a row for each k, and one for all of k > 1."""
    print_machine()
    print("| k | scenarios | lost to the best | lost to 16 | workers | changes | best | 1, 2, 4, 8 take more |")
    print("|---|---|---|---|---|---|---|---|")
    rows: dict[str, list[Outcome]] = {}
    for every in ((1,), (4, 16, 50)):
        for seed in range(first, last):
            scenario = drawn(seed, every)
            with tempfile.TemporaryDirectory() as folder:
                rows.setdefault(str(scenario["train"]["accumulate"]), []).append(outcome(scenario, Path(folder)))
    rows["> 1"] = [made for k, made_all in rows.items() if k != "1" for made in made_all]
    for k, made in sorted(rows.items(), key=lambda row: (len(row[0]) > 2, int(row[0].strip("> ")))):
        always = [f"{mean(one.fixed[n] / one.fixed[one.best] - 1 for one in made):.1%}" for n in FIXED[:-1]]
        print(
            f"| {k} | {len(made)} | {mean(one.lost(one.best) for one in made):.1%} "
            f"| {mean(one.lost(16) for one in made):.1%} | {mean(one.workers for one in made):.2f} "
            f"| {mean(one.changes for one in made):.1f} | {mean(one.best for one in made):.1f} | {', '.join(always)} |"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3] or (2000, 2030)))
