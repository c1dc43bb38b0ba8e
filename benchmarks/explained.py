"""Does what ``rayio explain`` predicts come true? Real runs on a local Ray, changed as it says, run again.

A run is made slow in one way; ``explain`` simulates it without its causes, from its own measured times; then each
of those changes is made and the run repeated. Goal: AU within 3 points of the prediction. Give a number to have the
median of so many runs.
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from machine import print_machine

import rayio
from rayio.predict.explain import explain

SCENARIO = """
name: explained
cluster: {ranks_per_node: 2}
dataset: {path: data, num_files: 480, sample_bytes: {kind: uniform, low: 512 KiB, high: 1536 KiB}}
loader: {batch_size: 4, num_workers: 2, decode: 2 ms}
train: {epochs: 2, compute: {kind: normal, mean: 50 ms, stdev: 3 ms}}
"""
DEVICE: dict[str, Any] = {"first_byte": "4 ms", "connection_bandwidth": "400 MB/s", "bandwidth": "100 MB/s"}
UNLIMITED = {"connection_bandwidth": "1 PB/s", "bandwidth": "1 PB/s"}
#: What makes a run slow; and how to make each change that explain simulates, by its name (None: without that key).
CASES: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "decode": (
        {"loader.decode": {"kind": "lognormal", "median": "40 ms", "sigma": 0.3}},
        {"workers × 2": {"loader.num_workers": 4}, "decode = 0": {"loader.decode": 0}},
    ),
    "read": (
        {"dataset.path": "model://explained", "storage.model": DEVICE},
        {"bandwidth = ∞": {"storage.model": DEVICE | UNLIMITED}, "workers × 2": {"loader.num_workers": 4}},
    ),
    "straggler": (
        {"train.stragglers": {"ranks": [1], "factor": 1.6}},
        {"no stragglers": {"train.stragglers": None}, "no barrier": {"train.sync": "none"}},
    ),
    "checkpoint": (
        {"checkpoint": {"every": {"steps": 8}, "path": "checkpoints", "model": {"bytes": "256 MB"}, "fsync": False}},
        {"no checkpoints": {"checkpoint": None}},
    ),
    "evaluation": (
        {"dataset.eval": {"num_files": 64}, "train.evaluate": {"every": {"steps": 20}, "compute": "30 ms"}},
        {"no evaluations": {"train.evaluate": None, "dataset.eval": None}},
    ),
}  # fmt: skip


def main(repeats: int) -> None:
    import ray

    # Ray's own default gives its workers the lowest priority, so that anything else on the machine would be measured.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    print_machine()
    head = f"{'slow by':<12}{'bound':<12}{'AU':>8}  {'change':<16}{'predicted':>10}"
    print(f"{head}{'measured':>10}{'points':>8}{'load':>7}")
    with tempfile.TemporaryDirectory(prefix="rayio-bench-") as folder:
        root = Path(folder)
        (root / "explained.yaml").write_text(SCENARIO)

        def runs(overrides: dict[str, Any]) -> rayio.Run:
            """Give the run with the median AU."""
            made = [rayio.run(root / "explained.yaml", overrides, root=root) for _ in range(repeats)]
            return sorted(made, key=lambda run: run.au or 0.0)[len(made) // 2]

        off = []
        for name, (slow, changes) in CASES.items():
            run = runs(slow)
            found = explain(run.path)
            said = {row["change"]: row["au"] for row in found["simulated"]["changes"]}
            for change, overrides in changes.items():
                au = runs({key: value for key, value in (slow | overrides).items() if value is not None}).au
                assert au is not None
                off.append(abs(au - said[change]))
                slowness = f"{name:<12}{found['verdict']['bound']:<12}{run.au:>8.3f}"
                prediction = f"{change:<16}{said[change]:>10.3f}{au:>10.3f}{100 * (said[change] - au):>+8.1f}"
                print(f"{slowness}  {prediction}{os.getloadavg()[0]:>7.1f}", flush=True)
    print(f"median {100 * statistics.median(off):.1f} points off, worst {100 * max(off):.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
