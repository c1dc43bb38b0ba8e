"""What ends a command from outside."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import NoReturn

#: Exit code of a command that was interrupted.
INTERRUPTED = 130


def interruptible() -> None:
    """Have SIGTERM (``ray job stop``, a pod's end) end a command as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let a Ctrl-C be without effect, where signals can be had."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
