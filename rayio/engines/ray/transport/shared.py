"""Memory shared by actors of one host: a reader reads batches into it, and their rank maps it, without a copy.

It is an anonymous file (``memfd_create``), which leaves no name after a kill and ends with the last process that has it
open. Only its owner writes.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from rayio.errors import RunError
from rayio.model.buffers import MAX_BUFFER_BYTES, MAX_BUFFERS, Buffers

#: An arena at least doubles, and grows by at least this many bytes, because each mapped chunk keeps a file open.
CHUNK_BYTES = 4 << 20
#: Arenas of each reader kept open; one that is not the latest belongs to a killed process.
KEPT_ARENAS = 4


@cache
def is_possible() -> bool:
    """Return True if this system supports such memory: Linux, unless forbidden."""
    try:
        os.close(os.memfd_create("rayio-batches"))
    except (AttributeError, OSError):
        return False
    return True


class Piece(NamedTuple):
    """The place of a batch: an arena, a chunk's offset in it, an offset in the chunk, and a length."""

    arena: int
    chunk: int
    length: int
    offset: int
    nbytes: int


class Segment(NamedTuple):
    """A part of a chunk, lent as a whole."""

    arena: Arena
    #: The chunk, and its offset in the arena.
    chunk: mmap.mmap
    start: int
    offset: int
    memory: NDArray[np.uint8]

    def hollow(self) -> None:
        """Return the memory to the system; the place stays."""
        self.chunk.madvise(mmap.MADV_REMOVE, self.offset, len(self.memory))


class Arena:
    """An anonymous file that grows by chunks; its number cannot be guessed."""

    def __init__(self) -> None:
        self.number = int.from_bytes(os.urandom(8), "little")
        self.fd = os.memfd_create("rayio-batches")
        self._size = 0
        #: The latest chunk: its offset, its memory, and the length in use.
        self._start, self._cut = 0, 0
        self._chunk: mmap.mmap | None = None

    def __del__(self) -> None:
        os.close(self.fd)

    def cut(self, nbytes: int) -> Segment:
        """Return a new segment of whole pages."""
        nbytes = _whole_pages(max(1, nbytes))
        if self._chunk is None or self._cut + nbytes > len(self._chunk):
            length = max(nbytes, CHUNK_BYTES, self._size)
            os.ftruncate(self.fd, self._size + length)
            self._chunk = mmap.mmap(self.fd, length, offset=self._size)
            self._start, self._cut = self._size, 0
            self._size += length
        offset, self._cut = self._cut, self._cut + nbytes
        return Segment(
            self, self._chunk, self._start, offset, np.frombuffer(self._chunk, np.uint8, nbytes, offset=offset)
        )


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


class SharedBuffers(Buffers):
    """A reader's memory for batches in an arena; see ``Buffers``."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena()
        self._arenas = WeakValueDictionary({self.arena.number: self.arena})
        #: Lent segments by address.
        self._lent: dict[int, Segment] = {}
        #: Free segments, oldest first; and those without memory.
        self._ready: list[Segment] = []
        self._hollow: list[Segment] = []

    @property
    def num_free(self) -> int:
        """Number of free buffers that have memory."""
        return len(self._ready)

    def lend(self, nbytes: int) -> NDArray[np.uint8]:
        """Return an uninitialised buffer of ``nbytes`` for exclusive use until it is given back."""
        with self._lock:
            segment = _fitting(self._ready, nbytes) or _fitting(self._hollow, nbytes) or self.arena.cut(nbytes)
            buffer = segment.memory[:nbytes]
            self._lent[_address(buffer)] = segment
            return buffer

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        """Take back a lent buffer; it and its views must not be used after that."""
        with self._lock:
            segment = self._lent.pop(_address(buffer), None)
            if segment is None:
                return
            if segment.arena is not self.arena:  # an older arena: others have had it open for long
                segment.hollow()
                return
            self._ready.append(segment)
            while len(self._ready) > MAX_BUFFERS or sum(len(s.memory) for s in self._ready) > MAX_BUFFER_BYTES:
                oldest = self._ready.pop(0)
                oldest.hollow()
                self._hollow.append(oldest)

    def piece(self, buffer: NDArray[np.uint8]) -> Piece:
        """Return the place of a lent buffer."""
        segment = self._lent[_address(buffer)]
        return Piece(segment.arena.number, segment.start, len(segment.chunk), segment.offset, len(buffer))

    def fd(self, number: int) -> int | None:
        """Return the file of an arena with lent buffers, or None."""
        arena = self._arenas.get(number)
        return None if arena is None else arena.fd

    def leave(self, buffers: Iterable[NDArray[np.uint8]]) -> None:
        """Never lend these buffers again: their users cannot report when they are done."""
        with self._lock:
            for buffer in buffers:
                self._lent.pop(_address(buffer), None)

    def end(self) -> None:
        """Return all memory to the system, even if others have the arenas open: nobody uses it any more."""
        with self._lock:
            for segment in (*self._ready, *self._lent.values()):
                segment.hollow()
            self._ready.clear()
            self._lent.clear()

    def forget(self, buffers: Iterable[NDArray[np.uint8]]) -> None:
        """Leave these buffers, and start a new arena.

        The old arena's free memory is released now, the rest when no process has it open.
        """
        self.leave(buffers)
        with self._lock:
            self.arena = Arena()
            self._arenas[self.arena.number] = self.arena
            for segment in self._ready:
                segment.hollow()
            self._ready.clear()
            self._hollow.clear()


def _fitting(free: list[Segment], nbytes: int) -> Segment | None:
    for place, segment in enumerate(free):
        if nbytes <= len(segment.memory) <= max(2 * nbytes, mmap.PAGESIZE):
            return free.pop(place)
    return None


def _address(buffer: NDArray[np.uint8]) -> int:
    address: int = buffer.__array_interface__["data"][0]
    return address


class Arenas:
    """The arenas of readers that this process has open."""

    def __init__(self, num_readers: int) -> None:
        self._most = KEPT_ARENAS * num_readers
        #: Least recently used first.
        self._fds: dict[int, int] = {}
        #: Mapped memory of chunks, by arena and offset.
        self._chunks: dict[tuple[int, int], NDArray[np.uint8]] = {}

    def add(self, number: int, fd: int) -> None:
        """Add an arena; close the least recently used one if there are too many."""
        if number in self._fds:
            os.close(fd)
            return
        self._fds[number] = fd
        if len(self._fds) > self._most:
            old = next(iter(self._fds))
            os.close(self._fds.pop(old))
            self._chunks = {place: memory for place, memory in self._chunks.items() if place[0] != old}

    def fd(self, number: int) -> int | None:
        """Return the file of an arena, to pass it on; None if this process does not have it."""
        if (fd := self._fds.pop(number, None)) is not None:
            self._fds[number] = fd
        return fd

    def look(self, piece: Piece) -> NDArray[np.uint8]:
        """Return the mapped memory of a batch, read-only.

        Raises:
            RunError: its arena is unknown.
        """
        fd = self.fd(piece.arena)
        place = (piece.arena, piece.chunk)
        if (memory := self._chunks.get(place)) is None:
            if fd is None:
                raise RunError(f"{piece.nbytes} bytes of a batch are in an arena that this process did not receive")
            mapped = mmap.mmap(fd, piece.length, prot=mmap.PROT_READ, offset=piece.chunk)
            memory = self._chunks[place] = np.frombuffer(mapped, np.uint8)
        return memory[piece.offset : piece.offset + piece.nbytes]
