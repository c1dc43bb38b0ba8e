"""Does a prediction come true where processors are at work? Points on Ray, drawn by a seed, each simulated and made.

A group is a loader, its decoding, and where its bytes come from. For each group two short runs are calibrated together,
with samples of 600 kB and 100 kB at 10 ms of compute, as ``rayio calibrate`` does it: with busy, lone and check runs,
and a probe of the machine. The points of a group are drawn from workers 1, 2, 4 x ranks 1, 2 x batches of 2, 4, 8 x
samples of 100 kB, 300 kB, 1 MB, 2 MB x compute of 0, 2, 5, 20 ms: never the compute that was calibrated. A step is the
median time of an epoch after the first one, over its steps.

- A point counts where a step takes at least 15 % longer than its compute. The others are easy, and listed alone.
- Fixed work is timed around every run (``machine.fixed_work``). A point that was made at another speed than its
  calibration, by 10 % or more, is made again, up to ``--tries`` times, and then discarded.
- The trivial predictor knows the scenario alone: a step takes its compute. It is the bar.

Goals: median error 5 %, 95th percentile 15 %; 85 % of points in their interval, whose median width (from its low to its
high end) is 15 %; a third of the trivial predictor's mean error.

``python benchmarks/predict.py`` draws points until 24 count; ``--count N`` N of them, ``--seed N`` others.
``--minutes N`` bounds all of it: no point begins that would take longer, as the longest one did. SIGTERM and Ctrl-C end
it with its summary, too. ``--group NAME`` (again and again) those of some groups. ``--taught 600`` calibrates one
sample size, so that intervals are wide for the others. ``--disk DIR`` has the files whose cache is dropped.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from machine import at_a_speed, print_machine
from real_loop import seconds_of_epochs
from side import memory_and_ray, print_head, print_row

import rayio
from rayio.errors import RayioError, RunError
from rayio.machine.speed import fixed_work_once
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.session.busy_runs import calibrated

#: Groups: the loader's keys, and whether the page cache is dropped.
GROUPS: dict[str, tuple[dict[str, Any], bool]] = {
    "plain": ({}, False),
    "checksum": ({"decode": {"kind": "checksum", "passes": 2}}, False),
    "decompress": ({"decode": {"kind": "decompress", "ratio": 3}}, False),
    "dropped": ({}, True),
    "torch": ({"kind": "torch", "persistent_workers": True, "decode": {"kind": "checksum"}}, False),
}
#: The compute and the sample sizes (kB) of calibrated runs, and the epochs of these and of points.
TAUGHT_MS, TAUGHT_KB, EPOCHS = 10, (600, 100), 3
#: Seconds that an epoch of a point would take with steps of its compute alone, or of this many ms at least.
SECONDS, LEAST_STEP_MS = 0.8, 5
#: The least part of a step beyond its compute, relative to that; and how far the machine's speed may move.
HARD, SPEED_WITHIN = 0.15, 0.10
#: The compute that a share of a step is relative to where a point has none (ms).
NO_COMPUTE_MS = 1.0


@dataclass(frozen=True)
class Point:
    """A setting of a group."""

    group: str
    workers: int
    ranks: int
    batch: int
    sample_kb: int
    compute_ms: int

    def scenario(self) -> dict[str, Any]:
        """Make it."""
        keys, is_dropped = GROUPS[self.group]
        steps = max(20, round(SECONDS * 1000 / max(self.compute_ms, LEAST_STEP_MS)))
        files = max(self.ranks * self.batch * steps, 64)
        return {
            "name": "predict",
            "cluster": {"ranks_per_node": self.ranks},
            "dataset": {"path": f"data-{self.sample_kb}-{files}", "num_files": files,
                        "sample_bytes": f"{self.sample_kb} kB"},
            "loader": {"batch_size": self.batch, "num_workers": self.workers, "prefetch_factor": 2, **keys},
            "storage": {"page_cache": "drop" if is_dropped else "use"},
            "train": {"epochs": EPOCHS, "compute": f"{self.compute_ms} ms", "steps": steps},
        }  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The seconds of a step: made, predicted, at least, at most, and of compute alone."""

    made: float
    predicted: float
    least: float
    most: float
    trivial: float

    @property
    def error(self) -> float:
        """The prediction's error, relative to the real step."""
        return self.predicted / self.made - 1

    @property
    def width(self) -> float:
        """The interval's width, relative to the prediction."""
        return (self.most - self.least) / self.predicted

    @property
    def is_covered(self) -> bool:
        """True if the real step is in the interval."""
        return self.least <= self.made <= self.most

    @property
    def needed(self) -> float:
        """How many times as wide the interval has to be to hold the real step."""
        side = self.most - self.predicted if self.made > self.predicted else self.predicted - self.least
        return abs(self.made - self.predicted) / max(side, 1e-9)

    @property
    def is_hard(self) -> bool:
        """True if compute alone is a bad prediction."""
        return self.made >= (1 + HARD) * max(self.trivial, NO_COMPUTE_MS / 1000)


@dataclass
class Found:
    """The outcomes so far: those of points that count and of easy ones, and the number of points discarded."""

    hard: list[Outcome] = field(default_factory=list)
    easy: list[Outcome] = field(default_factory=list)
    discarded: int = 0


def points(seed: int, groups: Sequence[str]) -> Iterator[Point]:
    """Draw points without end, the groups in turn."""
    grid = [*itertools.product((1, 2, 4), (1, 2), (2, 4, 8), (100, 300, 1000, 2000), (0, 2, 5, 20))]
    draws = {group: random.Random(f"{seed} {group}").sample(grid, len(grid)) for group in groups}
    for number in range(len(grid)):
        for group in groups:
            yield Point(group, *draws[group][number])


def learned(group: str, root: str, tries: int, sizes: Sequence[int] = TAUGHT_KB) -> tuple[Scenario, float]:
    """Calibrate a run of a group for each sample size (kB); give the seconds of fixed work with them too."""
    runs: list[rayio.Run] = []
    speeds: list[float] = []
    for sample_kb in sizes:
        wanted = build(Point(group, 1, 2, 4, sample_kb, TAUGHT_MS).scenario())
        make = partial(rayio.run, wanted, root=root)
        run, speed = at_a_speed(make, speeds[0] if speeds else None, SPEED_WITHIN, tries)
        runs.append(run)
        speeds.append(speed)
    found = calibrated(*(run.path for run in runs))
    costs = found.scenario.charges
    print(f"{group}: { ({k: v for k, v in costs.model_dump(exclude={'source', 'cpu'}).items() if v}) }")
    print(
        f"  cpu { ({k: v for k, v in costs.cpu.model_dump().items() if v}) }\n  decode {found.scenario.loader.decode}"
    )
    for note in found.notes[2:]:
        print(f"  {note}", flush=True)
    return found.scenario, statistics.mean(speeds)


def predicted(taught: Scenario, wanted: dict[str, Any], root: str) -> tuple[float, float, float]:
    """Simulate a point with the calibration; give the seconds of an epoch, at least and at most."""
    fixed_work_once.cache_clear()  # the speed of this point's moment
    asked = build(wanted)
    changed = taught.model_copy(
        update={
            "cluster": asked.cluster.model_copy(update={"cores": taught.cluster.cores}),
            "dataset": asked.dataset, "train": asked.train,
            "loader": taught.loader.model_copy(
                update={"batch_size": asked.loader.batch_size, "num_workers": asked.loader.num_workers}
            ),
        }
    )  # fmt: skip
    done = rayio.simulate(changed, root=root)
    seconds, between = statistics.median(seconds_of_epochs(done)), done.result.between
    if between is None:
        raise RunError(f"no interval: {', '.join(doubt.sentence for doubt in done.result.doubts or ())}")
    return seconds, seconds * between.time_low, seconds * between.time_high


def outcome(point: Point, taught: Scenario, fixed: float, root: str, tries: int) -> tuple[Outcome, float]:
    """Make and predict a point; give the relative speed of the machine too."""
    wanted = point.scenario()
    steps = wanted["train"]["steps"]
    try:
        rayio.generate(build(wanted), root=root)
        done, now = at_a_speed(partial(rayio.run, build(wanted), root=root), fixed, SPEED_WITHIN, tries)
        made = statistics.median(seconds_of_epochs(done))
        usual, least, most = predicted(taught, wanted, root)
    finally:
        shutil.rmtree(Path(root, wanted["dataset"]["path"]), ignore_errors=True)  # all of them would fill the memory
    found = Outcome(made / steps, usual / steps, least / steps, most / steps, trivial=point.compute_ms / 1000)
    return found, now / fixed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=24, help="how many points that count")
    parser.add_argument("--most", type=int, default=80, help="how many points at most, easy and discarded ones too")
    parser.add_argument("--minutes", type=float, default=60.0, help="bound of the whole benchmark")
    parser.add_argument("--seed", type=int, default=23, help="which points")
    parser.add_argument("--tries", type=int, default=3, help="how often a point is made until the speed is right")
    parser.add_argument("--group", choices=[*GROUPS], action="append", help="points of this group")
    parser.add_argument("--taught", type=int, nargs="+", default=TAUGHT_KB, help="sample sizes that are calibrated, kB")
    parser.add_argument("--disk", default=None, help="folder on a device, for the files whose cache is dropped")
    asked = parser.parse_args()
    print_machine()
    groups, latest = asked.group or [*GROUPS], time.monotonic() + 60 * asked.minutes
    found = Found()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        measure(asked, groups, latest, found)
    except KeyboardInterrupt:
        print("\nended by a signal")
    print(f"\n{found.discarded} points discarded: the machine was at another speed")
    print_errors("points that count", found.hard)
    print_errors("easy points", found.easy)


def measure(asked: argparse.Namespace, groups: Sequence[str], latest: float, outcomes: Found) -> None:
    """Calibrate the groups, and add the outcomes of their points until ``latest``, as they are printed."""
    taught: dict[str, tuple[Scenario, float]] = {}
    longest = 0.0
    with memory_and_ray() as memory, tempfile.TemporaryDirectory(prefix="rayio-bench-", dir=asked.disk) as disk:
        roots = {group: disk if GROUPS[group][1] else memory for group in groups}
        for group in groups:
            began = time.monotonic()
            if began + longest > latest:
                break
            taught[group] = learned(group, roots[group], asked.tries, asked.taught)
            longest = max(longest, time.monotonic() - began)
        longest = 0.0
        print()
        print_head(
            "group", "workers", "ranks", "batch", "sample", "compute", "step made", "predicted", "error", "trivial",
            "interval", "width", "speed",
        )  # fmt: skip
        for point in itertools.islice(points(asked.seed, [*taught]), asked.most):
            began = time.monotonic()
            if len(outcomes.hard) >= asked.count or began + longest > latest:
                break
            scenario, fixed = taught[point.group]
            try:
                found, speed = outcome(point, scenario, fixed, roots[point.group], asked.tries)
            except RayioError as error:
                print(f"{point}: {error}", flush=True)
                continue
            finally:
                longest = max(longest, time.monotonic() - began)
            moved = abs(speed - 1) > SPEED_WITHIN
            outcomes.discarded += moved
            if not moved:
                (outcomes.hard if found.is_hard else outcomes.easy).append(found)
            trivial = found.trivial / found.made - 1
            print_row(
                point.group, point.workers, point.ranks, point.batch, f"{point.sample_kb} kB", f"{point.compute_ms} ms",
                f"{1000 * found.made:.2f} ms", f"{1000 * found.predicted:.2f} ms", f"{100 * found.error:+.1f} %",
                f"{100 * trivial:+.0f} %",
                f"{1000 * found.least:.2f} to {1000 * found.most:.2f}{'' if found.is_covered else ' **missed**'}",
                f"{100 * found.width:.0f} %",
                f"{1 / speed:.2f}{' discarded' if moved else '' if found.is_hard else ' easy'}",
            )  # fmt: skip


def print_errors(which: str, found: list[Outcome]) -> None:
    """Print what the goals are about."""
    if not found:
        print(f"{which}: none")
        return
    size = np.abs([one.error for one in found])
    trivial = np.abs([one.trivial / one.made - 1 for one in found])
    covered, width = sum(one.is_covered for one in found), statistics.median(one.width for one in found)
    wider, quick = np.quantile([one.needed for one in found], 0.85), sum(one.error < 0 for one in found)
    print(
        f"{which}, {len(found)}: median error {100 * np.median(size):.1f} % (goal 5 %), 95th percentile "
        f"{100 * np.quantile(size, 0.95):.1f} % (goal 15 %), {quick} too fast; {covered} in intervals (goal 85 %) "
        f"of median width {100 * width:.0f} % (goal 15 %), 85 % in one {wider:.2f} times as wide; mean error "
        f"{size.mean() / trivial.mean():.2f} of the trivial predictor's {100 * trivial.mean():.0f} % (goal 0.33)"
    )


if __name__ == "__main__":
    main()
