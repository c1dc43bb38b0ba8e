"""CPU time of processes, and the busy share of processors, of this host, as the kernel counts them."""

from __future__ import annotations

import os
from pathlib import Path


def parse_stat(text: str, ticks_per_second: int) -> float | None:
    """Return a process's CPU seconds, user and system, from the text of ``/proc/<pid>/stat``.

    >>> parse_stat("7 (a (b) c) S 1 7 7 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 1 0 8 0 0", 100)
    2.0
    """
    fields = text.rpartition(")")[2].split()
    if len(fields) < 13 or not (fields[11].isdigit() and fields[12].isdigit()):
        return None
    return (int(fields[11]) + int(fields[12])) / ticks_per_second


def cpu_seconds_of(pid: int) -> float | None:
    """Return a process's CPU seconds so far; None if unknown."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text(errors="replace"), os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError):
        return None


class Busy:
    """A meter of this machine's busy processors, from its creation on."""

    def __init__(self) -> None:
        self._before = processor_times()

    @property
    def share(self) -> float | None:
        """The busy share of all processors' time, 0 to 1; None if unknown."""
        after = processor_times()
        if not self._before or not after or (total := after[1] - self._before[1]) <= 0:
            return None
        return (after[0] - self._before[0]) / total


def processor_times(path: Path = Path("/proc/stat")) -> tuple[int, int] | None:
    """Return the busy ticks and all ticks of this machine's processors since boot; None if unknown."""
    try:
        ticks = [int(word) for word in path.read_text("ascii").partition("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    idle = sum(ticks[3:5])  # idle, and waiting for devices
    return (sum(ticks) - idle, sum(ticks)) if len(ticks) >= 5 else None
