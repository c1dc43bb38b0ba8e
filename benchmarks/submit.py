"""What ``rayio submit`` adds to a job: the same one-step run, submitted by it and by ``ray job submit``, in turn.

A Ray head with its dashboard is started for it, so it needs ``pip install 'rayio[cluster]'``. Goal: <= 1.3 x.
``python benchmarks/submit.py 9`` for nine rounds (5).
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from machine import print_machine
from side import in_turn, print_head, print_row, spread

ROUNDS = 5
HEAD = Path(__file__).parents[1] / "tests" / "head.py"
#: A run of one step of one rank; storage is a model, so that nothing is generated.
SCENARIO = """\
extends: unet3d-small
name: one-step
cluster: {ranks_per_node: 1}
dataset: {path: "model://none"}
loader: {num_workers: 1}
train: {epochs: 1, steps: 1, compute: 10 ms}
checkpoint: none
"""


@contextmanager
def head(home: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A cluster of one node with a dashboard; give its address, and the environment of its clients."""
    bins = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "HOME": home, "RAY_AUTH_MODE": "disabled", "PATH": bins}
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        environment.pop(name, None)
    with subprocess.Popen(
        [sys.executable, str(HEAD)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address = process.stdout.readline().partition(" ")[0].strip()
        if not address:
            raise SystemExit("the head did not start")
        try:
            yield address, environment
        finally:
            process.stdin.close()


def timed(command: list[str], environment: dict[str, str], folder: str) -> Callable[[], tuple[float, float]]:
    """A side of the comparison: the seconds that a command takes, and the CPU seconds of its client."""

    def once() -> tuple[float, float]:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
        seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return once


def main() -> None:
    if find_spec("aiohttp") is None:
        raise SystemExit("submit.py: needs Ray's dashboard: pip install 'rayio[cluster]'")
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    print_machine()
    with tempfile.TemporaryDirectory(prefix="rayio-bench-") as home, head(home) as (address, environment):
        folder = Path(home, "work")
        folder.mkdir()
        (folder / "one.yaml").write_text(SCENARIO)
        entrypoint = f"python -m rayio run one.yaml --json --root {home}"
        ray = [sys.executable, "-m", "ray.scripts.scripts"]
        mine = [sys.executable, "-m", "rayio", "submit", "one.yaml", "--address", address, "--root", home]
        theirs = [*ray, "job", "submit", "--address", address, "--working-dir", ".", "--", *entrypoint.split()]
        sides = {
            "ray job submit": timed(theirs, environment, str(folder)),
            "rayio submit": timed(mine, environment, str(folder)),
            "rayio submit --installed": timed([*mine, "--installed"], environment, str(folder)),
        }
        for side in sides.values():  # the first submission uploads the wheel, and makes environments
            side()
        found = in_turn(sides, rounds)
    usual = median(seconds for seconds, _ in found["ray job submit"])
    print_head("submitted by", "seconds", "x", "CPU s of the client")
    for name, times in found.items():
        seconds = [one for one, _ in times]
        print_row(name, spread(seconds, 1), f"{median(seconds) / usual:.2f}", spread([cpu for _, cpu in times], 1))


if __name__ == "__main__":
    main()
