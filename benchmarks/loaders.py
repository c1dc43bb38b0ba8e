"""Loaders beside each other: ``loader.kind: torch``, our readers, and a bare PyTorch loop, over the same files.

One rank; workers 1, 2, 4 x batches of 150 KB, 1 MB, 8 MB x compute of 20 and 100 ms, all on files in memory. The three
run in turn, so that a busy machine is busy for all; each runs three epochs with workers that stay, of which the first,
in which they start, is left out. Epoch time is from the end of the epoch before to the end of the last compute; AU is
compute / epoch time. Goal: epoch time and AU of ``kind: torch`` within 3 % of the bare loop at every point.

``python benchmarks/loaders.py`` runs all 18 points (under 10 minutes on two quiet cores), ``--quick`` four of them,
``--rounds N`` each N times, ``--local`` our two in this process instead of on Ray.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from machine import print_machine
from side import ONE_THREAD, memory_and_ray

import rayio
from rayio.scenario.load import build

EPOCHS = 3
GOAL = 0.03
WORKERS, COMPUTE = (1, 2, 4), (0.02, 0.1)
#: Bytes of a sample, by what a batch of four comes to.
SAMPLES = {"150 KB": "37500 B", "1 MB": "250 KB", "8 MB": "2 MB"}
BATCH = 4
#: Steps of an epoch, by the seconds of a step.
STEPS = {0.02: 60, 0.1: 20}
QUICK = ((1, "150 KB", 0.02), (2, "1 MB", 0.02), (2, "8 MB", 0.02), (4, "1 MB", 0.1))


def scenario(workers: int, batch: str, compute: float) -> dict[str, Any]:
    """Make a point's scenario, for our readers."""
    return {
        "name": "loaders",
        "cluster": {"ranks_per_node": 1},
        "dataset": {"path": batch.replace(" ", ""), "num_files": BATCH * max(STEPS.values()),
                    "sample_bytes": SAMPLES[batch]},
        "loader": {"batch_size": BATCH, "num_workers": workers, "prefetch_factor": 2},
        "train": {"epochs": EPOCHS, "compute": compute, "steps": STEPS[compute], "sync": "none"},
    }  # fmt: skip


def bare(wanted: dict[str, Any], root: str, compute: float) -> list[float]:
    """Run the loop without rayio; give the seconds of each epoch but the first."""
    dataset = wanted["dataset"] | {"num_files": BATCH * wanted["train"]["steps"]}  # its epoch has all of its samples
    told = {"folder": str(Path(root, dataset["path"])), "scenario": wanted | {"dataset": dataset}, "compute": compute}
    script = str(Path(__file__).with_name("torch_bare.py"))
    command = [sys.executable, script, json.dumps(told)]
    done = subprocess.run(command, env=os.environ | ONE_THREAD, stdout=subprocess.PIPE, text=True, check=True)
    return list(json.loads(done.stdout)[1:])


def ours(wanted: dict[str, Any], root: str, kind: str, engine: str) -> list[float]:
    """Run with a loader of rayio; give the seconds of each epoch but the first, by the rank's own spans."""
    keys = wanted["loader"] | {"kind": kind}
    if kind == "torch":
        keys["persistent_workers"] = True
    return seconds_of_epochs(rayio.run(build(wanted | {"loader": keys}), root=root, engine=engine))


def seconds_of_epochs(done: rayio.Run) -> list[float]:
    """The seconds of each epoch but the first, from the end of the last compute to that of the next epoch's."""
    if done.exit_code:
        raise SystemExit(f"the run ended with {done.exit_code}: {done.result['error']}")
    spans = done.spans()
    computed = spans[spans["name"] == "compute"]
    over = (computed["start_ns"] + computed["duration_ns"]).groupby(computed["epoch"]).max()
    return [float(one) / 1e9 for one in over.diff().iloc[1:]]


@contextmanager
def folder_alone() -> Iterator[str]:
    """Give a folder in memory, without a Ray."""
    os.environ.update(ONE_THREAD)
    with TemporaryDirectory(prefix="rayio-bench-", dir="/dev/shm") as root:
        yield root


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four points")
    parser.add_argument("--rounds", type=int, default=1, help="how often each point runs")
    parser.add_argument("--local", action="store_true", help="in this process instead of on Ray")
    asked = parser.parse_args()
    points = QUICK if asked.quick else tuple(itertools.product(WORKERS, SAMPLES, COMPUTE))
    engine = "local" if asked.local else "ray"
    print_machine()
    print(f"engine {engine}; medians of {asked.rounds * (EPOCHS - 1)} epochs")
    print(
        f"{'workers':>7}{'batch':>8}{'compute':>9} |{'bare':>9}{'torch':>9}{'actors':>9} s |"
        f"{'bare':>7}{'torch':>7}{'actors':>7} AU % |{'torch':>8}{'actors':>8} of bare"
    )
    missed = 0
    with folder_alone() if asked.local else memory_and_ray() as root:
        for workers, batch, compute in points:
            wanted = scenario(workers, batch, compute)
            rayio.generate(build(wanted), root=root)
            seconds: dict[str, list[float]] = {"bare": [], "torch": [], "actors": []}
            for _ in range(asked.rounds):
                seconds["bare"] += bare(wanted, root, compute)
                seconds["torch"] += ours(wanted, root, "torch", engine)
                seconds["actors"] += ours(wanted, root, "actors", engine)
            middle = {name: statistics.median(those) for name, those in seconds.items()}
            busy = compute * STEPS[compute]
            ratio = {name: middle[name] / middle["bare"] for name in ("torch", "actors")}
            is_missed = abs(ratio["torch"] - 1) > GOAL
            missed += is_missed
            print(
                f"{workers:>7}{batch:>8}{f'{1000 * compute:.0f} ms':>9} |"
                + "".join(f"{middle[name]:>9.3f}" for name in seconds)
                + "   |" + "".join(f"{100 * busy / middle[name]:>7.1f}" for name in seconds)
                + f"      |{ratio['torch']:>8.3f}{ratio['actors']:>8.3f}{'  missed' if is_missed else ''}",
                flush=True,
            )  # fmt: skip
    print(f"{len(points) - missed} of {len(points)} points: kind torch within {100 * GOAL:.0f} % of the bare loop")


if __name__ == "__main__":
    main()
