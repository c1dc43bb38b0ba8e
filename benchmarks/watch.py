"""A real training loop watched, and what rayio predicts of it with other workers and another prefetch depth.

A small model is trained on this machine's processors, by PyTorch with one thread; its dataset sleeps for a planted
time for each sample, so that reading is known. The loop then sleeps until its step has lasted 30 ms, as on an
accelerator, so that other work on this machine changes little; ``--unpaced`` leaves that out. One run, watched by
``rayio.watch``, is calibrated. Then every point of workers x prefetch is simulated, and the loop really runs there. AU
is the loop's own: it times its work and its steps by itself, without rayio. The trivial answer is that AU stays what
it was in the calibrated run. Another one is that workers add up until the loop is busy.

Goal: predicted AU within 3 points of the loop's at every point. Overhead: ``rayio.step()`` and the watched loader
beside the bare loader, over batches that are there at once; goal: at most 20 us a step.

``python benchmarks/watch.py`` takes about three minutes; ``--quick`` runs two points.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from machine import print_machine
from side import ONE_THREAD, print_head, print_row

import rayio

#: Milliseconds that a sample takes to read, and a paced step; samples of a batch, and steps of an epoch.
READ_MS, STEP_MS, BATCH, STEPS, EPOCHS = 24.0, 30.0, 4, 40, 2
#: Width of the model: one backward pass takes a few milliseconds on one core.
WIDTH = 512
#: Workers x prefetch; the first one is calibrated.
CALIBRATED = (2, 2)
POINTS = ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (3, 2), (4, 1), (4, 2), (0, 2))
GOAL_POINTS, GOAL_SECONDS = 3.0, 20e-6


def loop(told: dict[str, Any]) -> dict[str, float]:
    """Train, and return the loop's own AU after its first step of all, and its mean work on a batch (s)."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Sleeping(Dataset[Any]):  # type: ignore[misc]
        def __len__(self) -> int:
            return BATCH * STEPS

        def __getitem__(self, index: int) -> Any:
            time.sleep(told["read_ms"] / 1000)
            return torch.full((WIDTH,), float(index % 7))

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    workers = told["workers"]
    loader: Any = DataLoader(
        Sleeping(), batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0,
        prefetch_factor=told["prefetch"] if workers else None,
    )  # fmt: skip
    if told["out"]:
        loader = rayio.watch(loader, out=told["out"])
    worked, lasted, ended = [], [], None
    for _ in range(EPOCHS):
        for batch in loader:
            began = time.perf_counter()
            for _ in range(told["repeats"]):
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
            time.sleep(max(0.0, told["step_ms"] / 1000 - (time.perf_counter() - began)))
            now = time.perf_counter()
            if told["out"]:
                rayio.step()
            worked.append(now - began)
            lasted.append(0.0 if ended is None else now - ended)
            ended = now
    return {"au": sum(worked[1:]) / sum(lasted[1:]), "work": statistics.mean(worked[1:])}


def really(workers: int, prefetch: int, out: str = "", *, paced: bool) -> dict[str, float]:
    """Run the loop in a process of its own; with ``out`` it is watched."""
    told = {"workers": workers, "prefetch": prefetch, "out": out, "read_ms": READ_MS, "repeats": 1 if paced else 8,
            "step_ms": STEP_MS if paced else 0}  # fmt: skip
    command = [sys.executable, __file__, "--loop", json.dumps(told)]
    done = subprocess.run(command, env=os.environ | ONE_THREAD, stdout=subprocess.PIPE, text=True, check=True)
    numbers: dict[str, float] = json.loads(done.stdout)
    return numbers


class Ready:
    """A dataset whose samples are there at once."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> int:
        return index


def at_once() -> Any:
    """Return a loader whose batches are there at once."""
    return range(100_000)


def inline() -> Any:
    """Return a DataLoader without workers: reads are timed in the loop's own process."""
    from torch.utils.data import DataLoader

    return DataLoader(Ready(), batch_size=None)


def overhead(make: Callable[[], Any]) -> float:
    """Return the seconds that watching adds to a step of a loader, whose batches are there at once."""

    def seconds(loader: Any, *, watched: bool) -> float:
        steps, began = 0, time.perf_counter()
        for _ in loader:
            steps += 1
            if watched:
                rayio.step()
        return (time.perf_counter() - began) / steps

    added = []
    with tempfile.TemporaryDirectory(prefix="rayio-watch-") as root:
        for number in range(5):
            bare = seconds(make(), watched=False)
            with rayio.watch(make(), out=f"{root}/{number}") as loader:
                added.append(seconds(loader, watched=True) - bare)
    return statistics.median(added)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two points")
    parser.add_argument("--rounds", type=int, default=1, help="how often the loop runs at each point")
    parser.add_argument("--unpaced", action="store_true", help="a step lasts as long as it takes")
    parser.add_argument("--loop", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.loop:
        print(json.dumps(loop(json.loads(asked.loop))))
        return
    print_machine()
    print()
    for name, make in (("a loader", at_once), ("a DataLoader without workers", inline)):
        added = overhead(make)
        missed_it = " **missed**" * (added > GOAL_SECONDS)
        print(f"Watching {name} adds {added * 1e6:.1f} us a step{missed_it} (goal 20 us).")
    print()
    points = POINTS[1:3] if asked.quick else POINTS
    with tempfile.TemporaryDirectory(prefix="rayio-watch-") as root:
        really(*CALIBRATED, out=f"{root}/run", paced=not asked.unpaced)
        run = rayio.Run.open(f"{root}/run")
        rayio.calibrate(run, busy_run=False, out=f"{root}/learned.yaml")
        before = run.au or 0.0
        print(f"Calibrated from workers {CALIBRATED[0]}, prefetch {CALIBRATED[1]}: AU {100 * before:.1f} %.\n")
        print_head("workers", "prefetch", "AU of the loop", "predicted", "off (points)", "AU unchanged: off",
                   "workers add up: off")  # fmt: skip
        missed = 0
        ours: list[float] = []
        same: list[float] = []
        linear: list[float] = []
        for number, (workers, prefetch) in enumerate(points):
            made = [really(workers, prefetch, paced=not asked.unpaced) for _ in range(asked.rounds)]
            au = statistics.median(each["au"] for each in made)
            keys: dict[str, Any] = {"loader.num_workers": workers}
            if workers:
                keys["loader.prefetch_factor"] = prefetch
            predicted = rayio.simulate(f"{root}/learned.yaml", keys, out=f"{root}/{number}").au or 0.0
            rate = statistics.mean(each["work"] for each in made) / (READ_MS / 1000 * BATCH)
            adds = min(1.0, rate * workers) if workers else rate / (1 + rate)
            off = [100 * (value - au) for value in (predicted, before, adds)]
            for errors, value in zip((ours, same, linear), off, strict=True):
                errors.append(abs(value))
            is_missed = abs(off[0]) > GOAL_POINTS
            missed += is_missed
            print_row(workers, prefetch if workers else "none", f"{100 * au:.1f} %", f"{100 * predicted:.1f} %",
                      f"{off[0]:+.1f}{' **missed**' * is_missed}", f"{off[1]:+.1f}", f"{off[2]:+.1f}")  # fmt: skip
        print(
            f"\n{len(points) - missed} of {len(points)} points within {GOAL_POINTS:.0f}; largest error "
            f"{max(ours):.1f} points, AU unchanged {max(same):.1f}, workers add up {max(linear):.1f}"
        )


if __name__ == "__main__":
    main()
