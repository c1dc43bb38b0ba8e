"""Small files of a mounted file system, each opened, read and closed in one call of Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from rayio.files import OPENING
from rayio.storage.base import AtOnce

#: Most bytes of a file that are read in one call; the kernel reads less than 2 GiB at a time.
MOST_AT_ONCE = 1 << 30
FLAGS = os.O_RDONLY | OPENING


@lru_cache(maxsize=64)
def filling(before: str) -> AtOnce:
    """Return a function that reads files below the folder ``before``, which ends with a slash or is empty.

    Objects and calls of Python cost as much as a small file, so it makes the calls to the kernel and nothing else: what
    is not a file cannot be read at a place, or has other bytes. The end of a file tells its size in a quarter of the
    time of ``fstat``. The rest is left to files that are opened, with their errors.
    """
    open_, seek, preadv, close = os.open, os.lseek, os.preadv, os.close
    flags, end = FLAGS, os.SEEK_END

    def fill(
        name: str, size: int, total: int, offset: int, buffers: Sequence[Any], *more: tuple[int, Sequence[Any]]
    ) -> bool:
        if total > MOST_AT_ONCE:
            return False
        try:
            descriptor = open_(before + name, flags)
        except OSError:
            return False
        try:
            if 0 <= size != seek(descriptor, 0, end):
                return False
            total -= preadv(descriptor, buffers, offset)
            for place, others in more:
                total -= preadv(descriptor, others, place)
        except OSError:
            return False
        finally:
            close(descriptor)
        return not total

    return fill
