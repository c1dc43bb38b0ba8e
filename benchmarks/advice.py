"""The sources' advice for their workloads, as changes of one or two keys: what each is worth in simulation.

Every change is simulated from two starts: the packaged scenario, and the same with accelerators 1000 times as fast, so
that reading limits it. The numbers are exact and the same on every machine; ``docs/workloads.md`` has them, and
``tests/test_advice.py`` holds both.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rayio
from rayio.scenario.derive import compute_times
from rayio.scenario.load import load

Keys = Mapping[str, Any]

#: How much faster the accelerators of the second start are.
FASTER = 1000
#: The published gain of optimisations found with DLIO, of a workload that is not named (CCGrid 2021).
PUBLISHED = 6.7
#: Name of the row with all changes together that can be made together.
TOGETHER = "together"


@dataclass(frozen=True)
class Advised:
    """A workload, all of whose steps are simulated, and the advice of its source as changes of keys."""

    workload: str
    advice: Mapping[str, Keys]
    #: The changes that are made together in the last row, by their names.
    together: Sequence[str] = ()


STAGED: Keys = {"storage.model": "nvme"}
BUFFERED: Keys = {"storage.model": "burst-buffer", "storage.stripe_count": None, "storage.stripe_size": None}
ADVISED = (
    Advised(
        "imagenet",
        {
            "stripes of 64 KiB, on 8 servers": {"storage.stripe_size": "64 KiB", "storage.stripe_count": 8},
            "prefetch hundreds": {"loader.prefetch_factor": 100},
            "8 workers": {"loader.num_workers": 8},
            "8 files in place of 473": {"dataset.num_files": 8, "dataset.samples_per_file": 59125},
            "stage to local SSDs": STAGED,
        },
        ("8 workers", "stage to local SSDs"),
    ),
    Advised(
        "cosmic_tagger",
        {
            "requests of 1 MB": {"dataset.chunk": "960 kB"},
            "4 workers": {"loader.num_workers": 4},
            "the file in memory": {"loader.file_access": "in_memory"},
            "one rank reads and broadcasts": {"loader.file_access": "collective", "loader.aggregators": 1},
        },
        ("requests of 1 MB", "4 workers"),
    ),
    Advised(
        "ffn",
        {
            "requests of 1 MiB": {"dataset.chunk": "1 MiB"},
            "each rank another part": {"loader.partition": "contiguous"},
            "4 workers": {"loader.num_workers": 4},
            "stage to local SSDs": STAGED,
            "the file in memory": {"loader.file_access": "in_memory"},
        },
        ("4 workers", "stage to local SSDs"),
    ),
    Advised(
        "cosmoflow",
        {
            "prefetch": {"loader.num_workers": 1},
            "4 parallel workers": {"loader.num_workers": 4, "loader.assignment": "by_file"},
            "a buffer of 4 MiB": {"loader.buffer_bytes": "4 MiB"},
        },
        ("4 parallel workers", "a buffer of 4 MiB"),
    ),
    Advised(
        "bert_mrpc",
        {"TFRecord in place of text": {"dataset.format": "tfrecord", "loader.file_access": "streamed",
                                       "loader.shuffle": "file"}},
    ),
    Advised("l2hmc", {"checkpoints to a local SSD": STAGED}),
    Advised(
        "hepcnn",
        {"prefetch 8 batches": {"loader.prefetch_factor": 8}, "a burst buffer": BUFFERED},
    ),
    Advised("climate", {"a burst buffer": BUFFERED}),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """A simulated run: its length, and the time in reads and writes of a rank, in seconds."""

    seconds: float
    busy: float
    au: float


def outcome(workload: str, keys: Keys) -> Outcome:
    """Simulate a workload with changed keys."""
    with tempfile.TemporaryDirectory() as folder:
        run = rayio.simulate(workload, keys, out=Path(folder, "run"))
        spans, result = run.spans(), run.result
    assert result.wall_seconds is not None
    assert result.au is not None
    nanoseconds = spans.duration_ns[spans.name.isin(["read", "write", "fsync"])].sum()
    return Outcome(result.wall_seconds, float(nanoseconds) / 1e9 / load(workload).cluster.world_size, result.au)


def starts(advised: Advised) -> tuple[Keys, Keys]:
    """Return the keys of both starts."""
    compute = compute_times(load(advised.workload)).expected
    return {}, {"train.compute": compute / FASTER}


def rows(advised: Advised) -> list[tuple[str, ...]]:
    """Return a row for each change: its name, seconds of I/O of a rank before and after, and gain from each start."""
    changes = dict(advised.advice)
    if advised.together:
        both = {key: value for name in advised.together for key, value in advised.advice[name].items()}
        changes[f"{TOGETHER}: {', '.join(advised.together)}"] = both
    first, second = starts(advised)
    before, fast = outcome(advised.workload, first), outcome(advised.workload, second)
    made: list[tuple[str, ...]] = [
        ("none", "", f"{before.busy:.3g} s", f"AU {100 * before.au:.0f} %", f"AU {100 * fast.au:.0f} %")
    ]
    for name, keys in changes.items():
        after, sooner = (outcome(advised.workload, {**start, **keys}) for start in (first, second))
        written = "" if name.startswith(TOGETHER) else ", ".join(f"`{key}={value}`" for key, value in keys.items()
                                                                 if value is not None)  # fmt: skip
        made.append((
            name, written, f"{after.busy:.3g} s", f"{before.seconds / after.seconds:.2f} ×",
            f"{fast.seconds / sooner.seconds:.2f} ×",
        ))  # fmt: skip
    return made


def main() -> None:
    """Print a table of all workloads."""
    print(f"| workload | advice | keys | I/O of a rank | gain | gain, accelerators {FASTER} × as fast |")
    print("|---|---|---|---|---|---|")
    for advised in ADVISED:
        for number, row in enumerate(rows(advised)):
            print(f"| {f'`{advised.workload}`' if not number else ''} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
