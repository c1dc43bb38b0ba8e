"""CPU seconds as the kernel counts them: of a process of this host, by its number."""

from __future__ import annotations

import os
from pathlib import Path


def parse_stat(text: str, ticks_per_second: int) -> float | None:
    """Read from ``/proc/<pid>/stat`` the seconds that a process has worked for itself and in the kernel.

    >>> parse_stat("7 (a (b) c) S 1 7 7 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 1 0 8 0 0", 100)
    2.0
    """
    fields = text.rpartition(")")[2].split()
    if len(fields) < 13 or not (fields[11].isdigit() and fields[12].isdigit()):
        return None
    return (int(fields[11]) + int(fields[12])) / ticks_per_second


def cpu_seconds_of(pid: int) -> float | None:
    """The CPU seconds of a process so far; None where the kernel does not say."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text(errors="replace"), os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError):
        return None
