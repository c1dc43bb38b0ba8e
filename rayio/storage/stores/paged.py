"""Files and the page cache: direct reads and writes (O_DIRECT), and bytes that a read adds to the cache."""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from rayio.errors import StorageError
from rayio.files import NotAFileError, open_regular
from rayio.machine.mounts import Mounted, existing, mount_of, mounts_here
from rayio.machine.pages import ALIGNMENT, PAGE, aligned, resident
from rayio.storage.base import WRITE
from rayio.storage.stores.counted import Timed, Traffic

#: Bytes of one direct read or write at most; the kernel would cut larger ones too.
CHUNK_BYTES = 16 << 20
#: Largest read-ahead of the kernel beyond a request.
AHEAD_BYTES = 8 << 20

_threads = threading.local()


def mounted_at(path: Path) -> Mounted:
    """Return the mount of a path."""
    return mount_of(existing(path), mounts_here()) or Mounted("/", "unknown", "unknown", "")


def no_direct(path: Path | str, type: str) -> StorageError:
    """Return the refusal of a file system without direct I/O."""
    return StorageError(
        f"{path}: storage.page_cache=direct: this file system ({type}) has no direct I/O (O_DIRECT); use drop or use, "
        "or choose another path"
    )


def check_direct(folder: Path) -> None:
    """Refuse a folder without direct I/O, as far as that is visible without a file.

    Raises:
        StorageError: the file system has no direct I/O.
    """
    mount = mounted_at(folder)
    if mount.source == "memory":
        raise no_direct(folder, mount.type)
    try:
        os.close(os.open(existing(folder), os.O_TMPFILE | os.O_DIRECT | os.O_RDWR, 0o600))
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise no_direct(folder, mount.type) from None


def read_direct(descriptor: int, position: int, buffer: Any, size: int) -> int:
    """Read into ``buffer`` from a file of ``size`` bytes opened with O_DIRECT, in whole blocks.

    Raises:
        OSError: the system refuses.
    """
    view = memoryview(buffer).cast("B")
    wanted, length = min(len(view), size - position), 0
    while length < wanted:
        skip = (position + length) % ALIGNMENT
        span = min(CHUNK_BYTES, skip + wanted - length)
        blocks = _memory(span)[: -(-span // ALIGNMENT) * ALIGNMENT]
        got = min(os.preadv(descriptor, [blocks], position + length - skip) - skip, wanted - length)
        if got <= 0:  # the file was truncated
            break
        view[length : length + got] = blocks[skip : skip + got]
        length += got
    return length


def _memory(nbytes: int) -> memoryview:
    """Return this thread's memory for direct reads; it grows to the longest read, and stays."""
    memory: memoryview | None = getattr(_threads, "memory", None)
    if memory is None or len(memory) < nbytes:
        memory = _threads.memory = aligned(nbytes)
    return memory


class DirectWriter:
    """A new file opened with O_DIRECT: appended data goes to the device in whole blocks; the last is truncated."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._blocks = aligned(ALIGNMENT)
        #: Unwritten bytes in ``_blocks``, and written bytes of the file.
        self._unwritten = 0
        self._written = 0

    def write(self, buffer: Any) -> int:
        """Append; an incomplete block waits for more."""
        view = memoryview(buffer).cast("B")[:CHUNK_BYTES]
        if len(self._blocks) < self._unwritten + len(view):
            grown = aligned(self._unwritten + len(view))
            grown[: self._unwritten] = self._blocks[: self._unwritten]
            self._blocks = grown
        self._blocks[self._unwritten : self._unwritten + len(view)] = view
        self._unwritten += len(view)
        self._put(self._unwritten // ALIGNMENT * ALIGNMENT)
        return len(view)

    def finish(self) -> None:
        """Write the rest as a whole block, and truncate the file to its length."""
        size = self._written + self._unwritten
        if self._unwritten:
            self._put(ALIGNMENT)
            os.ftruncate(self.descriptor, size)

    def _put(self, nbytes: int) -> None:
        done = 0
        while done < nbytes:
            done += os.pwrite(self.descriptor, self._blocks[done:nbytes], self._written + done)
        self._written += nbytes
        left = max(0, self._unwritten - nbytes)
        self._blocks[:left] = bytes(self._blocks[nbytes : nbytes + left])
        self._unwritten = left


class Appended(io.RawIOBase):
    """A new file whose requests are counted and timed."""

    def __init__(self, raw: BinaryIO | DirectWriter, timed: Timed) -> None:
        self._raw = raw
        self._timed = timed
        self._written = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, buffer: Any) -> int:
        """Append in one request; return the bytes written."""
        return self._request(partial(self._raw.write, buffer))

    def writev(self, parts: Sequence[Any]) -> int:
        """Append some buffers in one request; return the bytes written."""
        if isinstance(self._raw, DirectWriter):
            return self.write(b"".join(parts))
        return self._request(partial(os.writev, self._raw.fileno(), parts))

    def _request(self, write: Callable[[], int]) -> int:
        length = self._timed.call(WRITE, write, self._written) or 0
        self._written += length
        self._timed.traffic.requests += 1
        self._timed.traffic.nbytes += length
        return length


def watched(traffic: Traffic, descriptor: int, position: int, nbytes: int, read: Callable[[], int]) -> int:
    """Make a read; record in ``traffic`` the bytes that it added to the page cache, if the file system has no counters.

    Read-ahead counts for the read that caused it. If the file system keeps nothing in the page cache, all bytes count.
    """
    begin = position // PAGE * PAGE
    span = -(-(position + nbytes) // PAGE) * PAGE - begin
    there, around = resident(descriptor, begin, span), resident(descriptor, begin, span + AHEAD_BYTES)
    length = read()
    after = resident(descriptor, begin, span + AHEAD_BYTES)
    if traffic.added is None or there is None or around is None or after is None:
        traffic.added = None
    elif length:
        pages = -(-(position + length) // PAGE) * PAGE - begin
        traffic.added += max(pages - there, after - around, 0)
    return length


def open_file(path: str | Path, flags: int, *, direct: bool) -> int:
    """Open a regular file, past the page cache if ``direct``.

    Raises:
        StorageError: its file system has no direct I/O.
        OSError: the system refuses, or it is no regular file.
    """
    try:
        return open_regular(str(path), flags | (os.O_DIRECT if direct else 0))[0]
    except NotAFileError:
        raise
    except OSError as error:
        if direct and error.errno == errno.EINVAL:
            with suppress(OSError):  # the file was created before the refusal
                if flags & os.O_EXCL:
                    Path(path).unlink()
            raise no_direct(path, mounted_at(Path(path)).type) from None
        raise
