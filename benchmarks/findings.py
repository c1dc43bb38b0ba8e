"""What the field found about reading files, as changes of one or two keys: published and simulated.

Each finding is a scenario and two or more variants of it, on the virtual clock. The numbers are exact and the same on
every machine; ``docs/findings.md`` has them, and ``tests/test_findings.py`` holds both. Storage is ``lustre-theta``:
what depends on its assumed latencies is a direction, not a factor.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rayio
from rayio.scenario.load import build
from rayio.scenario.model import Scenario

Keys = Mapping[str, Any]

BASE: dict[str, Any] = {
    "cluster.nodes": 8, "cluster.ranks_per_node": 1,
    "dataset.path": "model://finding", "dataset.format": "hdf5", "dataset.num_files": 256,
    "dataset.samples_per_file": 8, "dataset.sample_bytes": "1 MB",
    "loader.batch_size": 16, "loader.num_workers": 4, "loader.prefetch_factor": 1,
    "train.epochs": 1, "train.compute": "1 ms", "storage.model": "lustre-theta",
}  # fmt: skip
SHARED: Keys = {"dataset.num_files": 1, "dataset.samples_per_file": 2048}
IN_ORDER: Keys = {"loader.shuffle": "none"}
STREAM: Keys = {"dataset.format": "tfrecord", "loader.file_access": "streamed", "loader.shuffle": "file"}
SMALL: Keys = {"dataset.num_files": 16, "dataset.samples_per_file": 256, "dataset.sample_bytes": "256 KB"}
BIG: Keys = {"dataset.num_files": 32, "dataset.samples_per_file": 8, "dataset.sample_bytes": "8 MiB"}


@dataclass(frozen=True)
class Finding:
    """A published finding: the common keys, and the variants by name, the one that the sources found best first."""

    name: str
    published: str
    keys: Keys
    variants: Mapping[str, Keys]


FINDINGS = (
    Finding(
        "many files beat one shared file", "a large shared file is slower than many files (LLNL)", {},
        {"256 files": {}, "1 file, 1 stripe": SHARED},
    ),
    Finding(
        "stripes help a shared file", "stripe large files over many servers", SHARED,
        {f"{count} stripe{'s' * (count > 1)}": {"storage.stripe_count": count} for count in (16, 4, 1)},
    ),
    Finding(
        "large requests beat small ones", "requests of 1 to 4 MB in place of KBs (Theta)", {},
        {chunk: {"dataset.chunk": chunk} for chunk in ("512 KiB", "64 KiB", "4 KiB")},
    ),
    Finding(
        "a stream of TFRecord beats chunks of HDF5", "only TFRecord's input pipeline is optimised (LLNL)", BIG,
        {"tfrecord, streamed": STREAM, "hdf5, chunks of 256 KiB": {"dataset.chunk": "256 KiB"}},
    ),
    Finding(
        "a chunk as large as the sample is best", "chunk size sweep (CCGrid '21)", SMALL,
        {f"{chunk} kB": {"dataset.chunk": f"{chunk} kB"} for chunk in (256, 64, 4096)},
    ),
    Finding(
        "global shuffling raises the time of reading", "even for a small dataset (HEPCNN, NERSC)", {},
        {"in order": IN_ORDER, "global": {"loader.shuffle": "global"}},
    ),
    Finding(
        "and more so with more epochs", "the bottleneck grows with epochs (HEPCNN, NERSC)", {"train.epochs": 4},
        {"4 epochs in order": IN_ORDER, "4 epochs global": {"loader.shuffle": "global"}},
    ),
    Finding(
        "sharding beats identical offsets", "every rank reads the same offsets: a bug (ffn, Theta)",
        {**SHARED, **IN_ORDER},
        {"each its part": {}, "all the same": {"loader.partition": "replicated"}},
    ),
    Finding(
        "one aggregator beats all ranks", "one node reads and broadcasts (Theta)",
        {**SHARED, **IN_ORDER, "loader.partition": "replicated"},
        {"1 aggregator": {"loader.file_access": "collective", "loader.aggregators": 1}, "all": {}},
    ),
    Finding(
        "data in memory are read once", "CSV is read whole at the start, then no I/O (CANDLE, Theta)",
        {"dataset.format": "csv", "dataset.num_files": 1, "dataset.samples_per_file": 1024,
         "dataset.sample_bytes": "100 kB", "loader.num_workers": 1, "loader.shuffle": "global", "train.epochs": 8},
        {"in memory": {"loader.file_access": "in_memory"}, "by sample": {}},
    ),
    Finding(
        "few files of many records beat many files", "8 files in place of 473: fewer opens (ImageNet, Theta)",
        {**STREAM, "dataset.sample_bytes": "84 kB"},
        {"8 files": {"dataset.num_files": 8, "dataset.samples_per_file": 2400},
         "480 files": {"dataset.num_files": 480, "dataset.samples_per_file": 40}},
    ),
    Finding(
        "small stripes spread identical offsets", "stripes of 64 KB in place of 1 MB (Theta)",
        {**IN_ORDER, "cluster.nodes": 64, "dataset.num_files": 1, "dataset.samples_per_file": 512,
         "dataset.sample_bytes": "64 KiB", "loader.batch_size": 8, "loader.num_workers": 1,
         "loader.partition": "replicated", "storage.stripe_count": 16},
        {size: {"storage.stripe_size": size} for size in ("64 KiB", "1 MiB")},
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """A simulated variant: samples per second of the run, and the reads of all workers."""

    samples_per_second: float
    read_seconds: float
    requests: int
    nbytes: int


def scenario(keys: Keys) -> Scenario:
    """Return the scenario with these keys in place of those of ``BASE``."""
    data: dict[str, Any] = {"name": "finding"}
    for key, value in {**BASE, **keys}.items():
        section, _, name = key.partition(".")
        data.setdefault(section, {})[name] = value
    return build(data, "finding")


def outcome(keys: Keys) -> Outcome:
    """Simulate a variant."""
    with tempfile.TemporaryDirectory() as folder:
        run = rayio.simulate(scenario(keys), out=Path(folder, "run"))
        spans, seconds, books = run.spans(), run.result.wall_seconds, run.result.ledger
    assert seconds is not None
    assert books is not None
    reads = spans[spans.name == "read"]
    read_seconds = float(reads.duration_ns.sum()) / 1e9
    return Outcome(books.delivered_samples / seconds, read_seconds, int(reads.requests.sum()), int(reads.bytes.sum()))


def rows(finding: Finding) -> list[tuple[str, str, str, str, str]]:
    """Return a row for each variant: its name, samples/s, seconds of reads, size of a request, bytes read."""
    made = {name: outcome({**finding.keys, **keys}) for name, keys in finding.variants.items()}
    return [
        (
            name, f"{each.samples_per_second:,.0f}", f"{each.read_seconds:.2f} s",
            f"{each.nbytes / max(each.requests, 1) / 1e3:,.0f} kB", f"{each.nbytes / 1e9:.2f} GB",
        )
        for name, each in made.items()
    ]  # fmt: skip


def main() -> None:
    """Print a table of all findings."""
    print("| finding | published | variant | samples/s | reads | a request | read |")
    print("|---|---|---|---|---|---|---|")
    for finding in FINDINGS:
        for number, row in enumerate(rows(finding)):
            print(f"| {finding.name if not number else ''} | {finding.published if not number else ''} | "
                  f"{' | '.join(row)} |")  # fmt: skip


if __name__ == "__main__":
    main()
