"""The planned requests of a batch, as many in flight as allowed: file by file, or ahead of a reader of open files.

Files of one sample each are read in one call (:data:`rayio.storage.base.AtOnce`), by as many threads as requests may be
in flight; each takes the next file, makes its requests, and verifies the sample in place. A reader of open files stays
sequential, and :class:`rayio.storage.ahead.Ahead` makes its requests before it asks for them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from operator import length_hint
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rayio.errors import DataError, StorageError
from rayio.machine.counters import fetched_by_this_thread
from rayio.storage.ahead import LOOK_SECONDS, Ahead
from rayio.storage.base import AtOnce, Placed, Requests
from rayio.storage.crew import Crew
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.opening import Store

T = TypeVar("T")
R = TypeVar("R")

#: Takes the offset in a buffer, and the bytes there.
Seen = Callable[[int, memoryview], None]
#: Copies of more bytes let other threads run: to change threads takes as long as a copy of 100 KB.
SHORT_BYTES = 256 << 10


class InFlight:
    """The planned requests of one batch to a store, at most ``depth`` of them in flight; counted in ``traffic``.

    With ``is_watched`` each thread counts the bytes that it fetched from devices.
    """

    def __init__(
        self, requests: Requests, store: Store, traffic: Traffic, *, depth: int, crew: Crew, is_watched: bool
    ) -> None:
        assert requests.places is not None
        self._requests, self._placed = requests, Placed(*requests.places())
        self._store, self._traffic = store, traffic
        self.depth, self._crew, self._is_watched = depth, crew, is_watched
        self._ahead: Ahead | None = None
        #: Bytes that other threads fetched from devices (None: unknown), and their CPU time (ns).
        self.fetched: int | None = 0
        self.cpu_ns = 0
        self._lock = threading.Lock()
        #: True once files were read in one call: few are left then.
        self._is_begun = False
        #: Objects that were read in one call, with the number of their requests and bytes.
        self._read: dict[str, tuple[int, int]] = {}
        #: The offset and bytes of the requests to each object.
        self._planned: dict[str, list[tuple[int, int]]] = {}
        #: Reads a file in one call; None where requests need more care.
        self.fill: AtOnce | None = None
        filling, self._pour = getattr(store, "filling", None), getattr(store, "pour", None)
        if traffic.needs_files or self._placed.opening is not None:
            return
        if filling is not None:
            self.fill = filling()
        elif self._pour is not None:
            self.fill = self._fill

    @property
    def pours(self) -> bool:
        """True if large objects arrive in pieces."""
        return self.fill == self._fill

    def filled(self, opens: int, requests: int, nbytes: int) -> None:
        """Count what :attr:`fill` read; objects are counted by their planned requests, at the end."""
        if self.fill != self._fill:
            self._is_begun = self._is_begun or opens > 0
            self._traffic.opens += opens
            self._traffic.requests += requests
            self._traffic.nbytes += nbytes

    def open(self, name: str, kept: Any = None) -> Any:
        """Return a file for the reader of open files, whose requests are made ahead from now on."""
        if self._ahead is None:
            if self._is_begun:
                return self._store.open(name, self._traffic)
            self._ahead = self._traffic.ahead = Ahead(
                self._left(), self._store.open, self._traffic, depth=self.depth, crew=self._crew,
                is_watched=self._is_watched,
            )  # fmt: skip
        return self._ahead.open(name, kept)

    def _left(self) -> Requests:
        """Return the requests to files that were not read yet."""
        requests, placed = self._requests, self._placed
        if not self._read:
            return requests
        assert placed.offset is not None
        is_left: NDArray[np.bool_] = np.array([name not in self._read for name in placed.files])[placed.file]
        left = Placed(placed.files, placed.file[is_left], placed.offset[is_left])
        return requests._replace(nbytes=requests.nbytes[is_left], places=lambda: left, known_bytes=None)

    def each(self, work: Callable[[Iterator[T]], R], items: Iterator[T], number: int) -> list[R]:
        """Call ``work`` in as many threads as requests may be in flight, each with the next of ``number`` items.

        ``items`` must be an iterator in C, whose next item is one thread's alone. Each thread starts two others before
        its first item. A list's iterator knows if any are left: answers without delay then take few threads.

        Raises:
            StorageError: the storage refuses, or the run is ending.
        """
        if self.fill == self._fill:
            self._planned = self._by_name()
        if (others := min(self.depth, number) - 1) < 1:
            return [work(items)]
        results, errors, left, working, ended = list[R](), list[BaseException](), others, 0, threading.Lock()
        ended.acquire()

        def take() -> None:
            nonlocal left, working
            with self._lock:
                more = min(left, 2, max(0, length_hint(items, number) - 1))
                left, working = left - more, working + more
            if more:
                self._crew.call(help_, more)
            try:
                results.append(work(items))
            except BaseException as error:
                errors.append(error)
                deque(items, 0)  # the others stop

        def help_() -> None:
            nonlocal working
            began, before = time.thread_time_ns(), fetched_by_this_thread() if self._is_watched else None
            take()
            after = None if before is None else fetched_by_this_thread()
            with self._lock:
                self.cpu_ns += time.thread_time_ns() - began
                known = before is not None and after is not None and self.fetched is not None
                self.fetched = self.fetched + after - before if known else None  # type: ignore[operator]
                working -= 1
                if not working:  # to wake the waiting thread for each of them costs as much as a small object
                    ended.release()

        take()
        is_over = left == others  # no other was started
        while not is_over and not self._traffic.ending.is_set() and all(isinstance(e, Exception) for e in errors):
            is_over = ended.acquire(timeout=LOOK_SECONDS)
        if errors:
            raise errors[0]
        if not is_over:
            raise StorageError(f"{self._store.address}: reading was given up, the run is ending")
        return results

    def _fill(self, name: str, size: int, total: int, *request: Any, seen: Seen | None = None) -> bool:
        """Get the planned requests of an object, and fill buffers from them; see :data:`AtOnce`."""
        if not (planned := self._planned.get(name)):
            return False
        assert self._pour is not None
        offset, buffers, *more = request
        parts, whole, received, copied = _parts((offset, buffers), *more), -1, 0, 0
        take = _taker(parts, seen)
        try:
            for begin, nbytes in planned:
                whole, length = self._pour(name, begin, nbytes, self._traffic, take)
                for start, stop, _ in parts:
                    first, last = start if start > begin else begin, stop if stop < begin + length else begin + length
                    copied += last - first if last > first else 0
                received += length
        except DataError:  # the reader of open files knows the sample that is missing
            return False
        self._read[name] = len(planned), received
        return copied == total and (size < 0 or size == whole)

    def _by_name(self) -> dict[str, list[tuple[int, int]]]:
        placed, by_number = self._placed, dict[int, list[tuple[int, int]]]()
        assert placed.offset is not None
        places = zip(placed.offset.tolist(), self._requests.nbytes.tolist(), strict=True)
        for number, place in zip(placed.file.tolist(), places, strict=True):
            by_number.setdefault(number, []).append(place)
        return {placed.files[number]: planned for number, planned in by_number.items()}

    def finish(self, *, waits: bool) -> None:
        """End, and count; with ``waits``, after all requests in flight."""
        traffic = self._traffic
        for requests, nbytes in self._read.values():
            traffic.opens += 1
            traffic.requests += requests
            traffic.nbytes += nbytes
        if (ahead := self._ahead) is not None:
            ahead.finish(waits=waits)
            traffic.ahead = None
            self.cpu_ns += ahead.cpu_ns
            known = self.fetched is not None and ahead.fetched is not None
            self.fetched = self.fetched + ahead.fetched if known else None  # type: ignore[operator]


def _parts(*ranges: tuple[int, Any]) -> list[tuple[int, int, Any]]:
    """Return the buffers of requests, each with its first offset and one past its last."""
    parts = []
    for position, buffers in ranges:
        stop = position
        for buffer in buffers:
            start, stop = stop, stop + len(buffer)
            parts.append((start, stop, buffer))
    return parts


def _copy(parts: list[tuple[int, int, Any]], begin: int, content: Any) -> int:
    """Copy the content from offset ``begin`` into the buffers that it belongs to; return the bytes copied."""
    end, copied = begin + len(content), 0
    for start, stop, part in parts:
        first, last = start if start > begin else begin, stop if stop < end else end
        if first >= last:
            continue
        if last - first > SHORT_BYTES:
            np.asarray(part)[first - start : last - start] = np.frombuffer(
                content, np.uint8, last - first, first - begin
            )
        else:
            part[first - start : last - start] = content[first - begin : last - begin]
        copied += last - first
    return copied


def _taker(parts: list[tuple[int, int, Any]], seen: Seen | None) -> Seen:
    """Return a function that copies pieces into the buffers, and shows what belongs to the largest one."""
    start, stop, largest = max(parts, key=lambda part: part[1] - part[0])
    size = stop - start

    def take(begin: int, content: memoryview) -> None:
        first, last = begin - start, begin - start + len(content)
        if first >= 0 and last <= size:  # nearly all pieces
            largest[first:last] = content
        else:
            _copy(parts, begin, content)
            content, first = content[max(0, -first) : max(0, size - first)], max(0, first)
        if seen is not None and len(content):
            seen(first, content)

    return take
