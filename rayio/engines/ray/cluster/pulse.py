"""Signs of life of Ray's own processes: its control process (GCS), and the raylet of each node.

Actors talk to each other without them, so a run can go on for a minute while one is stopped. Both serve HTTP/2, whose
server answers the client's first bytes at once. A stopped process does not: its connections only wait.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum

from rayio.engines.ray.cluster.address import host_port

#: The first bytes of an HTTP/2 client: its preface, and settings without content.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
#: Seconds between two rounds, and for an answer.
EVERY_SECONDS, ANSWER_SECONDS = 2.0, 2.0


class Sign(Enum):
    """The reaction of a process to a connection."""

    ANSWERED = 1
    REFUSED = 2
    SILENT = 3


def ring(addresses: Iterable[str], seconds: float = ANSWER_SECONDS) -> dict[str, Sign]:
    """Connect to addresses (``host:port``) at once, and return the reaction of each within some seconds."""
    signs = dict.fromkeys(addresses, Sign.SILENT)
    ends = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for address in signs:
            try:
                selector.register(_begun(address), selectors.EVENT_WRITE, address)
            except OSError:  # no such host, or no more sockets here: nothing is known of the process
                signs[address] = Sign.ANSWERED
        try:
            while (left := ends - time.monotonic()) > 0 and selector.get_map():
                for key, _ in selector.select(left):
                    _continue(selector, key, signs)
        finally:
            for key in [*selector.get_map().values()]:
                key.fileobj.close()  # type: ignore[union-attr]
    return signs


def _begun(address: str) -> socket.socket:
    host, port = host_port(address)
    family, kind, _, _, where = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    connection = socket.socket(family, kind)
    connection.setblocking(False)
    connection.connect_ex(where)
    return connection


def _continue(selector: selectors.BaseSelector, key: selectors.SelectorKey, signs: dict[str, Sign]) -> None:
    """Send the preface on a connection that is made; note its answer, or its end."""
    connection: socket.socket = key.fileobj  # type: ignore[assignment]
    if key.events == selectors.EVENT_WRITE:
        if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            with suppress(OSError):
                connection.send(PREFACE)
            selector.modify(connection, selectors.EVENT_READ, key.data)
            return
        signs[key.data] = Sign.REFUSED
    else:
        signs[key.data] = Sign.ANSWERED  # with what it is, even with an end: a stopped process ends nothing
    selector.unregister(connection)
    connection.close()


class Pulse:
    """The last signs of life of processes, by name; ``addresses`` has each one's ``host:port``."""

    def __init__(
        self,
        addresses: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
        ring: Callable[[Iterable[str]], Mapping[str, Sign]] = ring,
    ) -> None:
        self.addresses = dict(addresses)
        self._clock = clock
        self._ring = ring
        #: The time of the last look: a silence is one of looks, so this process may have been stopped itself.
        self._looked = clock()
        #: The time of each one's last answer, if it ever answered here, and the ones whose port is closed.
        self._heard: dict[str, float] = {}
        self._closed: set[str] = set()
        self._ended = threading.Event()

    def start(self) -> None:
        """Look regularly, in a thread."""
        threading.Thread(target=self._live, name="rayio-pulse", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._ended.set()

    def look(self) -> None:
        """Look at all processes once."""
        asked_at = self._clock()
        signs = self._ring(self.addresses.values())
        for name, address in self.addresses.items():
            sign = signs.get(address, Sign.SILENT)
            if sign is not Sign.SILENT:
                self._heard[name] = asked_at
            if sign is Sign.REFUSED:
                self._closed.add(name)
            else:
                self._closed.discard(name)
        self._looked = asked_at

    def silence(self, name: str) -> float:
        """Return the seconds for which a process has not answered; 0 for one missed answer or an unknown process."""
        seconds = self._looked - self._heard.get(name, self._looked)
        return seconds if seconds > EVERY_SECONDS + 2 * ANSWER_SECONDS else 0.0

    def is_closed(self, name: str) -> bool:
        """Return True if a process does not listen any more."""
        return name in self._closed

    def longest(self, names: Iterable[str]) -> tuple[str, float]:
        """Return the one of some processes that is silent longest, and the seconds; an empty name if all answer."""
        name = max(names, key=self.silence, default="")
        seconds = self.silence(name)
        return (name, seconds) if seconds else ("", 0.0)

    def _live(self) -> None:
        while not self._ended.is_set():
            self.look()
            self._ended.wait(EVERY_SECONDS)
