"""How soon a run on Ray goes on after SIGKILL: of a reader, of a rank, of the collector, and of a node.

Each kind of process is killed as often as ``python benchmarks/recovery.py 3`` says (3). Reading goes on with the first
batch that the reader's successor has read, training with the first step of the next attempt. Goals: reading within 5 s,
training within 45 s. The node is one of a Ray cluster of two, which are processes of this machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ray
from machine import print_machine
from side import print_head, print_row, spread

from rayio.reporter import Reporter
from rayio.session import Run, run
from rayio.session.dataset import resolve

TIMES = 3
#: Seconds between two kills of readers, and until the first.
PAUSE_SECONDS = 6.0
GOALS = {"reader": 5.0, "rank": 45.0, "collector": 45.0, "node": 45.0}
LOST = Path(__file__).parents[1] / "tests" / "lost_nodes.py"
WANTED = [
    "dataset.num_files=64", "dataset.sample_bytes=100 kB", "cluster.ranks_per_node=2", "loader.num_workers=1",
    "loader.batch_size=1", "train.compute=100 ms", "train.epochs=20", "failures={policy: from_checkpoint}",
    "checkpoint={every: {steps: 5}, path: ck, model: {bytes: 1 MB}, writers: sharded}",
]  # fmt: skip


class Killer(Reporter):
    """Kills a process of a kind, again whenever the run has gone on for a while."""

    def __init__(self, kind: str, times: int) -> None:
        self.kind, self.times = kind, times
        self.killed_ns: list[int] = []
        self._next = time.monotonic() + PAUSE_SECONDS

    def say(self, text: str) -> None:
        """See ``rayio.reporter.Reporter``."""
        self._next = time.monotonic() + PAUSE_SECONDS  # a new attempt begins

    def live(self, text: str, share: float | None = None) -> None:
        """See ``rayio.reporter.Reporter``."""
        if len(self.killed_ns) == self.times or time.monotonic() < self._next:
            return
        named = [one for one in ray.util.list_named_actors(all_namespaces=True) if one["name"].startswith(self.kind)]
        last = max(one["name"] for one in named)
        (actor,) = [one for one in named if one["name"] == last]
        pid = ray.get(ray.get_actor(**actor).ready.remote())["pid"]
        self.killed_ns.append(time.time_ns())
        os.kill(pid, signal.SIGKILL)
        self._next = time.monotonic() + PAUSE_SECONDS


def seconds(done: Run, killer: Killer) -> list[float]:
    """Return how long after each kill reading, or training, went on."""
    spans, found = done.spans(), []
    for number, killed in enumerate(killer.killed_ns):
        if killer.kind == "reader":
            mine = spans[(spans["role"] == "reader") & (spans["name"] == "read") & (spans["rank"] == 1)]
            after = (mine["start_ns"] + mine["duration_ns"])[mine["start_ns"] > killed]
        else:
            after = spans[(spans["name"] == "compute") & (spans["attempt"] == number + 1)]["start_ns"]
        found.append((after.min() - killed) / 1e9)
    return found


def of_nodes(times: int, folder: str) -> list[float]:
    """Return how long after each loss of a node training went on with the other."""
    environment = {**os.environ, "HOME": folder, "RAY_AUTH_MODE": "disabled"}
    found = []
    for number in range(times):
        command = [sys.executable, str(LOST), f"{folder}/nodes-{number}", "left"]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1])["left"]["seconds"])
    return found


def main(times: int, kinds: list[str]) -> None:
    print_machine()
    print_head("killed", "goes on after", "goal", "kills")
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            if kind == "node":
                found = of_nodes(times, folder)
            else:
                killer = Killer(kind, times)
                wanted = resolve("unet3d-small", WANTED)
                found = seconds(run(wanted, root=folder, out=kind, reporter=killer), killer)
            print_row(kind, f"{spread(found, 1)} s", f"{GOALS[kind]:.0f} s", len(found))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TIMES, sys.argv[2:] or [*GOALS])
