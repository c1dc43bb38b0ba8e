"""Processes of this host."""

from __future__ import annotations

from contextlib import suppress

import psutil


def is_alive(pid: int, started: float) -> bool:
    """Return True if a process of this host that existed at a time (seconds since the Unix epoch) has not ended."""
    with suppress(psutil.Error, ValueError):
        process = psutil.Process(pid)
        return process.create_time() <= started + 1 and process.status() != psutil.STATUS_ZOMBIE
    return False
