"""What reading a sample takes of a processor: rayio's reader beside the kernel's copy and the checksum alone.

Files in memory, one process, no engine: a reader's whole work for a batch (which samples, their files, requests, spans,
checks), as it is done in every reader, into lent memory. Beside it, over the same files: the kernel's copy
alone (``preadv`` of files that are open), XXH3 alone, and a bare loop (open, fstat, the same three requests, XXH3,
close). Each goes over all files, more than a processor's own caches hold, in turn; CPU microseconds a sample, medians
over rounds. Goal: of a reader's CPU time for a
sample of 150 KB less than a third is neither the kernel's copy nor the checksum.

``python benchmarks/reading.py``; ``--quick`` in a few seconds; ``--rounds N``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import xxhash
from machine import print_machine
from numpy.typing import NDArray
from side import ONE_THREAD, in_turn, print_head, print_row, spread

import rayio
from rayio.data.formats.npz import ROWS
from rayio.engines.loaders.reading import BatchReader, Reading
from rayio.model.planning import plan_of
from rayio.place import Where
from rayio.scenario.load import build
from rayio.units import BYTES

CASES = (("150 KB", 4), ("150 KB", 32), ("1 MB", 4))
FILES, GOAL = 256, 1 / 3


class Case:
    """A dataset and its reader, and the same files without one."""

    def __init__(self, sample: str, size: int, root: str) -> None:
        self.size = size
        self.nbytes = int(BYTES.parse(sample))
        wanted = build({
            "name": "reading", "cluster": {"ranks_per_node": 1},
            "dataset": {"path": sample.replace(" ", ""), "num_files": FILES, "sample_bytes": sample},
            "loader": {"batch_size": size, "num_workers": 1}, "train": {"compute": 0},
        })  # fmt: skip
        rayio.generate(wanted, root=root)
        folder = Path(root, wanted.dataset.path)
        self.paths = sorted(map(str, folder.rglob("*.npz")))
        self.files = [os.open(path, os.O_RDONLY) for path in self.paths]
        self.memory = np.empty(size * self.nbytes, np.uint8)
        self.memory[:] = 0
        self.reader = BatchReader(Reading(plan_of(wanted, modelled=False), 0, root, 0), 0, self._lend)
        self.steps = FILES // size

    def _lend(self, nbytes: int) -> NDArray[np.uint8]:
        return self.memory[:nbytes]

    def _parts(self) -> list[memoryview]:
        return [self.memory.data[place * self.nbytes : (place + 1) * self.nbytes] for place in range(self.size)]

    def rayio(self, step: int) -> None:
        """Read a batch as a reader does."""
        parcel = self.reader.read(Where(0, 0, step))
        if isinstance(parcel.header, Exception):
            raise parcel.header

    def copy(self, step: int) -> None:
        """Have the kernel copy as many samples."""
        for place, part in enumerate(self._parts()):
            os.preadv(self.files[step * self.size + place], [part], ROWS)

    def checksum(self, step: int) -> None:
        """Hash as many samples."""
        for part in self._parts():
            xxhash.xxh3_64_intdigest(part[16:], step)

    def bare(self, step: int) -> None:
        """Open, look, read, hash, close: the least that a reader in Python can do."""
        for place, part in enumerate(self._parts()):
            file = os.open(self.paths[step * self.size + place], os.O_RDONLY | os.O_CLOEXEC)
            size = os.fstat(file).st_size
            os.pread(file, 4096, size - 4096)
            os.pread(file, 4096, 0)
            os.preadv(file, [part], ROWS)
            xxhash.xxh3_64_intdigest(part[16:], step)
            os.close(file)

    def sides(self) -> dict[str, Callable[[], float]]:
        """What is timed: each goes over all files, and gives CPU microseconds a sample."""
        return {name: partial(self._timed, getattr(self, name)) for name in ("rayio", "copy", "checksum", "bare")}

    def _timed(self, act: Callable[[int], None]) -> float:
        began = time.thread_time_ns()
        for step in range(self.steps):
            act(step)
        return (time.thread_time_ns() - began) / 1e3 / (self.steps * self.size)

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            os.close(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="samples of 150 KB in batches of 4 alone")
    parser.add_argument("--rounds", type=int, default=31, help="how often all files are read (default: 31)")
    asked = parser.parse_args()
    os.environ.update(ONE_THREAD)
    print_machine()
    print(f"CPU µs a sample, medians of {asked.rounds} rounds (least to most); {FILES} files in memory.\n")
    print_head("sample", "batch", "rayio", "kernel's copy", "XXH3", "what is neither", "its share", "bare loop")
    with tempfile.TemporaryDirectory(prefix="rayio-bench-", dir="/dev/shm") as root:
        for sample, size in CASES[:1] if asked.quick else CASES:
            case = Case(sample, size, root)
            in_turn(case.sides(), 1)
            of = in_turn(case.sides(), asked.rounds)
            case.close()
            rest = [a - b - c for a, b, c in zip(of["rayio"], of["copy"], of["checksum"], strict=True)]
            share = statistics.median(a / b for a, b in zip(rest, of["rayio"], strict=True))
            print_row(
                sample, size, *(spread(of[name], 1) for name in ("rayio", "copy", "checksum")), spread(rest, 1),
                f"{100 * share:.0f} %{' **missed**' * (share >= GOAL)}", spread(of["bare"], 1),
            )  # fmt: skip


if __name__ == "__main__":
    main()
