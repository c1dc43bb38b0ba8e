"""Processes that the kernel killed because memory ran out."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

#: The kernel's counters; ``oom_kill`` also counts kills within a container's limit.
COUNTERS = Path("/proc/vmstat")


def oom_kills(counters: Path = COUNTERS) -> int | None:
    """Return the number of processes that the kernel killed for memory since boot; None if it does not count them."""
    with suppress(OSError, ValueError):
        for line in counters.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def why_killed(before: int | None, now: int | None) -> str:
    """Return the cause of a process's SIGKILL, from :func:`oom_kills` before and after it.

    >>> why_killed(3, 3), why_killed(3, 4), why_killed(None, None)
    ('killed', 'killed by the kernel: out of memory', 'killed, or out of memory')
    """
    if before is None or now is None:
        return "killed, or out of memory"
    return "killed" if now == before else "killed by the kernel: out of memory"
