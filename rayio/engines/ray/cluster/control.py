"""Whether a Ray cluster is still there: its control process (GCS) is knocked at, and calls that need it have deadlines.

Actors talk to each other without it. But nothing starts or ends any more once it is gone, Ray's own calls wait a
minute for it, and then Ray ends the process that made them.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from rayio.errors import ClusterError
from rayio.signals import within

#: Seconds between two knocks, and that one may take.
KNOCK_SECONDS = 1.0
#: It is gone when nobody has answered so many knocks in a row, for so many seconds.
GONE_KNOCKS, GONE_SECONDS = 3, 4.0
#: Seconds that what is left of a cluster gets to answer once its control process is gone.
LAST_SECONDS = 3.0
#: Seconds within which a control process that is well answers.
ANSWER_SECONDS = 5.0


class Control:
    """The control process of the cluster at an address, ``host:port``; ``logs`` is where it keeps its logs."""

    def __init__(self, address: str, logs: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.address = address
        self.logs = logs
        self._clock = clock
        self._knocked = -KNOCK_SECONDS
        #: Since when nobody has answered, how often, and why.
        self._missing_since = 0.0
        self._missed = 0
        self._why = ""
        self.is_gone = False
        #: Whether it did not do its work when it was last asked to.
        self.is_silent = False

    def knock(self) -> None:
        """Look whether somebody answers, at most once a second."""
        now = self._clock()
        if self.is_gone or now - self._knocked < KNOCK_SECONDS:
            return
        self._knocked = now
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS).close()
        except OSError as error:
            self._missing_since = now if not self._missed else self._missing_since
            self._missed += 1
            self._why = error.strerror or str(error)
            self.is_gone = self._missed >= GONE_KNOCKS and now - self._missing_since >= GONE_SECONDS
        else:
            self._missed = 0

    def look(self) -> None:
        """Knock.

        Raises:
            ClusterError: it is gone.
        """
        self.knock()
        if self.is_gone:
            raise ClusterError(
                f"Ray's control process (GCS) at {self.address} is gone ({self._why}): the run is over, what was "
                f"collected is in the run directory; Ray's logs are in {self.logs}"
            )

    def patience(self, seconds: float) -> float:
        """How long to wait for a call that needs it: not long where it does not do its work, as one that is stopped."""

        def give_up_soon() -> None:
            self.knock()
            if self._missed:
                raise TimeoutError

        if not (self.is_gone or self.is_silent):
            try:
                within(ANSWER_SECONDS, ray.nodes, look=give_up_soon)
            except Exception:
                self.is_silent = True
        return LAST_SECONDS if self.is_gone or self.is_silent else seconds

    def answers(self, references: Sequence[Any], seconds: float) -> list[Any]:
        """Wait for calls to actors as long as there is hope; give the references of those that were answered."""
        waiting, ready, ends = list(references), [], self._clock() + seconds
        was_gone = False
        while waiting and (now := self._clock()) < ends:
            if self.is_gone and not was_gone:
                was_gone, ends = True, min(ends, now + LAST_SECONDS)
            done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=min(ends - now, KNOCK_SECONDS))
            ready += done
            self.knock()
        return ready
