"""Reading a checkpoint's file back: request by request, and every byte is compared with what was written."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from rayio.errors import DataError
from rayio.storage.base import Opener
from rayio.storage.real import random_bytes

REMEDY = "restore another checkpoint (checkpoint.restore), or remove this one"


def verified(
    path: str, num_bytes: int, request_bytes: int, period: int, remedy: str = REMEDY
) -> Callable[[Opener], int]:
    """Return a function that reads a file of a checkpoint with an opener, and returns the time of comparing (ns).

    ``period`` is the size of the requests that wrote it, after which its content repeats. The function raises
    ``DataError`` for a file of another size, and for another byte, with a ``remedy``.
    """

    def load(opener: Opener) -> int:
        began = perf_counter_ns()
        content = np.frombuffer(random_bytes(max(1, min(period, num_bytes))), np.uint8)
        buffer = np.empty(max(1, min(request_bytes, num_bytes)), np.uint8)
        compared, position = perf_counter_ns() - began, 0
        with opener(path) as file:
            while position < num_bytes:
                part = buffer[: num_bytes - position]
                length = file.readinto(part.data)  # type: ignore[attr-defined]
                if not length:
                    raise DataError(f"{path}: it ends after {position} B of {num_bytes} B; {remedy}")
                began = perf_counter_ns()
                _compare(path, part[:length], content, position, remedy)
                compared += perf_counter_ns() - began
                position += length
            size = file.seek(0, 2)
        if size != num_bytes:
            raise DataError(f"{path}: it has {size} B in place of {num_bytes} B; {remedy}")
        return compared

    return load


def _compare(path: str, there: NDArray[np.uint8], content: NDArray[np.uint8], position: int, remedy: str) -> None:
    """Refuse bytes from ``position`` of a file that are not those of ``content``, which repeats."""
    done = 0
    while done < len(there):
        start = (position + done) % len(content)
        expected = content[start : start + len(there) - done]
        part = there[done : done + len(expected)]
        if not _is_equal(part, expected):
            place = position + done + int(np.flatnonzero(part != expected)[0])
            raise DataError(f"{path}: byte {place} is not what was written there; {remedy}")
        done += len(expected)


def _is_equal(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> bool:
    words = len(first) // 8 * 8  # words of 8 bytes are compared at the speed of memory
    return np.array_equal(first[:words].view(np.uint64), second[:words].view(np.uint64)) and np.array_equal(
        first[words:], second[words:]
    )
