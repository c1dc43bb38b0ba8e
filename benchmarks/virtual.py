"""How fast the virtual clock runs: rank-steps per CPU second, spans kept, storage modelled (preset ``nvme``).

4 readers per rank, 4 samples per batch; each row in a process of its own. Goals: >= 40 000 rank-steps/s at
1024 ranks and 30 000 at 8192, a cost per rank-step that is flat within 1.5 x from 64 to 8192 ranks, and 8192 ranks
within 4 GiB.
``python benchmarks/virtual.py 1024`` makes one row, ``... 1024 50`` one of 50 steps, ``... 1024 50 lustre-cori`` one
of another preset.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from typing import Any

from machine import print_machine

from rayio.engines.virtual import simulation
from rayio.model.ledger import Tally
from rayio.model.planning import plan_of
from rayio.scenario.load import build
from rayio.trace.recorder import Recorder
from rayio.trace.span import schema

#: Ranks and steps of each row: few ranks need more steps to be measured at all.
ROWS = {64: 400, 256: 200, 1024: 100, 4096: 100, 8192: 100}


def scenario(ranks: int, steps: int, model: str) -> Any:
    return build(
        {
            "name": "virtual",
            "cluster": {"nodes": ranks // 8, "ranks_per_node": 8},
            "dataset": {"path": "model://virtual", "num_files": 100_000_000, "sample_bytes": "1 MiB"},
            "storage": {"model": model},
            "loader": {"batch_size": 4, "num_workers": 4},
            "train": {"epochs": 1, "steps": steps, "compute": {"kind": "normal", "mean": "100 ms", "stdev": "5 ms"}},
        }
    )


def row(ranks: int, steps: int, model: str = "nvme") -> None:
    """Simulate and print one row: meant for a process of its own, whose peak of memory is then this simulation's."""
    plan = plan_of(scenario(ranks, steps, model), modelled=True)
    recorder, tallies = Recorder(), [Tally(rank) for rank in range(ranks)]
    schema()  # loads Arrow, which is no part of the cost of a step
    began = time.process_time()
    simulation.simulate(plan, recorder, tallies)
    seconds = time.process_time() - began
    number = sum(tally.steps for tally in tallies)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cost = 1e6 * seconds / number
    print(
        f"{ranks:>6}{steps:>6}{number / seconds:>14,.0f}{cost:>18.1f}{recorder.recorded:>10}{peak:>10.0f}", flush=True
    )


def main() -> None:
    print_machine()
    print(
        f"{'ranks':>6}{'steps':>6}{'rank-steps/s':>14}{'us per rank-step':>18}{'spans':>10}{'peak MiB':>10}", flush=True
    )
    for ranks in ROWS:
        subprocess.run([sys.executable, __file__, str(ranks)], check=True)


if __name__ == "__main__":
    ranks, steps = [*map(int, sys.argv[1:3]), 0, 0][:2]
    row(ranks, steps or ROWS.get(ranks, 100), *sys.argv[3:]) if ranks else main()
