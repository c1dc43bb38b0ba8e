"""Does one calibrated run predict the others? Real files on a local Ray, 12 points of workers × prefetch.

One run is calibrated, one whose ranks wait for data (1 worker, prefetch 2); its scenario is then simulated at every
point and held against a run of that point. Goals: AU and samples/s within 3 % of the calibrated run, within 5 % of the
others. Give a number to have the median of so many runs of each point.
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from machine import print_machine

import rayio
from rayio.predict.calibrate import calibrate
from rayio.scenario.costs import Costs
from rayio.session.calibration import Calibration

#: A reader needs about 110 ms for a batch (100 ms of decoding), a rank computes 50 ms: one to three readers decide.
SCENARIO = """
name: grid
cluster: {ranks_per_node: 2}
dataset: {path: data, num_files: 480, sample_bytes: {kind: uniform, low: 512 KiB, high: 1536 KiB}}
loader: {batch_size: 4, decode: {kind: lognormal, median: 24 ms, sigma: 0.3}}
train: {epochs: 2, compute: {kind: normal, mean: 50 ms, stdev: 3 ms}}
"""
CALIBRATED = (1, 2)
POINTS = [(workers, prefetch) for workers in (1, 2, 3, 4) for prefetch in (1, 2, 4)]
NUMBERS = ("au", "samples_per_second")


def loader(point: tuple[int, int]) -> dict[str, Any]:
    return {"loader.num_workers": point[0], "loader.prefetch_factor": point[1]}


def told(costs: Costs) -> str:
    known = dict(costs) | {f"cpu.{name}": value for name, value in costs.cpu}
    return ", ".join(f"{name} {value:.6g}" for name, value in known.items() if isinstance(value, float) and value)


def main(repeats: int) -> None:
    import ray

    # Ray's own default gives its workers the lowest priority, so that anything else on the machine would be measured.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    print_machine()
    with tempfile.TemporaryDirectory(prefix="rayio-bench-") as folder:
        root = Path(folder)
        (root / "grid.yaml").write_text(SCENARIO)
        measured: dict[tuple[int, int], dict[str, float]] = {}
        order = [CALIBRATED, *(point for point in POINTS if point != CALIBRATED)]
        for place, point in enumerate(order):
            runs = [rayio.run(root / "grid.yaml", loader(point), root=root) for _ in range(repeats)]
            measured[point] = {name: statistics.median(run.result[name] for run in runs) for name in NUMBERS}
            if place == 0:
                middle = sorted(runs, key=lambda run: run.result["samples_per_second"])[len(runs) // 2]
                learned = Calibration.of(calibrate(middle.path))
                learned.write(root / "calibrated.yaml")
                print(f"calibrated: {told(learned.scenario.charges)}")
                print(*learned.notes[2:], sep="\n")
                print(f"{'workers':>8}{'prefetch':>9}{'AU':>9}{'predicted':>10}{'error':>9}"
                      f"{'samples/s':>11}{'predicted':>10}{'error':>9}{'load':>7}")  # fmt: skip
            result = rayio.simulate(root / "calibrated.yaml", loader(point), root=root).result
            cells = []
            for name, form in (("au", "9.4f"), ("samples_per_second", "11.1f")):
                have, said = measured[point][name], result[name]
                cells.append(f"{have:{form}}{said:10.4g}{100 * (said / have - 1):+8.1f} %")
            load = os.getloadavg()[0]
            print(f"{point[0]:>8}{point[1]:>9}{''.join(cells)}{load:7.1f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
