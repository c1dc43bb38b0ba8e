"""The traffic of a call to storage, request by request, and files that count it."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from struct import Struct
from time import perf_counter_ns
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from rayio.storage.base import FSYNC, ISSUED, OPEN, READ, WRITE, Issued

T = TypeVar("T")

#: A ``read()`` of fewer bytes fetches this many, as a page cache would: parsing a file's headers costs one request.
#: ``readinto()`` is always one request.
WINDOW_BYTES = 4096

#: Packs a row of ``rayio.storage.base.ISSUED``.
_pack = Struct("<qqqqiihh").pack
#: The end of calls that are always waited for; it is never set.
_NEVER = threading.Event()
#: Held while a failed attempt is recorded, by whichever thread.
_retrying = threading.Lock()


class MadeAhead(Protocol):
    """Requests that are made before the reader asks for them; see ``rayio.storage.ahead``."""

    def open(self, name: str, kept: Any = None) -> Any:
        """Return a file for the reader."""

    def take(self, name: str, position: int, buffer: Any) -> int:
        """Fill ``buffer`` and return its bytes; -1 if no planned request has them."""

    def look(self, name: str) -> bool:
        """Make the first planned request to a file; return False without one."""

    def closing(self, name: str, *, waits: bool) -> None:
        """Drop what is left of a file that is closed."""


class Traffic:
    """The traffic of one call to storage so far; with an anchor, request by request.

    ``anchor`` is the difference from ``perf_counter_ns`` to the engine's time. Failed attempts are always recorded,
    every request unless ``is_itemised`` is False.
    """

    __slots__ = (
        "added", "ahead", "anchor", "answers", "ending", "files", "is_itemised", "is_watched", "nbytes", "opens",
        "requests", "retries", "rows", "sync_ns", "syncs", "unevicted",
    )  # fmt: skip

    def __init__(
        self, anchor: int | None = None, *, is_itemised: bool = True, ending: threading.Event | None = None
    ) -> None:
        self.opens = 0
        self.requests = 0
        self.nbytes = 0
        self.syncs = 0
        #: Their total duration (ns).
        self.sync_ns = 0
        #: True if files record the bytes that each request adds to the page cache; the sum, or None if unknown.
        self.is_watched = False
        self.added: int | None = 0
        #: Bytes that stayed in the page cache despite eviction; None if unknown.
        self.unevicted: int | None = 0
        self.anchor = anchor
        #: Set once nobody waits for an answer: a pause between attempts then ends, and the call with it.
        self.ending = ending or _NEVER
        self.is_itemised = is_itemised and anchor is not None
        #: Rows of ``ISSUED`` in the order of their ends, in ``perf_counter_ns``; threads may append.
        self.rows = bytearray()
        #: Rows of failed attempts.
        self.retries = bytearray()
        self.files: dict[str, int] = {}
        #: Answers of failed attempts, with their codes.
        self.answers: dict[str, int] = {}
        #: The requests of this call that are made before the reader asks for them; None without a plan.
        self.ahead: MadeAhead | None = None

    @property
    def needs_files(self) -> bool:
        """True if requests are recorded, watched or made ahead, which takes files that stay open between them."""
        return self.is_itemised or self.is_watched or self.ahead is not None

    def apart(self) -> Traffic:
        """Return the traffic of one thread of this call, to be added by :meth:`join`; numbers of files are shared."""
        alone = Traffic(self.anchor, is_itemised=self.is_itemised, ending=self.ending)
        alone.files, alone.is_watched = self.files, self.is_watched
        return alone

    def join(self, other: Traffic) -> None:
        """Add an open by another thread; one thread at a time."""
        self.opens += other.opens
        self.rows += other.rows
        self.stayed(other.unevicted)

    def stayed(self, nbytes: int | None) -> None:
        """Add bytes that stayed in the page cache despite eviction."""
        self.unevicted = None if nbytes is None or self.unevicted is None else self.unevicted + nbytes

    def file(self, path: str) -> int:
        """Return the number of a file; equal for equal paths."""
        return self.files.setdefault(path, len(self.files))

    def add(self, kind: int, start: int, file: int, thread: int, offset: int = -1, nbytes: int = 0) -> None:
        """Record a request that began at ``start`` (``perf_counter_ns``) and ends now."""
        self.rows += _pack(start, perf_counter_ns(), offset, nbytes, file, thread, kind, 0)

    def add_retry(self, start: int, name: str, answer: str) -> None:
        """Record a failed attempt that began at ``start`` and is repeated now."""
        with _retrying:
            thread, code = threading.get_native_id(), self.answers.setdefault(answer, len(self.answers))
            self.retries += _pack(start, perf_counter_ns(), -1, 0, self.file(name), thread, code, 0)

    @property
    def issued(self) -> Issued | None:
        """Return every request, in the order of ends; None if they are not recorded."""
        return self._on_the_clock(self.rows) if self.is_itemised else None

    @property
    def retried(self) -> Issued | None:
        """Return the failed attempts; None if there are none, or no clock."""
        if not self.retries or self.anchor is None:
            return None
        return replace(self._on_the_clock(self.retries), answers=tuple(self.answers))

    def _on_the_clock(self, packed: bytearray) -> Issued:
        rows = np.frombuffer(packed, ISSUED)
        rows["start"] += self.anchor
        rows["end"] += self.anchor
        if (rows["start"][1:] < rows["end"][:-1]).any():
            rows["slot"] = slots(rows["start"], rows["end"])
        return Issued(rows, list(self.files))


class Timed:
    """Calls for one file, recorded if there is a clock."""

    def __init__(self, traffic: Traffic, name: str) -> None:
        self.traffic = traffic
        self.number = traffic.file(name)
        self.thread = threading.get_native_id()

    def call(self, kind: int, function: Callable[[], T], offset: int = -1) -> T:
        """Return the call's result; a write's result is its bytes."""
        start = perf_counter_ns()
        result = function()
        if self.traffic.is_itemised:
            nbytes = result if kind == WRITE and isinstance(result, int) else 0
            self.traffic.add(kind, start, self.number, self.thread, offset, nbytes)
        if kind == FSYNC:
            self.traffic.syncs += 1
            self.traffic.sync_ns += perf_counter_ns() - start
        return result


def slots(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int16]:
    """Return numbers from 0 of intervals (ns) such that intervals of one number do not overlap; as few as possible."""
    given = np.zeros(len(start), np.int16)
    busy: list[tuple[int, int]] = []
    for place in np.argsort(start, kind="stable").tolist():
        if busy and busy[0][0] <= start[place]:
            _, given[place] = heappop(busy)
        else:
            given[place] = len(busy)
        heappush(busy, (int(end[place]), int(given[place])))
    return given


class CountedFile:
    """A file open for reading that counts the requests that reach the storage system.

    ``read`` keeps its windows, so repeated reads cost nothing; ``readinto`` is one request into the caller's memory.
    :meth:`window` and :meth:`fetch` do the same at a given position, for readers of many small files: each Python call
    costs as much as a small request. Subclasses implement :meth:`_fetch` and :attr:`size`. It resembles
    ``io.RawIOBase``, which would take microseconds to create and close.
    """

    __slots__ = (
        "_number",
        "_position",
        "_size",
        "_thread",
        "_windows",
        "closed",
        "is_kept",
        "name",
        "shown",
        "traffic",
    )
    #: True if a request to a closed file might reach another file.
    has_handle = True

    def __init__(self, shown: str, traffic: Traffic, name: str) -> None:
        #: The file's address, for messages.
        self.shown = shown
        self.name = name
        self.traffic = traffic
        self._number = self._thread = 0
        if traffic.is_itemised:
            self._number, self._thread = traffic.file(name), threading.get_native_id()
        self._position = 0
        self._size = -1
        #: Start and bytes of windows; files have few headers, so the list stays short.
        self._windows: list[tuple[int, bytes]] = []
        self.closed = False
        #: True if it stays open for later calls.
        self.is_kept = False

    def again(self, name: str, traffic: Traffic) -> Any:
        """Reset for another call to storage; only the handle and the size stay."""
        self.name, self.traffic = name, traffic
        if traffic.is_itemised:
            self._number, self._thread = traffic.file(name), threading.get_native_id()
        self._position = 0
        self._windows.clear()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_kept:
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self.traffic.ahead is not None:
            self.traffic.ahead.closing(self.name, waits=self.has_handle)
        self.closed = True

    def _fetch(self, position: int, buffer: Any) -> int:
        """Read from ``position`` into ``buffer`` in one request; shorter at the file's end."""
        raise NotImplementedError

    def bytes_at(self, position: int, nbytes: int) -> Any:
        """Return bytes from ``position`` on, read in one request that is not counted; fewer at the file's end."""
        buffer = np.empty(nbytes, np.uint8).data
        return buffer[: self._fetch(position, buffer)]

    @property
    def size(self) -> int:
        """Size of the file in bytes when it was opened."""
        return self._size

    def _opened(self, start: int) -> None:
        self.traffic.opens += 1
        if self.traffic.is_itemised:
            self.traffic.add(OPEN, start, self._number, self._thread)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return False."""
        return False

    def flush(self) -> None:
        """Do nothing."""

    def tell(self) -> int:
        """Return the offset of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position to ``offset``, without a request if possible."""
        if whence == io.SEEK_CUR:
            offset += self._position
        elif whence == io.SEEK_END:
            offset += self.size
        if offset < 0:
            raise ValueError(f"negative position {offset} in {self.shown}")
        self._position = offset
        return offset

    def readinto(self, buffer: Any) -> int:
        """Read into ``buffer`` in one request; shorter at the file's end."""
        length = self.fetch(self._position, buffer)
        self._position += length
        return length

    def fetch(self, position: int, buffer: Any) -> int:
        """Read from ``position`` into ``buffer`` in one request; the position stays.

        A request that was made ahead is answered from its bytes.
        """
        traffic = self.traffic
        if traffic.ahead is not None and (length := traffic.ahead.take(self.name, position, buffer)) >= 0:
            return length
        if traffic.is_itemised:
            start = perf_counter_ns()
            length = self._fetch(position, buffer)
            traffic.add(READ, start, self._number, self._thread, position, length)
        else:
            length = self._fetch(position, buffer)
        traffic.requests += 1
        traffic.nbytes += length
        return length

    def read(self, size: int | None = -1) -> bytes:
        """Return ``size`` bytes, or all the rest; few bytes come from a window."""
        left = max(0, self.size - self._position)
        size = left if size is None or size < 0 else min(size, left)
        if size == 0:
            return b""
        if size >= WINDOW_BYTES:
            whole = bytearray(size)
            return bytes(whole[: self.readinto(whole)])
        start, window = self.window(self._position, size)
        begin = self._position - start
        part = window[begin : begin + size]
        self._position += len(part)
        return part

    def readall(self) -> bytes:
        """Return the rest of the file."""
        return self.read()

    def window(self, position: int, size: int) -> tuple[int, bytes]:
        """Return the start and bytes of a window with ``size`` bytes from ``position`` on, fetched if new.

        It has at most ``WINDOW_BYTES``; near the file's end it begins earlier.
        """
        for start, window in self._windows:
            if start <= position and position + size <= start + len(window):
                return start, window
        whole = self.size if self._size < 0 else self._size
        start, buffer = max(0, min(position, whole - WINDOW_BYTES)), bytearray(min(WINDOW_BYTES, whole))
        length = self.fetch(start, buffer)
        window = bytes(buffer if length == len(buffer) else buffer[:length])
        self._windows.append((start, window))
        return start, window
