"""The order of tests when several processes share the suite (``pytest -n 4``)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


def is_shared(config: pytest.Config) -> bool:
    """Whether this process is one of several that share the suite."""
    return hasattr(config, "workerinput")


#: What takes seconds to load, to start or to read, and stays for the rest of a process: a module, or a session's
#: fixture. The tests that need it are one process's.
COSTLY = ("test_torch", "s3_server", "rayio_commands", "test_architecture", "site")
#: Tests that read what those of another file have parsed.
READS_SOURCES = (
    "test_nothing_in_rayio_runs_what_a_file_holds", "test_messages_that_are_explained_are_those_that_are_printed",
)  # fmt: skip
#: Kinds whose laws need one of these.
COSTLY_KINDS = {"s3": "s3_server", "torch": "test_torch"}
#: Groups in the order in which they begin.
ORDER = ("ray", *COSTLY)


def group(item: pytest.Item) -> str | None:
    """Name the tests that one process runs, one after the other: on one Ray, or with the same costly thing.

    So are those of a file that share what it makes once.
    """
    if item.get_closest_marker("ray") is not None:
        return "ray"
    needed = {item.path.stem, *getattr(item, "fixturenames", ())}
    if item.path.parent.name == "laws":
        chosen = getattr(getattr(item, "callspec", None), "params", {}).values()
        needed |= {COSTLY_KINDS[kind] for kind in chosen if isinstance(kind, str) and kind in COSTLY_KINDS}
    if item.nodeid.endswith(READS_SOURCES):
        needed.add("test_architecture")
    file = item.nodeid.partition("::")[0]
    shared = f"{file}, shared" if any(made_once(item, file)) else None
    return next((name for name in COSTLY if name in needed), shared)


def made_once(item: pytest.Item, file: str) -> Iterator[str]:
    """Find what a file makes once for several of its tests, of which this is one."""
    known = getattr(item, "_fixtureinfo", None)
    for name, made in known.name2fixturedefs.items() if known is not None else ():
        if made[-1].scope == "module" and made[-1].baseid == file:
            yield name


def arrange(items: list[pytest.Item]) -> dict[str, str]:
    """Put the tests on Ray first, which mostly wait, then other groups; say which group each test is in."""
    groups = {item.nodeid: name for item in items if (name := group(item))}
    items.sort(key=lambda item: _place(groups.get(item.nodeid)))
    return groups


def _place(name: str | None) -> int:
    return len(ORDER) + (name is None) if name not in ORDER else ORDER.index(name)


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

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forget what is done: xdist looks through all that a process was ever given, after every test."""
        super().mark_test_complete(node, item_index, duration)
        given = self.assigned_work[node]
        scope = self._split_scope(self.registered_collections[node][item_index])
        if all(given[scope].values()):
            del given[scope]

    def _split_scope(self, nodeid: str) -> str:
        return self.groups.get(nodeid, nodeid)


def yield_to_ray(item: pytest.Item) -> None:
    """Let the tests on Ray come first: only they look at clocks, and in this process none of them follows."""
    if item.get_closest_marker("ray") is None:
        os.nice(max(0, 5 - os.nice(0)))
