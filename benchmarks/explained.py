"""Does what ``rayio explain`` predicts come true? Real runs on a local Ray, changed as it says, run again.

A run is made slow in one way; ``explain`` simulates it without its causes, from its own measured times; then each
of those changes is made and the run repeated. Goal: AU within 3 points of the prediction. Give a number to have the
median of so many runs, and then the beginning of a case's name to run that alone.
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
from side import print_head, print_row

import rayio
from rayio.report.explain import explain

SCENARIO = """
name: explained
cluster: {ranks_per_node: 2}
dataset: {path: data, num_files: 480, sample_bytes: {kind: uniform, low: 512 KiB, high: 1536 KiB}}
loader: {batch_size: 4, num_workers: 2, decode: 2 ms}
train: {epochs: 2, compute: {kind: normal, mean: 50 ms, stdev: 3 ms}}
"""
DEVICE: dict[str, Any] = {"first_byte": "4 ms", "connection_bandwidth": "400 MB/s", "bandwidth": "100 MB/s"}
UNLIMITED = {"connection_bandwidth": "1 PB/s", "bandwidth": "1 PB/s"}
#: Reading and decoding that are work: two cores have little left beside it, or nothing.
BUSY: dict[str, Any] = {
    "dataset.path": "small", "dataset.num_files": 1920, "dataset.sample_bytes": "150 kB", "loader.batch_size": 16,
    "loader.decode": {"kind": "decompress"}, "train.compute": "10 ms",
}  # fmt: skip
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
    "processors, 1 worker": (
        BUSY | {"loader.num_workers": 1},
        {"workers × 2": {"loader.num_workers": 2}, "prefetch × 2": {"loader.prefetch_factor": 4}},
    ),
    "processors, 2 workers": (
        BUSY | {"loader.num_workers": 2},
        {"workers × 2": {"loader.num_workers": 4}, "workers ÷ 2": {"loader.num_workers": 1}},
    ),
    "straggler": (
        {"train.stragglers": {"ranks": [1], "factor": 1.6}},
        {"no slow ranks": {"train.stragglers": None}, "no barrier": {"train.sync": "none"}},
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


def main(repeats: int, only: str) -> None:
    import ray

    # Ray's own default gives its workers the lowest priority, so that anything else on the machine would be measured.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    print_machine()
    print_head(
        "slow by", "bound", "AU", "change", "AU predicted", "AU made", "points", "samples/s predicted",
        "samples/s made", "error",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="rayio-bench-") as folder:
        root = Path(folder)
        (root / "explained.yaml").write_text(SCENARIO)

        def runs(overrides: dict[str, Any]) -> rayio.Run:
            """Give the run with the median AU."""
            made = [rayio.run(root / "explained.yaml", overrides, root=root) for _ in range(repeats)]
            return sorted(made, key=lambda run: run.au or 0.0)[len(made) // 2]

        off, errors = [], []
        for name, (slow, changes) in CASES.items():
            if not name.startswith(only):
                continue
            run = runs(slow)
            found = explain(run.path)
            said = {row["change"]: (row["au"], row["samples_per_second"]) for row in found["simulated"]["changes"]}
            for change, overrides in changes.items():
                made = runs({key: value for key, value in (slow | overrides).items() if value is not None})
                au, rate = said[change]
                assert made.au is not None
                true = made.result["samples_per_second"]
                off.append(abs(made.au - au))
                errors.append(abs(rate / true - 1))
                print_row(
                    name, found["verdict"]["bound"], f"{run.au:.3f}", change, f"{au:.3f}", f"{made.au:.3f}",
                    f"{100 * (au - made.au):+.1f}", f"{rate:.1f}", f"{true:.1f}", f"{100 * (rate / true - 1):+.1f} %",
                )  # fmt: skip
    print()
    for what, unit, found_off in (("AU", "points", off), ("samples/s", "%", errors)):
        print(f"{what}: median {100 * statistics.median(found_off):.1f} {unit} off, worst {100 * max(found_off):.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1, sys.argv[2] if len(sys.argv) > 2 else "")
