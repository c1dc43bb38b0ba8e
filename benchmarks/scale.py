"""How many ranks one machine emulates on Ray: 16, 64 and 256 of them, 4 readers each, packed into a few actors.

Modelled storage, steps of 1 s, a barrier after each. Goals: AU >= 0.97, memory of all processes (PSS) <= 6 GiB, and
at 256 ranks no more than 60 s from the command, with the start of Ray, to the first step.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from machine import print_machine

import rayio
from rayio.scenario.load import build

STEPS = 20


def scenario(ranks: int) -> dict[str, Any]:
    """Make a scenario of one emulated node."""
    return {
        "name": "scale",
        "cluster": {"ranks_per_node": ranks, "start_deadline": "300 s"},
        "dataset": {"path": "model://scale", "num_files": ranks * STEPS * 4, "sample_bytes": "150 KB"},
        "storage": {"model": "nvme"},
        "loader": {"batch_size": 4, "num_workers": 4},
        "train": {"epochs": 1, "compute": "1 s"},
    }


@contextmanager
def watched_memory() -> Iterator[list[float]]:
    """Add up the memory (PSS) of this process and all below it once a second; the list has the largest sum, in GiB."""
    peak, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            total = 0
            for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            peak[0] = max(peak[0], total / 2**30)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        over.set()
        watcher.join()


def main() -> None:
    print_machine()
    print(f"{'ranks':>5}{'AU':>8}{'other':>8}{'sync':>8}{'memory (GiB)':>14}{'start (s)':>11}{'actors':>8}")
    for ranks in map(int, sys.argv[1:] or ("16", "64", "256")):
        began = time.time_ns()
        with watched_memory() as peak, tempfile.TemporaryDirectory(prefix="rayio-bench-") as root:
            run = rayio.run(build(scenario(ranks)), root=root)
            spans, result = run.spans(), run.result
            actors = len(run.directory.info["actors"])
        start = (spans[spans["name"] == "compute"]["start_ns"].min() - began) / 1e9
        print(
            f"{ranks:>5}{result['au']:>8.4f}{100 * result['other_share']:>6.2f} %{100 * result['sync_share']:>6.2f} %"
            f"{peak[0]:>14.2f}{start:>11.1f}{actors:>8}",
            flush=True,
        )
    print("goal: AU >= 0.97, memory <= 6 GiB, start <= 60 s")


if __name__ == "__main__":
    main()
