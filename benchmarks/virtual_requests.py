"""How many modelled requests the virtual clock serves per CPU second where none is itemised. Goal: 1 million.

64 ranks with 4 workers each, storage preset ``nvme``, opens not counted. A step is simulated at once whatever its
requests, so the rate grows with the requests of a batch: a step costs so much, and each of its requests so much more.
``python benchmarks/virtual_requests.py`` prints a row for each size of a batch and format, medians of five rounds that
take turns, and below them the line of least squares through the rows of npz.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import numpy as np
from machine import print_machine
from side import in_turn, print_head, print_row, spread

from rayio.engines.virtual import simulation
from rayio.model.ledger import Tally
from rayio.model.planning import plan_of
from rayio.scenario.load import build
from rayio.trace.recorder import Recorder
from rayio.trace.span import schema

RANKS, STEPS, ROUNDS = 64, 200, 5
#: The requests of a step that a row of npz has in the line: larger tables cost memory too.
MOST = 256
CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("npz", 1, {}),
    ("npz", 4, {}),
    ("npz", 8, {}),
    ("npz", 16, {}),
    ("npz", 32, {}),
    ("npz", 64, {}),
    ("npz", 256, {}),
    ("hdf5", 32, {"chunk": "64 KiB"}),
    ("tfrecord", 32, {"samples_per_file": 1024}),
]


def cost(format: str, batch: int, keys: dict[str, Any]) -> tuple[float, float]:
    """Return the requests of a rank's step, and its CPU microseconds."""
    dataset = {"path": "model://x", "format": format, "num_files": 10_000_000, "sample_bytes": "1 MiB", **keys}
    scenario = build(
        {
            "name": "requests",
            "cluster": {"nodes": RANKS // 8, "ranks_per_node": 8},
            "dataset": dataset,
            "loader": {"batch_size": batch, "num_workers": 4},
            "train": {"epochs": 1, "steps": STEPS, "compute": "100 ms"},
            "storage": {"model": "nvme"},
        }
    )
    plan = plan_of(scenario, modelled=True)
    recorder, tallies = Recorder(), [Tally(rank) for rank in range(RANKS)]
    schema()  # loads Arrow, which is no part of the cost of a step
    began = time.process_time()
    simulation.simulate(plan, recorder, tallies)
    seconds = time.process_time() - began
    spans = recorder.drain()
    assert spans is not None
    requests = sum(spans["requests"].to_pylist())
    return requests / (RANKS * STEPS), seconds * 1e6 / (RANKS * STEPS)


def main() -> None:
    print_machine()
    print_head("format", "samples in a batch", "requests", "µs a rank-step", "million requests/s", "goal 1 million/s")
    sides = {f"{format} {batch}": partial(cost, format, batch, keys) for format, batch, keys in CASES}
    points: list[tuple[float, float]] = []
    for (format, batch, _), costs in zip(CASES, in_turn(sides, ROUNDS).values(), strict=True):
        requests, spent = costs[0][0], [each for _, each in costs]
        rate, met = requests / statistics.median(spent), requests >= statistics.median(spent)
        print_row(
            format, batch, f"{requests:.0f}", spread(spent, 1), f"{rate:.2f}", "met" if met else "**missed**"
        )  # fmt: skip
        if format == "npz" and requests <= MOST:
            points.append((requests, statistics.median(spent)))
    requests_of, cost_of = np.array(points).T
    each, step = np.polyfit(requests_of, cost_of, 1).tolist()
    least = step / (1 - each)
    print(
        f"\nnpz: {step:.1f} µs a step and {1000 * each:.0f} ns a request; 1 million/s from {least:.0f} requests a batch"
    )


if __name__ == "__main__":
    main()
