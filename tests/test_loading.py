from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rayio.pipeline.loading import MAX_BUFFER_BYTES, MAX_BUFFERS, Buffers


def address(buffer: NDArray[np.uint8]) -> int:
    return int(buffer.ctypes.data)


def test_a_buffer_is_given_again_once_nobody_holds_it_or_a_view_of_it() -> None:
    buffers = Buffers()
    first = buffers.get(1000)
    where, view = address(first), first[10:20]
    assert address(buffers.get(1000)) != where
    del first
    assert address(buffers.get(1000)) != where
    del view
    again = buffers.get(900)
    assert address(again) == where
    assert len(again) == 900


def test_a_small_batch_does_not_take_a_large_ones_buffer() -> None:
    buffers = Buffers()
    where = address(buffers.get(100_000))
    assert address(buffers.get(100)) != where
    assert address(buffers.get(100_000)) == where


def test_only_so_many_buffers_and_bytes_are_kept() -> None:
    buffers = Buffers()
    held = [buffers.get(100) for _ in range(MAX_BUFFERS + 5)]
    assert len(buffers._kept) == MAX_BUFFERS
    held.append(buffers.get(MAX_BUFFER_BYTES + 1))
    assert not buffers._kept
    assert len(held[-1]) == MAX_BUFFER_BYTES + 1
