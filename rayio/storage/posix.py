"""Real storage in a mounted file system (local, NFS, Lustre): buffered reads, atomic writes, each request counted."""

from __future__ import annotations

import errno
import io
import os
import shutil
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import lru_cache, partial
from heapq import heappop, heappush
from pathlib import Path
from struct import Struct
from time import perf_counter_ns
from typing import Any, BinaryIO, Protocol, TypeVar, cast
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from rayio.errors import DataError, RayioError, StorageError
from rayio.replacing import replacing
from rayio.storage.base import FSYNC, ISSUED, OPEN, READ, WRITE, Issued, Opener, Requests, Served
from rayio.units import format_bytes

T = TypeVar("T")

#: A ``read()`` shorter than this fetches this much around it, as the kernel's page cache would: a library that picks
#: at a file's headers costs one request. ``readinto()`` goes to the operating system as it is.
WINDOW_BYTES = 4096
#: End of the names of files that are being written.
PARTIAL = ".partial"


class Threaded(Protocol):
    """Runs a blocking call for an engine: in a thread, or in place."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        """Give the call's result when awaited."""


def refusal(error: OSError, path: Path | str, doing: str) -> RayioError:
    """Say in a user's words what the operating system said, with the path and what to do about it."""
    match error.errno:
        case errno.ENOENT:
            return DataError(f"{path}: the file is missing; generate the dataset again, or correct the path")
        case errno.ENOSPC | errno.EDQUOT:
            free = format_bytes(_free_bytes(Path(path)))
            return StorageError(f"{path}: no space left while {doing} ({free} free); free some, or choose another path")
        case errno.EACCES | errno.EPERM:
            return StorageError(f"{path}: no permission for {doing}; change the permissions, or choose another path")
        case errno.EROFS:
            return StorageError(f"{path}: the file system is read-only, no {doing}; choose another path")
        case errno.ENOTDIR | errno.EEXIST:
            return StorageError(f"{path}: a part of this path is a file, not a folder; choose another path")
        case errno.EISDIR:
            return StorageError(f"{path}: a folder is in the place of this file; remove it, or choose another path")
    return StorageError(f"{path}: {error.strerror or error} while {doing}")


def _free_bytes(path: Path) -> int:
    while not path.exists() and path != path.parent:
        path = path.parent
    with suppress(OSError):
        return shutil.disk_usage(path).free
    return 0


#: Packs a row of ``rayio.storage.base.ISSUED``.
_pack = Struct("<qqqqiihh").pack


class Asked:
    """What one call to storage asked of the operating system so far; with an anchor, request by request.

    ``anchor`` is what to add to ``perf_counter_ns`` to get the engine's time.
    """

    __slots__ = ("anchor", "files", "is_itemised", "nbytes", "opens", "requests", "rows")

    def __init__(self, anchor: int | None = None) -> None:
        self.opens = 0
        self.requests = 0
        self.nbytes = 0
        self.anchor = anchor
        self.is_itemised = anchor is not None
        #: Rows of ``ISSUED`` in the order of their ends, on the clock of ``perf_counter_ns``; threads may add to it.
        self.rows = bytearray()
        self.files: dict[str, int] = {}

    def file(self, path: str) -> int:
        """Number a file; the same path gives the same number."""
        return self.files.setdefault(path, len(self.files))

    @property
    def issued(self) -> Issued | None:
        """Every request, in the order of their ends; None without an anchor."""
        if self.anchor is None:
            return None
        rows = np.frombuffer(self.rows, ISSUED)
        rows["start"] += self.anchor
        rows["end"] += self.anchor
        if (rows["start"][1:] < rows["end"][:-1]).any():
            rows["slot"] = slots(rows["start"], rows["end"])
        return Issued(rows, list(self.files))


def slots(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int16]:
    """Give intervals (ns) numbers from 0 so that those with one number do not overlap, and as few as can be."""
    given = np.zeros(len(start), np.int16)
    busy: list[tuple[int, int]] = []
    for place in np.argsort(start, kind="stable").tolist():
        if busy and busy[0][0] <= start[place]:
            _, given[place] = heappop(busy)
        else:
            given[place] = len(busy)
        heappush(busy, (int(end[place]), int(given[place])))
    return given


class CountedFile(io.RawIOBase):
    """A file open for reading that counts the requests that really reach the operating system.

    ``read`` keeps the windows it has fetched, so asking again costs nothing; ``readinto`` is one request into the
    caller's memory. The file's size is that at opening.

    Raises:
        DataError: there is no such file.
        StorageError: the operating system refuses to open or to read it.
    """

    def __init__(self, path: Path, asked: Asked, name: str = "") -> None:
        self.path = path
        self.asked = asked
        start = perf_counter_ns()
        try:
            self._raw = io.FileIO(path, "r")
            self.size = os.fstat(self._raw.fileno()).st_size
        except OSError as error:
            raise refusal(error, path, "reading") from error
        asked.opens += 1
        if asked.is_itemised:
            end = perf_counter_ns()
            self._number, self._thread = asked.file(name), threading.get_native_id()
            asked.rows += _pack(start, end, -1, 0, self._number, self._thread, OPEN, 0)
        self._position = 0
        #: Start and bytes of what small reads fetched; a file has few headers, so this stays short.
        self._windows: list[tuple[int, bytes]] = []

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def tell(self) -> int:
        """Give the position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to ``offset``; nothing is asked of the operating system."""
        position = offset + (0, self._position, self.size)[whence]
        if position < 0:
            raise ValueError(f"negative position {position} in {self.path}")
        self._position = position
        return position

    def readinto(self, buffer: Any) -> int:
        """Read straight into ``buffer``, in one request; the file's end makes it shorter."""
        asked = self.asked
        start = perf_counter_ns()
        try:
            self._raw.seek(self._position)
            length = self._raw.readinto(buffer) or 0
        except OSError as error:
            raise refusal(error, self.path, "reading") from error
        if asked.is_itemised:
            end = perf_counter_ns()
            asked.rows += _pack(start, end, self._position, length, self._number, self._thread, READ, 0)
        asked.requests += 1
        asked.nbytes += length
        self._position += length
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
        start, window = self._window(size)
        begin = self._position - start
        part = window[begin : begin + size]
        self._position += len(part)
        return part

    def readall(self) -> bytes:
        """Read all that is left."""
        return self.read()

    def _window(self, size: int) -> tuple[int, bytes]:
        """Find or fetch a window that holds the next ``size`` bytes; near the file's end it reaches back."""
        position = self._position
        for start, window in self._windows:
            if start <= position and position + size <= start + len(window):
                return start, window
        self._position = max(0, min(position, self.size - WINDOW_BYTES))
        start, buffer = self._position, bytearray(min(WINDOW_BYTES, self.size))
        window = bytes(buffer[: self.readinto(buffer)])
        self._position = position
        self._windows.append((start, window))
        return start, window

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self._raw.close()
        super().close()


def counted_opener(root: Path, asked: Asked) -> Opener:
    """Give an opener for files under ``root`` that adds to ``asked``."""
    return lambda path: cast(BinaryIO, CountedFile(root / path, asked, path))


@lru_cache(maxsize=2)
def _random_bytes(num_bytes: int) -> memoryview:
    """Make the bytes that checkpoints are written from: random, because zeros compress and leave holes."""
    words = np.random.PCG64DXSM(0).random_raw(-(-num_bytes // 8))
    return np.asarray(words).view(np.uint8)[:num_bytes].data.toreadonly()


class PosixStorage:
    """A folder as storage. ``run`` is the engine's way to make a blocking call; relative paths are under ``root``.

    With an anchor (what to add to ``perf_counter_ns`` to get the engine's time) every request is timed and given out
    (:attr:`Served.issued`).
    """

    def __init__(self, root: Path, run: Threaded, anchor: int | None = None) -> None:
        self.root = root
        self.run = run
        self.anchor = anchor

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Call ``load`` and count what it asks for; ``requests`` is what a model would have served."""
        asked = Asked(self.anchor)
        try:
            value = await self.run(lambda: load(counted_opener(self.root, asked)))
        except DataError as error:
            if str(error).startswith(str(self.root)):
                raise
            raise DataError(f"{self.root / str(error)}") from None  # a format names files as the dataset does
        return Served(value, asked.opens, asked.requests, asked.nbytes, 0, asked.issued)

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Write random bytes under another name, then rename; ``fsync`` covers the file and then its folder.

        A failed write leaves nothing behind, and what had that name before stays.

        Raises:
            StorageError: no space, no permission, or a file where a folder should be.
        """
        if request_bytes < 1 or num_bytes < 0:
            raise ValueError(f"cannot write {num_bytes} bytes in requests of {request_bytes}")
        asked = Asked(self.anchor)
        return await self.run(lambda: write_file(self.root / path, num_bytes, request_bytes, asked, path, fsync=fsync))


def write_file(
    path: Path, num_bytes: int, request_bytes: int, asked: Asked | None = None, name: str = "", *, fsync: bool
) -> Served[None]:
    """Do what :meth:`PosixStorage.write` promises, in this thread; ``name`` is what the trace calls the file."""
    asked = asked or Asked()
    timed = _Timed(asked, name)
    unfinished = path.with_name(f"{path.name}.{uuid4().hex}{PARTIAL}")
    requests = 0
    syncs = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, unfinished), timed.call(OPEN, lambda: unfinished.open("xb", buffering=0)) as file:
            buffer = _random_bytes(min(request_bytes, max(num_bytes, 1)))
            written = 0
            while written < num_bytes:
                part = buffer[: num_bytes - written]
                written += timed.call(WRITE, partial(file.write, part), written) or 0
                requests += 1
            if fsync:
                timed.call(FSYNC, lambda: os.fsync(file.fileno()))
                syncs += 1
        if fsync:
            timed.call(FSYNC, lambda: sync_folder(path.parent))
            syncs += 1
    except OSError as error:
        raise _write_refusal(error, path, num_bytes) from error
    return Served(None, 1, requests, num_bytes, syncs, asked.issued)


class _Timed:
    """Calls to the operating system on behalf of one file, each noted where there is a clock."""

    def __init__(self, asked: Asked, name: str) -> None:
        self.asked = asked
        self.number = asked.file(name)
        self.thread = threading.get_native_id()

    def call(self, kind: int, function: Callable[[], T], offset: int = -1) -> T:
        """Make the call; a write's result is its bytes."""
        start = perf_counter_ns()
        result = function()
        if self.asked.is_itemised:
            end = perf_counter_ns()
            nbytes = result if kind == WRITE and isinstance(result, int) else 0
            self.asked.rows += _pack(start, end, offset, nbytes, self.number, self.thread, kind, 0)
        return result


def _write_refusal(error: OSError, path: Path, num_bytes: int) -> RayioError:
    if error.errno == errno.ENOENT:
        return StorageError(f"{path}: its folder vanished while writing {num_bytes} bytes; choose another path")
    return refusal(error, path, f"writing {num_bytes} bytes")


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
