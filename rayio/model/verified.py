"""Reading a checkpoint's file back: request by request, and every byte is compared with what was written."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rayio.errors import DataError, MissingError
from rayio.model.stamp import STAMP_BYTES, Stamp
from rayio.storage.base import Opener
from rayio.storage.real import random_bytes

T = TypeVar("T")

REMEDY = "remove this one and try again, or start a run that restores another (checkpoint.restore)"


class Verified(NamedTuple):
    """The time (ns) of comparing a file's bytes, and of making the state from them."""

    compared: int
    deserialised: int = 0


class Content:
    """The bytes that a file's state repeats, and the time of making and comparing them (ns)."""

    def __init__(self, num_bytes: int, period: int, remedy: str = REMEDY) -> None:
        self.remedy = remedy
        began = perf_counter_ns()
        self.array = np.frombuffer(random_bytes(max(1, min(period, num_bytes))), np.uint8)
        self.elapsed = perf_counter_ns() - began

    def compare(self, path: str, there: NDArray[np.uint8], position: int = 0) -> None:
        """Compare the bytes from ``position`` of a state.

        Raises:
            DataError: one differs.
        """
        began = perf_counter_ns()
        _compare(path, there, self.array, position, self.remedy)
        self.elapsed += perf_counter_ns() - began


def with_remedy(load: Callable[[Opener], T], remedy: str = REMEDY) -> Callable[[Opener], T]:
    """Return a function that calls ``load``, and names the remedy if a file is missing."""

    def loading(opener: Opener) -> T:
        try:
            return load(opener)
        except MissingError as error:
            raise error.other(remedy) from None

    return loading


def verified(
    path: str, num_bytes: int, request_bytes: int, period: int, stamp: Stamp | None = None, remedy: str = REMEDY
) -> Callable[[Opener], Verified]:
    """Return a function that reads a file with an opener and compares its bytes.

    ``period`` is the size of the requests that wrote it, after which its content repeats. It begins with ``stamp``, if
    given. The function raises ``DataError`` for a file of another size, for another stamp and for another byte, with a
    ``remedy``.
    """
    stamped = 0 if stamp is None else min(STAMP_BYTES, num_bytes)

    def load(opener: Opener) -> Verified:
        content, position = Content(num_bytes, period, remedy), 0
        buffer, head = np.empty(max(1, min(request_bytes, num_bytes)), np.uint8), b""
        with opener(path) as file:
            while position < num_bytes:
                part = buffer[: num_bytes - position]
                length = file.readinto(part.data)  # type: ignore[attr-defined]
                if not length:
                    raise DataError(f"{path}: it ends after {position} B of {num_bytes} B; {remedy}")
                if (more := min(length, stamped - position)) > 0:
                    head += part[:more].tobytes()
                    if stamp is not None and len(head) == stamped:
                        stamp.check(path, head, remedy)
                content.compare(path, part[max(0, more) : length], position + max(0, more))
                position += length
            size = file.seek(0, 2)
        if size != num_bytes:
            raise DataError(f"{path}: it has {size} B in place of {num_bytes} B; {remedy}")
        return Verified(content.elapsed)

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
