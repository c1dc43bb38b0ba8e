"""Sleeps that end on time: Linux may wake a thread 50 us late, so as to wake up for several at once.

A thread whose timer went off is not on a processor yet: that takes 30 to 80 us where the processor was idle, more in a
virtual machine. Who cannot wait for that wakes up earlier, and waits for the rest awake (:class:`Punctual`).
"""

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


#: The longest that anybody waits awake, and by how much a late wake-up and one in time move that. Nine in ten are to be
#: in time, so those move it by a ninth of what the others do.
MOST_AWAKE_NS, LATER_NS, EARLIER_NS = 200_000, 18_000, 2_000


class Punctual:
    """Sleeps of one thread that end when they should: it has itself woken as much earlier as it was late before."""

    def __init__(self) -> None:
        self.early_ns = 0
        #: CPU time for which it waited awake: no work of anybody's.
        self.awake_ns = 0

    def sleep_until(self, deadline: int) -> None:
        """Return at ``deadline``, a time of ``perf_counter_ns``, or at once when that has passed."""
        timer = deadline - self.early_ns
        if (ahead := timer - time.perf_counter_ns()) > 0:
            sleep(ahead / 1e9)
            late = time.perf_counter_ns() - timer
            if self.early_ns < late <= MOST_AWAKE_NS:  # who is later than that waits for a processor, early or not
                self.early_ns = min(self.early_ns + LATER_NS, MOST_AWAKE_NS)
            else:
                self.early_ns = max(self.early_ns - EARLIER_NS, 0)
        if time.perf_counter_ns() < deadline:
            began = time.thread_time_ns()
            while time.perf_counter_ns() < deadline:
                pass
            self.awake_ns += time.thread_time_ns() - began
