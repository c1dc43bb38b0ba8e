"""How fast a dataset is written: 64 files of one sample of 8 MiB, memory-backed, a thread on each core.

The formats take turns, so that a busy machine is busy for all. Goal: >= 750 MB/s for each (DLIO 3, one process: npz
251, hdf5 283, tfrecord 200). MB per CPU second say what a core can do when nothing else wants it.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from machine import print_machine

from rayio.data.formats import FORMATS
from rayio.data.generate import prepare
from rayio.data.layout import Layout
from rayio.schema.distribution import Constant

REPEATS = 7
#: Formats that DLIO has too; ``formats.py`` has all.
COMPARED = ("npz", "hdf5", "tfrecord", "parquet")
FILES, SAMPLE_BYTES = 64, 8 << 20


def written(format: str, root: Path, threads: int) -> tuple[float, float]:
    """Write a dataset; give its MB per second, and per CPU second of this process."""
    layout = Layout(FILES, 1, Constant(value=SAMPLE_BYTES), 10, FORMATS[format].extension)
    began, cpu = time.perf_counter(), time.process_time()
    report = prepare(layout, format, root, threads=threads)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return report.written_bytes / 1e6 / seconds, report.written_bytes / 1e6 / cpu


def main() -> None:
    print_machine()
    threads = os.cpu_count() or 1
    print(f"{'format':<10}{'threads':>8}{'MB/s':>8}{'best':>8}{'MB per CPU s':>14}")
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    for number in dict.fromkeys((1, threads)):
        rates: dict[str, list[tuple[float, float]]] = {format: [] for format in COMPARED}
        for _ in range(REPEATS):
            for format, row in rates.items():
                with tempfile.TemporaryDirectory(prefix="rayio-bench-", dir=memory) as root:
                    row.append(written(format, Path(root), number))
        for format, row in rates.items():
            wall, cpu = zip(*row, strict=True)
            print(
                f"{format:<10}{number:>8}{statistics.median(wall):>8.0f}{max(wall):>8.0f}{statistics.median(cpu):>14.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
