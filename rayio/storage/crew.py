"""Threads that make requests: started on demand, kept for a while."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

#: Seconds after which an idle thread ends.
IDLE_SECONDS = 5.0


class Crew:
    """Up to ``most`` daemon threads, started on demand; an idle one ends."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        #: Threads, and how many of them wait for work.
        self._threads = self._idle = 0
        self._process = os.getpid()

    def call(self, work: Callable[[], None], number: int) -> None:
        """Call ``work`` in ``number`` threads."""
        if self._process != os.getpid():  # threads do not survive a fork
            self.__init__(self.most)  # type: ignore[misc]
        with self._lock:
            new = min(max(0, number - self._idle), self.most - self._threads)
            self._threads += new
            self._idle += new - number
        for _ in range(number):
            self._work.put(work)
        for _ in range(new):
            threading.Thread(target=self._serve, name="rayio-request", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                work = self._work.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._idle > 0:
                        self._threads, self._idle = self._threads - 1, self._idle - 1
                        return
                continue
            work()
            del work  # keeps nothing of a batch until the next
            with self._lock:
                self._idle += 1
