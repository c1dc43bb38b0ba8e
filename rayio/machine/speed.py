"""The speed of this machine, from the CPU time of fixed work."""

from __future__ import annotations

import math
import time
from functools import cache

from rayio.machine import timers

#: Additions of the fixed work, and those of a part.
ADDITIONS, AT_A_TIME = 2_000_000, 2_000
#: Parts of a group, groups of a reading, and the pause between groups (s): neighbours on a core come and go meanwhile.
PARTS, GROUPS, PAUSE = 8, 10, 0.006
#: How often a reading that is too slow is made again, and the pause before (s).
AGAIN, PAUSE_AGAIN = 6, 0.1


def fixed_work(at_most: float = math.inf) -> float:
    """Return the CPU seconds that two million additions in Python take here, from the fastest of some short groups.

    Waiting for a core does not count: only clock rate, memory and neighbours on the core do. A reading above
    ``at_most`` (s) is made again for about a second, and the fastest counts.
    """
    fastest = _reading()
    for _ in range(AGAIN):
        if fastest <= at_most:
            break
        timers.sleep(PAUSE_AGAIN)
        fastest = min(fastest, _reading())
    return fastest


@cache
def fixed_work_once(at_most: float = math.inf) -> float:
    """Return :func:`fixed_work`, measured once in a process for each ``at_most``."""
    return fixed_work(at_most)


def _reading() -> float:
    fastest = math.inf
    for group in range(GROUPS):
        if group:
            timers.sleep(PAUSE)
        parts = sorted(_part() for _ in range(PARTS))
        fastest = min(fastest, parts[PARTS // 2])  # a clock may err in one
    return fastest * ADDITIONS / AT_A_TIME


def _part() -> float:
    began, total = time.thread_time_ns(), 0
    for number in range(AT_A_TIME):
        total += number
    return (time.thread_time_ns() - began) / 1e9
