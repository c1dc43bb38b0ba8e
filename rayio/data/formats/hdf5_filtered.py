"""HDF5 files whose chunks are compressed with gzip: each takes a fixed number of bytes in its file.

A chunk's compressed bytes are filled up to a bound with zeros after the stream, which HDF5 ignores. So sizes and
requests are known without the file. The index of the chunks (HDF5's fixed array) lies
after the first chunk. h5py reads it with the first chunk of an open file.
"""

from __future__ import annotations

import zlib
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.chunks import Hdf5Options, Reads, chunk_shape
from rayio.data.formats.hdf5_description import description_of_filtered
from rayio.data.formats.reads import HEAD, NOT_KEPT, window
from rayio.data.formats.sample import HEADER, LABEL, STRIPE_BYTES, STRIPE_COST, Place, fill
from rayio.data.layout import Batch, Layout, Paths
from rayio.storage.stores.counted import WINDOW_BYTES

#: Bytes before the chunks and of the labels' description; of the index's header, of a block of it, and of a page.
HEAD_BYTES, LABELS_BYTES, INDEX_BYTES, BLOCK_BYTES, PAGE_BYTES = 447, 268, 28, 18, 4
#: Most chunks of an index in one block; more are in pages of so many.
PAGE = 1024


class Filtered(NamedTuple):
    """The compression of a layout's chunks."""

    level: int
    compressibility: float
    #: True with HDF5's shuffle, which changes nothing of values of one byte.
    is_shuffled: bool = False

    @classmethod
    def of(cls, layout: Layout) -> Self | None:
        """Return the compression; None without one."""
        options = layout.options
        if not isinstance(options, Hdf5Options) or options.compression == "none":
            return None
        return cls(options.compression_level, layout.compressibility, options.shuffle)

    def slots(
        self, rows: NDArray[np.int64], columns: NDArray[np.int64], sample: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the stored bytes of chunks of so many rows and columns, of samples of ``sample`` bytes."""
        nbytes = rows * columns
        # zlib's own bound for what does not shrink, and 6 % more than is expected of what does.
        bound = nbytes + (nbytes >> 12) + (nbytes >> 14) + (nbytes >> 25) + 13
        keep = max(1, round(STRIPE_BYTES / self.compressibility) - STRIPE_COST)
        stripes = columns // STRIPE_BYTES + 1 + (columns < sample)
        each = np.minimum(columns, HEADER.size + stripes * keep) + STRIPE_COST * stripes
        expected = np.ceil(1.06 * rows * each).astype(np.int64) + 512
        slots: NDArray[np.int64] = np.minimum(bound, expected)
        return slots

    def packed(self, chunk: memoryview, slot: int) -> bytes:
        """Return the stored bytes of a chunk."""
        content = zlib.compress(chunk, self.level)
        if len(content) > slot:
            raise AssertionError(f"a chunk of {len(chunk)} bytes is compressed to {len(content)}, more than {slot}")
        return content + bytes(slot - len(content))

    def file_bytes(self, layout: Layout, nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of files with samples of ``nbytes``."""
        chunks, rows, columns = _chunks(layout, nbytes)
        index = np.where(chunks > 1, INDEX_BYTES + _block_bytes(chunks, rows * columns), 0)
        return (
            HEAD_BYTES
            + chunks * self.slots(rows, columns, nbytes)
            + index
            + LABELS_BYTES
            + layout.samples_per_file * LABEL
        )

    def write(self, file: BinaryIO, layout: Layout, whole: Batch) -> None:
        """Write a file."""
        row_bytes = int(whole.nbytes[0])
        rows, columns = (int(edge[0]) for edge in chunk_shape(layout, whole.nbytes[:1]))
        slot = int(self.slots(np.array([rows]), np.array([columns]), whole.nbytes[:1])[0])
        parts, number = -(-row_bytes // columns), len(whole.samples)
        shape = number, row_bytes
        head, index, labels = description_of_filtered(shape, (rows, columns), slot, self.level, self.is_shuffled)
        file.write(head)
        block, is_first = np.zeros((rows, parts * columns), np.uint8), True
        for first in range(0, number, rows):
            block[:] = 0
            for row, sample in enumerate(whole.samples[first : first + rows].tolist()):
                fill(block[row, :row_bytes], layout.seed, sample, layout.compressibility)
            for part in range(parts):
                chunk = np.ascontiguousarray(block[:, part * columns : (part + 1) * columns])
                file.write(self.packed(chunk.data.cast("B"), slot))
                if is_first:
                    file.write(index)
                    is_first = False
        file.write(labels)
        file.write(whole.samples.astype("<i8").data)

    def check_head(self, file: BinaryIO, layout: Layout, place: Place, nbytes: int) -> None:
        """Compare a file's description with that of its layout: HDF5 may crash on another one with filters.

        Raises:
            DataError: it is another one.
        """
        rows, columns = (int(edge[0]) for edge in chunk_shape(layout, np.array([nbytes])))
        slot = int(self.slots(np.array([rows]), np.array([columns]), np.array([nbytes]))[0])
        shape = layout.samples_per_file, nbytes
        wanted, _, _ = description_of_filtered(shape, (rows, columns), slot, self.level, self.is_shuffled)
        _, content = window(file, 0, len(wanted))
        if content[: len(wanted)] != wanted:
            raise place.error(
                "expected the description of an hdf5 file of these options, found another one: the file is truncated, "
                "corrupted, or written by another release of HDF5; delete it and generate it again"
            )

    def reads(self, form: Any, layout: Layout, batch: Batch) -> ChunkReads:
        """Return the reads of a batch that is not empty."""
        entries = Reads.of(layout, batch)
        nbytes_of = batch.nbytes[_first_of(batch, entries.files)]
        chunks, rows, edge = _chunks(layout, nbytes_of)
        length = rows * edge
        slots, block = self.slots(rows, edge, nbytes_of), _block_bytes(chunks, length)
        sizes = np.minimum(form.file_bytes(layout, entries.files), WINDOW_BYTES).tolist()
        made = ChunkReads([], [], [], [], 0)
        pages: set[int] = set()
        columns = zip(
            entries.files.tolist(), entries.is_first.tolist(), entries.times.tolist(),
            (entries.starts // entries.nbytes).tolist(), chunks.tolist(), length.tolist(), slots.tolist(),
            block.tolist(), sizes, strict=True,
        )  # fmt: skip
        for file, is_first, times, first, number, nbytes, slot, index, head in columns:
            if is_first:
                made.add(file, 0, head, HEAD)
                made = made._replace(num_files=made.num_files + 1)
                pages.clear()
            is_indexed, at = number > 1, HEAD_BYTES + INDEX_BYTES + slot
            for chunk in range(first, first + times):
                if is_indexed and not pages:
                    made.add(file, HEAD_BYTES, INDEX_BYTES, HEAD)
                    is_paged = number > PAGE
                    made.add(file, at, _prefix_bytes(number) if is_paged else index, HEAD)
                    pages.add(-1)
                if number > PAGE and (page := chunk // PAGE) not in pages:
                    pages.add(page)
                    each = PAGE * _entry_bytes(nbytes) + PAGE_BYTES
                    inside = min(PAGE, number - page * PAGE) * _entry_bytes(nbytes) + PAGE_BYTES
                    made.add(file, at + _prefix_bytes(number) + page * each, inside, NOT_KEPT)
                offset = HEAD_BYTES + chunk * slot
                if is_indexed:
                    offset += INDEX_BYTES + (index if chunk else 0)
                made.add(file, offset, slot, offset)
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


def _first_of(batch: Batch, files: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a place in the batch of a sample of each file."""
    known, places = np.unique(batch.files, return_index=True)
    first: NDArray[np.int64] = places[np.searchsorted(known, files)]
    return first


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
