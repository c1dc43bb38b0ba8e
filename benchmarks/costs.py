"""What the loaders take beside reading and decoding, as ``costs: ray`` and ``costs: torch`` have it.

Our readers (Ray actors; with the queue an actor, with the queue in its rank, and by Ray's calls alone) and PyTorch's
DataLoader, which reads with our reader: one rank, one worker, files in memory, batches of four samples of 150 KB, 1 MB
and 8 MB in all. In one run decoding sleeps, so that the rank waits
for every batch and every message is on the critical path; in another it computes so long that every batch is ready.
Both are calibrated: the first teaches lease, put and take, the second what taking a ready batch and a step keep the
rank for. The numbers are medians over all runs of a size; where size tells, put is a line over the bytes of a batch.
Sizes and loaders run in turn.

``python benchmarks/costs.py`` prints the table and what ``rayio/scenario/named_costs.py`` has to say; ``--rounds N``.
"""

from __future__ import annotations

import argparse
import os
import statistics
from datetime import UTC, datetime
from typing import Any

import numpy as np
import psutil
import ray
from machine import print_machine
from side import memory_and_ray, print_head, print_row, spread

import rayio
from rayio.predict.calibrate import calibrate
from rayio.scenario.load import build
from rayio.units import BYTES

#: What each name has its scenarios say.
KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "ray": {},
    "ray_in_rank": {"loader": {"queue": "in_rank"}},
    "ray_calls": {"cluster": {"transport": "ray"}},
    "torch": {"loader": {"kind": "torch", "persistent_workers": True}},
}
BATCH, MOST_STEPS, EPOCHS = 4, 60, 3
#: Bytes of a sample, by what a batch of four comes to.
SAMPLES = {"150 KB": "37500 B", "1 MB": "250 KB", "8 MB": "2 MB"}
PARTS = ("lease", "put", "take", "receive", "step")
#: Seconds of decoding per sample, of compute, and steps: the worker is the bottleneck, by far; the rank is.
HURRIED, RELAXED = (0.006, 0.004, 60), (0.0, 0.04, 30)


def wanted(batch: str, name: str, decode: float, compute: float, steps: int) -> dict[str, Any]:
    """Make the scenario of a size and a loader."""
    made: dict[str, dict[str, Any]] = {
        "cluster": {"ranks_per_node": 1},
        "dataset": {
            "path": batch.replace(" ", ""), "num_files": BATCH * MOST_STEPS, "sample_bytes": SAMPLES[batch],
        },
        "loader": {"batch_size": BATCH, "num_workers": 1, "prefetch_factor": 2, "decode": decode},
        "train": {"epochs": EPOCHS, "compute": compute, "steps": steps, "sync": "none"},
    }  # fmt: skip
    for section, keys in KINDS[name].items():
        made[section] |= keys
    return {"name": "costs", **made}


def learned(batch: str, name: str, root: str) -> dict[str, float]:
    """Run both scenarios of a size and a loader; give the seconds of each part."""
    hurried, relaxed = (
        calibrate(rayio.run(build(wanted(batch, name, *how)), root=root).path).scenario.charges
        for how in (HURRIED, RELAXED)
    )
    way = hurried.take + hurried.receive
    return {
        "lease": hurried.lease,
        "put": hurried.put,
        "take": max(0.0, way - relaxed.receive),
        "receive": relaxed.receive,
        "step": relaxed.step,
    }


def line(sizes: list[float], seconds: list[float]) -> tuple[float, float | None]:
    """Lay a line through times over bytes: seconds of no bytes, bytes per second; None where size does not tell."""
    slope, start = np.polyfit(sizes, seconds, 1)
    told = slope * (max(sizes) - min(sizes)) > 0.25 * max(seconds)
    return (max(0.0, float(start)), float(1 / slope)) if told and slope > 0 else (statistics.median(seconds), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each size runs with each loader")
    rounds = parser.parse_args().rounds
    print_machine()
    found: dict[str, dict[str, dict[str, list[float]]]] = {
        name: {size: {part: [] for part in PARTS} for size in SAMPLES} for name in KINDS
    }
    with memory_and_ray() as root:
        for size in SAMPLES:
            rayio.generate(build(wanted(size, "ray", *HURRIED)), root=root)
        for _ in range(rounds):
            for size in SAMPLES:
                for name in KINDS:
                    for part, seconds in learned(size, name, root).items():
                        found[name][size][part].append(seconds)
    print(f"Medians of {rounds} runs (least to most), ms.\n")
    print_head("loader", "batch", *PARTS)
    for name, sizes in found.items():
        for size, parts in sizes.items():
            print_row(name, size, *(spread([1000 * one for one in parts[part]], 2) for part in PARTS))
    print()
    for name in KINDS:
        print(f"{name.upper()}: Costs({', '.join(_stored(found[name]))})")
    memory = psutil.virtual_memory().total / 2**30
    print(f"machine: {os.cpu_count()} cores, {memory:.0f} GiB, Ray {ray.__version__}; {datetime.now(UTC):%Y-%m-%d}")


def _stored(sizes: dict[str, dict[str, list[float]]]) -> list[str]:
    """What is stored: put as a line over the bytes of a batch, the others as one number."""
    nbytes = [float(BATCH * BYTES.parse(SAMPLES[size])) for size in sizes]
    middle = {part: [statistics.median(parts[part]) for parts in sizes.values()] for part in PARTS}
    put, rate = line(nbytes, middle["put"])
    said = {part: f"{part}={statistics.median(middle[part]):.6f}" for part in PARTS} | {"put": f"put={put:.6f}"}
    return [*said.values(), *([f"put_bandwidth={rate:.3g}"] if rate is not None else [])]


if __name__ == "__main__":
    main()
