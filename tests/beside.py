"""Which tests run beside which, when several processes share the suite (``pytest -n 3``)."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

#: Files that processes lock, and nothing else: all that are here anyway will do.
GATE, ROOM = Path(__file__), Path(__file__).with_name("conftest.py")


def is_shared(config: pytest.Config) -> bool:
    """Whether this process is one of several that share the suite."""
    return hasattr(config, "workerinput")


#: What takes seconds to load or to start, and stays for the rest of a process: a module, or a session's fixture. The
#: tests that need it are one process's.
COSTLY = ("test_torch", "s3_server", "rayio_commands")
#: Groups in the order in which they begin.
ORDER = ("ray", *COSTLY)


def group(item: pytest.Item) -> str | None:
    """Name the tests that one process runs, one after the other: on one Ray, or with the same costly thing."""
    if item.get_closest_marker("ray") is not None:
        return "ray"
    needed = {item.path.stem, *getattr(item, "fixturenames", ())}
    return next((name for name in COSTLY if name in needed), None)


def arrange(items: list[pytest.Item]) -> dict[str, str]:
    """Put the tests on Ray first, which mostly wait, then other groups; say which group each test is in."""
    items.sort(key=lambda item: (*ORDER, None).index(group(item)))
    return {item.nodeid: name for item in items if (name := group(item))}


class InGroups(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each group to one process, and the other tests one by one to whoever has nothing to do.

    Processes find the groups as they collect, and leave them in a file.
    """

    def __init__(self, config: pytest.Config, log: Any, said: Path) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self.said = said

    @cached_property
    def groups(self) -> dict[str, str]:
        """Groups by test, once everybody has collected."""
        found: dict[str, str] = json.loads(self.said.read_text())
        return found

    def _split_scope(self, nodeid: str) -> str:
        return self.groups.get(nodeid, nodeid)


@contextmanager
def in_turn(item: pytest.Item) -> Iterator[None]:
    """Wait until a test may run beside what runs, and hold others back while they may not run beside it."""
    if item.get_closest_marker("ray") is None:
        # Only what runs on Ray looks at clocks, and in this process nothing does any more: the others come first.
        os.nice(max(0, 5 - os.nice(0)))
        yield
        return
    alone = item.get_closest_marker("alone") is not None
    with GATE.open() as gate, ROOM.open() as room:
        fcntl.flock(gate, fcntl.LOCK_EX)  # who waits to be alone holds it, so that nobody comes in before
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
