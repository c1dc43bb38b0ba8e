"""Claims of run directories: a run has one driver, also if several processes take it up at the same time.

A claim is a file whose name says which ``run.json`` its writer has read, and whose content says who the writer is.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from secrets import token_hex
from typing import Any

from rayio.errors import StorageError
from rayio.files import parse_json
from rayio.machine.processes import is_alive
from rayio.trace.run_directory import CLAIM, INFO, RunDirectory


def itself() -> dict[str, Any]:
    """Return this process as ``run.json`` names a driver that takes a run up now."""
    return {"host": platform.node(), "pid": os.getpid(), "resumed": datetime.now(UTC).isoformat(timespec="seconds")}


def refuse_living(directory: RunDirectory) -> None:
    """Refuse a run whose driver is another process of this host.

    Raises:
        StorageError: it is alive.
    """
    info = directory.info
    if info.get("host") == platform.node() and _lives(info) and (pid := info["pid"]) != os.getpid():
        raise StorageError(f"{directory.address} is still running (pid {pid}): wait for it, or end it")


@contextmanager
def claimed(directory: RunDirectory, known: bytes | None) -> Iterator[None]:
    """Take a run up whose ``run.json`` was ``known``: inside, no other process does so, and it is still that.

    Whoever had read the same file and comes later finds another one, if it was changed inside. Claims of dead processes
    of this host do not count; they are removed.

    Raises:
        StorageError: another process does so, or did so since.
    """
    store, stem = directory.store, f"{CLAIM}{sha256(known or b'').hexdigest()[:16]}"
    own = json.dumps(itself() | {"token": token_hex(8)}).encode()
    number = 0
    while not store.create(name := f"{stem}-{number}", own):
        if (other := store.read(name)) is not None:  # else it was given up since
            _refuse_claimant(store.full(name), other)
            number += 1
    over = [name]
    try:
        earlier = [entry for entry in store.entries() if entry.startswith(CLAIM)]
        if store.read(INFO) != known:
            raise StorageError(f"{directory.address}: another process has taken up the run just now: wait for it")
        over = [*{*earlier, name}]  # of that run.json all are dead, and of an earlier one all come too late
        yield
    finally:
        for entry in over:
            store.remove(entry)


def _refuse_claimant(file: str, content: bytes) -> None:
    """Refuse a claim, unless its process was one of this host and is dead.

    Raises:
        StorageError: it is alive, or nobody here knows.
    """
    claim: dict[str, Any] = {}
    with suppress(ValueError, TypeError):  # it is being written where there are no hard links
        claim = dict(parse_json(content))
    if claim.get("host") == platform.node() and not _lives(claim):
        return
    who = f"process {claim.get('pid')} of {claim.get('host')}" if claim else "another process"
    raise StorageError(f"{who} is taking up the run: wait for it; if it is dead, remove {file}")


def _lives(info: Mapping[str, Any]) -> bool:
    """Return True if the process of this host that a file names is alive."""
    pid, started = info.get("pid"), str(info.get("resumed", info.get("started")))
    with suppress(ValueError):
        return type(pid) is int and is_alive(pid, datetime.fromisoformat(started).timestamp())
    return False
