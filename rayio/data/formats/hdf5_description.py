"""HDF5's descriptions of files, written by HDF5 itself; the data are not: it would copy them, one thread at a time."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple


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
    from h5py import h5d, h5s, h5t

    stream = Written()
    with _created(stream, "LATE") as (h5, plan):
        types = {b"x": h5t.STD_U8LE}
        made = [
            h5d.create(h5, name, types.get(name, h5t.STD_I64LE), h5s.create_simple(shape), plan)
            for name, shape in datasets
        ]
        data_at = _placed(made)
    return stream.between(0, data_at)


class Pipeline(NamedTuple):
    """A compression of chunks: "gzip" or "lzf", its level, and perhaps a shuffle before it.

    ``mask`` has a bit for each filter that chunks skip, because they do not shrink.
    """

    compression: str
    level: int
    is_shuffled: bool = False
    mask: int = 0

    def add_to(self, plan: Any) -> None:
        """Add the filters to the properties of a dataset, as h5py does."""
        from h5py import h5z

        if self.is_shuffled:
            plan.set_shuffle()
        if self.compression == "lzf":
            plan.set_filter(h5z.FILTER_LZF, h5z.FLAG_OPTIONAL)
        else:
            plan.set_deflate(self.level)


@lru_cache(maxsize=64)
def description_of_filtered(
    shape: tuple[int, int], chunk: tuple[int, int], slot: int, pipeline: Pipeline, others: tuple[bytes, ...] = ()
) -> tuple[bytes, bytes, bytes]:
    """Return HDF5's bytes of a file with compressed chunks of ``slot`` bytes: before them, after the first, after all.

    Between the first chunk and the second is their index. The labels are described after the chunks, or with ``others``
    these datasets are described before them; their data follow the chunks.
    """
    from h5py import h5d, h5s, h5t

    stand_in = (b"\xc5rayio" * (slot // 6 + 1))[:slot]
    stream = Written(left_out=stand_in)
    with _created(stream, "INCR") as (h5, plan):
        of_labels = plan.copy()
        of_labels.set_alloc_time(h5d.ALLOC_TIME_LATE if others else h5d.ALLOC_TIME_EARLY)
        plan.set_chunk(chunk)
        pipeline.add_to(plan)
        x = h5d.create(h5, b"x", h5t.STD_U8LE, h5s.create_simple(shape), plan)
        made = [_numbers(h5, name, shape[0], of_labels) for name in others]
        for row in range(0, shape[0], chunk[0]):
            for column in range(0, shape[1], chunk[1]):
                x.write_direct_chunk((row, column), stand_in, pipeline.mask)
        number = x.get_num_chunks()
        first, second, last = (x.get_chunk_info(place).byte_offset for place in (0, min(1, number - 1), number - 1))
        made = made or [_numbers(h5, b"y", shape[0], of_labels)]
        labels_at = _placed(made)
    index = stream.between(first + slot, second) if number > 1 else b""
    return stream.between(0, first), index, stream.between(last + slot, labels_at)


@lru_cache(maxsize=64)
def description_of_chunks(shape: tuple[int, int], chunk: tuple[int, int], others: tuple[bytes, ...]) -> bytes:
    """Return HDF5's bytes of a file with ``others`` and ``x`` in chunks, which lie before all data."""
    from h5py import h5d, h5s, h5t

    stream = Written()
    with _created(stream, "LATE") as (h5, plan):
        of_x = plan.copy()
        of_x.set_alloc_time(h5d.ALLOC_TIME_EARLY)  # then chunks follow each other without an index
        of_x.set_chunk(chunk)
        made = [_numbers(h5, name, shape[0], plan) for name in others]
        x = h5d.create(h5, b"x", h5t.STD_U8LE, h5s.create_simple(shape), of_x)
        x_at = int(x.get_chunk_info(0).byte_offset)
        _placed(made)
    return stream.between(0, x_at)


def _numbers(h5: Any, name: bytes, rows: int, plan: Any) -> Any:
    """Return a new dataset of a number for each row."""
    from h5py import h5d, h5s, h5t

    return h5d.create(h5, name, h5t.STD_I64LE, h5s.create_simple((rows,)), plan)


def _placed(datasets: Sequence[Any]) -> int:
    """Give datasets their places in the file, one after the other; return that of the first."""
    import numpy as np
    from h5py import h5s

    for dataset in datasets:
        first, space = (1,) * len(dataset.shape), dataset.get_space()
        space.select_hyperslab((0,) * len(first), first)
        dataset.write(h5s.create_simple(first), space, np.zeros(first, dataset.dtype))
    return int(datasets[0].get_offset())
