"""Exact sleeps of the tasks of a loop. asyncio rounds its waits up to whole milliseconds.

A timer of the kernel (Linux, timerfd_create(2)) is a file that becomes readable at a time. The loop watches it as it
watches sockets, so a task wakes up some 0.1 ms late instead of up to 2 ms.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
import sys
import time
from functools import cache
from typing import Final

from rayio.machine.timers import Punctual

#: timerfd_create(2): the clock of ``perf_counter_ns``, and the flags of a file that is not waited for or inherited.
CLOCK_MONOTONIC, FLAGS = 1, os.O_NONBLOCK | os.O_CLOEXEC
#: timerfd_settime(2): the time is one of the clock, not a delay.
ABSOLUTE = 1
BILLION: Final = 1_000_000_000


class Times(ctypes.Structure):
    """``struct itimerspec``: the interval of a repeated timer (none here), and the time."""

    _fields_ = [(name, ctypes.c_long) for name in ("again", "again_ns", "seconds", "nanoseconds")]


@cache
def _library() -> ctypes.CDLL | None:
    """Return the C library; None if it has no such timers, or ``perf_counter_ns`` is another clock."""
    clock = time.get_clock_info("perf_counter").implementation
    if sys.platform != "linux" or clock != "clock_gettime(CLOCK_MONOTONIC)":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "timerfd_create") else None


class Alarm:
    """The sleeps of the tasks of one loop; not for other threads. With ``punctual`` its wake-ups are on time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, punctual: Punctual | None = None) -> None:
        self.loop, self.punctual = loop, punctual
        self._waits: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = 0
        #: The deadline that the timer is set for, and its time (ns); None if it is not set.
        self._next: int | None = None
        self._due = 0
        #: -1 without such timers.
        self._timer = -1
        if (library := _library()) is not None and (timer := library.timerfd_create(CLOCK_MONOTONIC, FLAGS)) >= 0:
            self._timer = timer
            loop.add_reader(timer, self._ring)

    async def sleep_until(self, deadline: int) -> None:
        """Return at ``deadline``, a time of ``perf_counter_ns``; at once if it has passed."""
        if (ahead := deadline - time.perf_counter_ns()) <= 0:
            return
        if self._timer < 0:
            await asyncio.sleep(ahead / BILLION)
            return
        woken = self.loop.create_future()
        self._number += 1
        heapq.heappush(self._waits, (deadline, self._number, woken))
        self._set()
        await woken

    def _ring(self) -> None:
        """Wake up the tasks whose time has come. To set the timer makes it unreadable, so nothing is read."""
        if self._next is None or time.perf_counter_ns() < self._due:  # set anew meanwhile
            return
        if self.punctual is not None:
            self.punctual.woke(self._due)
            if self._waits[0][0] - time.perf_counter_ns() <= self.punctual.early_ns:
                self.punctual.spin(self._waits[0][0])
        now = time.perf_counter_ns()
        while self._waits and self._waits[0][0] <= now:
            woken = heapq.heappop(self._waits)[2]
            if not woken.done():  # cancelled
                woken.set_result(None)
        self._next = None
        self._set()

    def _set(self) -> None:
        """Set the timer for the next deadline, or to none."""
        following = self._waits[0][0] if self._waits else None
        if following is not None and following == self._next:
            return
        self._next, self._due = following, 0
        if following is not None:
            self._due = following - (0 if self.punctual is None else self.punctual.early_ns)
        library = _library()
        assert library is not None
        library.timerfd_settime(self._timer, ABSOLUTE, ctypes.byref(Times(0, 0, *divmod(self._due, BILLION))), None)

    def close(self) -> None:
        """Close the timer; nothing sleeps any more."""
        timer, self._timer = self._timer, -1
        if timer >= 0:
            if not self.loop.is_closed():
                self.loop.remove_reader(timer)
            os.close(timer)

    def __del__(self) -> None:
        self.close()
