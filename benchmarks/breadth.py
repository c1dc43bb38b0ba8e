"""How many ranks four Ray nodes of this one machine emulate: 1024 of them, or the most that hold an AU of 0.97.

Four raylets, one emulated node on each, ranks of a node packed into a few actors (``cluster.roles_per_actor: auto``),
modelled storage, steps of 2 s, a barrier after each. The number of ranks is doubled from the first until the AU falls
below the goal, then halved in between; ``--ranks`` gives the numbers instead. Beside the AU: what the barrier and the
collector, of which there is one each, took of a processor, and how far ranks were from meeting at once.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import print_machine
from scale import watched_memory

import rayio
from rayio.scenario.load import build

NODES, GOAL, WANTED = 4, 0.97, 1024
#: The search ends when the number is known to within this.
CLOSE = 64


def scenario(ranks: int, steps: int, workers: int) -> dict[str, Any]:
    """Make a scenario of so many ranks, spread evenly over the emulated nodes."""
    return {
        "name": "breadth",
        "cluster": {"nodes": NODES, "ranks_per_node": ranks // NODES, "start_deadline": "600 s"},
        "dataset": {"path": "model://breadth", "num_files": ranks * steps * 4, "sample_bytes": "150 KB"},
        "storage": {"model": "nvme"},
        "loader": {"batch_size": 4, "num_workers": workers},
        "train": {"epochs": 1, "compute": "2 s"},
    }


def point(ranks: int, steps: int, workers: int, address: str) -> float:
    """Run one number of ranks, print its row, and give its AU."""
    began = time.time_ns()
    with watched_memory() as peak, tempfile.TemporaryDirectory(prefix="rayio-bench-") as root:
        run = rayio.run(build(scenario(ranks, steps, workers)), address=address, root=root)
        spans, result, info = run.spans(), run.result, json.loads(Path(run.path, "run.json").read_text())
    compute = spans[spans["name"] == "compute"]
    start = (compute["start_ns"].min() - began) / 1e9
    seconds = ((compute["start_ns"] + compute["duration_ns"]).max() - compute["start_ns"].min()) / 1e9
    cpu = info["cpu_seconds"]["roles"]
    late = spans[(spans["name"] == "overshoot") & (spans["role"] == "rank")]["duration_ns"].quantile(0.99) / 1e6
    au = float(result["au"])
    print(
        f"{ranks:>6}{len(info['actors']):>8}{au:>9.4f}{100 * result['other_share']:>8.2f} %"
        f"{100 * result['sync_share']:>7.2f} %"
        f"{late:>14.1f}{100 * sum(cpu.values()) / seconds:>9.0f} %{100 * cpu.get('barrier', 0) / seconds:>9.1f} %"
        f"{100 * cpu.get('collector', 0) / seconds:>9.1f} %{peak[0]:>9.2f}{start:>9.1f}",
        flush=True,
    )
    return au


def search(try_: Any, first: int) -> int:
    """Double from the first while the goal is held, then halve the gap; give the largest number that held it."""
    held, failed, ranks = 0, None, first
    while ranks <= WANTED and (failed is None or failed - held > CLOSE):
        if try_(ranks) >= GOAL:
            held = ranks
        else:
            failed = ranks
        ranks = 2 * held if failed is None else (held + failed) // 2 // NODES * NODES
        if ranks <= held:
            break
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", help="numbers of ranks to run, in place of the search")
    parser.add_argument("--first", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1, help="readers of each rank")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rayio-home-") as home:
        os.environ |= {"HOME": home, "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
        import ray
        from ray.cluster_utils import Cluster

        print_machine()
        resources = {"num_cpus": 1, "object_store_memory": 100 << 20, "memory": 4 << 30}
        cluster = Cluster(initialize_head=True, head_node_args=resources)
        for _ in range(NODES - 1):
            cluster.add_node(**resources)
        print(
            f"{'ranks':>6}{'actors':>8}{'AU':>9}{'other':>10}{'sync':>9}{'p99 late (ms)':>14}{'CPU':>11}{'barrier':>11}"
            f"{'collector':>11}{'GiB':>9}{'start':>9}"
        )
        try:
            if chosen.ranks:
                for ranks in chosen.ranks:
                    point(ranks, chosen.steps, chosen.workers, cluster.address)
                return
            held = search(lambda ranks: point(ranks, chosen.steps, chosen.workers, cluster.address), chosen.first)
            print(f"AU >= {GOAL} with {held} ranks (goal: {WANTED})")
        finally:
            ray.shutdown()
            cluster.shutdown()


if __name__ == "__main__":
    main()
