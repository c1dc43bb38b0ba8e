"""A store as a role uses it: it reads batches and writes files, and counts every request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import lru_cache
from threading import Event
from time import perf_counter_ns
from typing import Any, BinaryIO, NamedTuple, Protocol, Self, TypeVar, cast

import numpy as np

from rayio.errors import DataError, RayioError
from rayio.machine.counters import fetched_by_this_thread
from rayio.storage.base import AtOnce, Moved, Opener, Requests, Served
from rayio.storage.crew import Crew
from rayio.storage.in_flight import InFlight
from rayio.storage.stores.counted import CountedFile, Traffic
from rayio.storage.stores.opening import Store

T = TypeVar("T")
R = TypeVar("R")


class Threaded(Protocol):
    """A function that runs a blocking call for an engine: in a thread, or in place."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        """Return an awaitable of the call's result."""


class CountedOpener:
    """An opener of a store's files that counts in ``traffic``; ``planned`` makes requests with a plan."""

    __slots__ = ("depth", "fill", "planned", "pours", "store", "traffic")

    def __init__(self, store: Store, traffic: Traffic, planned: InFlight | None = None) -> None:
        self.store, self.traffic, self.planned = store, traffic, planned
        filling = getattr(store, "filling", None)
        #: Reads a file in one call, which counts nothing: :meth:`filled` does. None where requests need more care.
        self.fill: AtOnce | None = None
        #: Requests that may be in flight.
        self.depth = 1 if planned is None else planned.depth
        #: True if large files arrive in pieces.
        self.pours = planned is not None and planned.pours
        if planned is not None:
            self.fill = planned.fill
        elif filling is not None and not traffic.needs_files:
            self.fill = filling()

    def __call__(self, path: str, kept: BinaryIO | None = None) -> BinaryIO:
        """Open a file, or reuse one that an earlier call opened."""
        traffic = self.traffic
        if self.planned is not None:
            return cast(BinaryIO, self.planned.open(path, kept))
        return self.store.open(path, traffic) if kept is None else cast(CountedFile, kept).again(path, traffic)

    def each(self, work: Callable[[Iterator[T]], R], items: Iterator[T], number: int) -> list[R]:
        """Call ``work`` with ``number`` items, in some threads if several requests may be in flight."""
        return [work(items)] if self.planned is None else self.planned.each(work, items, number)

    def filled(self, opens: int, requests: int, nbytes: int) -> None:
        """Count what :attr:`fill` read."""
        if self.planned is not None:
            self.planned.filled(opens, requests, nbytes)
            return
        self.traffic.opens += opens
        self.traffic.requests += requests
        self.traffic.nbytes += nbytes


def counted_opener(store: Store, traffic: Traffic, planned: InFlight | None = None) -> Opener:
    """Return an opener for files of a store that counts in ``traffic``."""
    return CountedOpener(store, traffic, planned)


@lru_cache(maxsize=2)
def random_bytes(num_bytes: int) -> memoryview:
    """Return random bytes for checkpoints, because zeros compress and leave holes."""
    words = np.random.PCG64DXSM(0).random_raw(-(-num_bytes // 8))
    return np.asarray(words).view(np.uint8)[:num_bytes].data.toreadonly()


class Filled(NamedTuple):
    """The bytes of a file's content, and the time (ns) of making it in addition to the requests."""

    nbytes: int
    made_ns: int = 0


def write_parts(file: Any, parts: Sequence[Any]) -> int:
    """Write some buffers in one request, without a copy if the file can; return the bytes written."""
    gather = getattr(file, "writev", None)
    length: int = (file.write(b"".join(parts)) if gather is None else gather(parts)) or 0
    return length


def fill_random(file: BinaryIO, path: str, num_bytes: int, request_bytes: int, head: bytes = b"") -> Filled:
    """Write random bytes that repeat after ``request_bytes``, in requests of as many; ``head`` replaces the first."""
    buffer = random_bytes(min(request_bytes, max(num_bytes, 1)))
    written, head = 0, head[:num_bytes]
    while written < len(head):
        own = memoryview(head)[written : written + len(buffer)]
        written += write_parts(file, (own, buffer[len(own) : num_bytes - written]))
    while written < num_bytes:
        written += file.write(buffer[: num_bytes - written]) or 0
    return Filled(num_bytes)


class Filling(Protocol):
    """A function that writes the content of a file with a state of ``num_bytes``."""

    def __call__(self, file: BinaryIO, path: str, num_bytes: int, request_bytes: int, /) -> Filled:
        """Return what was written."""


class Noted:
    """A file that calls ``note`` after each request to it."""

    def __init__(self, file: Any, note: Callable[[], None]) -> None:
        self._file, self._note = file, note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(self, *why: object) -> None:
        self._file.__exit__(*why)

    def write(self, buffer: Any) -> int:
        """Write one request."""
        length: int = self._file.write(buffer)
        self._note()
        return length

    def writev(self, parts: Sequence[Any]) -> int:
        """Write some buffers in one request."""
        length = write_parts(self._file, parts)
        self._note()
        return length

    def readinto(self, buffer: Any) -> int:
        """Read one request."""
        length: int = self._file.readinto(buffer)
        self._note()
        return length


class Awaited:
    """A call that notes when it waits for a thread, and then for the loop that awaits it."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._called = self._began = self._ended = perf_counter_ns()

    def __call__(self) -> Any:
        """Make the call."""
        self._began = perf_counter_ns()
        try:
            return self._function()
        finally:
            self._ended = perf_counter_ns()

    def waits(self) -> tuple[int, int]:
        """Return both waits (ns), in the loop, as soon as it goes on."""
        return self._began - self._called, perf_counter_ns() - self._ended


class RealStorage:
    """Storage with bytes (``rayio.storage.base.Storage``). ``run`` makes blocking calls for the engine.

    With an anchor (the difference from ``perf_counter_ns`` to the engine's time) failed attempts are timed and returned
    (:attr:`Served.retried`), and unless ``is_itemised`` is False every request too (:attr:`Served.issued`).

    Planned requests with places are made ahead of the format's reader, ``depth`` at a time.
    """

    def __init__(
        self,
        store: Store,
        run: Threaded,
        anchor: int | None = None,
        *,
        is_itemised: bool = True,
        ending: Event | None = None,
        depth: int = 1,
        fill: Filling = fill_random,
        note: Callable[[], None] | None = None,
    ) -> None:
        self.depth = depth
        #: Called after each request of writing a file.
        self.note = note
        #: Writes the content of a file.
        self.fill = fill
        self._crew = Crew(depth)
        self.store = store
        self.run = run
        self.anchor = anchor
        self.is_itemised = is_itemised
        #: Set once nobody waits for an answer.
        self.ending = ending
        self._is_prepared = False

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Call ``load`` and count its requests; ``requests`` may have a plan of them."""
        traffic = Traffic(self.anchor, is_itemised=self.is_itemised, ending=self.ending)
        timed = Awaited(lambda: self._load(requests, load, traffic))
        try:
            value, fetched, helped_ns = await self.run(timed)
            waits = timed.waits()
        except DataError as error:
            is_full = str(error).startswith(self.store.address)
            worded = error if is_full else DataError(self.store.full(str(error)))  # formats use relative names
            worded.retried = traffic.retried
            raise worded from None
        except RayioError as error:
            error.retried = traffic.retried
            raise
        moved = Moved(traffic.nbytes, fetched, traffic.unevicted)
        return Served(
            value, traffic.opens, traffic.requests, traffic.nbytes, 0, traffic.issued, 0, traffic.retried, moved,
            cpu_seconds=helped_ns / 1e9, waits_ns=waits,
        )  # fmt: skip

    def _load(self, requests: Requests, load: Callable[[Opener], T], traffic: Traffic) -> tuple[T, int | None, int]:
        """Call ``load`` in this thread, and make planned requests ahead of it.

        Returns:
            Its value; the bytes fetched for it, if counters have them; the CPU time of other threads (ns).
        """
        if requests.places is None or not requests.is_ahead or not len(requests.nbytes):
            return *self._watched(load, traffic), 0
        source, store, is_done = self.store.source, self.store, False
        traffic.is_watched = source == "other" and self.depth == 1
        planned = InFlight(
            requests, store, traffic, depth=self.depth, crew=self._crew, is_watched=source == "device"
        )  # fmt: skip
        try:
            value, fetched = self._watched(load, traffic, planned)
            is_done = True
        finally:
            planned.finish(waits=is_done or store.is_local)
        if source == "device":
            fetched = None if fetched is None or planned.fetched is None else fetched + planned.fetched
        elif source == "network":
            fetched = traffic.nbytes
        return value, fetched, planned.cpu_ns

    def _watched(
        self, load: Callable[[Opener], T], traffic: Traffic, planned: InFlight | None = None
    ) -> tuple[T, int | None]:
        """Call ``load``; return also the bytes fetched for it, if the thread's counters have them.

        With several requests in flight, pages added to the cache cannot be told apart by request.
        """
        source, is_alone = self.store.source, planned is None or self.depth == 1
        traffic.is_watched = source == "other" and is_alone
        before = fetched_by_this_thread() if source == "device" else None
        value = load(counted_opener(self.store, traffic, planned))
        match source:
            case "device":
                after = fetched_by_this_thread()
                return value, None if before is None or after is None else after - before
            case "network":
                return value, traffic.nbytes
            case "memory":
                return value, 0
            case "other":
                return value, traffic.nbytes if self.store.is_direct else traffic.added if is_alone else None
        return value, None  # counted only by host

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Write a state of ``num_bytes`` as one file, atomically; after an error the previous file stays.

        Raises:
            StorageError: no space, no permission, or the system refuses.
        """
        if request_bytes < 1 or num_bytes < 0:
            raise ValueError(f"cannot write {num_bytes} bytes in requests of {request_bytes}")
        traffic = Traffic(self.anchor, is_itemised=self.is_itemised, ending=self.ending)

        filled, note = Filled(num_bytes), self.note

        def fill(file: BinaryIO) -> None:
            nonlocal filled
            noted = file if note is None else cast(BinaryIO, Noted(file, note))
            filled = self.fill(noted, path, num_bytes, request_bytes)

        doing = f"writing {num_bytes} bytes"

        def write() -> None:
            if self.store.is_local and not self._is_prepared:
                self.store.prepare(doing)
                self._is_prepared = True
            self.store.write(path, fill, traffic=traffic, fsync=fsync, doing=doing)

        timed = Awaited(write)
        try:
            await self.run(timed)
            waits = timed.waits()
        except RayioError as error:
            error.retried = traffic.retried
            raise
        return Served(
            None,
            traffic.opens,
            traffic.requests,
            filled.nbytes,
            traffic.syncs,
            traffic.issued,
            traffic.sync_ns,
            traffic.retried,
            made_ns=filled.made_ns,
            waits_ns=waits,
        )
