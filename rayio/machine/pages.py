"""Pages of files in the page cache: count them, evict them, and memory for direct reads."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from contextlib import suppress

PAGE = mmap.PAGESIZE
#: O_DIRECT needs offsets, lengths and memory in multiples of this (bytes), on every file system in use.
ALIGNMENT = 4096

#: The number of cachestat(2), the same on every architecture.
_CACHESTAT = 451
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_FAILED = ctypes.c_void_p(-1).value


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently"))


def resident(descriptor: int, offset: int = 0, length: int = 0) -> int | None:
    """Return the bytes of a file's range that are in the page cache, in whole pages; ``length`` 0 means to its end.

    None if unknown: the kernel is too old for cachestat(2), and mincore(2) answers only the owner of the file.
    """
    counts = _Counts()
    wanted = _Range(offset, length)
    if not _libc.syscall(
        ctypes.c_long(_CACHESTAT), ctypes.c_uint(descriptor), ctypes.byref(wanted), ctypes.byref(counts),
        ctypes.c_uint(0),
    ):  # fmt: skip
        return int(counts.cached) * PAGE
    return by_mincore(descriptor, offset, length) if ctypes.get_errno() == errno.ENOSYS else None


def by_mincore(descriptor: int, offset: int = 0, length: int = 0) -> int | None:
    """Return the same as :func:`resident`, on kernels before 6.5."""
    try:
        status = os.fstat(descriptor)
        is_allowed = status.st_uid == os.geteuid() or os.access(f"/proc/self/fd/{descriptor}", os.W_OK)
    except OSError:
        return None
    if not is_allowed:  # the kernel would report every page as resident
        return None
    begin = offset // PAGE * PAGE
    span = min(status.st_size, offset + length if length else status.st_size) - begin
    if span <= 0:
        return 0
    address = _libc.mmap(None, span, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, begin)
    if address in (None, _FAILED):
        return None
    try:
        pages = (ctypes.c_ubyte * -(-span // PAGE))()
        if _libc.mincore(address, span, pages):
            return None
        return sum(page & 1 for page in pages) * PAGE
    finally:
        _libc.munmap(address, span)


def evict(descriptor: int) -> int | None:
    """Evict a file from the page cache; return the bytes that stay, None if unknown.

    Pages stay while another process maps or reads them, and always in a file system in memory.
    """
    left = _dropped(descriptor)
    if left is None or left:  # dirty pages stay until they are on the device
        with suppress(OSError):
            os.fdatasync(descriptor)
        left = _dropped(descriptor)
    return left


def _dropped(descriptor: int) -> int | None:
    with suppress(OSError):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return resident(descriptor)


def aligned(nbytes: int) -> memoryview:
    """Return memory for O_DIRECT, of at least ``nbytes``, in whole blocks."""
    return memoryview(mmap.mmap(-1, max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT))
