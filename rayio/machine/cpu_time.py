"""CPU seconds of processes on this host, as the kernel counts them."""

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
