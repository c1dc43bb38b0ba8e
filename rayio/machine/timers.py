"""Sleeps that end on time: by default Linux may delay a timer by 50 us, to combine wake-ups.

After its timer, a thread needs 30 to 80 us to get on an idle processor, more in a virtual machine.
:class:`Punctual` wakes up earlier and spins for the rest.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
import threading
import time

#: prctl(2): the delay (ns) allowed to the calling thread's timers. 1 is the least; 0 means the default, 50 us.
PR_SET_TIMERSLACK, LEAST_SLACK_NS = 29, 1

_threads = threading.local()


def sleep(seconds: float) -> None:
    """Sleep, with the least timer slack for this thread from now on."""
    if not getattr(_threads, "has_least_slack", False):
        _threads.has_least_slack = True
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, LEAST_SLACK_NS, 0, 0, 0)  # without permission: no change
    time.sleep(seconds)  # noqa: TID251 - the only sleep on the wall clock


#: Bytes that are hashed at a time: Python's lock is released meanwhile.
BURNT = bytes(1 << 16)
#: Compute ends after so many times its CPU seconds of wall time, and this many seconds more.
MOST_TIMES, MOST_MORE = 20.0, 1.0


def burn(seconds: float) -> float:
    """Use ``seconds`` of this thread's CPU time, without Python's lock, and return those used.

    It ends early where the machine is so busy that it would take many times as long.

    >>> burn(0.002) >= 0.002
    True
    """
    begin, latest = time.thread_time(), time.monotonic() + MOST_TIMES * seconds + MOST_MORE
    while (used := time.thread_time() - begin) < seconds and time.monotonic() < latest:
        hashlib.sha256(BURNT)
    return used


#: The longest spin, and its change after a late and after a punctual wake-up. The target is nine of ten punctual,
#: hence the ratio of nine.
MOST_AWAKE_NS, LATER_NS, EARLIER_NS = 200_000, 18_000, 2_000


class Punctual:
    """A thread's punctual sleeps: each wakes up earlier by the lateness of those before, then spins."""

    def __init__(self) -> None:
        self.early_ns = 0
        #: CPU time spent spinning (ns).
        self.awake_ns = 0

    def sleep_until(self, deadline: int) -> None:
        """Return at ``deadline``, a time of ``perf_counter_ns``; at once if it has passed."""
        timer = deadline - self.early_ns
        if (ahead := timer - time.perf_counter_ns()) > 0:
            sleep(ahead / 1e9)
            self.woke(timer)
        self.spin(deadline)

    def woke(self, timer: int) -> None:
        """Learn from a wake-up that was due at ``timer``."""
        late = time.perf_counter_ns() - timer
        if self.early_ns < late <= MOST_AWAKE_NS:  # later than that, the thread lacked a processor
            self.early_ns = min(self.early_ns + LATER_NS, MOST_AWAKE_NS)
        else:
            self.early_ns = max(self.early_ns - EARLIER_NS, 0)

    def spin(self, deadline: int) -> None:
        """Stay awake until ``deadline``."""
        if time.perf_counter_ns() < deadline:
            began = time.thread_time_ns()
            while time.perf_counter_ns() < deadline:
                pass
            self.awake_ns += time.thread_time_ns() - began
