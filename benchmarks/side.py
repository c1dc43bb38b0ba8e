"""One run of a loader with zero compute, on Ray and on PyTorch: batches and bytes per second, first batch to last."""

from __future__ import annotations

import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

import rayio
from rayio.scenario.load import build

#: Both sides compute with one thread a process, as PyTorch's workers do.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Rate:
    """What a rank got between its first batch and its last."""

    batches: int
    nbytes: int
    seconds: float

    @property
    def batches_per_second(self) -> float:
        """Batches per second."""
        return self.batches / self.seconds

    @property
    def megabytes_per_second(self) -> float:
        """Bytes per microsecond."""
        return self.nbytes / self.seconds / 1e6


def scenario(folder: str, num_files: int, sample_bytes: str, batch: int, workers: int, prefetch: int) -> dict[str, Any]:
    """Make a scenario of one rank that only takes batches."""
    return {
        "name": "ceiling",
        "cluster": {"ranks_per_node": 1},
        "dataset": {"path": folder, "num_files": num_files, "sample_bytes": sample_bytes},
        "loader": {"batch_size": batch, "num_workers": workers, "prefetch_factor": prefetch},
        "train": {"epochs": 1, "compute": 0, "sync": "none"},
    }


def on_ray(wanted: dict[str, Any], root: str) -> Rate:
    """Run on Ray; the times are those of the rank's own spans."""
    run = rayio.run(build(wanted), root=root)
    if run.exit_code:
        raise SystemExit(f"the run ended with {run.exit_code}: {run.result['error']}")
    spans = run.spans()
    waits = spans[spans["name"] == "data_wait"].sort_values("start_ns")
    ends = waits["start_ns"] + waits["duration_ns"]
    return Rate(len(waits) - 1, int(waits["bytes"].iloc[1:].sum()), float(ends.iloc[-1] - ends.iloc[0]) / 1e9)


def on_torch(wanted: dict[str, Any], root: str) -> Rate:
    """Run PyTorch's DataLoader over the same files, in a process of its own."""
    loader = wanted["loader"]
    numbers = [str(loader[key]) for key in ("batch_size", "num_workers", "prefetch_factor")]
    numbers += [str(wanted["train"]["epochs"]), str(wanted["train"].get("steps") or 0)]
    script = Path(__file__).with_name("torch_loader.py")
    command = [sys.executable, str(script), str(Path(root, wanted["dataset"]["path"])), *numbers]
    done = subprocess.run(command, env=os.environ | ONE_THREAD, stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads(done.stdout)
    return Rate(told["batches"], told["bytes"], told["seconds"])


def both(wanted: dict[str, Any], root: str, repeats: int) -> tuple[list[Rate], list[Rate]]:
    """Run both sides in turn, so that a busy machine is busy for both."""
    rayio.generate(build(wanted), root=root)
    ours, theirs = [], []
    for _ in range(repeats):
        theirs.append(on_torch(wanted, root))
        ours.append(on_ray(wanted, root))
    return ours, theirs


def median(rates: list[Rate], name: str) -> float:
    """Give the median of one of :class:`Rate`'s numbers."""
    return float(statistics.median(getattr(rate, name) for rate in rates))


@contextmanager
def memory_and_ray() -> Iterator[str]:
    """Give a folder in memory, with a local Ray around it that all runs share."""
    os.environ.update(ONE_THREAD)
    with tempfile.TemporaryDirectory(prefix="rayio-bench-", dir="/dev/shm") as root:
        ray.init(
            address="local", num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False,
            logging_level=logging.ERROR, object_store_memory=2 << 30,
        )  # fmt: skip
        try:
            yield root
        finally:
            ray.shutdown()
