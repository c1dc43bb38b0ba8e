"""What ends a command from outside."""

from __future__ import annotations

import signal
from typing import NoReturn

#: Exit code of a command that was interrupted.
INTERRUPTED = 130


def interruptible() -> None:
    """Have SIGTERM (``ray job stop``, a pod's end) end a command as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
