"""What is no file and has a file's name: made for a test, which then fails where it would have waited for ever."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Seconds after which whoever waits for a pipe's other end is let go, and the test fails.
PATIENCE = 120.0


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        here = os.open(path.parent, os.O_RDONLY)  # the name of a socket has room for 107 characters
        try:
            one.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _folder(path: Path) -> None:
    path.mkdir()


#: What each is called, and how it is made.
KINDS: dict[str, Callable[[Path], None]] = {
    "named pipe": _pipe,
    "socket": _socket,
    "device": _device,
    "folder": _folder,
}


@contextmanager
def in_place_of(path: Path, kind: str) -> Iterator[None]:
    """Have such a thing where a file is, if there is one; fail when somebody waits for it."""
    if path.exists():
        path.unlink()
    KINDS[kind](path)
    waited = threading.Event()

    def let_go() -> None:
        waited.set()
        with suppress(OSError):
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))

    guard = threading.Timer(PATIENCE, let_go)
    guard.start()
    try:
        yield
    finally:
        guard.cancel()
        guard.join()
    assert not waited.is_set(), f"somebody waited for the {kind} {path}"
