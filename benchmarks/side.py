"""The two sides of a comparison: a run of rayio, and a PyTorch script (``torch_script.py``) over the same files."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import rayio
from rayio.engines.ray.cluster.connect import connect
from rayio.scenario.load import build

#: Both sides compute with one thread a process, as PyTorch's workers do.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}

T = TypeVar("T")


@dataclass(frozen=True)
class Rate:
    """What a rank got between its first batch and its last, and the CPU seconds of all processes that took part."""

    batches: int
    nbytes: int
    seconds: float
    cpu_seconds: float

    @property
    def batches_per_second(self) -> float:
        """Batches per second."""
        return self.batches / self.seconds

    @property
    def megabytes_per_second(self) -> float:
        """Bytes per microsecond."""
        return self.nbytes / self.seconds / 1e6

    @property
    def cpu_milliseconds(self) -> float:
        """CPU time per batch."""
        return 1000 * self.cpu_seconds / self.batches


def on_ray(wanted: dict[str, Any], root: str) -> Rate:
    """Run a rank on Ray; the times are those of its own spans.

    The CPU time is that of the run's actors and of Ray's node process, from the first work of each on.
    """
    run = rayio.run(build(wanted), root=root)
    if run.exit_code:
        raise SystemExit(f"the run ended with {run.exit_code}: {run.result['error']}")
    spans = run.spans()
    waits = spans[spans["name"] == "data_wait"].sort_values("start_ns")
    ends = waits["start_ns"] + waits["duration_ns"]
    cpu = json.loads(Path(run.path, "run.json").read_text())["cpu_seconds"]
    return Rate(
        len(waits) - 1, int(waits["bytes"].iloc[1:].sum()), float(ends.iloc[-1] - ends.iloc[0]) / 1e9,
        sum(cpu["roles"].values()) + cpu["nodes"],
    )  # fmt: skip


def on_torch(wanted: dict[str, Any], root: str, reader: str) -> dict[str, Any]:
    """Run the PyTorch script on a scenario; give what it prints."""
    loader, train, dataset = wanted["loader"], wanted["train"], wanted["dataset"]
    told = {
        "folder": str(Path(root, dataset["path"])), "seed": build(wanted).seed, "reader": reader,
        "ranks": wanted["cluster"]["ranks_per_node"], "batch": loader["batch_size"], "workers": loader["num_workers"],
        "prefetch": loader["prefetch_factor"], "epochs": train["epochs"], "steps": train.get("steps"),
        "compute": train["compute"],
    }  # fmt: skip
    command = [sys.executable, str(Path(__file__).with_name("torch_script.py")), json.dumps(told)]
    done = subprocess.run(command, env=os.environ | ONE_THREAD, stdout=subprocess.PIPE, text=True, check=True)
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def rate_on_torch(wanted: dict[str, Any], root: str, reader: str) -> Rate:
    """Run the PyTorch script on a scenario of one rank; the CPU time is that of the rank and its workers."""
    said = on_torch(wanted, root, reader)
    return Rate(int(said["batches"]), int(said["bytes"]), said["seconds"], said["cpu_seconds"])


def in_turn(sides: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Run every side in every round, so that a busy machine is busy for all; every other round backwards."""
    found: dict[str, list[T]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides)[:: -1 if number % 2 else 1]:
            found[name].append(sides[name]())
    return found


def spread(values: list[float], digits: int = 0) -> str:
    """The median of some values, with the least and the largest of them: ``1532 (1490 to 1601)``."""
    middle, least, most = (f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({least} to {most})"


def print_row(*cells: object) -> None:
    """Print a row of a table, as Markdown, at once."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def print_head(*cells: str) -> None:
    """Print the head of a table."""
    print_row(*cells)
    print("|" + "---|" * len(cells), flush=True)


@contextmanager
def memory_alone() -> Iterator[str]:
    """Give a folder in memory, without a Ray."""
    os.environ.update(ONE_THREAD)
    with tempfile.TemporaryDirectory(prefix="rayio-bench-", dir="/dev/shm") as root:
        yield root


@contextmanager
def memory_and_ray() -> Iterator[str]:
    """Give a folder in memory, with a local Ray around it that all runs share: one as rayio starts for itself."""
    with memory_alone() as root:
        local = connect(None, Path(root, "ray.log"))
        try:
            yield root
        finally:
            local.close()
