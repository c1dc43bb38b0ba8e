"""Readers as processes and as threads of one process: what each costs, and where Python's lock shows.

1 rank × 4 readers on a local Ray, no compute, payload real: large samples, small ones (checking them holds Python's
lock), and samples of which each goes through SHA-256. Both kinds of worker take turns; medians.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from typing import Any

import psutil
import ray
from machine import print_machine

import rayio
from rayio.reporter import Reporter
from rayio.scenario.load import build

#: Name, bytes of a sample, samples of a batch, steps, decoding.
WORK: list[tuple[str, str, int, int, Any]] = [
    ("large samples, 2 MB", "2 MB", 4, 300, 0),
    ("small samples, 2 KB", "2 KB", 64, 150, 0),
    ("SHA-256 of 2 MB", "2 MB", 4, 150, {"kind": "checksum", "algorithm": "sha256"}),
]
REPEATS = 3


class Watcher(Reporter):
    """Notes when the actors run, and how much memory the readers have then."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.start_seconds = 0.0
        self.readers = 0
        self.memory = 0

    def say(self, text: str) -> None:
        """Note the time and look at the processes once all actors are there."""
        if "actors are running" in text:
            self.start_seconds = time.monotonic() - self.began
            self._look()

    def _look(self) -> None:
        self.readers = self.memory = 0
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.name().startswith("ray::Reader"):
                    self.readers += 1
                    self.memory += process.memory_full_info().pss


def scenario(worker: str, size: str, batch: int, steps: int, decode: Any) -> Any:
    return build(
        {
            "name": "workers",
            "dataset": {"path": f"data-{size.replace(' ', '')}", "num_files": 256, "sample_bytes": size},
            "loader": {"batch_size": batch, "num_workers": 4, "worker": worker, "decode": decode},
            "train": {"epochs": -(-steps * batch // 256), "compute": 0},
        }
    )


def main() -> None:
    print_machine()
    print(f"{'work':<22}{'worker':<9}{'readers':>8}{'MiB PSS':>9}{'start s':>9}{'samples/s':>11}{'MiB/s':>8}")
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=1 << 30,
    )
    with tempfile.TemporaryDirectory(prefix="rayio-bench-", dir="/dev/shm") as root:
        for name, *work in WORK:
            rows: dict[str, list[tuple[float, ...]]] = {"process": [], "thread": []}
            for _ in range(REPEATS):
                for worker, found in rows.items():
                    watcher = Watcher()
                    result = rayio.run(scenario(worker, *work), root=root, reporter=watcher).result
                    rates = result["samples_per_second"], result["mib_per_second"]
                    found.append((watcher.readers, watcher.memory / 2**20, watcher.start_seconds, *rates))
            for worker, found in rows.items():
                count, memory, start, samples, mib = (statistics.median(column) for column in zip(*found, strict=True))
                print(f"{name:<22}{worker:<9}{count:>8.0f}{memory:>9.0f}{start:>9.1f}{samples:>11.0f}{mib:>8.0f}")
                sys.stdout.flush()
    ray.shutdown()


if __name__ == "__main__":
    main()
