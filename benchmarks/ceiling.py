"""The ceiling of the data path: zero compute, one rank, files in memory, beside two PyTorch DataLoaders.

One is the loop around ``numpy.load`` that users write, the other has the same reader as rayio (``torch_script.py`` says
what both do). Same files, workers, prefetch and batches; all run in turn, in every other round backwards; medians, with
the least and the most. ``reader and path`` is rayio beside the first: it skips zipfile and a copy, and its path is
another. ``path`` is rayio beside the second: the same work per sample, so what differs is how batches travel.

``python benchmarks/ceiling.py`` prints all rows (7 rounds: three quarters of an hour); ``--rounds N``; ``--only TEXT``
those whose name has the text, again for more; ``--quick`` three rows, one round, about a minute. ``--queue NAME`` runs
rayio with ``loader.queue: NAME``, again for another column.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from machine import print_machine
from side import Rate, in_turn, memory_and_ray, on_ray, print_head, print_row, rate_on_torch, spread

import rayio
from rayio.scenario.load import build

#: What a batch brings at least beside the np.load loop, everywhere.
GOAL = 1.3
MEGABYTES, BATCHES, SAMPLES = "MB/s", "batches/s", "samples/s"
ROUNDS, QUICK = 7, ("8 MB, p2", "100 KB, p2", "150 KB × 32, p2, w2")
NOTES = """\
Verified on every side: each sample read. rayio: its id and its XXH3, 64 bits, and that the file is laid out as planned;
np.load: the CRC-32 of the zip's member, by zipfile; same reader: as rayio. rayio records a span for each batch read,
moved and taken, and keeps its books; PyTorch's sides record nothing. Counted is from the first batch to the last, so
nobody's start-up is. CPU time: rayio's actors and Ray's node process from the first work of each on; PyTorch's rank and
workers from the first batch on. OMP_NUM_THREADS=1, persistent workers, a shuffle, no pinned memory on every side.
"""


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    label: str
    num_files: int
    sample_bytes: str
    batch: int
    prefetch: int
    workers: int
    unit: str
    #: What is wanted beside the same reader; None where nothing is.
    goal: float | None
    steps: int
    #: What is wanted of ``loader.queue: in_rank`` where that is more.
    goal_in_rank: float | None = None

    @property
    def name(self) -> str:
        """What ``--only`` looks in."""
        return f"{self.label}, p{self.prefetch}, w{self.workers}"

    @property
    def folder(self) -> str:
        """The dataset's folder: cases of the same files share it."""
        return f"{self.num_files}-{self.sample_bytes.replace(' ', '')}"

    def scenario(self, keys: dict[str, str]) -> dict[str, Any]:
        """One rank that only takes batches, as many epochs as its steps need; ``keys`` are more of the loader."""
        epoch = self.num_files // self.batch
        return {
            "name": "ceiling",
            "cluster": {"ranks_per_node": 1},
            "dataset": {"path": self.folder, "num_files": self.num_files, "sample_bytes": self.sample_bytes},
            "loader": {"batch_size": self.batch, "num_workers": self.workers, "prefetch_factor": self.prefetch} | keys,
            "train": {"epochs": -(-self.steps // epoch), "steps": min(self.steps, epoch), "compute": 0, "sync": "none"},
        }

    def shown(self, rate: Rate) -> float:
        """A rate in this row's unit."""
        if self.unit == MEGABYTES:
            return rate.megabytes_per_second
        return rate.batches_per_second * (self.batch if self.unit == SAMPLES else 1)


CASES = (
    Case("32 MB", 1600, "1 MB", 32, 2, 2, MEGABYTES, 1.0, 100),
    Case("8 MB", 1600, "1 MB", 8, 2, 2, MEGABYTES, 0.9, 400),
    Case("100 KB", 4000, "100 KB", 1, 2, 2, BATCHES, 0.5, 2000, 0.8),
    Case("100 KB", 4000, "100 KB", 1, 16, 2, BATCHES, None, 4000),
    Case("150 KB × 4", 2000, "150 KB", 4, 2, 2, SAMPLES, None, 1000),
    *(Case("150 KB × 4", 2000, "150 KB", 4, 16, workers, SAMPLES, None, 2000) for workers in (1, 2, 4)),
    *(Case("150 KB × 32", 2000, "150 KB", 32, 2, workers, SAMPLES, 0.7, 620) for workers in (1, 2, 4)),
    Case("150 KB × 32", 2000, "150 KB", 32, 16, 2, SAMPLES, None, 620),
    Case("150 KB × 4, 20 000 files", 20000, "150 KB", 4, 16, 2, SAMPLES, None, 2000),
)


def ratios(mine: list[float], other: list[float]) -> str:
    """How many times the other's rate, round by round: the median, the least, the most."""
    return spread([one / two for one, two in zip(mine, other, strict=True)], 2)


def row(case: Case, ours: dict[str, dict[str, str]], root: str, rounds: int) -> None:
    """Run a case and print its row."""
    sides: dict[str, Callable[[], Rate]] = {
        name: partial(on_ray, case.scenario(keys), root) for name, keys in ours.items()
    }
    sides |= {reader: partial(rate_on_torch, case.scenario({}), root, reader) for reader in ("numpy", "same")}
    rates = in_turn(sides, rounds)
    shown = {name: [case.shown(rate) for rate in those] for name, those in rates.items()}
    cells = [case.label, case.prefetch, case.workers, case.unit, *(spread(those) for those in shown.values())]
    for name, keys in ours.items():
        beside_same = case.goal_in_rank if case.goal_in_rank and keys.get("queue") == "in_rank" else case.goal
        for reader, goal in (("numpy", GOAL), ("same", beside_same)):
            met = statistics.median(a / b for a, b in zip(shown[name], shown[reader], strict=True)) >= (goal or 0)
            cells.append(ratios(shown[name], shown[reader]) + ("" if met else f" **missed** (>= {goal})"))
    cells += [f"{statistics.median(rate.cpu_milliseconds for rate in those):.2f}" for those in rates.values()]
    print_row(*cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rows, one round")
    parser.add_argument("--rounds", type=int, help=f"how often each side runs (default: {ROUNDS})")
    parser.add_argument("--only", action="append", metavar="TEXT", help='rows whose name has it: "8 MB", "× 32", "p2"')
    parser.add_argument("--queue", action="append", metavar="NAME", help="a value of loader.queue, a column each")
    asked = parser.parse_args()
    wanted = asked.only or (QUICK if asked.quick else ("",))
    rounds = asked.rounds or (1 if asked.quick else ROUNDS)
    ours = {f"rayio, {name}": {"queue": name} for name in asked.queue or ()} or {"rayio": dict[str, str]()}
    names = {"numpy": "np.load", "same": "same reader"}
    print_machine()
    print(f"Medians of {rounds} rounds (least to most); a ratio is of one round.\n")
    print_head(
        "batch", "prefetch", "workers", "unit", *ours, *names.values(),
        *(f"{name} ÷ {other}" for name in ours for other in ("np.load: reader and path", "same reader: path")),
        *(f"CPU ms a batch: {name}" for name in [*ours, *names.values()]),
    )  # fmt: skip
    with memory_and_ray() as root:
        for case in CASES:
            if any(text in case.name for text in wanted):
                rayio.generate(build(case.scenario({})), root=root)
                row(case, ours, root, rounds)
    print(f"\n{NOTES}", flush=True)


if __name__ == "__main__":
    main()
