"""Requests to a collector: the contract of a way to send one, and many of them, a few at a time, every span counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import NamedTuple, Protocol

from rayio.export.collectors.pauses import Patience

#: Requests under way together.
CONNECTIONS = 4


class Request(NamedTuple):
    """One message to a collector."""

    body: bytes
    #: Spans of the run in it, and roots that were made for them.
    spans: int
    made: int


class Taken(NamedTuple):
    """What a collector said of a request that it took."""

    rejected: int = 0
    why: str = ""


class RefusedError(Exception):
    """A request that was not taken; in words, and whether it may be sent again, after how many seconds."""

    def __init__(self, why: str, *, again: bool = False, after: float | None = None) -> None:
        super().__init__(why)
        self.again = again
        self.after = after


class Sender(Protocol):
    """One way to send one request."""

    #: Where it goes, without a password; and the option of ``rayio export`` that sends there again.
    target: str
    option: str

    def send(self, body: bytes) -> Taken:
        """Send a request once.

        Raises:
            RefusedError: it was not taken.
        """

    def close(self) -> None:
        """Let go of connections."""


@dataclass
class Sent:
    """What became of spans; ``spans`` are the run's, ``made`` the roots that came on top."""

    spans: int = 0
    made: int = 0
    #: Refused by a collector that took the rest of the request.
    rejected: int = 0
    #: Not taken, or never sent after a request that was not.
    unsent: int = 0
    why: str = ""
    requests: int = 0
    retries: int = 0

    @property
    def is_whole(self) -> bool:
        """Say whether everything was taken."""
        return not self.rejected and not self.unsent

    def __add__(self, other: Sent) -> Sent:
        """Put the counts of two together; the first reason is kept."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        return Sent(**sums, why=self.why or other.why)

    def told(self, target: str) -> str:
        """Say in one line what was not taken, and why."""
        total = self.spans + self.rejected + self.unsent
        parts = [f"{self.rejected} rejected"] if self.rejected else []
        parts += [f"{self.unsent} not taken"] if self.unsent else []
        why = f" ({self.why})" if self.why else ""
        return f"{total - self.spans} of {total} spans were not exported to {target}: {', '.join(parts)}{why}"


_COUNTS = ("spans", "made", "rejected", "unsent", "requests", "retries")


def deliver(sender: Sender, body: bytes, patience: Patience, stop: Event, tried: Callable[[], None]) -> Taken:
    """Send a request until it is taken, refused for good, or sent often enough.

    Raises:
        RefusedError: it was not taken; or ``stop`` was set while it waited.
    """
    tries = 0
    while True:
        try:
            return sender.send(body)
        except RefusedError as error:
            tries += 1
            if not error.again or tries >= patience.tries or stop.wait(patience.pause(tries, error.after)):
                raise
            tried()


def send_all(
    sender: Sender, requests: Iterable[Request], patience: Patience | None = None, stop: Event | None = None
) -> Sent:
    """Send requests, a few at a time. After one that was not taken no more are begun; all are counted."""
    patience, stop = patience or Patience(), stop or Event()
    sent = Sent()
    waiting: deque[tuple[Request, Future[Taken]]] = deque()

    def tried() -> None:
        sent.retries += 1

    def settle() -> None:
        request, future = waiting.popleft()
        try:
            taken = future.result()
        except RefusedError as error:
            stop.set()
            sent.unsent += request.spans
            sent.why = sent.why or str(error)
            return
        sent.requests += 1
        rejected = min(taken.rejected, request.spans + request.made)
        sent.rejected += rejected
        sent.why = sent.why or taken.why
        sent.spans += max(0, request.spans - rejected)
        sent.made += request.made

    with ThreadPoolExecutor(CONNECTIONS, "rayio-export") as pool:
        try:
            for request in requests:
                if stop.is_set():
                    sent.unsent += request.spans
                    continue
                waiting.append((request, pool.submit(deliver, sender, request.body, patience, stop, tried)))
                if len(waiting) > 2 * CONNECTIONS:
                    settle()
            while waiting:
                settle()
        except BaseException:  # whoever waits to try again shall not hold up an interrupt
            stop.set()
            raise
    return sent
