"""HDF5's descriptions of files, written by HDF5 itself; the data are not: it would copy them, one thread at a time."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any


class Written:
    """A file in memory of the pieces that HDF5 writes, without holes."""

    def __init__(self, left_out: bytes = b"") -> None:
        self.pieces: dict[int, bytes] = {}
        #: Pieces with this content are not kept.
        self.left_out = left_out
        self._position = self._end = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position."""
        self._position = offset if whence == io.SEEK_SET else self._end + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def write(self, buffer: Any) -> int:
        """Keep a piece."""
        if not self.left_out or buffer != self.left_out:
            self.pieces[self._position] = bytes(buffer)
        self._position += len(buffer)
        self._end = max(self._end, self._position)
        return len(buffer)

    def truncate(self, size: int) -> int:
        """Set the end."""
        self._end = size
        return size

    def flush(self) -> None:
        """Do nothing."""

    def between(self, start: int, end: int) -> bytes:
        """Return the bytes from ``start`` to ``end``; what was not written is zero."""
        content = bytearray(end - start)
        for place, piece in self.pieces.items():
            if start <= place < end:
                content[place - start : place - start + len(piece)] = piece
        return bytes(content)


@contextmanager
def library(stream: Any) -> Iterator[Any]:
    """Return HDF5's access to a stream, closed on every exit.

    While that handle is open, HDF5 holds a reference to the stream that no garbage collector sees. A stream in an
    exception's traceback would then live until HDF5 closes all handles at process exit, after Python: a crash.
    """
    import h5py

    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    try:
        access.set_fileobj_driver(h5py.h5fd.fileobj_driver, stream)
        access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
        access.set_sieve_buf_size(0)
        yield access
    finally:
        access.close()


@contextmanager
def _created(stream: Written, allocation: str) -> Iterator[tuple[Any, Any]]:
    """Return a new HDF5 file in a stream, and properties of datasets whose space is allocated "EARLY" or "LATE"."""
    from h5py import h5d, h5f, h5p

    with library(stream) as access:
        access.set_libver_bounds(h5f.LIBVER_V110, h5f.LIBVER_V110)
        group = h5p.create(h5p.FILE_CREATE)
        group.set_obj_track_times(False)
        h5 = h5f.create(b"rayio", h5f.ACC_TRUNC, group, access)
        try:
            plan = h5p.create(h5p.DATASET_CREATE)
            plan.set_obj_track_times(False)
            plan.set_alloc_time(getattr(h5d, f"ALLOC_TIME_{allocation}"))
            plan.set_fill_time(h5d.FILL_TIME_NEVER)
            yield h5, plan
        finally:
            h5.close()


@lru_cache(maxsize=64)
def description(shape: tuple[int, int], chunk: tuple[int, int] | None) -> tuple[bytes, bytes]:
    """Return HDF5's bytes of a file of this shape before ``x``, and between ``x`` and ``y``."""
    from h5py import h5d, h5s, h5t

    stream = Written()
    with _created(stream, "EARLY") as (h5, plan):
        of_labels = plan.copy()
        if chunk is not None:
            plan.set_chunk(chunk)
        x = h5d.create(h5, b"x", h5t.STD_U8LE, h5s.create_simple(shape), plan)
        x_at = x.get_offset() if chunk is None else x.get_chunk_info(0).byte_offset
        x_end = x_at + x.get_storage_size()
        labels = h5d.create(h5, b"y", h5t.STD_I64LE, h5s.create_simple(shape[:1]), of_labels)
        labels_at = labels.get_offset()
    return stream.between(0, x_at), stream.between(x_end, labels_at)


@lru_cache(maxsize=64)
def description_of_ragged(nbytes: int, rows: int) -> bytes:
    """Return HDF5's bytes of a file with offsets, labels and ``nbytes`` of samples, which lie before all data."""
    return _described_first(((b"offsets", (rows + 1,)), (b"y", (rows,)), (b"x", (nbytes,))))


@lru_cache(maxsize=64)
def description_of_several(shape: tuple[int, int], others: tuple[bytes, ...]) -> bytes:
    """Return HDF5's bytes of a file with ``x`` of this shape and ``others`` of its rows, which lie before all data.

    Data have no place in a file before a first value is written; then they follow each other in this order.
    """
    return _described_first(((b"x", shape), *((name, shape[:1]) for name in others)))


def _described_first(datasets: Sequence[tuple[bytes, tuple[int, ...]]]) -> bytes:
    """Return HDF5's bytes before the data of a file of these datasets: ``x`` of bytes, the others of numbers."""
    import numpy as np
    from h5py import h5d, h5s, h5t

    stream = Written()
    with _created(stream, "LATE") as (h5, plan):
        types = {b"x": h5t.STD_U8LE}
        made = [
            h5d.create(h5, name, types.get(name, h5t.STD_I64LE), h5s.create_simple(shape), plan)
            for name, shape in datasets
        ]
        for dataset in made:
            first, space = (1,) * len(dataset.shape), dataset.get_space()
            space.select_hyperslab((0,) * len(first), first)
            dataset.write(h5s.create_simple(first), space, np.zeros(first, dataset.dtype))
        data_at = made[0].get_offset()
    return stream.between(0, data_at)


@lru_cache(maxsize=64)
def description_of_filtered(
    shape: tuple[int, int], chunk: tuple[int, int], slot: int, level: int, is_shuffled: bool = False
) -> tuple[bytes, bytes, bytes]:
    """Return HDF5's bytes of a file with compressed chunks of ``slot`` bytes: before them, after the first, after all.

    Between the first chunk and the second is their index.
    """
    from h5py import h5d, h5s, h5t

    stand_in = (b"\xc5rayio" * (slot // 6 + 1))[:slot]
    stream = Written(left_out=stand_in)
    with _created(stream, "INCR") as (h5, plan):
        of_labels = plan.copy()
        of_labels.set_alloc_time(h5d.ALLOC_TIME_EARLY)
        plan.set_chunk(chunk)
        if is_shuffled:
            plan.set_shuffle()
        plan.set_deflate(level)
        x = h5d.create(h5, b"x", h5t.STD_U8LE, h5s.create_simple(shape), plan)
        for row in range(0, shape[0], chunk[0]):
            for column in range(0, shape[1], chunk[1]):
                x.write_direct_chunk((row, column), stand_in)
        number = x.get_num_chunks()
        first, second, last = (x.get_chunk_info(place).byte_offset for place in (0, min(1, number - 1), number - 1))
        labels = h5d.create(h5, b"y", h5t.STD_I64LE, h5s.create_simple(shape[:1]), of_labels)
        labels_at = labels.get_offset()
    index = stream.between(first + slot, second) if number > 1 else b""
    return stream.between(0, first), index, stream.between(last + slot, labels_at)
