"""A real PyTorch loop, and what rayio makes of it: the loader behind our ranks, our readers, and the prediction.

The loop (``torch_script.py``) is what users write: ``numpy.load``, the default collation, a sleep, a barrier. Beside it
the same scenario with ``loader.kind: torch``, with our readers, and simulated with ``costs: torch``. Ranks 2; workers
1, 2, 4 x compute 20, 50, 100 ms x samples of 150 KB, 1 MB, 4 MB, batches of four, files in memory. The four run in
turn; each has epochs of which the first, in which workers start, is left out. The time of an epoch is from the end of
the epoch before to the end of the last step.

Goals, at 24 of 27 points: ``kind: torch`` within 3 % of the loop's epoch time, the prediction within 5 %.

``python benchmarks/real_loop.py`` runs all points (15 minutes on two quiet cores); ``--quick`` four of them, ``--ranks
1`` those of one rank, ``--rounds N`` each N times.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from loaders import seconds_of_epochs
from machine import print_machine
from side import ONE_THREAD, memory_and_ray

import rayio
from rayio.scenario.load import build

WORKERS, COMPUTE, SAMPLES = (1, 2, 4), (0.02, 0.05, 0.1), ("150 KB", "1 MB", "4 MB")
QUICK = ((1, 0.02, "150 KB"), (2, 0.02, "4 MB"), (2, 0.05, "1 MB"), (4, 0.1, "4 MB"))
BATCH, EPOCHS = 4, 2
#: Steps of an epoch, by the seconds of a step: about two seconds of compute.
STEPS = {0.02: 80, 0.05: 40, 0.1: 20}
GOAL = {"torch": 0.03, "predicted": 0.05}


def scenario(workers: int, compute: float, sample: str, ranks: int) -> dict[str, Any]:
    """Make a point's scenario, for our readers."""
    return {
        "name": "real-loop",
        "cluster": {"ranks_per_node": ranks},
        "dataset": {"path": sample.replace(" ", ""), "num_files": BATCH * ranks * max(STEPS.values()),
                    "sample_bytes": sample},
        "loader": {"batch_size": BATCH, "num_workers": workers, "prefetch_factor": 2},
        "train": {"epochs": EPOCHS, "compute": compute, "steps": STEPS[compute]},
        "storage": {"model": "memory"},
    }  # fmt: skip


def loop(wanted: dict[str, Any], root: str, compute: float) -> list[float]:
    """Run the loop; give the seconds of each epoch but the first."""
    loader, train = wanted["loader"], wanted["train"]
    told = {
        "folder": str(Path(root, wanted["dataset"]["path"])), "ranks": wanted["cluster"]["ranks_per_node"],
        "batch": BATCH, "workers": loader["num_workers"], "prefetch": loader["prefetch_factor"],
        "epochs": train["epochs"], "steps": train["steps"], "compute": compute,
    }  # fmt: skip
    command = [sys.executable, str(Path(__file__).with_name("torch_script.py")), json.dumps(told)]
    done = subprocess.run(command, env=os.environ | ONE_THREAD, stdout=subprocess.PIPE, text=True, check=True)
    return list(json.loads(done.stdout)[1:])


def emulated(wanted: dict[str, Any], root: str, kind: str) -> list[float]:
    """Run it on Ray with a kind of loader."""
    keys = wanted["loader"] | {"kind": kind} | ({"persistent_workers": True} if kind == "torch" else {})
    return seconds_of_epochs(rayio.run(build(wanted | {"loader": keys}), root=root))


def predicted(wanted: dict[str, Any], root: str) -> list[float]:
    """Simulate it with the costs of PyTorch's loader."""
    return seconds_of_epochs(rayio.simulate(build(wanted | {"costs": "torch"}), root=root))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four points")
    parser.add_argument("--rounds", type=int, default=1, help="how often each point runs")
    parser.add_argument("--ranks", type=int, default=2, help="ranks (default: 2)")
    asked = parser.parse_args()
    points = QUICK if asked.quick else tuple(itertools.product(WORKERS, COMPUTE, SAMPLES))
    print_machine()
    print(f"{asked.ranks} ranks; medians of {asked.rounds * (EPOCHS - 1)} epochs")
    print(
        f"{'workers':>7}{'compute':>9}{'sample':>8} |{'loop':>8}{'torch':>8}{'actors':>8}{'predicted':>11} s |"
        f"{'torch':>8}{'actors':>8}{'predicted':>11} of the loop"
    )
    met = dict.fromkeys(GOAL, 0)
    with memory_and_ray() as root:
        for workers, compute, sample in points:
            wanted = scenario(workers, compute, sample, asked.ranks)
            rayio.generate(build(wanted), root=root)
            seconds: dict[str, list[float]] = {"loop": [], "torch": [], "actors": []}
            for _ in range(asked.rounds):
                seconds["loop"] += loop(wanted, root, compute)
                seconds["torch"] += emulated(wanted, root, "torch")
                seconds["actors"] += emulated(wanted, root, "actors")
            middle = {name: statistics.median(those) for name, those in seconds.items()}
            middle["predicted"] = statistics.median(predicted(wanted, root))
            ratio = {name: middle[name] / middle["loop"] for name in ("torch", "actors", "predicted")}
            missed = [name for name, goal in GOAL.items() if abs(ratio[name] - 1) > goal]
            for name in GOAL:
                met[name] += name not in missed
            print(
                f"{workers:>7}{f'{1000 * compute:.0f} ms':>9}{sample:>8} |"
                + "".join(f"{middle[name]:>8.3f}" for name in ("loop", "torch", "actors"))
                + f"{middle['predicted']:>11.3f}   |"
                + "".join(f"{ratio[name]:>8.3f}" for name in ("torch", "actors"))
                + f"{ratio['predicted']:>11.3f}{'  missed: ' + ', '.join(missed) if missed else ''}",
                flush=True,
            )  # fmt: skip
    for name, goal in GOAL.items():
        print(f"{met[name]} of {len(points)} points: {name} within {100 * goal:.0f} % of the loop")


if __name__ == "__main__":
    main()
