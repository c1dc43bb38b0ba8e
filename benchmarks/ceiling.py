"""The ceiling of the data path: zero compute, one rank, two readers, files in memory, beside PyTorch's DataLoader.

Same files, workers and prefetch, OMP_NUM_THREADS=1 on both sides, which run in turn; medians. rayio verifies the id
and the XXH3 checksum of every sample and records spans; on PyTorch's side zipfile verifies the CRC-32 of the member.
Goals: batches of 8 MB and 32 MB at >= 1.3 times PyTorch's MB/s; batches of 100 KB with prefetch_factor 16 at >= 1.0
times its batches/s.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from machine import print_machine
from side import both, median, memory_and_ray, scenario

REPEATS = 3


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    label: str
    folder: str
    num_files: int
    sample_bytes: str
    batch: int
    prefetch: int
    number: str
    goal: float | None


CASES = (
    Case("32 MB", "large", 1600, "1 MB", 32, 2, "megabytes_per_second", 1.3),
    Case("8 MB", "large", 1600, "1 MB", 8, 2, "megabytes_per_second", 1.3),
    Case("100 KB", "small", 4000, "100 KB", 1, 16, "batches_per_second", 1.0),
    Case("100 KB", "small", 4000, "100 KB", 1, 2, "batches_per_second", None),
)


def main() -> None:
    print_machine()
    print(f"{'batch':<8}{'prefetch':>9}{'unit':>11}{'rayio':>9}{'PyTorch':>9}{'ratio':>8}{'goal':>9}")
    wanted = [case for case in CASES if not sys.argv[1:] or case.label.replace(" ", "") in sys.argv[1:]]
    with memory_and_ray() as root:
        for case in wanted:
            ours, theirs = both(
                scenario(case.folder, case.num_files, case.sample_bytes, case.batch, 2, case.prefetch), root, REPEATS
            )
            mine, other = median(ours, case.number), median(theirs, case.number)
            unit = "MB/s" if case.number.startswith("mega") else "batches/s"
            goal = f">= {case.goal}" if case.goal else "-"
            print(
                f"{case.label:<8}{case.prefetch:>9}{unit:>11}{mine:>9.0f}{other:>9.0f}{mine / other:>8.2f}{goal:>9}",
                flush=True,
            )


if __name__ == "__main__":
    main()
