"""Which tests run beside which, when several processes share the suite (``pytest -n 3 --dist loadgroup``)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

#: Files that processes lock, and nothing else: all that are here anyway will do.
GATE, ROOM = Path(__file__), Path(__file__).with_name("conftest.py")


def is_shared(config: pytest.Config) -> bool:
    """Whether this process is one of several that share the suite."""
    return hasattr(config, "workerinput")


def group(item: pytest.Item) -> str | None:
    """Name the tests that one process runs, one after the other, on one Ray."""
    if item.get_closest_marker("ray") is None:
        return None
    return "clock" if item.get_closest_marker("clock") or item.get_closest_marker("alone") else "ray"


def arrange(items: list[pytest.Item]) -> None:
    """Put the tests on Ray first, which mostly wait, and each group of them into one process."""
    items.sort(key=lambda item: ("clock", "ray", None).index(group(item)))
    for item in items:
        if name := group(item):
            item.add_marker(pytest.mark.xdist_group(name))


@contextmanager
def in_turn(item: pytest.Item) -> Iterator[None]:
    """Wait until a test may run beside what runs, and hold others back while they may not run beside it."""
    if group(item) is None:
        # Only what runs on Ray looks at clocks, and in this process nothing does any more: the others come first.
        os.nice(max(0, 10 - os.nice(0)))
        yield
        return
    alone = item.get_closest_marker("alone") is not None
    with GATE.open() as gate, ROOM.open() as room:
        fcntl.flock(gate, fcntl.LOCK_EX)  # who waits to be alone holds it, so that nobody comes in before
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
