"""Sleeps that end on time: Linux may wake a thread 50 us late, so as to wake up for several at once."""

from __future__ import annotations

import ctypes
import sys
import threading
import time

#: prctl(2): by how many nanoseconds the calling thread's timers may be late. 1 is the least, 0 the default of 50 us.
PR_SET_TIMERSLACK, LEAST_SLACK_NS = 29, 1

_told = threading.local()


def sleep(seconds: float) -> None:
    """Sleep, and have this thread's sleeps end as early as they can from now on."""
    if not getattr(_told, "is_told", False):
        _told.is_told = True
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, LEAST_SLACK_NS, 0, 0, 0)  # who may not sleeps as before
    time.sleep(seconds)  # noqa: TID251 - the one place where a kernel sleeps
