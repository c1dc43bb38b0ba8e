"""How fast each format is written and read, compared with its libraries alone.

Writing: 64 files of one sample of 8 MiB in memory, a thread on each of two cores; the formats take turns. MB per CPU
second say what a core can do when nothing else wants it. Goals (MB/s): raw, npy 750; indexed, parquet, tar 250; jpeg
100; csv, jsonl, png 20.

Reading: batches of 16 samples, one a file, in memory, from one process. CPU microseconds a sample of all threads of the
process, medians over rounds. Goal: >= 0.9 times the bare loop's rate.

* rayio: its reader of the format. It computes paths and sizes, makes the calls below, compares what a file has around
  its sample, the sample's id and its checksum with what was written, and counts opens, requests and bytes.
* bare loop: open, fstat, read, the library's parsing, the checksums of the format (XXH3 of each sample, of images in
  two parts; CRC32C of TFRecord), close. Paths are known, no value is compared, and nothing is counted. Samples with
  other bytes around them (tfrecord, tar, json) are copied out of the record; rayio reads these straight into place.
  So it leaves out what any reader must do that is right: computing a path and comparing the checksum. A loop with both
  takes 7 % longer than one without, with raw samples of 100 KB; fstat, which most formats of rayio do not need, 5 %.

``python benchmarks/formats.py``; ``--quick`` in a few seconds; ``--only reading`` or ``writing``; ``--rounds N``.
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
from typing import Any

import google_crc32c
import h5py
import numpy as np
import pyarrow.parquet as pq
import xxhash
from machine import print_machine
from side import ONE_THREAD, in_turn, print_head, print_row, spread

from rayio.data.formats import FORMATS
from rayio.data.formats.npz import ROWS
from rayio.data.generate import prepare
from rayio.data.layout import Batch, Layout
from rayio.schema.choice import options_of
from rayio.schema.distribution import Constant
from rayio.storage.real import counted_opener
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.posix import PosixStore

FILES, SAMPLE_BYTES, THREADS = 64, 8 << 20, 2
#: MB/s of writing.
GOALS = {
    "npz": 750, "hdf5": 750, "tfrecord": 750, "raw": 750, "npy": 750, "indexed_binary": 250, "mmap_indexed_binary": 250,
    "hdf5 lzf": 25, "parquet": 250, "tar": 250, "jpeg": 100, "csv": 20, "tsv": 20, "json": 20, "jsonl": 20, "png": 20,
}  # fmt: skip
#: Options of a format, and the factor by which zlib shrinks its samples, by the name after the format's.
VARIANTS: dict[str, tuple[dict[str, Any], float]] = {"lzf": ({"chunk": 1 << 20, "compression": "lzf"}, 2.0)}
#: Rounds of writing of the formats that take seconds.
SLOW = ("png", "jpeg")
BATCH, GOAL = 16, 0.9


def layout_of(format: str, files: int, size: int) -> Layout:
    """Return a dataset of one sample a file."""
    name, _, variant = format.partition(" ")
    form, (options, factor) = FORMATS[name], VARIANTS.get(variant, ({}, 1.0))
    return Layout(files, 1, Constant(value=size), 10, form.extension, options_of(form)(**options), factor)


def written(format: str, root: str, files: int) -> tuple[float, float]:
    """Write a dataset; give MB per second, and per CPU second."""
    with tempfile.TemporaryDirectory(dir=root) as folder:
        began, cpu = time.perf_counter(), time.process_time()
        report = prepare(layout_of(format, files, SAMPLE_BYTES), format.split()[0], folder, threads=THREADS)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        return report.written_bytes / 1e6 / seconds, report.written_bytes / 1e6 / cpu


class Case:
    """A dataset and its reader, and the same files in a bare loop."""

    def __init__(self, format: str, size: int, files: int, root: str) -> None:
        name = format.split()[0]
        self.form, self.format, self.size = FORMATS[name], format, size
        self.layout = layout_of(format, files, size)
        prepare(self.layout, name, root, threads=1)
        self.store = PosixStore(root)
        self.paths = [str(Path(root, self.layout.path(number))) for number in range(files)]
        self.memory = np.zeros(BATCH * size, np.uint8)
        self.batches = [self._batch(first) for first in range(0, files, BATCH)]
        self.record = np.zeros(int(self.form.file_bytes(self.layout, np.array([0]))[0]), np.uint8)
        loops = {"csv": "raw", "tsv": "raw", "jsonl": "raw", "jpeg": "image", "png": "image", "json": "framed",
                 "tar": "framed", "mmap_indexed_binary": "indexed_binary"}  # fmt: skip
        self.loop: Callable[[str, memoryview], None] = getattr(self, f"of_{loops.get(name, name)}")

    def _batch(self, first: int) -> Batch:
        ids = np.arange(first, first + BATCH)
        return Batch(0, 0, 0, ids, ids, np.zeros_like(ids), self.layout.read_bytes_of(ids))

    def rayio(self) -> None:
        """Read all files in batches, as a worker does."""
        for batch in self.batches:
            self.form.read(counted_opener(self.store, Traffic()), self.layout, batch, self.memory)

    def bare(self) -> None:
        """Read all files with the same calls."""
        memory, loop, size = self.memory.data, self.loop, self.size
        for first in range(0, len(self.paths), BATCH):
            for place, path in enumerate(self.paths[first : first + BATCH]):
                loop(path, memory[place * size : (place + 1) * size])

    def of_raw(self, path: str, part: memoryview) -> None:
        """Open, look, read, hash, close."""
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.fstat(file)
        os.preadv(file, [part], 0)
        xxhash.xxh3_64_intdigest(part[16:], 7)
        os.close(file)

    def of_image(self, path: str, part: memoryview) -> None:
        """Hash what is before the comment with the checksum, and what is after it."""
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.fstat(file)
        os.preadv(file, [part], 0)
        xxhash.xxh3_64_intdigest(part[22:], 7)
        xxhash.xxh3_64_intdigest(part[:2])
        os.close(file)

    def of_npy(self, path: str, part: memoryview) -> None:
        """Read the header too."""
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.fstat(file)
        os.pread(file, 4096, 0)
        os.preadv(file, [part], 128)
        xxhash.xxh3_64_intdigest(part[16:], 7)
        os.close(file)

    def of_npz(self, path: str, part: memoryview) -> None:
        """Read the directory and the header too."""
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        size = os.fstat(file).st_size
        os.pread(file, 4096, max(0, size - 4096))
        os.pread(file, 4096, 0)
        os.preadv(file, [part], ROWS)
        xxhash.xxh3_64_intdigest(part[16:], 7)
        os.close(file)

    def of_framed(self, path: str, part: memoryview) -> None:
        """Read a record, and copy the sample out of it."""
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.fstat(file)
        os.preadv(file, [self.record.data], 0)
        part[:] = self.record.data[: len(part)]
        xxhash.xxh3_64_intdigest(part[16:], 7)
        os.close(file)

    def of_tfrecord(self, path: str, part: memoryview) -> None:
        """Read a record, verify it and copy the sample out of it."""
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.fstat(file)
        os.preadv(file, [self.record.data], 0)
        google_crc32c.value(self.record[12:-4])
        part[:] = self.record.data[: len(part)]
        xxhash.xxh3_64_intdigest(part[16:], 7)
        os.close(file)

    def of_indexed_binary(self, path: str, part: memoryview) -> None:
        """Read the index, then the sample."""
        index = os.open(path[:-4] + ".idx", os.O_RDONLY | os.O_CLOEXEC)
        os.fstat(index)
        os.pread(index, 120, 0)
        self.of_raw(path, part)
        os.close(index)

    def of_hdf5(self, path: str, part: memoryview) -> None:
        """Read with h5py."""
        with h5py.File(path, "r") as file:
            file["x"].read_direct(np.frombuffer(part, np.uint8).reshape(1, -1))
        xxhash.xxh3_64_intdigest(part[16:], 7)

    def of_parquet(self, path: str, part: memoryview) -> None:
        """Read with pyarrow."""
        with pq.ParquetFile(path, pre_buffer=True) as file:
            table = file.read_row_group(0, use_threads=False)
        for column, begin, end in (("id", 0, 16), ("x", 16, len(part))):
            (chunk,) = table.column(column).chunks
            xxhash.xxh3_64_intdigest(chunk.buffers()[1], 7)
            part[begin:end] = np.frombuffer(chunk.buffers()[1], np.uint8)[: end - begin].data

    def sides(self) -> dict[str, Callable[[], float]]:
        """What is timed: CPU microseconds a sample."""
        return {name: partial(self._timed, getattr(self, name)) for name in ("rayio", "bare")}

    def _timed(self, act: Callable[[], None]) -> float:
        began = time.process_time_ns()  # pyarrow reads in a thread of its own
        act()
        return (time.process_time_ns() - began) / 1e3 / len(self.paths)


def print_writing(formats: list[str], files: int, rounds: int) -> None:
    """Print the rates of writing."""
    rates: dict[str, list[tuple[float, float]]] = {format: [] for format in formats}
    with tempfile.TemporaryDirectory(prefix="rayio-bench-", dir="/dev/shm") as root:
        for number in range(rounds):
            for format in formats:
                if format not in SLOW or number < 3:
                    rates[format].append(written(format, root, files))
    print_head("format", "MB/s", "MB per CPU s", "goal (MB/s)")
    for format, row in rates.items():
        wall, cpu = zip(*row, strict=True)
        missed = " **missed**" * (statistics.median(wall) < GOALS[format])
        print_row(format, spread([*wall]), spread([*cpu]), f"{GOALS[format]}{missed}")


def print_reading(formats: list[str], sizes: list[int], files: int, rounds: int) -> None:
    """Print what reading takes, on both sides."""
    print_head("format", "sample", "rayio", "bare loop", "rate, goal 0.9")
    for size in sizes:
        for format in formats:
            with tempfile.TemporaryDirectory(prefix="rayio-bench-", dir="/dev/shm") as root:
                case = Case(format, size, files, root)
                in_turn(case.sides(), 1)
                of: dict[str, Any] = in_turn(case.sides(), rounds)
            ratio = statistics.median(b / a for a, b in zip(of["rayio"], of["bare"], strict=True))
            missed = " **missed**" * (ratio < GOAL)
            row = format, f"{size // 1000} KB", spread(of["rayio"], 1), spread(of["bare"], 1), f"{ratio:.2f}{missed}"
            print_row(*row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few files, few rounds")
    parser.add_argument("--only", choices=("writing", "reading"), help="one of the tables")
    parser.add_argument("--rounds", type=int, default=15, help="how often all files are read (default: 15)")
    parser.add_argument("formats", nargs="*", help="formats (default: all that have files)")
    asked = parser.parse_args()
    os.environ.update(ONE_THREAD)
    print_machine()
    formats = asked.formats or [*GOALS]
    if asked.only != "reading":
        print_writing(formats, 8 if asked.quick else FILES, 1 if asked.quick else 5)
        print()
    if asked.only != "writing":
        print_reading(formats, [100_000, 1_000_000], 128, 3 if asked.quick else asked.rounds)


if __name__ == "__main__":
    main()
