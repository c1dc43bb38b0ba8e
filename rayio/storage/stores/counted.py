"""What a call to storage asked for, request by request, and files that count it."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from struct import Struct
from time import perf_counter_ns
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from rayio.storage.base import FSYNC, ISSUED, OPEN, READ, WRITE, Issued

T = TypeVar("T")

#: A ``read()`` shorter than this fetches this much around it, as a page cache would: a library that picks at a file's
#: headers costs one request. ``readinto()`` goes to the storage system as it is.
WINDOW_BYTES = 4096

#: Packs a row of ``rayio.storage.base.ISSUED``.
_pack = Struct("<qqqqiihh").pack


class Traffic:
    """The traffic of one call to storage: what it asked of the system so far; with an anchor, request by request.

    ``anchor`` is what to add to ``perf_counter_ns`` to get the engine's time; attempts that failed are noted in any
    case, every request unless ``is_itemised`` is False.
    """

    __slots__ = (
        "added", "anchor", "answers", "ending", "files", "is_itemised", "is_watched", "nbytes", "opens", "requests",
        "retries", "rows", "sync_ns", "syncs", "unevicted",
    )  # fmt: skip

    def __init__(
        self, anchor: int | None = None, *, is_itemised: bool = True, ending: threading.Event | None = None
    ) -> None:
        self.opens = 0
        self.requests = 0
        self.nbytes = 0
        self.syncs = 0
        #: How long those took together.
        self.sync_ns = 0
        #: Whether files look what each request adds to the page cache, and how many bytes that were; None where the
        #: kernel does not say.
        self.is_watched = False
        self.added: int | None = 0
        #: Bytes that were to leave the page cache and did not; None likewise.
        self.unevicted: int | None = 0
        self.anchor = anchor
        #: Set when nobody waits for an answer any more: a pause before another attempt then ends, and the call with it.
        self.ending = ending or threading.Event()
        self.is_itemised = is_itemised and anchor is not None
        #: Rows of ``ISSUED`` in the order of their ends, on the clock of ``perf_counter_ns``; threads may add to it.
        self.rows = bytearray()
        #: Those of attempts that failed.
        self.retries = bytearray()
        self.files: dict[str, int] = {}
        #: What was answered to those that failed, and the code of each.
        self.answers: dict[str, int] = {}

    def stayed(self, nbytes: int | None) -> None:
        """Note bytes that stayed in the page cache though they were to leave."""
        self.unevicted = None if nbytes is None or self.unevicted is None else self.unevicted + nbytes

    def file(self, path: str) -> int:
        """Number a file; the same path gives the same number."""
        return self.files.setdefault(path, len(self.files))

    def add(self, kind: int, start: int, file: int, thread: int, offset: int = -1, nbytes: int = 0) -> None:
        """Note a request that began at ``start`` (``perf_counter_ns``) and ends now."""
        self.rows += _pack(start, perf_counter_ns(), offset, nbytes, file, thread, kind, 0)

    def add_retry(self, start: int, name: str, answer: str) -> None:
        """Note an attempt that began at ``start``, failed with some answer, and is made again now."""
        thread, code = threading.get_native_id(), self.answers.setdefault(answer, len(self.answers))
        self.retries += _pack(start, perf_counter_ns(), -1, 0, self.file(name), thread, code, 0)

    @property
    def issued(self) -> Issued | None:
        """Every request, in the order of their ends; None where they were not to be kept."""
        return self._on_the_clock(self.rows) if self.is_itemised else None

    @property
    def retried(self) -> Issued | None:
        """Every attempt that failed and was made again; None where there was none, or is no clock."""
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
    """Calls on behalf of one file, each noted where there is a clock."""

    def __init__(self, traffic: Traffic, name: str) -> None:
        self.traffic = traffic
        self.number = traffic.file(name)
        self.thread = threading.get_native_id()

    def call(self, kind: int, function: Callable[[], T], offset: int = -1) -> T:
        """Make the call; a write's result is its bytes."""
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
    """Number intervals (ns) from 0 so that those of one number do not overlap, with as few numbers as can be."""
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
    """A file open for reading that counts the requests that really reach the storage system.

    ``read`` keeps the windows it has fetched, so asking again costs nothing; ``readinto`` is one request into the
    caller's memory. :meth:`window` and :meth:`fetch` do the same at a place that is named, for readers of many small
    files: each call of Python's costs as much as a small request. A storage says how it fetches (:meth:`_fetch`) and
    how long the file is (:attr:`size`). It is no ``io.RawIOBase``, only the like of one: those take microseconds
    to make, to leave and to be forgotten.
    """

    __slots__ = ("_number", "_position", "_size", "_thread", "_windows", "closed", "is_kept", "shown", "traffic")

    def __init__(self, shown: str, traffic: Traffic, name: str) -> None:
        #: The file's address, for messages.
        self.shown = shown
        self.traffic = traffic
        self._number = self._thread = 0
        if traffic.is_itemised:
            self._number, self._thread = traffic.file(name), threading.get_native_id()
        self._position = 0
        self._size = -1
        #: Start and bytes of what small reads fetched; a file has few headers, so this stays short.
        self._windows: list[tuple[int, bytes]] = []
        self.closed = False
        #: Whether it stays open when it is left, for the calls to come.
        self.is_kept = False

    def again(self, name: str, traffic: Traffic) -> Any:
        """Serve another call to storage as if it had just been opened by that: only the handle and the size stay."""
        self.traffic = traffic
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
        """Be done with the file."""
        self.closed = True

    def _fetch(self, position: int, buffer: Any) -> int:
        """Read from ``position`` straight into ``buffer``, in one request; the file's end makes it shorter.

        Raises:
            DataError: the file is gone.
            StorageError: the storage system refuses.
        """
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Bytes of the file, as it was opened."""
        return self._size

    def _opened(self, start: int) -> None:
        """Count the opening, which began at ``start`` and ends now."""
        self.traffic.opens += 1
        if self.traffic.is_itemised:
            self.traffic.add(OPEN, start, self._number, self._thread)

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def writable(self) -> bool:
        """Say no."""
        return False

    def flush(self) -> None:
        """Do nothing: nothing is written."""

    def tell(self) -> int:
        """The position of the next read, in bytes from the file's start."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to ``offset``; nothing is asked of the storage system that it has not said yet."""
        if whence == io.SEEK_CUR:
            offset += self._position
        elif whence == io.SEEK_END:
            offset += self.size
        if offset < 0:
            raise ValueError(f"negative position {offset} in {self.shown}")
        self._position = offset
        return offset

    def readinto(self, buffer: Any) -> int:
        """Read straight into ``buffer``, in one request; the file's end makes it shorter."""
        length = self.fetch(self._position, buffer)
        self._position += length
        return length

    def fetch(self, position: int, buffer: Any) -> int:
        """Read from ``position`` straight into ``buffer``, in one request; the place of the next read stays."""
        traffic = self.traffic
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
        """Read ``size`` bytes, or all that are left; few of them come from a window."""
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
        """Read all that is left."""
        return self.read()

    def window(self, position: int, size: int) -> tuple[int, bytes]:
        """Find or fetch a window with ``size`` bytes from ``position`` on; give where it starts, and it.

        It has ``WINDOW_BYTES``, and so has at most as many of them. Near the file's end it reaches back.
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
