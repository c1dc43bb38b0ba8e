"""Ranged gets of objects, whole or in pieces as they arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import obstore

from rayio.storage.stores.s3 import answers

#: Bytes of an answer that are passed on at a time, at least.
POURED_BYTES = 256 << 10


def got_whole(client: Any, key: str, position: int, nbytes: int) -> tuple[int, Any]:
    """Get ``nbytes`` of an object from ``position`` on; return its size, and the bytes."""
    try:
        answer = obstore.get(client, key, options={"range": (position, position + nbytes)})
    except Exception as error:
        return _size_beyond(error, client, key), b""
    return int(answer.meta["size"]), memoryview(answer.bytes())


def got_range(client: Any, key: str, position: int, nbytes: int) -> Any:
    """Get the same without the object's size, whose description takes 3 to 4 µs to build."""
    try:
        return memoryview(obstore.get_range(client, key, start=position, end=position + nbytes))
    except Exception as error:
        _size_beyond(error, client, key)
        return memoryview(b"")


def got_in_pieces(
    client: Any, key: str, position: int, nbytes: int, take: Callable[[int, Any], None]
) -> tuple[int, int]:
    """Get the same in pieces for ``take``; return the object's size, and the number of bytes."""
    try:
        answer = obstore.get(client, key, options={"range": (position, position + nbytes)})
    except Exception as error:
        return _size_beyond(error, client, key), 0
    end = position
    for piece in answer.stream(min_chunk_size=POURED_BYTES):
        content = memoryview(piece)
        take(end, content)
        end += len(content)
    return int(answer.meta["size"]), end - position


def _size_beyond(error: Exception, client: Any, key: str) -> int:
    """Return an object's size, if the error says that a range begins beyond its end."""
    if answers.problem_of(error).status != 416:
        raise error
    return int(obstore.head(client, key)["size"])
