"""What storage promises, real or modelled: reads and writes a batch of requests at a time, each of them counted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, BinaryIO, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

#: Opens a file for reading and counts what is asked of it: ``opener(path)``, relative to the storage's root. With
#: ``opener(path, file)`` a file that was opened in an earlier call to storage serves this one.
Opener = Callable[..., BinaryIO]


class Placed(NamedTuple):
    """Where the requests of a batch go."""

    #: Paths as the opener gets them.
    files: list[str]
    #: Of each request: its file's place in ``files``, and its offset; None: offsets are not known.
    file: NDArray[np.int64]
    offset: NDArray[np.int64] | None
    #: The requests before which a file is opened, by number; None: the first request to each file.
    opening: NDArray[np.int64] | None = None


#: Works out where the requests of a batch go; formats leave the last field out.
Places = Callable[[], tuple[Any, ...]]


class Requests(NamedTuple):
    """The requests that a format's library issues for one batch, as arrays: what a model of storage is asked to serve.

    ``nbytes`` has one entry per read request, in order. ``address`` (rank, epoch, step) is where its latencies are
    drawn, so that a model answers alike on every engine. ``places`` is asked only where each request is recorded; a
    format that cannot say gives None.
    """

    address: tuple[int, int, int]
    num_opens: int
    nbytes: NDArray[np.int64]
    places: Places | None = None
    #: The sum of ``nbytes`` where it is known already.
    known_bytes: int | None = None
    #: Samples that are read with them.
    num_samples: int = 0
    #: Those samples one by one, where a cache may have some of them; None where none is modelled.
    samples: Divisible | None = None
    #: The files of those samples, each sample's place among them and its bytes, where a layer must be told.
    files: Callable[[], tuple[list[str], NDArray[np.int64], NDArray[np.int64]]] | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes of all requests together."""
        return int(self.nbytes.sum()) if self.known_bytes is None else self.known_bytes


class Divisible(NamedTuple):
    """The samples of a batch, each with a key that no other sample of the run has, and its bytes."""

    keys: list[int]
    nbytes: list[int]
    #: Works out the requests of some of them alone, by their places in the batch.
    requests: Callable[[NDArray[np.intp]], Requests]


class RequestTable(NamedTuple):
    """The requests of consecutive steps, worked out together because numpy costs per call, not per number."""

    #: Files that each step opens.
    num_opens: list[int]
    #: The requests of all steps; those of step ``i`` lie from ``edges[i]`` to ``edges[i + 1]``.
    nbytes: NDArray[np.int64]
    edges: list[int]
    #: Bytes of each step's requests together.
    totals: list[int]

    def row(self, row: int, address: tuple[int, int, int], num_samples: int) -> Requests:
        """The requests of one step, which read so many samples."""
        num_opens, nbytes, edges, totals = self
        return Requests(address, num_opens[row], nbytes[edges[row] : edges[row + 1]], None, totals[row], num_samples)

    def rows(self, first: int, number: int) -> RequestTable:
        """The requests of some of the steps."""
        num_opens, nbytes, edges, totals = self
        last = first + number
        return RequestTable(num_opens[first:last], nbytes, edges[first : last + 1], totals[first:last])

    @classmethod
    def of(cls, asked: Sequence[Requests]) -> RequestTable:
        """The requests of steps that were worked out one by one."""
        edges = [0, *accumulate(len(one.nbytes) for one in asked)]
        nbytes = np.concatenate([one.nbytes for one in asked])
        return cls([one.num_opens for one in asked], nbytes, edges, [one.total_bytes for one in asked])

    @property
    def numbers(self) -> list[int]:
        """How many requests each step has."""
        return [last - first for first, last in pairwise(self.edges)]


#: What kinds of requests there are, by their code in :data:`ISSUED`.
OPEN, READ, WRITE, FSYNC = range(4)
#: One request that was really issued: times in ns of the engine's clock, where it went (``file`` is a place in
#: :attr:`Issued.files`; -1 for an unknown offset), the native thread that issued it (0: none), and a number that tells
#: it from the requests under way at the same time.
ISSUED = np.dtype(
    [
        ("start", "<i8"),
        ("end", "<i8"),
        ("offset", "<i8"),
        ("nbytes", "<i8"),
        ("file", "<i4"),
        ("thread", "<i4"),
        ("kind", "<i2"),
        ("slot", "<i2"),
    ]
)


@dataclass(frozen=True, slots=True)
class Issued:
    """The requests of one call to storage, one by one; ``rows`` are of :data:`ISSUED`."""

    rows: NDArray[np.void]
    #: Paths relative to the storage's root, as the opener got them.
    files: list[str]
    #: What was answered, by the code that rows have as their kind, where these are attempts that failed and were made
    #: again: they are no requests of the batch.
    answers: tuple[str, ...] = ()


class Moved(NamedTuple):
    """Where the bytes came from that a call to storage read which memory is in front of: real, or with a cache."""

    #: Bytes that storage was asked for.
    asked: int
    #: Bytes that were fetched from a device or over the network meanwhile, or from modelled storage; None where nobody
    #: can know, or where only hosts count them.
    fetched: int | None
    #: Bytes that were to leave the page cache before or after, and stayed; None where nobody can know.
    unevicted: int | None

    def __add__(self, other: object) -> Moved:
        """Sum two of them; what is not known of one is not known of both."""
        if not isinstance(other, Moved):
            return NotImplemented
        fetched = None if self.fetched is None or other.fetched is None else self.fetched + other.fetched
        unevicted = None if self.unevicted is None or other.unevicted is None else self.unevicted + other.unevicted
        return Moved(self.asked + other.asked, fetched, unevicted)


class Delay(NamedTuple):
    """A time (ns) in which a call to storage was held up by a layer: the cause of loss that it counts as, and why."""

    start: int
    end: int
    cause: str
    why: str = ""


class Served(NamedTuple, Generic[T]):
    """What a call to storage cost: files opened, requests, bytes, and fsync calls that were really made.

    ``issued`` has each of them where the storage was asked to keep them: its reads (or writes) number ``requests``,
    but for an object that was put in parts, which is one row. ``retried`` has the attempts that failed and were made
    again, each from its begin to the next attempt's; they are not in ``requests``.
    """

    value: T
    opens: int
    requests: int
    nbytes: int
    syncs: int = 0
    issued: Issued | None = None
    #: Time that those calls took, where it passed.
    sync_ns: int = 0
    retried: Issued | None = None
    #: Where what was read came from; None of modelled storage without a cache.
    moved: Moved | None = None
    #: What layers added to its time, within it.
    delays: tuple[Delay, ...] = ()
    #: Samples that were given up, where errors may be skipped.
    skipped: int = 0


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
