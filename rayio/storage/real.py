"""A store as a role uses it: it reads batches and writes files, and counts every request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from threading import Event
from typing import BinaryIO, Protocol, TypeVar, cast

import numpy as np

from rayio.errors import DataError, RayioError
from rayio.machine.counters import fetched_by_this_thread
from rayio.storage.base import Moved, Opener, Requests, Served
from rayio.storage.stores.counted import CountedFile, Traffic
from rayio.storage.stores.opening import Store

T = TypeVar("T")


class Threaded(Protocol):
    """A function that runs a blocking call for an engine: in a thread, or in place."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        """Return an awaitable of the call's result."""


def counted_opener(store: Store, traffic: Traffic) -> Opener:
    """Return an opener for files of a store that counts in ``traffic``."""

    def open_(path: str, kept: BinaryIO | None = None) -> BinaryIO:
        return store.open(path, traffic) if kept is None else cast(CountedFile, kept).again(path, traffic)

    return open_


@lru_cache(maxsize=2)
def random_bytes(num_bytes: int) -> memoryview:
    """Return random bytes for checkpoints, because zeros compress and leave holes."""
    words = np.random.PCG64DXSM(0).random_raw(-(-num_bytes // 8))
    return np.asarray(words).view(np.uint8)[:num_bytes].data.toreadonly()


class RealStorage:
    """Storage with bytes (``rayio.storage.base.Storage``). ``run`` makes blocking calls for the engine.

    With an anchor (the difference from ``perf_counter_ns`` to the engine's time) failed attempts are timed and returned
    (:attr:`Served.retried`), and unless ``is_itemised`` is False every request too (:attr:`Served.issued`).
    """

    def __init__(
        self,
        store: Store,
        run: Threaded,
        anchor: int | None = None,
        *,
        is_itemised: bool = True,
        ending: Event | None = None,
    ) -> None:
        self.store = store
        self.run = run
        self.anchor = anchor
        self.is_itemised = is_itemised
        #: Set once nobody waits for an answer.
        self.ending = ending
        self._is_prepared = False

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Call ``load`` and count its requests; ``requests`` are for models only."""
        traffic = Traffic(self.anchor, is_itemised=self.is_itemised, ending=self.ending)
        try:
            value, fetched = await self.run(lambda: self._load(load, traffic))
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
            value, traffic.opens, traffic.requests, traffic.nbytes, 0, traffic.issued, 0, traffic.retried, moved
        )

    def _load(self, load: Callable[[Opener], T], traffic: Traffic) -> tuple[T, int | None]:
        """Call ``load`` in this thread; return also the bytes fetched for it, if the thread's counters have them."""
        source = self.store.source
        traffic.is_watched = source == "other"
        before = fetched_by_this_thread() if source == "device" else None
        value = load(counted_opener(self.store, traffic))
        match source:
            case "device":
                after = fetched_by_this_thread()
                return value, None if before is None or after is None else after - before
            case "network":
                return value, traffic.nbytes
            case "memory":
                return value, 0
            case "other":
                return value, traffic.nbytes if self.store.is_direct else traffic.added
        return value, None  # counted only by host

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Write random bytes as one file, atomically; after an error the previous file stays.

        Raises:
            StorageError: no space, no permission, or the system refuses.
        """
        if request_bytes < 1 or num_bytes < 0:
            raise ValueError(f"cannot write {num_bytes} bytes in requests of {request_bytes}")
        traffic = Traffic(self.anchor, is_itemised=self.is_itemised, ending=self.ending)

        def fill(file: BinaryIO) -> None:
            buffer = random_bytes(min(request_bytes, max(num_bytes, 1)))
            written = 0
            while written < num_bytes:
                written += file.write(buffer[: num_bytes - written]) or 0

        doing = f"writing {num_bytes} bytes"

        def write() -> None:
            if self.store.is_local and not self._is_prepared:
                self.store.prepare(doing)
                self._is_prepared = True
            self.store.write(path, fill, traffic=traffic, fsync=fsync, doing=doing)

        try:
            await self.run(write)
        except RayioError as error:
            error.retried = traffic.retried
            raise
        return Served(
            None,
            traffic.opens,
            traffic.requests,
            num_bytes,
            traffic.syncs,
            traffic.issued,
            traffic.sync_ns,
            traffic.retried,
        )
