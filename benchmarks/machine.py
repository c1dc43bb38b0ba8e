"""What the numbers were measured on, printed above every table."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime

import psutil
import ray

from rayio import __version__


def print_machine() -> None:
    """Print one line: processors, memory, versions, load, date."""
    memory = psutil.virtual_memory().total / 2**30
    print(
        f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, Ray {ray.__version__}, rayio {__version__}, "
        f"load {os.getloadavg()[0]:.1f}, {datetime.now(UTC):%Y-%m-%d}",
        flush=True,
    )
