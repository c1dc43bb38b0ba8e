"""How many modelled requests the virtual clock serves per CPU second where none is itemised. Goal: 1 million.

64 ranks with 4 workers each, storage preset ``nvme``, opens not counted. A step is simulated at once whatever its
requests, so the rate grows with the requests of a batch. ``python benchmarks/virtual_requests.py`` prints a row for
each size of a batch and format.
"""

from __future__ import annotations

import time
from typing import Any

from machine import print_machine
from side import print_head, print_row

from rayio.engines.virtual import simulation
from rayio.model.ledger import Tally
from rayio.model.planning import plan_of
from rayio.scenario.load import build
from rayio.trace.recorder import Recorder
from rayio.trace.span import schema

RANKS, STEPS = 64, 200
CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("npz", 4, {}),
    ("npz", 32, {}),
    ("npz", 256, {}),
    ("hdf5", 32, {"chunk": "64 KiB"}),
    ("tfrecord", 32, {"samples_per_file": 1024}),
]


def rates(format: str, batch: int, keys: dict[str, Any]) -> tuple[float, float]:
    """Return requests and steps of ranks per CPU second."""
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
    return requests / seconds, RANKS * STEPS / seconds


def main() -> None:
    print_machine()
    print_head("format", "samples in a batch", "million requests/s", "rank-steps/s", "goal 1 million requests/s")
    for format, batch, keys in CASES:
        requests, steps = rates(format, batch, keys)
        met = "met" if requests >= 1e6 else "**missed**"
        print_row(format, batch, f"{requests / 1e6:.2f}", f"{steps:,.0f}", met)


if __name__ == "__main__":
    main()
