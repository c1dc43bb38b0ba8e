"""What storage promises, real or modelled: reads and writes a batch of requests at a time, each of them counted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import BinaryIO, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

#: Opens a file for reading and counts what is asked of it. ``path`` is relative to the storage's root.
Opener = Callable[[str], BinaryIO]


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests that a format's library issues for one batch, as arrays: what a model of storage is asked to serve.

    ``nbytes`` has one entry per read request, in order. ``address`` (rank, epoch, step) is where its latencies are
    drawn, so that a model answers alike on every engine.
    """

    address: tuple[int, int, int]
    num_opens: int
    nbytes: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Served(Generic[T]):
    """What a call to storage cost: files opened, requests, bytes, and fsync calls that were really made."""

    value: T
    opens: int
    requests: int
    nbytes: int
    syncs: int = 0


class Clock(Protocol):
    """Time as an engine has it, in nanoseconds since the Unix epoch (or since the start, on the virtual clock)."""

    def now(self) -> int:
        """The present."""

    def sleep_until(self, deadline: int) -> Awaitable[None]:
        """Return at ``deadline``, or at once when that has passed."""


class Storage(Protocol):
    """One storage system as one role sees it."""

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Serve one batch. Real storage calls ``load`` (the format's reader) and counts what that really asked for.

        A model never calls ``load``: it lets the time pass that ``requests`` take and answers None.

        Raises:
            StorageError: the system refuses (permission, missing file).
            DataError: ``load`` found a file truncated or corrupted.
        """

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Write a file of ``num_bytes`` in requests of ``request_bytes``, atomically: all of it or nothing appears.

        Raises:
            StorageError: no space, no permission.
        """
