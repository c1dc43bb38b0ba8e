"""The descriptions of HDF5's datasets: compared with what rayio writes, or else checked by HDF5's own functions."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from rayio.data.formats.chunks import chunk_of, chunk_shape
from rayio.data.formats.hdf5_description import description
from rayio.data.formats.hdf5_filtered import Filtered
from rayio.data.formats.hdf5_several import datasets_of
from rayio.data.formats.hdf5_stream import METADATA_READS, Stream
from rayio.data.formats.reads import window
from rayio.data.formats.sample import Place
from rayio.data.layout import Layout
from rayio.schema.distribution import Constant


class Known:
    """A description of files whose samples have one size; a batch makes it once, since it takes as long as a file."""

    def __init__(self, layout: Layout, nbytes: int) -> None:
        import h5py

        self.shape = layout.samples_per_file, nbytes
        #: Datasets that are read besides ``x``.
        self.others = datasets_of(layout)[1:]
        #: The bytes of a file before its data, or empty; files with compressed chunks may have no others.
        self.head, self.is_required = b"", False
        #: HDF5's options of access to ``x``; None without chunks. Its cache has one chunk.
        self.access: Any = None
        self.chunk: tuple[int, int] | None = None
        if chunk_of(layout) is not None:
            rows, columns = (int(edge[0]) for edge in chunk_shape(layout, np.array([nbytes])))
            self.chunk, self.access = (rows, columns), h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
            self.access.set_chunk_cache(1, rows * columns, 1.0)
        if (filtered := Filtered.of(layout)) is not None:
            (self.head, _, _), _, _ = filtered.description(layout, nbytes)
            self.is_required = True
        elif not self.others and isinstance(layout.sample_bytes, Constant):
            # Making a description takes HDF5 longer than reading one, so not for files that differ in size.
            self.head = description(self.shape, self.chunk)[0]

    @contextmanager
    def compared(self, file: BinaryIO, place: Place) -> Iterator[None]:
        """Compare a file's beginning before HDF5 opens it, which may crash on another one with filters.

        Raises:
            DataError: it is another one.
        """
        if self.is_required and not window(file, 0, len(self.head))[1].startswith(self.head):
            raise place.error(
                "expected the description of an hdf5 file of these options, found another one: the file is truncated, "
                "corrupted, or written by another release of HDF5; delete it and generate it again"
            )
        yield

    def of_ids(self, h5: Any, name: bytes, place: Place, stream: Stream) -> Any:
        """Return a dataset of ids, opened and checked."""
        if self.is_required:
            return _opened(h5, name)
        dataset = described(h5, name, np.dtype("<i8"), place, self.shape[:1], stream)
        stream.is_described = False
        return dataset

    def of_samples(self, h5: Any, place: Place, stream: Stream) -> Any:
        """Return ``x``, opened and checked for shape, storage, filters and place in this file.

        A file that begins as rayio writes it needs no other check.
        """
        if self.is_required or (self.head and stream.begins_with(self.head)):
            x = _opened(h5, b"x", self.access)
            _allow(stream, self.shape, self.chunk or self.shape)
            return x
        return described(h5, b"x", np.dtype(np.uint8), place, self.shape, stream, self.access)


def _opened(h5: Any, name: bytes, access: Any = None) -> Any:
    import h5py

    return h5py.h5d.open(h5, name, access)


def _allow(stream: Stream, shape: tuple[int, ...], edges: tuple[int, ...]) -> None:
    """Allow a read of every chunk, with its index: descriptions are read."""
    stream.allowed = METADATA_READS + 3 * math.prod(-(-size // edge) for size, edge in zip(shape, edges, strict=True))
    stream.is_described = True


def described(
    h5: Any,
    name: bytes,
    dtype: np.dtype[Any],
    place: Place,
    shape: tuple[int, ...],
    stream: Stream,
    access: Any = None,
) -> Any:
    """Return a dataset without filters, opened and checked for type, shape and place in this file."""
    import h5py

    label = name.decode()
    if h5.links.get_info(name).type != h5py.h5l.TYPE_HARD:
        raise place.error(f"expected {label} in this file, found a link to another place")
    x = h5py.h5d.open(h5, name, access)
    if x.shape != shape or x.dtype != dtype:
        raise place.error(f"expected {label} of shape {shape} and {dtype}, found {x.shape} and {x.dtype}")
    plan = x.get_create_plist()
    if plan.get_nfilters():
        raise place.error(f"expected {label} stored plainly, found it compressed or filtered")
    kind = plan.get_layout()
    if kind not in (h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED) or plan.get_external_count():
        raise place.error(f"expected {label} stored in this file, contiguous or in chunks, found it elsewhere")
    edges = plan.get_chunk() if kind == h5py.h5d.CHUNKED else shape
    if math.prod(edges) > stream.seek(0, io.SEEK_END):
        raise place.error(
            f"expected chunks that fit the file, found some of {edges}: the file is truncated or corrupted"
        )
    _allow(stream, shape, edges)
    return x
