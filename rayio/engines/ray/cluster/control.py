"""Liveness of a Ray cluster: connections to its control process (GCS), and deadlines for calls that need it.

Actors talk to each other without the GCS. But without it nothing starts or ends, Ray's calls wait a minute, and then
Ray ends the calling process.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import ray

from rayio.engines.ray.cluster.address import host_port
from rayio.engines.ray.cluster.pulse import Pulse
from rayio.errors import ClusterError
from rayio.signals import within
from rayio.units import format_seconds

#: Seconds between two connections, and the timeout of one.
KNOCK_SECONDS = 1.0
#: The GCS is gone after this many failed connections in a row, over at least this many seconds.
GONE_KNOCKS, GONE_SECONDS = 3, 4.0
#: Seconds that a cluster without its GCS gets to answer.
LAST_SECONDS = 3.0
#: Seconds within which a healthy GCS answers.
ANSWER_SECONDS = 5.0


#: The name of the control process in a :class:`Pulse`.
GCS = "Ray's control process (GCS)"


def raylet(host: str, node_id: str) -> str:
    """Return the name of a node's raylet in a :class:`Pulse`.

    >>> raylet("a", "0123456789")
    "Ray's raylet on a (node 01234567)"
    """
    return f"Ray's raylet on {host} (node {node_id[:8]})"


def is_of(name: str, node_id: str) -> bool:
    """Return True if a name in a :class:`Pulse` is that of a node's raylet."""
    return f"(node {node_id[:8]})" in name


class Control:
    """The control process of the cluster at ``address`` (``host:port``); ``logs`` is the folder of its logs.

    ``pulse`` has the signs of life of it and of all raylets, ``own`` is the name of the raylet of this process's node.
    """

    def __init__(
        self,
        address: str,
        logs: str,
        clock: Callable[[], float] = time.monotonic,
        pulse: Pulse | None = None,
        own: str = "",
    ) -> None:
        self.address = address
        self.logs = logs
        self.pulse = Pulse({}) if pulse is None else pulse
        self.own = own
        #: The names of processes that a run cannot do without: workers of other nodes are replaced.
        self.essential = {GCS, own}
        #: Seconds of silence of one of Ray's processes that end a run: ``cluster.stall_deadline``.
        self.deadline = float("inf")
        self._clock = clock
        self._knocked = -KNOCK_SECONDS
        #: Time of the first failed connection, their number and reason.
        self._missing_since = 0.0
        self._missed = 0
        self._why = ""
        self.is_gone = False
        #: True if it did not answer the last request.
        self.is_silent = False

    def need(self, nodes: Collection[str]) -> None:
        """Count the raylets of some Ray nodes to the processes that a run cannot do without."""
        self.essential |= {name for name in self.pulse.addresses if any(is_of(name, node) for node in nodes)}

    def knock(self) -> None:
        """Test the connection, at most once a second."""
        now = self._clock()
        if self.is_gone or now - self._knocked < KNOCK_SECONDS:
            return
        self._knocked = now
        host, port = host_port(self.address)
        try:
            socket.create_connection((host, int(port)), timeout=KNOCK_SECONDS).close()
        except OSError as error:
            self._missing_since = now if not self._missed else self._missing_since
            self._missed += 1
            self._why = error.strerror or str(error)
            self.is_gone = self._missed >= GONE_KNOCKS and now - self._missing_since >= GONE_SECONDS
        else:
            self._missed = 0

    def look(self) -> None:
        """Test the connection, and the signs of life.

        Raises:
            ClusterError: the GCS is gone, or one of Ray's processes is silent beyond the deadline.
        """
        self.knock()
        silent, seconds = self.pulse.longest(self.essential)
        if seconds >= self.deadline:
            raise ClusterError(
                f"{silent} has not answered for {seconds:.0f} s (cluster.stall_deadline="
                f"{format_seconds(self.deadline)}): the run is over; its spans are in the run directory; Ray's logs "
                f"are in {self.logs}"
            )
        if self.is_gone:
            raise ClusterError(
                f"Ray's control process (GCS) at {self.address} is gone ({self._why}): the run is over; its spans "
                f"are in the run directory; Ray's logs are in {self.logs}"
            )

    def patience(self, seconds: float) -> float:
        """Return the seconds to wait for a call that needs the GCS; few if it is unresponsive."""

        def give_up_soon() -> None:
            self.knock()
            if self._missed:
                raise TimeoutError

        if any(self.pulse.silence(name) for name in (GCS, self.own)):
            self.is_silent = True
        if not (self.is_gone or self.is_silent):
            try:
                within(ANSWER_SECONDS, ray.nodes, look=give_up_soon)
            except Exception:
                self.is_silent = True
        return LAST_SECONDS if self.is_gone or self.is_silent else seconds

    def answers(self, references: Sequence[Any], seconds: float) -> list[Any]:
        """Wait for calls to actors while the cluster lives; return the references of answered calls."""
        waiting, ready, ends = list(references), [], self._clock() + seconds
        was_gone = False
        while waiting and (now := self._clock()) < ends:
            if self.is_gone and not was_gone:
                was_gone, ends = True, min(ends, now + LAST_SECONDS)
            done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=min(ends - now, KNOCK_SECONDS))
            ready += done
            self.knock()
        return ready
