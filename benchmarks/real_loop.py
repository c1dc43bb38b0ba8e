"""A real PyTorch loop, and what rayio makes of it: the loader behind our ranks, our readers, and the prediction.

The loop is ``torch_script.py``: a DataLoader, a sleep, a barrier. ``--reader numpy`` (the default) is what users
write, ``numpy.load`` and the default collation; ``--reader same`` reads as rayio's reader does. Beside it the same
scenario with ``loader.kind: torch`` and the loop's reader (``loader.reader: numpy``, or ``rayio``), with our readers,
and simulated with ``costs: torch`` on the cores of this machine; there what the loop's reader takes for a sample of
that size, and what a step takes its rank beside its batch, are measured here first, each alone. Workers 1, 2, 4 x
compute 20, 50, 100 ms x samples of 150 KB, 1 MB, 4 MB, batches of four, files in memory. The sides run in turn, in
every other round backwards; each has three epochs, of which the first, in which workers start, is left out. The time of
an epoch is from the end of the epoch before to the end of the last step; AU is compute / that.

A shared host is not as fast at all times: fixed work (``machine.fixed_work``) is timed before every run, and a point
whose longest is more than 1.15 times its shortest runs again, up to three times; the steadiest counts, and the table
says how steady it was.

Goals, at 24 of 27 points: ``kind: torch`` within 3 % of the loop's epoch time, the prediction within 5 %.

``python benchmarks/real_loop.py`` runs all points (half an hour on two quiet cores); ``--quick`` two of them (about a
minute), ``--ranks 1`` those of one rank (2 otherwise), ``--rounds N`` each N times, ``--engine local`` ours in this
process instead of on Ray.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from machine import fixed_work, print_machine
from side import in_turn, memory_alone, memory_and_ray, on_torch, print_head, print_row

import rayio
from rayio.predict.calibrate import calibrate
from rayio.predict.processors import CONTENTION, SLICE
from rayio.scenario.load import build
from rayio.scenario.named_costs import TORCH

T = TypeVar("T")

#: Workers, seconds of compute, and the bytes of a sample.
Point = tuple[int, float, str]
WORKERS, COMPUTE, SAMPLES = (1, 2, 4), (0.02, 0.05, 0.1), ("150 KB", "1 MB", "4 MB")
QUICK = ((1, 0.02, "150 KB"), (2, 0.05, "1 MB"))
BATCH, EPOCHS = 4, 3
#: Steps of an epoch, by the seconds of a step: about two seconds of compute.
STEPS = {0.02: 80, 0.05: 40, 0.1: 20}
GOAL = {"torch": 0.03, "predicted": 0.05}
#: How many times as long fixed work may take beside one run of a point as beside another; how often it is tried.
STEADY, TRIES = 1.15, 3


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


def seconds_of_epochs(done: rayio.Run) -> list[float]:
    """The seconds of each epoch but the first, from the end of the last compute to that of the next epoch's."""
    if done.exit_code:
        raise SystemExit(f"the run ended with {done.exit_code}: {done.result['error']}")
    spans = done.spans()
    computed = spans[spans["name"] == "compute"]
    over = (computed["start_ns"] + computed["duration_ns"]).groupby(computed["epoch"]).max()
    return [float(one) / 1e9 for one in over.diff().iloc[1:]]


def emulated(wanted: dict[str, Any], root: str, engine: str, **keys: Any) -> list[float]:
    """Run it with a kind of loader."""
    return seconds_of_epochs(rayio.run(build(wanted | {"loader": wanted["loader"] | keys}), root=root, engine=engine))


def sides_of(wanted: dict[str, Any], root: str, reader: str, engine: str) -> dict[str, Callable[[], list[float]]]:
    """What runs at a point; each side gives the seconds of its epochs but the first."""
    ours = "numpy" if reader == "numpy" else "rayio"
    return {
        "loop": lambda: list(on_torch(wanted, root, reader)["epochs"][1:]),
        "torch": lambda: emulated(wanted, root, engine, kind="torch", persistent_workers=True, reader=ours),
        "actors": lambda: emulated(wanted, root, engine),
    }


def steadily(sides: Mapping[str, Callable[[], T]], rounds: int) -> tuple[dict[str, list[T]], float]:
    """Run sides in turn while the machine is as fast for all of them; give also how unequal it was (1: not at all)."""
    tried: list[tuple[float, dict[str, list[T]]]] = []
    while len(tried) < TRIES and (not tried or tried[-1][0] > STEADY):
        speeds: list[float] = []
        runs = in_turn({name: partial(_timed, side, speeds) for name, side in sides.items()}, rounds)
        tried.append((max(speeds) / min(speeds), runs))
    unequal, runs = min(tried, key=lambda one: one[0])
    return runs, unequal


def _timed(side: Callable[[], T], speeds: list[float]) -> T:
    speeds.append(fixed_work())
    return side()


def reading_seconds(wanted: dict[str, Any], root: str, reader: str) -> float:
    """What the loop's reader takes for a sample once its file is in memory: the median over some batches."""
    if reader != "numpy":
        return 0.0
    paths = sorted(Path(root, wanted["dataset"]["path"]).rglob("*.npz"))[: 16 * BATCH]
    taken = []
    for place in range(0, len(paths), BATCH):
        began = time.perf_counter()
        samples = []
        for path in paths[place : place + BATCH]:
            with np.load(path) as archive:
                samples.append(archive["x"][0])
        np.stack(samples)
        taken.append((time.perf_counter() - began) / BATCH)
    return statistics.median(taken)


def step_seconds(wanted: dict[str, Any], root: str, reader: str, engine: str) -> float:
    """What a step takes PyTorch's rank beyond its batch and its compute, such as to free the batch before.

    It is that of a run of one rank and one worker, calibrated; no loader's costs have it, for it grows with the batch.
    """
    alone = wanted | {
        "cluster": {"ranks_per_node": 1},
        "loader": wanted["loader"] | {"num_workers": 1, "kind": "torch", "persistent_workers": True,
                                      "reader": "numpy" if reader == "numpy" else "rayio"},
        "train": wanted["train"] | {"compute": 0.05, "steps": STEPS[0.05], "sync": "none"},
    }  # fmt: skip
    return calibrate(rayio.run(build(alone), root=root, engine=engine).path).scenario.charges.step


def predicted(wanted: dict[str, Any], root: str, reading: float, step: float) -> float:
    """Simulate it with the costs of PyTorch's loader, on the cores of this machine: what its processes do is work."""
    costs = TORCH.costs.model_dump() | {"step": step}
    costs["cpu"] = {"sample": reading, "rank": costs["receive"], "step": step,
                    "slice": SLICE, "contention": CONTENTION}  # fmt: skip
    cores = wanted["cluster"] | {"cores": os.cpu_count()}
    return statistics.median(
        seconds_of_epochs(rayio.simulate(build(wanted | {"costs": costs, "cluster": cores}), root=root))
    )


def main(
    about: str | None = __doc__,
    points: Sequence[Point] = tuple(itertools.product(WORKERS, COMPUTE, SAMPLES)),
    quick: Sequence[Point] = QUICK,
    *,
    ranks: int = 2,
    reader: str = "numpy",
) -> None:
    """Run points, and print a row of each; ``quick``, ``ranks`` and ``reader`` are what options begin with."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two points")
    parser.add_argument("--rounds", type=int, default=1, help="how often each point runs")
    parser.add_argument("--ranks", type=int, default=ranks, help=f"ranks (default: {ranks})")
    parser.add_argument("--reader", choices=("numpy", "same"), default=reader, help="what the loop reads with")
    parser.add_argument("--engine", choices=("ray", "local"), default="ray", help="where ours run (default: ray)")
    asked = parser.parse_args()
    points = quick if asked.quick else points
    print_machine()
    print(
        f"Ranks: {asked.ranks}; reader of the loop and of kind torch: {asked.reader}; engine {asked.engine}; medians "
        f"of {asked.rounds * (EPOCHS - 1)} epochs, s.\n"
    )
    head = (
        "workers", "compute", "sample", "loop", "torch", "actors", "predicted", "AU loop", "AU torch", "AU actors",
        "torch ÷ loop", "actors ÷ loop", "predicted ÷ loop", "speed",
    )  # fmt: skip
    met = dict.fromkeys(GOAL, 0)
    with memory_and_ray() if asked.engine == "ray" else memory_alone() as root:
        took: dict[str, tuple[float, float]] = {}
        print_head(*head)
        for workers, compute, sample in points:
            wanted = scenario(workers, compute, sample, asked.ranks)
            rayio.generate(build(wanted), root=root)
            runs, unequal = steadily(sides_of(wanted, root, asked.reader, asked.engine), asked.rounds)
            middle = {name: statistics.median(itertools.chain(*those)) for name, those in runs.items()}
            if sample not in took:
                took[sample] = (
                    reading_seconds(wanted, root, asked.reader), step_seconds(wanted, root, asked.reader, asked.engine)
                )  # fmt: skip
            middle["predicted"] = predicted(wanted, root, *took[sample])
            ratio = {name: seconds / middle["loop"] for name, seconds in middle.items()}
            missed = [name for name, goal in GOAL.items() if abs(ratio[name] - 1) > goal]
            for name in GOAL:
                met[name] += name not in missed
            print_row(
                workers, f"{1000 * compute:.0f} ms", sample, *(f"{seconds:.3f}" for seconds in middle.values()),
                *(f"{100 * compute * STEPS[compute] / middle[name]:.1f} %" for name in ("loop", "torch", "actors")),
                *(f"{ratio[name]:.3f}{' **missed**' * (name in missed)}" for name in ("torch", "actors", "predicted")),
                f"{unequal:.2f}",
            )  # fmt: skip
    print()
    for name, goal in GOAL.items():
        print(f"{met[name]} of {len(points)} points: {name} within {100 * goal:.0f} % of the loop")


if __name__ == "__main__":
    main()
