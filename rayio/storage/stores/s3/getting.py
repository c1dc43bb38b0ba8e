"""Ranged gets of objects, whole or in pieces as they arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import obstore

from rayio.storage.base import WHOLE_BYTES
from rayio.storage.stores.s3 import answers
from rayio.storage.stores.s3.direct import Direct, WireError

#: Bytes of an answer that are passed on at a time, at least.
POURED_BYTES = 256 << 10


def got(direct: Direct, client: Any, key: str, position: int, buffer: memoryview) -> tuple[int, int]:
    """Get bytes of an object from ``position`` on into ``buffer``; return its size, and the number of bytes."""

    def take(begin: int, piece: Any) -> None:
        buffer[begin - position : begin - position + len(piece)] = piece

    return got_in_pieces(direct, client, key, position, len(buffer), take)


def got_in_pieces(
    direct: Direct, client: Any, key: str, position: int, nbytes: int, take: Callable[[int, Any], None]
) -> tuple[int, int]:
    """Get ``nbytes`` from ``position`` on in pieces for ``take``; return the same."""
    try:
        if (done := direct.pour(key, position, nbytes, take)) is not None:
            return done
        answer = obstore.get(client, key, options={"range": (position, position + nbytes)})
    except Exception as error:
        return _size_beyond(error, client, key), 0
    end = position
    for piece in [answer.bytes()] if nbytes <= WHOLE_BYTES else answer.stream(min_chunk_size=POURED_BYTES):
        content = memoryview(piece)
        if end + len(content) > position + nbytes:
            raise WireError("UnexpectedRange")
        take(end, content)
        end += len(content)
    return int(answer.meta["size"]), end - position


def _size_beyond(error: Exception, client: Any, key: str) -> int:
    """Return an object's size, if the error says that a range begins beyond its end."""
    if answers.problem_of(error).status != 416:
        raise error
    return int(obstore.head(client, key)["size"])
