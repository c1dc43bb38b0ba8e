"""Requests in flight on local files: a reader with ``loader.io_depth: 4`` next to one with 1, in pairs.

Batches of 16 samples, a file each, are read from the page cache (files in memory), and from a device
(``storage.page_cache: drop``). Both sides take turns, every other pair backwards. Ratios are medians over pairs of the
time, and of the CPU time of the process.

``python benchmarks/depth.py FOLDER``, where FOLDER is on a device; ``--rounds N``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from machine import print_machine
from side import ONE_THREAD, print_head, print_row, spread

import rayio
from rayio.engines.loaders.reading import BatchReader, Reading
from rayio.model.planning import plan_of
from rayio.place import Where
from rayio.scenario.load import build

BATCH, BATCHES, DEPTH = 16, 12, 4


class Reader:
    """A reader of a dataset with so many requests in flight."""

    def __init__(self, root: str, format: str, sample: str, page_cache: str, depth: int) -> None:
        wanted = build({
            "name": "depth", "cluster": {"ranks_per_node": 1}, "storage": {"page_cache": page_cache},
            "dataset": {
                "path": f"{root}/{format}-{sample}", "format": format, "num_files": BATCH * BATCHES,
                "sample_bytes": sample,
            },
            "loader": {"batch_size": BATCH, "num_workers": 1, "io_depth": depth, "shuffle": "none"},
            "train": {"compute": 0},
        })  # fmt: skip
        rayio.generate(wanted)
        self.memory = np.zeros(BATCH * int(wanted.dataset.sample_bytes.expected), np.uint8)
        reading = Reading(plan_of(wanted, modelled=False), 0, "", 0)
        self.reader = BatchReader(reading, 0, lambda nbytes: self.memory[:nbytes])

    def read(self) -> tuple[float, float]:
        """Read all batches; give seconds, and CPU seconds of all threads."""
        began, cpu = time.perf_counter(), time.process_time()
        for step in range(BATCHES):
            header = self.reader.read(Where(0, 0, step)).header
            if isinstance(header, Exception):
                raise header
        return time.perf_counter() - began, time.process_time() - cpu


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Local files read with requests in flight.")
    parser.add_argument("folder", help="a folder on a device")
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    os.environ.update(ONE_THREAD)
    print_machine()
    print_head("from", "format", "sample", "ms a batch at depth 1", f"time at depth {DEPTH}", "CPU time")
    places = (("memory", "/dev/shm", "use"), ("device", chosen.folder, "drop"))
    for name, place, page_cache in places:
        for format in ("npz", "raw"):
            for sample in ("100 KB", "1 MB"):
                # In a thread, as readers do: the main thread is kept for signals.
                with tempfile.TemporaryDirectory(dir=place) as root, ThreadPoolExecutor(1) as alone:
                    sides = [Reader(root, format, sample, page_cache, depth) for depth in (1, DEPTH)]
                    for side in sides:
                        alone.submit(side.read).result()
                    pairs = []
                    for number in range(chosen.rounds):
                        turn = sides if number % 2 else sides[::-1]
                        times = {id(side): alone.submit(side.read).result() for side in turn}
                        pairs.append([times[id(side)] for side in sides])
                usual = statistics.median(one[0] for one, _ in pairs) / BATCHES
                wall, cpu = ([many[n] / one[n] for one, many in pairs] for n in (0, 1))
                print_row(name, format, sample, f"{1000 * usual:.2f}", spread(wall, 2), spread(cpu, 2))


if __name__ == "__main__":
    main()
