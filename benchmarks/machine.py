"""What the numbers were measured on, printed above every table, and how fast it is at the moment."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

import psutil
import ray

from rayio import __version__

T = TypeVar("T")

#: What every core is given at once, in a process of its own; it prints the seconds that it took.
FIXED_WORK = """
import time
began = time.perf_counter()
total = 0
for number in range(2_000_000):
    total += number
print(time.perf_counter() - began)
"""


def print_machine() -> None:
    """Print one line: processors, memory, versions, load, date."""
    memory = psutil.virtual_memory().total / 2**30
    print(
        f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, Ray {ray.__version__}, rayio {__version__}, "
        f"load {os.getloadavg()[0]:.1f}, fixed work {1000 * fixed_work():.0f} ms, {datetime.now(UTC):%Y-%m-%d}",
        flush=True,
    )


def fixed_work() -> float:
    """The seconds that two million additions in Python take while every core does them: hosts that are shared vary."""
    command = [sys.executable, "-c", FIXED_WORK]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(os.cpu_count() or 1)]
    return statistics.mean(float(one.communicate()[0]) for one in started)


def at_a_speed(make: Callable[[], T], wanted: float | None, within: float, tries: int) -> tuple[T, float]:
    """Do something while fixed work takes about ``wanted`` seconds, before it and after it; give that time too.

    What was made at another speed is made again, so often that it was made ``tries`` times; then the nearest counts.
    Without ``wanted`` it is made once.
    """
    made: list[tuple[float, T, float]] = []
    before = fixed_work()
    while True:
        done, after = make(), fixed_work()
        speeds = (before, after)
        wrong = 0.0 if wanted is None else max(abs(speed / wanted - 1) for speed in speeds)
        made.append((wrong, done, statistics.mean(speeds)))
        if wrong <= within or len(made) == tries:
            _, nearest, speed = min(made, key=lambda one: one[0])
            return nearest, speed
        before = after
