"""One clock per host: an anchor that turns ``perf_counter_ns``, common to all its processes, into time of day."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import psutil

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Name this boot of this host; processes with equal names share ``perf_counter_ns``."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return f"booted-{psutil.boot_time():.0f}"


@dataclass(frozen=True, slots=True)
class Anchor:
    """What to add to ``perf_counter_ns`` on one boot of one host to get nanoseconds since the Unix epoch."""

    boot_id: str
    ns: int

    @classmethod
    def new(cls) -> Anchor:
        """Read both clocks of this host once."""
        return cls(boot_id(), time.time_ns() - time.perf_counter_ns())

    def here(self) -> Anchor:
        """Give this anchor where it holds, else one of this host."""
        return self if self.boot_id == boot_id() else Anchor.new()
