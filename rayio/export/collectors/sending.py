"""Sending of requests to a collector, a few in parallel, with counts of all spans."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import NamedTuple, Protocol

from rayio.export.collectors.pauses import Patience

CONNECTIONS = 4


class Request(NamedTuple):
    """A message to a collector."""

    body: bytes
    #: Spans of the run in it, and added roots.
    spans: int
    added: int


class Taken(NamedTuple):
    """A collector's answer to an accepted request."""

    rejected: int = 0
    why: str = ""


class RefusedError(Exception):
    """A refused request: the reason, whether to send it again, and after how many seconds."""

    def __init__(self, why: str, *, again: bool = False, after: float | None = None) -> None:
        super().__init__(why)
        self.again = again
        self.after = after


class Sender(Protocol):
    """A connection to a collector."""

    #: The address without a password, and the option of ``rayio export`` for it.
    target: str
    option: str

    def send(self, body: bytes) -> Taken:
        """Send a request once.

        Raises:
            RefusedError: the collector refused it, or was not reached.
        """

    def close(self) -> None:
        """Close connections."""


@dataclass
class Sent:
    """Counts of an export: ``spans`` of the run, and ``added`` roots."""

    spans: int = 0
    added: int = 0
    #: Rejected in a request that was accepted otherwise.
    rejected: int = 0
    #: In refused requests, or in those after one.
    unsent: int = 0
    why: str = ""
    requests: int = 0
    retries: int = 0

    @property
    def is_whole(self) -> bool:
        """True if everything was accepted."""
        return not self.rejected and not self.unsent

    def __add__(self, other: Sent) -> Sent:
        """Return the sums of the counts, with the first reason."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        return Sent(**sums, why=self.why or other.why)

    def complaint(self, target: str) -> str:
        """Return a line on the spans that were not accepted."""
        total = self.spans + self.rejected + self.unsent
        parts = [f"{self.rejected} rejected"] if self.rejected else []
        parts += [f"{self.unsent} not taken"] if self.unsent else []
        why = f" ({self.why})" if self.why else ""
        return f"{total - self.spans} of {total} spans were not exported to {target}: {', '.join(parts)}{why}"


_COUNTS = ("spans", "added", "rejected", "unsent", "requests", "retries")


def deliver(sender: Sender, body: bytes, patience: Patience, stop: Event, tried: Callable[[], None]) -> Taken:
    """Send a request until it is accepted, refused for good, or out of tries.

    Raises:
        RefusedError: it was not accepted, or ``stop`` was set during a pause.
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
    """Send requests, a few in parallel, until one is refused; return the counts of all."""
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
        rejected = min(taken.rejected, request.spans + request.added)
        sent.rejected += rejected
        sent.why = sent.why or taken.why
        sent.spans += max(0, request.spans - rejected)
        sent.added += request.added

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
        except BaseException:  # pauses must not delay an interrupt
            stop.set()
            raise
    return sent
