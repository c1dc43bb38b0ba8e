"""The speed of this machine, from the CPU time of fixed work."""

from __future__ import annotations

import time
from functools import cache

#: Additions of the fixed work, those that are made at a time, and how often: a few milliseconds.
ADDITIONS, AT_A_TIME, TIMES = 2_000_000, 20_000, 8


def fixed_work() -> float:
    """Return the CPU seconds that two million additions in Python take here, from the fastest of a few parts.

    Waiting for a core does not count: only clock rate, memory and neighbours on the core do.
    """
    return min(_part() for _ in range(TIMES)) * ADDITIONS / AT_A_TIME


@cache
def fixed_work_once() -> float:
    """Return :func:`fixed_work`, measured once in a process."""
    return fixed_work()


def _part() -> float:
    began, total = time.thread_time_ns(), 0
    for number in range(AT_A_TIME):
        total += number
    return (time.thread_time_ns() - began) / 1e9
