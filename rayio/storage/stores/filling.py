"""Small files of a mounted file system, each opened, read and closed in one call of Python."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import Any

from rayio.files import OPENING
from rayio.storage.base import AtOnce

#: Most bytes of a file that are read in one call; the kernel reads less than 2 GiB at a time.
MOST_AT_ONCE = 1 << 30
FLAGS = os.O_RDONLY | OPENING


def filling(before: str) -> AtOnce:
    """Return a function that reads files below the folder ``before``, which ends with a slash or is empty.

    Objects and calls of Python cost as much as a small file, so it makes the calls to the kernel and nothing else. What
    it cannot do is left to files that are opened, with their errors.
    """
    open_, fstat, preadv, close = os.open, os.fstat, os.preadv, os.close

    def fill(name: str, reads: Sequence[tuple[int, Sequence[Any]]], total: int, size: int = -1) -> bool:
        if total > MOST_AT_ONCE:
            return False
        try:
            descriptor = open_(name if name.startswith("/") else before + name, FLAGS)
        except OSError:
            return False
        try:
            status = fstat(descriptor)
            if status.st_mode & 0o170000 != stat.S_IFREG or (size >= 0 and status.st_size != size):
                return False
            for offset, buffers in reads:
                total -= preadv(descriptor, buffers, offset)
        except OSError:
            return False
        finally:
            close(descriptor)
        return not total

    return fill
