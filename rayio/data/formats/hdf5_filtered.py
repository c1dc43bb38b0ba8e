"""HDF5 files in chunks that are compressed with gzip or lzf, or lie next to other datasets; and the reads of them.

A chunk takes a fixed number of bytes, so sizes and requests are known without the file. Gzip's compressed bytes are
filled up with zeros after the stream, which HDF5 ignores; lzf's stream is made that long (``lzf.py``). A chunk that lzf
does not shrink is stored as it is, as h5py does. The index of the chunks (HDF5's fixed array) lies after the first
chunk. h5py reads it with the first chunk of an open file.
"""

from __future__ import annotations

import zlib
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats import lzf
from rayio.data.formats.chunks import Hdf5Options, Reads, chunk_shape
from rayio.data.formats.hdf5_description import Pipeline, description_of_filtered
from rayio.data.formats.hdf5_several import DATASET_BYTES, FILE_BYTES, datasets_of, head_bytes
from rayio.data.formats.reads import HEAD, NOT_KEPT, Runs
from rayio.data.formats.sample import HEADER, LABEL, STRIPE_BYTES, STRIPE_COST, fill
from rayio.data.layout import Batch, Layout, Paths
from rayio.storage.stores.counted import WINDOW_BYTES

#: Bytes of the index's header, of a block of it, and of a page.
INDEX_BYTES, BLOCK_BYTES, PAGE_BYTES = 28, 18, 4
#: Most chunks of an index in one block; more are in pages of so many.
PAGE = 1024


class Filtered(NamedTuple):
    """The compression of a layout's chunks; HDF5's shuffle changes nothing of values of one byte."""

    compression: str
    level: int
    compressibility: float
    is_shuffled: bool = False

    @classmethod
    def of(cls, layout: Layout) -> Self | None:
        """Return the compression; None without one."""
        options = layout.options
        if not isinstance(options, Hdf5Options) or options.compression == "none":
            return None
        return cls(options.compression, options.compression_level, layout.compressibility, options.shuffle)

    def slots(
        self, rows: NDArray[np.int64], columns: NDArray[np.int64], sample: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the stored bytes of chunks of so many rows and columns, of samples of ``sample`` bytes."""
        nbytes = rows * columns
        keep = max(1, round(STRIPE_BYTES / self.compressibility) - STRIPE_COST)
        stripes = columns // STRIPE_BYTES + 1 + (columns < sample)
        literals = np.minimum(columns, HEADER.size + stripes * keep)
        if self.compression == "lzf":
            if self.compressibility == 1:
                return nbytes
            shrunk: NDArray[np.int64] = np.minimum(nbytes, rows * lzf.bound(literals, stripes, STRIPE_BYTES - keep))
            return shrunk
        # zlib's own bound for what does not shrink, and 6 % more than is expected of what does.
        bound = nbytes + (nbytes >> 12) + (nbytes >> 14) + (nbytes >> 25) + 13
        expected = np.ceil(1.06 * rows * (literals + STRIPE_COST * stripes)).astype(np.int64) + 512
        slots: NDArray[np.int64] = np.minimum(bound, expected)
        return slots

    def pipeline(self, nbytes: int, slot: int) -> Pipeline:
        """Return the filters of chunks of ``nbytes`` that are stored in ``slot``."""
        is_stored = self.compression == "lzf" and slot >= nbytes
        return Pipeline(self.compression, self.level, self.is_shuffled, is_stored << self.is_shuffled)

    def packed(self, chunk: NDArray[np.uint8], slot: int) -> bytes | memoryview:
        """Return the stored bytes of a chunk."""
        if self.compression == "lzf":
            return lzf.packed(chunk, slot) if slot < len(chunk) else chunk.data
        content = zlib.compress(chunk.data, self.level)
        if len(content) > slot:
            raise AssertionError(f"a chunk of {len(chunk)} bytes is compressed to {len(content)}, more than {slot}")
        return content + bytes(slot - len(content))

    def file_bytes(self, layout: Layout, nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of files with samples of ``nbytes``."""
        numbers = max(1, len(datasets_of(layout)) - 1)
        described = FILE_BYTES + DATASET_BYTES * (1 + numbers)
        sizes: NDArray[np.int64] = described + x_bytes(layout, nbytes) + layout.samples_per_file * LABEL * numbers
        return sizes

    def description(self, layout: Layout, nbytes: int) -> tuple[tuple[bytes, bytes, bytes], int, tuple[int, int]]:
        """Return the description of a file (see :func:`description_of_filtered`), and bytes and shape of its chunks."""
        rows, columns = (int(edge[0]) for edge in chunk_shape(layout, np.array([nbytes])))
        slot = int(self.slots(np.array([rows]), np.array([columns]), np.array([nbytes]))[0])
        shape, pipeline = (layout.samples_per_file, nbytes), self.pipeline(rows * columns, slot)
        others = tuple(datasets_of(layout)[1:])
        return description_of_filtered(shape, (rows, columns), slot, pipeline, others), slot, (rows, columns)

    def write(self, file: BinaryIO, layout: Layout, whole: Batch) -> None:
        """Write a file."""
        row_bytes, number = int(whole.nbytes[0]), len(whole.samples)
        (head, index, tail), slot, (rows, columns) = self.description(layout, row_bytes)
        parts = -(-row_bytes // columns)
        file.write(head)
        block, is_first = np.zeros((rows, parts * columns), np.uint8), True
        for first in range(0, number, rows):
            block[:] = 0
            for row, sample in enumerate(whole.samples[first : first + rows].tolist()):
                fill(block[row, :row_bytes], layout.seed, sample, layout.compressibility)
            for part in range(parts):
                chunk = np.ascontiguousarray(block[:, part * columns : (part + 1) * columns])
                file.write(self.packed(chunk.ravel(), slot))
                if is_first:
                    file.write(index)
                    is_first = False
        file.write(tail)
        for _ in datasets_of(layout)[1:] or (b"y",):
            file.write(whole.samples.astype("<i8").data)


def x_bytes(layout: Layout, nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of the chunks of files with samples of ``nbytes``, and of their index."""
    chunks, rows, columns = _chunks(layout, nbytes)
    if (filtered := Filtered.of(layout)) is None:
        return chunks * rows * columns
    index = np.where(chunks > 1, INDEX_BYTES + _block_bytes(chunks, rows * columns), 0)
    stored: NDArray[np.int64] = chunks * filtered.slots(rows, columns, nbytes) + index
    return stored


def reads(form: Any, layout: Layout, batch: Batch) -> ChunkReads:
    """Return the reads of a batch that is not empty: of each run of rows its chunks, then its rows elsewhere."""
    runs, entries, filtered = Runs.of(batch), Reads.of(layout, batch), Filtered.of(layout)
    of_sample = batch.nbytes[runs.order]
    chunks, rows, edge = _chunks(layout, of_sample)
    length = rows * edge
    slots = length if filtered is None else filtered.slots(rows, edge, of_sample)
    block = _block_bytes(chunks, length)
    sizes = np.minimum(form.file_bytes(layout, entries.files), WINDOW_BYTES).tolist()
    last = np.append(runs.starts[1:], len(runs.order)) - 1
    base, others = head_bytes(layout), datasets_of(layout)[1:]
    # By the last sample of each run: its rows, and where the data of other datasets begin.
    after = zip(last.tolist(), np.diff(runs.starts, append=len(runs.order)).tolist(), strict=True)
    others_at = (base + x_bytes(layout, of_sample[last])).tolist()
    run_of = {place: (number, at) for (place, number), at in zip(after, others_at, strict=True)} if others else {}
    made = ChunkReads([], [], [], [], 0)
    pages: set[int] = set()
    columns = zip(
        entries.files.tolist(), entries.is_first.tolist(), entries.times.tolist(),
        (entries.starts // entries.nbytes).tolist(), chunks.tolist(), length.tolist(), slots.tolist(),
        block.tolist(), sizes, batch.index[runs.order].tolist(), strict=True,
    )  # fmt: skip
    for entry, (file, is_first, times, first, number, nbytes, slot, index, head, row) in enumerate(columns):
        if is_first:
            made.add(file, 0, head, HEAD)
            made = made._replace(num_files=made.num_files + 1)
            pages.clear()
        is_indexed, at = filtered is not None and number > 1, base + INDEX_BYTES + slot
        for chunk in range(first, first + times):
            if is_indexed and not pages:
                made.add(file, base, INDEX_BYTES, HEAD)
                is_paged = number > PAGE
                made.add(file, at, _prefix_bytes(number) if is_paged else index, HEAD)
                pages.add(-1)
            if is_indexed and number > PAGE and (page := chunk // PAGE) not in pages:
                pages.add(page)
                each = PAGE * _entry_bytes(nbytes) + PAGE_BYTES
                inside = min(PAGE, number - page * PAGE) * _entry_bytes(nbytes) + PAGE_BYTES
                made.add(file, at + _prefix_bytes(number) + page * each, inside, NOT_KEPT)
            offset = base + chunk * slot
            if is_indexed:
                offset += INDEX_BYTES + (index if chunk else 0)
            made.add(file, offset, slot, offset)
        if entry in run_of:
            rows_of_run, data_at = run_of[entry]
            begins = data_at + (row - rows_of_run + 1) * LABEL
            for other in range(len(others)):
                made.add(file, begins + other * layout.samples_per_file * LABEL, rows_of_run * LABEL, NOT_KEPT)
    return made


class ChunkReads(NamedTuple):
    """The reads of a batch, in order: of each file its description and its index, and the chunks."""

    files: list[int]
    offsets: list[int]
    nbytes: list[int]
    units: list[int]
    num_files: int

    def add(self, file: int, offset: int, nbytes: int, unit: int) -> None:
        """Add a read."""
        self.files.append(file)
        self.offsets.append(offset)
        self.nbytes.append(nbytes)
        self.units.append(unit)

    def places(self, layout: Layout) -> tuple[Paths, NDArray[np.int64], NDArray[np.int64]]:
        """Return the files of the requests, in order, and their offsets."""
        files, file = np.unique(np.array(self.files, np.int64), return_inverse=True)
        return layout.paths(files), file, np.array(self.offsets, np.int64)


def _chunks(
    layout: Layout, nbytes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of chunks of files with samples of ``nbytes``, and rows and columns of each."""
    rows, columns = chunk_shape(layout, nbytes)
    return -(-layout.samples_per_file // rows) * -(-nbytes // columns), rows, columns


def _entry_bytes(length: int) -> int:
    """Return the bytes of a chunk's entry in the index: address, stored size, and mask of filters."""
    return 12 + min(8, 1 + (length.bit_length() + 7) // 8)


def _prefix_bytes(chunks: int) -> int:
    """Return the bytes of a block in pages before its pages, with a bit for each."""
    pages = -(-chunks // PAGE)
    return BLOCK_BYTES + -(-pages // 8)


def _block_bytes(chunks: NDArray[np.int64], length: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of the block of the index."""
    entries = chunks * np.array([_entry_bytes(each) for each in length.ravel().tolist()]).reshape(length.shape)
    pages = -(-chunks // PAGE)
    block: NDArray[np.int64] = entries + np.where(
        chunks > PAGE, BLOCK_BYTES + -(-pages // 8) + PAGE_BYTES * pages, BLOCK_BYTES
    )
    return block
