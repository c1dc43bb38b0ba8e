"""How long a user waits: for help, for a check, for the first training step; and what the processes of a run weigh.

Every command is a process of its own, as a user starts it. Goals: ``--help`` and ``validate`` <= 0.5 s, first step on
a local Ray <= 20 s, on the local engine <= 2 s, the whole quickstart (installed) <= 60 s.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from machine import print_machine

from rayio.session import Run

REPEATS = 3


def rayio(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "rayio", *arguments)


def timed(command: tuple[str, ...], cwd: str, samples: list[float] | None = None) -> float:
    """Run a command to its end; give its seconds, and add up the memory (PSS) of its processes while it runs."""
    began = time.time()
    environment = {**os.environ, "HOME": cwd}
    with subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        while samples is not None and process.poll() is None:
            samples.append(_memory(process.pid))
            time.sleep(0.5)
        process.wait()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return time.time() - began


def _memory(pid: int) -> float:
    total = 0
    try:
        parent = psutil.Process(pid)
        for one in [parent, *parent.children(recursive=True)]:
            try:
                total += one.memory_full_info().pss
            except psutil.Error:
                continue
    except psutil.Error:
        pass
    return total / 2**30


def first_step(engine: str, root: str, number: int) -> tuple[float, float, float]:
    """Give the seconds from the command to the end of the first step, to the end of all, and the most memory (GiB)."""
    out = Path(root) / "runs" / f"{engine}-{number}"
    samples: list[float] = []
    began = time.time()
    whole = timed(rayio("run", "unet3d-small", "--engine", engine, "--root", root, "--out", str(out)), root, samples)
    spans = Run.open(out).spans()
    compute = spans[spans["name"] == "compute"]
    ends = (compute["start_ns"] + compute["duration_ns"]).groupby(compute["rank"]).min()
    assert json.loads((out / "result.json").read_text())["exit_code"] == 0
    return float(ends.max()) / 1e9 - began, whole, max(samples)


def main() -> None:
    print_machine()
    with tempfile.TemporaryDirectory(prefix="rayio-bench-") as root:
        print(f"{'command':<34}{'seconds':>9}")
        for arguments in (("--help",), ("validate", "unet3d-small")):
            median = statistics.median(timed(rayio(*arguments), root) for _ in range(5))
            print(f"rayio {' '.join(arguments):<28}{median:>9.2f}")
        quick = timed(rayio("run", "unet3d-small", "--root", root), root)
        print(f"{'quickstart (generates, then runs)':<34}{quick:>9.2f}")
        print(f"\n{'engine':<8}{'first step s':>14}{'whole run s':>13}{'memory GiB':>12}")
        for engine in ("local", "ray"):
            rows = [first_step(engine, root, number) for number in range(REPEATS)]
            first, whole, memory = (statistics.median(column) for column in zip(*rows, strict=True))
            print(f"{engine:<8}{first:>14.2f}{whole:>13.2f}{memory:>12.2f}", flush=True)


if __name__ == "__main__":
    main()
