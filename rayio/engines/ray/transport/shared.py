"""Memory that actors of one host share: a reader reads batches into it, and their rank maps it. Nothing is copied.

It is an anonymous file (``memfd_create``): it has no name that a killed process could leave behind, and ends with the
last process that has it open. Only its owner writes.
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
from rayio.model.loading import MAX_BUFFER_BYTES, MAX_BUFFERS, Buffers

#: An arena grows by so many bytes at least, and to twice its size: each mapping of a chunk keeps a file open.
CHUNK_BYTES = 4 << 20
#: Arenas of each reader that others keep open: one that is not the latest is of a process that was killed.
KEPT_ARENAS = 4


@cache
def is_possible() -> bool:
    """Whether this system has such memory: Linux has, where nothing forbids it."""
    try:
        os.close(os.memfd_create("rayio-batches"))
    except (AttributeError, OSError):
        return False
    return True


class Piece(NamedTuple):
    """Where a batch lies: so many bytes at an offset in a chunk, which begins at its own offset in an arena."""

    arena: int
    chunk: int
    length: int
    offset: int
    nbytes: int


class Segment(NamedTuple):
    """A part of a chunk that is lent as a whole."""

    arena: Arena
    #: The chunk, and where in the arena it begins.
    chunk: mmap.mmap
    start: int
    offset: int
    memory: NDArray[np.uint8]

    def hollow(self) -> None:
        """Give the memory back to the system; the place stays."""
        self.chunk.madvise(mmap.MADV_REMOVE, self.offset, len(self.memory))


class Arena:
    """An anonymous file that grows by chunks; its number is known to nobody by chance."""

    def __init__(self) -> None:
        self.number = int.from_bytes(os.urandom(8), "little")
        self.fd = os.memfd_create("rayio-batches")
        self._size = 0
        #: The latest chunk: where it begins, its memory, and how much of it is cut.
        self._start, self._cut = 0, 0
        self._chunk: mmap.mmap | None = None

    def __del__(self) -> None:
        os.close(self.fd)

    def cut(self, nbytes: int) -> Segment:
        """Cut a new segment, of whole pages."""
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
    """A reader's memory for batches, as ``Buffers``, in an arena."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena()
        self._arenas = WeakValueDictionary({self.arena.number: self.arena})
        #: By address: what is lent.
        self._lent: dict[int, Segment] = {}
        #: Free ones, oldest first; and those whose memory went back to the system.
        self._ready: list[Segment] = []
        self._hollow: list[Segment] = []

    @property
    def num_free(self) -> int:
        """Buffers that wait to be lent again, and have their memory."""
        return len(self._ready)

    def lend(self, nbytes: int) -> NDArray[np.uint8]:
        """A buffer of ``nbytes`` with anything in it, which nobody else has until it is given back."""
        with self._lock:
            found = _fitting(self._ready, nbytes) or _fitting(self._hollow, nbytes) or self.arena.cut(nbytes)
            buffer = found.memory[:nbytes]
            self._lent[_address(buffer)] = found
            return buffer

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        """Take back what :meth:`lend` gave; nobody may look at it, or at a view of it, after that."""
        with self._lock:
            segment = self._lent.pop(_address(buffer), None)
            if segment is None:
                return
            if segment.arena is not self.arena:  # others have it open for long
                segment.hollow()
                return
            self._ready.append(segment)
            while len(self._ready) > MAX_BUFFERS or sum(len(s.memory) for s in self._ready) > MAX_BUFFER_BYTES:
                oldest = self._ready.pop(0)
                oldest.hollow()
                self._hollow.append(oldest)

    def piece(self, buffer: NDArray[np.uint8]) -> Piece:
        """Say where a buffer lies that is lent."""
        segment = self._lent[_address(buffer)]
        return Piece(segment.arena.number, segment.start, len(segment.chunk), segment.offset, len(buffer))

    def fd(self, number: int) -> int | None:
        """The file of an arena of which something is lent."""
        arena = self._arenas.get(number)
        return None if arena is None else arena.fd

    def leave(self, buffers: Iterable[NDArray[np.uint8]]) -> None:
        """Never lend these buffers again: who was lent them will not say any more when they are free."""
        with self._lock:
            for buffer in buffers:
                self._lent.pop(_address(buffer), None)

    def end(self) -> None:
        """Give all memory back to the system, whoever has the arenas open: nobody looks at anything any more."""
        with self._lock:
            for segment in (*self._ready, *self._lent.values()):
                segment.hollow()
            self._ready.clear()
            self._lent.clear()

    def forget(self, buffers: Iterable[NDArray[np.uint8]]) -> None:
        """Leave these buffers, and begin another arena.

        The memory of the one before ends when nobody has it open any more; what is free of it, at once.
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
    """The arenas of so many readers, as this process has them open."""

    def __init__(self, num_readers: int) -> None:
        self._most = KEPT_ARENAS * num_readers
        #: Longest not used first.
        self._fds: dict[int, int] = {}
        #: Memory of the chunks that were looked into, by arena and offset.
        self._chunks: dict[tuple[int, int], NDArray[np.uint8]] = {}

    def add(self, number: int, fd: int) -> None:
        """Keep an arena; close the one that was not used for longest when there are many."""
        if number in self._fds:
            os.close(fd)
            return
        self._fds[number] = fd
        if len(self._fds) > self._most:
            old = next(iter(self._fds))
            os.close(self._fds.pop(old))
            self._chunks = {place: memory for place, memory in self._chunks.items() if place[0] != old}

    def fd(self, number: int) -> int | None:
        """The file of an arena, to be handed on; None where this process does not have it."""
        if (fd := self._fds.pop(number, None)) is not None:
            self._fds[number] = fd
        return fd

    def look(self, piece: Piece) -> NDArray[np.uint8]:
        """Map a batch, read-only.

        Raises:
            RunError: nobody has handed over its arena.
        """
        fd = self.fd(piece.arena)
        place = (piece.arena, piece.chunk)
        if (memory := self._chunks.get(place)) is None:
            if fd is None:
                raise RunError(f"{piece.nbytes} bytes of a batch lie in memory that nobody has handed over")
            mapped = mmap.mmap(fd, piece.length, prot=mmap.PROT_READ, offset=piece.chunk)
            memory = self._chunks[place] = np.frombuffer(mapped, np.uint8)
        return memory[piece.offset : piece.offset + piece.nbytes]
