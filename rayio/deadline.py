"""Calls that may never return: made in a thread of their own, and waited for so long and no longer."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

T = TypeVar("T")

#: Calls that nobody waits for any more and that are still under way. A process that has some cannot end in order: what
#: it would wait for at its end may never come.
left_behind: set[threading.Thread] = set()


def is_anything_left() -> bool:
    """Say whether a call that was given up is still under way."""
    return any(thread.is_alive() for thread in left_behind)


def leave(code: int) -> NoReturn:
    """End this process with an exit code: in order, or at once where that would wait for a call that was given up."""
    if is_anything_left():
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)
    # Python ends itself by SIGINT where one came in a text that `exec` ran, as a dataclass is made, whoever caught it
    # since. The next text that `exec` runs has it forget that.
    exec("")
    sys.exit(code)


def within(seconds: float, call: Callable[[], T], *, look: Callable[[], None] = lambda: None, every: float = 0.5) -> T:
    """Make a call and return what it returns, or raise what it raises.

    ``look`` is called now and then meanwhile; what it raises ends the waiting.

    >>> within(10, lambda: 6 * 7)
    42

    Raises:
        TimeoutError: the call was not over within so many seconds; it goes on in its thread.
    """
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def make() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))

    thread = threading.Thread(target=make, name="rayio-deadline", daemon=True)
    ends = time.monotonic() + seconds
    left_behind.add(thread)  # before it starts: a signal may come as it does
    thread.start()
    while (left := ends - time.monotonic()) > 0:
        try:
            value, error = answers.get(timeout=min(every, left))
        except queue.Empty:
            look()
            continue
        left_behind.discard(thread)
        if error is not None:
            raise error
        return value  # type: ignore[return-value]
    raise TimeoutError
