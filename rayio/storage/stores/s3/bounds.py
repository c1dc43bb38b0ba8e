"""Bounds of answers that the client library reads whole: listings, refusals, heads of objects.

The library reads such an answer into memory whatever its length. So a watching thread compares what this process's
connections to the service received with the bytes requested, by the kernel's counters, and shuts down a connection
that gets far more. The library's call then fails like one whose connection broke.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from queue import SimpleQueue
from time import monotonic
from typing import NamedTuple, TypeVar

from rayio import signals
from rayio.storage.crew import Crew

T = TypeVar("T")

#: Bytes that an answer may have beyond the range that was asked for.
MOST_BYTES = 64 << 20
#: The same once a signal asked this process to end: an answer without an end would take the processors from its end.
ABANDONED_BYTES = 1 << 20
#: Seconds between looks at the connections; a call of less is never looked at.
LOOK_SECONDS = 0.2
#: Bytes of headers per request.
HEADER_BYTES = 16 << 10
#: Offset of ``tcpi_bytes_received`` in Linux's ``struct tcp_info``.
_RECEIVED = struct.Struct("=128xQ")


class EndlessError(Exception):
    """An answer was far longer than the request, or did not end in time."""


class _Call(NamedTuple):
    """A call in flight: its peer's port, the bytes asked for, the seconds it may take, and its beginning."""

    port: int
    nbytes: int
    seconds: float
    since: float


class Watch:
    """The calls of this process in flight, and the thread that watches them."""

    def __init__(self) -> None:
        #: The thread that hears signals.
        self._main = threading.main_thread().ident
        self._lock = threading.Lock()
        self._numbers = count()
        #: Calls by number, as plain tuples: they are made for each request. They remove themselves without the lock.
        self._calls: dict[int, tuple[int, int, float, float]] = {}
        #: Of long calls: bytes that each connection had received when first seen, and that all calls had asked for.
        self._seen: dict[int, tuple[dict[str, int], int]] = {}
        #: Calls whose connections were shut down.
        self._endless: set[int] = set()
        #: Bytes asked for so far.
        self._requested = 0
        self._is_watching = False
        #: True after a fork of a process that made calls: the client's threads do not survive that.
        self.is_forked = False

    def forked(self) -> None:
        """Begin anew in a fork, which has neither its parent's threads nor its calls."""
        is_forked = self.is_forked or self._requested > 0
        self.__init__()  # type: ignore[misc]
        self.is_forked = is_forked

    def call(self, request: Callable[[], T], port: int, nbytes: int, seconds: float = math.inf) -> T:
        """Make a request that asks for ``nbytes``, and may take ``seconds``; signals are heard meanwhile.

        Raises:
            EndlessError: the answer has far more, or takes longer.
        """
        if threading.get_ident() == self._main:
            return _elsewhere(partial(self.call, request, port, nbytes, seconds))
        number, nbytes = next(self._numbers), nbytes + HEADER_BYTES
        with self._lock:
            self._calls[number] = port, nbytes, seconds, monotonic()
            self._requested += nbytes
            is_new, self._is_watching = not self._is_watching, True
        if is_new:
            threading.Thread(target=self._watch, name="rayio-bounds", daemon=True).start()
        try:
            return request()
        except Exception:
            if number in self._endless:
                raise EndlessError from None
            raise
        finally:
            del self._calls[number]
            if self._endless:
                self._endless.discard(number)

    def _watch(self) -> None:
        """Look until nothing has been in flight for a while."""
        idle, never = 0, threading.Event()
        while not never.wait(LOOK_SECONDS):
            with self._lock:
                idle = 0 if self._calls else idle + 1
                if idle > 10 / LOOK_SECONDS:
                    self._is_watching = False
                    return
                now = monotonic()
                calls = {number: _Call(*call) for number, call in self._calls.copy().items()}
            long = {number: call for number, call in calls.items() if now - call.since > LOOK_SECONDS}
            self._seen = {number: seen for number, seen in self._seen.items() if number in calls}
            if long:
                self._look(long)

    def _look(self, calls: dict[int, _Call]) -> None:
        ports = {call.port for call in calls.values()}
        received = {name: nbytes for name, port, nbytes in connections() if port in ports}
        with self._lock:
            in_flight, requested = sum(nbytes for _, nbytes, *_ in self._calls.copy().values()), self._requested
        worst: set[str] = set()
        for number, call in calls.items():
            if number not in self._seen:
                self._seen[number] = received, requested - in_flight
                continue
            before, requested_before = self._seen[number]
            more = {name: nbytes - before.get(name, 0) for name, nbytes in received.items()}
            is_late = monotonic() - call.since > call.seconds
            most = ABANDONED_BYTES if call.since < signals.asked_at else MOST_BYTES
            if more and (is_late or sum(more.values()) > requested - requested_before + most):
                self._endless.add(number)
                worst.add(max(more, key=lambda name: more[name]))
        for _ in connections(worst):
            pass


def connections(ended: set[str] | None = None) -> Iterator[tuple[str, int, int]]:
    """Yield the name, the peer's port and the bytes received of each TCP connection of this process.

    Those named in ``ended`` are shut down. Nothing is yielded where the kernel has no such counters.
    """
    if ended is not None and not ended:
        return
    with suppress(OSError):
        for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
            with suppress(OSError, struct.error):
                name = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
                if not name.startswith("socket:") or (ended is not None and name not in ended):
                    continue
                with socket.socket(fileno=os.dup(int(number))) as mine:
                    if mine.type != socket.SOCK_STREAM or mine.family not in (socket.AF_INET, socket.AF_INET6):
                        continue
                    port = mine.getpeername()[1]
                    (received,) = _RECEIVED.unpack(mine.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size))
                    if ended is not None:
                        mine.shutdown(socket.SHUT_RDWR)
                    yield name, port, received


#: The only one of this process.
WATCH = Watch()
os.register_at_fork(after_in_child=WATCH.forked)
_helpers = Crew(64)


def _elsewhere(call: Callable[[], T]) -> T:
    """Make a call of the client library in another thread, because the main thread hears signals.

    A signal's exception leaves the call behind; it ends by its own limits, or with the process.
    """
    answers: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def make() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))

    _helpers.call(make, 1)
    try:
        value, error = answers.get()
    except BaseException:  # whoever handles signals: nobody waits for this call
        signals.ask()
        raise
    if error is not None:
        raise error
    return value  # type: ignore[return-value]
