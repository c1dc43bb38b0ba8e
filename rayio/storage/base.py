"""The contract of storage, real or modelled: batches of requests to read and write, each counted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, BinaryIO, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
R = TypeVar("R")

#: Opens a file for reading and counts its requests: ``opener(path)``, relative to the storage's root.
#: ``opener(path, file)`` reuses a file that an earlier call to storage opened.
Opener = Callable[..., BinaryIO]

#: Opens a file, makes requests to it and closes it: ``fill(path, size, total, offset, buffers, *more)``. Each request
#: is an offset and the buffers that it fills, ``more`` of them as tuples; all buffers have ``total`` bytes. Returns
#: False if it cannot be done, or the file has fewer bytes, or another ``size``, unless that is negative.
#:
#: Where an opener ``pours``, files of more than :data:`WHOLE_BYTES` arrive in pieces. ``seen=`` is then called with the
#: offset and bytes of each piece of the largest buffer, in order; from 0 on again after a failed attempt.
AtOnce = Callable[..., bool]
#: Answers of more bytes are copied in pieces as they arrive: nothing holds them whole.
WHOLE_BYTES = 2 << 20


class Noting:
    """An opener that notes the path of each file before it is opened or read in one call."""

    __slots__ = ("_note", "_opener", "depth", "fill", "pours")

    def __init__(self, opener: Opener, note: Callable[[str], None]) -> None:
        self._opener, self._note = opener, note
        self.depth: int = getattr(opener, "depth", 1)
        self.pours: bool = getattr(opener, "pours", False)
        fill: AtOnce | None = getattr(opener, "fill", None)
        #: As :attr:`rayio.storage.real.CountedOpener.fill`.
        self.fill: AtOnce | None = None
        if fill is not None:

            def noted(name: str, *request: Any, **seen: Any) -> bool:
                note(name)
                return fill(name, *request, **seen)

            self.fill = noted

    def __call__(self, path: str, *kept: BinaryIO | None) -> BinaryIO:
        """Open a file."""
        self._note(path)
        return self._opener(path, *kept)

    def filled(self, opens: int, requests: int, nbytes: int) -> None:
        """Count what :attr:`fill` read."""
        self._opener.filled(opens, requests, nbytes)  # type: ignore[attr-defined]

    def each(self, work: Callable[[Iterator[T]], R], items: Iterator[T], number: int) -> list[R]:
        """Call ``work`` with ``number`` items, in some threads if several requests may be in flight."""
        return self._opener.each(work, items, number)  # type: ignore[attr-defined, no-any-return]


class Placed(NamedTuple):
    """The places of a batch's requests."""

    #: Paths as passed to the opener.
    files: Sequence[str]
    #: By request: the number of its file in ``files``, and its offset; None if offsets are unknown.
    file: NDArray[np.int64]
    offset: NDArray[np.int64] | None
    #: Numbers of the requests before which a file is opened; None: the first request to each file.
    opening: NDArray[np.int64] | None = None


#: Computes the places of a batch's requests; formats leave out the last field.
Places = Callable[[], tuple[Any, ...]]
#: The same for those of many steps from a first to a last one (exclusive).
PlacesOfStep = Callable[[int, int], Placed]


def differs_from_last(numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which numbers are not equal to the one before; the first is not.

    >>> differs_from_last(np.array([7, 7, 3])).tolist()
    [True, False, True]
    """
    is_new = np.ones(len(numbers), np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=is_new[1:])
    return is_new


def from_front(path: str, nbytes: NDArray[np.int64]) -> Placed:
    """Return the places of requests that read a whole file, one after another."""
    return Placed([path], np.zeros(len(nbytes), np.int64), np.cumsum(nbytes) - nbytes, np.zeros(1, np.int64))


class Requests(NamedTuple):
    """The requests of a format's library for one batch, as arrays: the input of a storage model.

    ``nbytes`` has one entry per read request, in order. ``address`` (rank, epoch, step) is the address of latency
    draws, so a model answers alike on every engine. ``places`` is called only if requests are recorded, and may be
    None.
    """

    address: tuple[int, int, int]
    num_opens: int
    nbytes: NDArray[np.int64]
    places: Places | None = None
    #: The sum of ``nbytes``, if already known.
    known_bytes: int | None = None
    num_samples: int = 0
    #: These samples separately, for caches; None without a modelled cache.
    samples: Divisible | None = None
    #: Files of these samples, each sample's file number and bytes, for layers that need them. Names are relative to the
    #: training dataset's folder; those of an evaluation dataset elsewhere begin with its own.
    files: Callable[[], tuple[list[str], NDArray[np.int64], NDArray[np.int64]]] | None = None
    #: Name of the reader, which has its own handle of each open file; empty without ``places``.
    reader: str = ""
    #: True if they may be made before the format's reader asks for them; False for one that has its own memory.
    is_ahead: bool = True
    #: Places of these samples in their batch; None for all of it. What is drawn for a sample has its place.
    sample_places: NDArray[np.intp] | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes of all requests."""
        return int(self.nbytes.sum()) if self.known_bytes is None else self.known_bytes


class Divisible(NamedTuple):
    """The samples of a batch, each with a key that is unique in the run, and its bytes."""

    keys: list[int]
    nbytes: list[int]
    #: Returns the requests of some of them, by their places in the batch.
    requests: Callable[[NDArray[np.intp]], Requests]


class RequestTable(NamedTuple):
    """The requests of consecutive steps, computed together because numpy costs per call."""

    num_opens: list[int]
    #: The requests of all steps; those of step ``i`` are from ``edges[i]`` to ``edges[i + 1]``.
    nbytes: NDArray[np.int64]
    edges: list[int]
    totals: list[int]
    #: Returns the places of those of one step, from their first to their last; None if nobody needs them.
    places: PlacesOfStep | None = None

    def row(self, row: int, address: tuple[int, int, int], num_samples: int) -> Requests:
        """Return the requests of one step, which read ``num_samples`` samples."""
        num_opens, nbytes, edges, totals, of_step = self
        first, last = edges[row], edges[row + 1]
        places = None if of_step is None else partial(of_step, first, last)
        return Requests(address, num_opens[row], nbytes[first:last], places, totals[row], num_samples)

    def rows(self, first: int, number: int) -> RequestTable:
        """Return the requests of some of the steps."""
        num_opens, nbytes, edges, totals, places = self
        last = first + number
        return RequestTable(num_opens[first:last], nbytes, edges[first : last + 1], totals[first:last], places)

    @classmethod
    def of(cls, steps: Sequence[Requests]) -> RequestTable:
        """Return a table of requests computed step by step."""
        edges = [0, *accumulate(len(step.nbytes) for step in steps)]
        nbytes = np.concatenate([step.nbytes for step in steps])
        by_edge = {edge: step.places for edge, step in zip(edges, steps, strict=False) if len(step.nbytes)}

        def places(first: int, _: int) -> Placed:
            find = by_edge[first]
            assert find is not None
            return Placed(*find())

        totals = [step.total_bytes for step in steps]
        return cls(
            [step.num_opens for step in steps], nbytes, edges, totals, None if None in by_edge.values() else places
        )

    @property
    def placed(self) -> Placed:
        """The places of all requests; no two steps share a file."""
        assert self.places is not None
        files, file, offset, opening = list[str](), [], [], []
        for first, last in pairwise(self.edges):
            if first < last:
                each = self.places(first, last)
                file.append(each.file + len(files))
                files += each.files
                offset.append(each.offset)
                opening.append(None if each.opening is None else each.opening + (first - self.edges[0]))
        return Placed(files, _joined(file), _joined(offset), _joined(opening))

    @property
    def numbers(self) -> list[int]:
        """Number of requests of each step."""
        return [last - first for first, last in pairwise(self.edges)]


def _joined(parts: list[Any]) -> Any:
    """Return arrays as one; None if there are none, or one of them is None."""
    return None if any(part is None for part in parts) or not parts else np.concatenate(parts)


class Behind(Protocol):
    """A part of a layer for which the requests of a read also wait."""

    def begin(self, now: int, ends: int) -> list[tuple[str, int]]:
        """Begin a read that storage under the layer serves at ``ends``; return causes of delay and their ends (ns)."""


class Ahead(NamedTuple):
    """A forecast of reads of consecutive steps: a list of each value."""

    #: Durations on an idle system (ns), and numbers of capped calls.
    alone: list[int]
    calls: list[int]
    behind: Sequence[Behind | None]


#: Kinds of requests, by their code in :data:`ISSUED`.
OPEN, READ, WRITE, FSYNC = range(4)
#: An issued request: times in ns of the engine's clock, place (``file`` is a number in :attr:`Issued.files`; offset -1:
#: unknown), native thread (0: none), and a number that distinguishes it from concurrent requests.
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
    """The requests of one call to storage; ``rows`` are of :data:`ISSUED`."""

    rows: NDArray[np.void]
    #: Paths relative to the storage's root, as passed to the opener.
    files: list[str]
    #: Answers by the rows' kind, if the rows are failed attempts that were repeated; these are no requests of the
    #: batch.
    answers: tuple[str, ...] = ()


class Moved(NamedTuple):
    """The source of the bytes that a call read through memory: a page cache or a modelled cache."""

    requested: int
    #: Bytes fetched from a device, the network or modelled storage; None if unknown, or counted only by host.
    fetched: int | None
    #: Bytes that stayed in the page cache despite eviction; None if unknown.
    unevicted: int | None

    def __add__(self, other: object) -> Moved:
        """Return the sum; unknown if either is unknown."""
        if not isinstance(other, Moved):
            return NotImplemented
        fetched = None if self.fetched is None or other.fetched is None else self.fetched + other.fetched
        unevicted = None if self.unevicted is None or other.unevicted is None else self.unevicted + other.unevicted
        return Moved(self.requested + other.requested, fetched, unevicted)


class Delay(NamedTuple):
    """A delay (ns) of a call to storage by a layer, with the cause of loss and the reason."""

    start: int
    end: int
    cause: str
    why: str = ""


class Served(NamedTuple, Generic[T]):
    """The cost of a call to storage: files opened, requests, bytes, and fsync calls.

    ``issued`` itemises them if that was requested: its reads (or writes) number ``requests``, except that an object put
    in parts is one row. ``retried`` has failed attempts that were repeated, each until the next attempt; they are not
    in ``requests``.
    """

    value: T
    opens: int
    requests: int
    nbytes: int
    syncs: int = 0
    issued: Issued | None = None
    #: Duration of these fsync calls (ns).
    sync_ns: int = 0
    retried: Issued | None = None
    #: Source of the bytes read; None for modelled storage without a cache.
    moved: Moved | None = None
    #: Delays by layers, within the call's time.
    delays: tuple[Delay, ...] = ()
    #: Places in the batch of the samples that were skipped after errors.
    skipped: tuple[int, ...] = ()
    #: CPU time of threads that made requests ahead of the reader's.
    cpu_seconds: float = 0.0
    #: Time of a write besides requests: making the file's content from the state (ns).
    made_ns: int = 0
    #: Times (ns) in which the call waited for its thread before its work, and for its caller's loop after it.
    waits_ns: tuple[int, int] = (0, 0)


class Clock(Protocol):
    """An engine's clock, in ns since the Unix epoch (or since the start, on the virtual clock)."""

    def now(self) -> int:
        """The present."""

    def sleep_until(self, deadline: int) -> Awaitable[None]:
        """Return at ``deadline`` (ns), at once if it has passed."""


class Storage(Protocol):
    """A storage system as a role uses it."""

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Serve one batch. Real storage calls ``load`` (the format's reader) and counts its requests.

        A model does not call ``load``: it waits for the duration of ``requests`` and returns None.

        Raises:
            StorageError: the system refuses (permission, missing file).
            DataError: ``load`` detects a truncated or corrupted file.
        """

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Write a file of ``num_bytes`` in requests of ``request_bytes``, atomically.

        Raises:
            StorageError: no space, no permission.
        """
