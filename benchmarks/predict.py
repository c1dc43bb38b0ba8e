"""Does the prediction come true where processors are busy? 48 points on Ray, chosen by a seed, each simulated and made.

For each format two runs are calibrated together: one of 1 worker and batches of 4 x 1 MB, a short one with samples of
100 KB. The points are drawn from workers 1, 2, 4 x ranks 1, 2 x batches of 2, 4, 8 x samples of 150 KB, 600 KB, 2 MB x
compute of 10 and 40 ms x an evaluation every epoch or none x a checkpoint every epoch or none. All files are in memory:
what is tested is processors, not a disk. The time of an epoch is from the end of the epoch before to that of the last
compute, its evaluation and its checkpoint included; the first epoch is left out. Goals: median error 3 %, 95th
percentile 10 %, nine in ten points within the interval that the prediction gives.

A shared host is not as fast at all times, and no prediction knows that. So fixed work is timed around every run
(``machine.fixed_work``); a point that was made at another speed than what was calibrated is made again, up to three
times, and the errors of the points that were made at that speed, within 10 %, are given beside those of all.

``python benchmarks/predict.py`` runs all points (half an hour on two quiet cores), ``--points N`` the first N of them,
``--skip N`` leaves out the first N, ``--seed N`` draws others, ``--format NAME`` takes those of one format.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from machine import at_a_speed, print_machine
from numpy.typing import NDArray
from real_loop import seconds_of_epochs
from side import memory_and_ray, print_head, print_row

import rayio
from rayio.predict.calibrate import calibrate
from rayio.scenario.load import build
from rayio.scenario.model import Scenario

FORMATS = ("npz", "hdf5", "tfrecord")
EPOCHS = 3
#: Of an epoch's steps: enough for a second of compute.
SECONDS = 1.2
#: Epochs of the runs that are calibrated.
TAUGHT = 10
GOALS = {"median": 0.03, "95th percentile": 0.10}
#: How far the time of fixed work may be from that of the calibrated runs, and how often a point is made for that.
SPEED_WITHIN, TRIES = 0.10, 3


def scenario(
    form: str, workers: int, ranks: int, batch: int, sample_kb: int, compute_ms: int, evaluated: bool, saved: bool
) -> dict[str, Any]:
    """Make a point's scenario."""
    steps = max(20, round(SECONDS / (compute_ms / 1000)))
    files = max(ranks * batch * steps, 64)
    chosen: dict[str, Any] = {
        "name": "predict",
        "cluster": {"ranks_per_node": ranks},
        "dataset": {"path": f"{form}-{sample_kb}-{files}", "num_files": files, "sample_bytes": f"{sample_kb} kB",
                    "format": form},
        "loader": {"batch_size": batch, "num_workers": workers, "prefetch_factor": 2},
        "train": {"epochs": EPOCHS, "compute": f"{compute_ms} ms", "steps": steps},
    }  # fmt: skip
    if evaluated:
        chosen["dataset"]["eval"] = {"path": f"{form}-{sample_kb}-eval", "num_files": 64}
        chosen["train"]["evaluate"] = {"every": {"epochs": 1}, "compute": f"{compute_ms / 2:g} ms"}
    if saved:
        chosen["checkpoint"] = {"path": "saved", "every": {"epochs": 1}, "model": {"bytes": "40 MB"}}
    return chosen


def points(seed: int) -> list[tuple[Any, ...]]:
    """Draw 48 points, 16 of each format."""
    grid = [*itertools.product((1, 2, 4), (1, 2), (2, 4, 8), (150, 600, 2000), (10, 40), (False, True), (False, True))]
    chosen = random.Random(seed).sample(grid, 48)
    return [(FORMATS[place % 3], *point) for place, point in enumerate(chosen)]


def learned(form: str, root: str) -> tuple[Scenario, float]:
    """Calibrate two runs of a format; give the seconds of fixed work beside them too."""
    runs = [scenario(form, 1, 2, 4, 1000, 10, True, True), scenario(form, 1, 2, 4, 100, 10, False, False)]
    for one in runs:
        one["train"]["epochs"] = TAUGHT
    large, first = at_a_speed(lambda: rayio.run(build(runs[0]), root=root), None, SPEED_WITHIN, 1)
    small, second = at_a_speed(lambda: rayio.run(build(runs[1]), root=root), first, SPEED_WITHIN, TRIES)
    found = calibrate(large.path, small.path)
    costs = found.scenario.charges
    told = {name: value for name, value in costs.model_dump(exclude={"source", "cpu"}).items() if value}
    cpu = {name: value for name, value in costs.cpu.model_dump().items() if value}
    print(f"{form}: {told}\n  cpu {cpu}\n  storage {found.scenario.storage.model}", flush=True)
    for note in found.notes[2:]:
        print(f"  {note}")
    return found.scenario, (first + second) / 2


def predicted(taught: Scenario, wanted: dict[str, Any], root: str) -> tuple[float, float, float]:
    """Simulate a point with what was learned; give the seconds of an epoch, at least and at most."""
    asked = build(wanted)
    changed = taught.model_copy(
        update={
            "cluster": asked.cluster.model_copy(update={"cores": taught.cluster.cores}),
            "dataset": asked.dataset, "train": asked.train, "checkpoint": asked.checkpoint,
            "loader": taught.loader.model_copy(
                update={"batch_size": asked.loader.batch_size, "num_workers": asked.loader.num_workers}
            ),
        }
    )  # fmt: skip
    done = rayio.simulate(changed, root=root)
    seconds, between = statistics.median(seconds_of_epochs(done)), done.result["between"]
    return seconds, seconds * between["time_low"], seconds * between["time_high"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=48, help="how many of the points")
    parser.add_argument("--skip", type=int, default=0, help="how many of them are left out, the first ones")
    parser.add_argument("--seed", type=int, default=11, help="which points")
    parser.add_argument("--format", choices=FORMATS, help="those of one format")
    asked = parser.parse_args()
    chosen = [point for point in points(asked.seed) if asked.format in (None, point[0])][asked.skip : asked.points]
    print_machine()
    errors, covered, alike = [], [], []
    with memory_and_ray() as root:
        taught = {form: learned(form, root) for form in dict.fromkeys(point[0] for point in chosen)}
        print()
        print_head(
            "format", "workers", "ranks", "batch", "sample", "compute", "evaluation", "checkpoint", "made (s)",
            "predicted (s)", "error", "interval (s)", "speed",
        )  # fmt: skip
        for form, workers, ranks, batch, sample, compute, evaluated, saved in chosen:
            wanted = scenario(form, workers, ranks, batch, sample, compute, evaluated, saved)
            rayio.generate(build(wanted), root=root)
            calibrated, fixed = taught[form]
            make = partial(rayio.run, build(wanted), root=root)
            done, now = at_a_speed(make, fixed, SPEED_WITHIN, TRIES)
            made = statistics.median(seconds_of_epochs(done))
            said, least, most = predicted(calibrated, wanted, root)
            shutil.rmtree(Path(root, wanted["dataset"]["path"]))  # in memory: all of them together would fill it
            errors.append(said / made - 1)
            covered.append(least <= made <= most)
            alike.append(abs(now / fixed - 1) <= SPEED_WITHIN)
            print_row(
                form, workers, ranks, batch, f"{sample} KB", f"{compute} ms", "yes" if evaluated else "",
                "yes" if saved else "", f"{made:.3f}", f"{said:.3f}", f"{100 * errors[-1]:+.1f} %",
                f"{least:.3f} to {most:.3f}{'' if covered[-1] else ' **missed**'}", f"{fixed / now:.2f}",
            )  # fmt: skip
    print()
    print_errors("all points", np.abs(errors), np.array(covered))
    at_speed = np.array(alike)
    print_errors(
        f"those at the speed of the calibrated runs, within {100 * SPEED_WITHIN:.0f} %",
        np.abs(errors)[at_speed], np.array(covered)[at_speed],
    )  # fmt: skip


def print_errors(which: str, size: NDArray[np.float64], covered: NDArray[np.bool_]) -> None:
    """Print what the goals are about."""
    if not len(size):
        print(f"{which}: none")
        return
    found = dict(zip(GOALS, np.quantile(size, [0.5, 0.95]).tolist(), strict=True))
    said = ", ".join(f"{name} {100 * found[name]:.1f} % (goal {100 * goal:.0f} %)" for name, goal in GOALS.items())
    print(
        f"{which}, {len(size)}: error of an epoch's time: {said}; the interval has {covered.sum()} (goal: nine in ten)"
    )


if __name__ == "__main__":
    main()
