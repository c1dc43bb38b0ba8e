"""How long does a sweep take? 1000 points of ``unet3d-h100`` at 8 ranks x 200 steps, simulated on all cores.

Goal: 60 s on two cores. Beside it, in the same minute, the simulation of a point alone: what a sweep adds to it is
overhead. CPU seconds are those of all processes together.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time

from machine import print_machine

import rayio
from rayio.engines.virtual.simulation import simulate
from rayio.model.ledger import Tally
from rayio.model.planning import plan_of
from rayio.scenario.load import load
from rayio.trace.recorder import Recorder

POINT = {
    "cluster.ranks_per_node": 8,
    "dataset.path": "model://unet3d",
    "dataset.num_files": 11200,
    "train.epochs": 1,
    "train.steps": 200,
}
WORKERS = [1, 2, 4, 6, 8]
ALONE = 10
#: How often the roles alone are timed before the sweep, and after it; the median counts.
TIMES = 4


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def alone() -> float:
    """CPU seconds of the roles of one point, without its scenario, its numbers and its books; mean over the keys."""
    begun = cpu_seconds()
    for seed in range(ALONE):
        plan = plan_of(
            load("unet3d-h100", POINT | {"loader.num_workers": WORKERS[seed % 5], "seed": seed}), modelled=True
        )
        simulate(plan, Recorder(), [Tally(rank) for rank in range(plan.world_size)])
    return (cpu_seconds() - begun) / ALONE


def main() -> None:
    print_machine()
    points = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    before = [alone() for _ in range(TIMES)]
    with tempfile.TemporaryDirectory(prefix="rayio-bench-") as out:
        cpu, begun = cpu_seconds(), time.monotonic()
        keys = POINT | {"loader.num_workers": WORKERS, "seed": [*range(points // len(WORKERS))]}
        found = rayio.sweep("unet3d-h100", keys, out=out)
        wall, cpu = time.monotonic() - begun, cpu_seconds() - cpu
    done = len(found.rows)
    bare = statistics.median([*before, *(alone() for _ in range(TIMES))])
    print(f"{'points':>8}{'wall':>10}{'CPU':>10}{'CPU a point':>14}{'the roles alone':>18}{'a sweep adds':>15}")
    added = f"{100 * (cpu / done / bare - 1):+.0f} %"
    print(f"{done:>8}{wall:>8.1f} s{cpu:>8.1f} s{1e3 * cpu / done:>11.1f} ms{1e3 * bare:>15.1f} ms{added:>15}")


if __name__ == "__main__":
    main()
