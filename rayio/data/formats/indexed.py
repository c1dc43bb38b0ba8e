"""Megatron's token streams: ``.bin`` has the samples one after the other, ``.idx`` their sizes and offsets.

``indexed_binary`` is the older one, of fairseq: a reader reads the whole index, then each sample. The files of
``mmap_indexed_binary`` are mapped into memory: a reader needs the pages that it touches, of the index too. Tokens are
bytes here, and each sample is a document.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.at_once import Group, Named, Whereabouts, groups_of
from rayio.data.formats.places import KEPT_FILES, edges_of
from rayio.data.formats.reads import HEAD, NOT_KEPT, Runs, by_file, opened, read_into, scratch
from rayio.data.formats.records import AGAIN, Records
from rayio.data.formats.sample import Place
from rayio.data.layout import Batch, Layout
from rayio.storage.base import AtOnce, Opener, Requests, RequestTable
from rayio.units import format_bytes

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario

#: The index's head: signature and version; tokens' type and size; samples, their dimensions, documents. And of the
#: newer one: signature, version, tokens' type; samples, documents.
OLDER, NEWER = struct.Struct("<8sQQQQQQ"), struct.Struct("<9sQBQQ")
#: Megatron's number for tokens of one byte.
UINT8 = 1
PAGE_BYTES = 4096
#: An index of at most this many bytes is in memory after the first touch: Linux reads so much ahead.
AHEAD_BYTES = 128 << 10
#: Sizes of samples are signed 32-bit numbers.
MAX_BYTES = (1 << 31) - 1


class Indexed(Records):
    """Samples in one file, and their index in another."""

    extension = ".bin"
    beside = (".idx",)

    @abstractmethod
    def index(self, edges: NDArray[np.int64]) -> bytes:
        """Return the index of a file whose samples begin at ``edges``, with the end of the last."""

    def index_of(self, layout: Layout, number: int, nbytes: int) -> bytes:
        """Return the index of file ``number``; samples have ``nbytes``, if those of a file are equal."""
        if layout.sizes == "per_sample":
            return _index_of_file(self, layout, number)
        return _index_of_equal(self, layout.samples_per_file, nbytes)

    def data_bytes(self, layout: Layout, files: NDArray[np.int64], nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of the samples of files."""
        return self._starts(layout, files, np.full_like(files, layout.samples_per_file), nbytes)

    @abstractmethod
    def index_bytes(self, rows: int) -> int:
        """Return its bytes."""

    def beside_bytes(self, layout: Layout, files: NDArray[np.int64], suffix: str) -> NDArray[np.int64]:
        """Return the bytes of the indexes of ``files``."""
        return np.full_like(files, self.index_bytes(layout.samples_per_file))

    def write_beside(self, file: BinaryIO, layout: Layout, number: int, suffix: str) -> None:
        """Write the index of file ``number``."""
        nbytes = int(layout.sample_bytes_of(np.array([number]))[0])
        file.write(self.index_of(layout, number, nbytes))

    @abstractmethod
    def index_reads(self, layout: Layout, first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return offset and length of the reads of the index for rows ``first`` to ``last``, shape (runs, reads, 2).

        The first read is made once for a file.
        """

    def data_span(
        self, start: NDArray[np.int64], stop: NDArray[np.int64], end: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first byte and the end of the reads for bytes ``start`` to ``stop`` of files up to ``end``."""
        return start, stop

    def _reads(self, layout: Layout, runs: Runs, batch: Batch) -> NDArray[np.int64]:
        """Return offset and length of each run's reads: those of the index, then of the samples."""
        first = runs.order[runs.starts]
        rows, files, nbytes = np.diff(runs.starts, append=len(runs.order)), batch.files[first], batch.nbytes[first]
        spans = self.index_reads(layout, batch.index[first], batch.index[first] + rows)
        spans[:, 0, 1] = np.where(runs.is_first, spans[:, 0, 1], 0)
        begin = self._starts(layout, files, batch.index[first], nbytes)
        end = begin + np.add.reduceat(batch.nbytes[runs.order], runs.starts)
        start, stop = self.data_span(begin, end, self.data_bytes(layout, files, nbytes))
        return np.concatenate([spans, np.stack([start, stop - start], axis=1)[:, np.newaxis]], axis=1)

    def _sizes(self, layout: Layout, runs: Runs, batch: Batch) -> NDArray[np.int64]:
        return self._reads(layout, runs, batch)[:, :, 1]

    def _places(self, layout: Layout, batch: Batch) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
        runs = self._runs(batch)
        reads = self._reads(layout, runs, batch)
        numbers, file = np.unique(batch.files[runs.order[runs.starts]], return_inverse=True)
        of_read = np.repeat(2 * file[:, np.newaxis], reads.shape[1], axis=1)
        of_read[:, -1] += 1
        paths = [path for number in numbers.tolist() for path in (index_path(layout, number), layout.path(number))]
        order = self._order(runs, reads)
        return paths, of_read.ravel()[order], reads[:, :, 0].ravel()[order]

    def _order(self, runs: Runs, reads: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the reads that are issued, in order: of each file those of the index, then those of samples."""
        number, each, _ = reads.shape
        of_file = np.repeat(np.cumsum(runs.is_first), each)
        is_sample = np.tile(np.arange(each) == each - 1, number)
        order = np.lexsort((np.arange(number * each), is_sample, of_file))
        issued: NDArray[np.int64] = order[reads[:, :, 1].ravel()[order] > 0]
        return issued

    def requests(self, layout: Layout, batch: Batch) -> Requests:
        """Return, per file, the reads of its index, then those of its samples."""
        address = (batch.rank, batch.epoch, batch.step)
        if not batch.nbytes.size:
            return Requests(address, 0, batch.nbytes)
        runs = self._runs(batch)
        reads = self._reads(layout, runs, batch)
        nbytes = reads[:, :, 1].ravel()[self._order(runs, reads)]
        return Requests(address, 2 * int(runs.is_first.sum()), nbytes, partial(self._places, layout, batch))

    def request_table(
        self, layout: Layout, files: NDArray[np.int64], index: NDArray[np.int64], nbytes: NDArray[np.int64]
    ) -> RequestTable | None:
        """Return the requests of many steps, if an index is read at once."""
        return super().request_table(layout, files, index, nbytes) if self.reads_index_at_once(layout) else None

    @abstractmethod
    def reads_index_at_once(self, layout: Layout) -> bool:
        """Return True if one read takes the whole index."""

    def units(self, layout: Layout, batch: Batch) -> NDArray[np.int64]:
        """Return that the first read of an index is kept, and no samples."""
        runs = self._runs(batch)
        reads = self._reads(layout, runs, batch)
        kept = np.full(reads.shape[:2], NOT_KEPT)
        kept[:, 0] = HEAD
        return kept.ravel()[self._order(runs, reads)]

    def read(self, opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Read what the index has of each run of samples, then the samples, and verify both."""
        here = Whereabouts(opener, layout, batch, out)
        if not (left := self._at_once(here, batch)):
            return batch.samples
        sizes, samples, offsets = here.sizes, here.samples, here.offsets
        ids, rows = batch.samples.copy(), batch.index.tolist()
        starts = self._starts(layout, batch.files, batch.index, batch.nbytes).tolist()
        ends = self.data_bytes(layout, batch.files, batch.nbytes).tolist()
        for file, runs in left:
            begin = runs[0][0]
            path, index = layout.path(file), index_path(layout, file)
            wanted = self.index_of(layout, file, sizes[begin])
            with opened(opener, Place(index, samples[begin], rows[begin])) as described:
                for start, stop in runs:
                    edges = np.array([rows[start]]), np.array([rows[start] + stop - start])
                    reads = self.index_reads(layout, *edges)[0].tolist()
                    place = Place(index, samples[start], rows[start])
                    for at, length in reads if start == begin else reads[1:]:
                        _compare(described, at, wanted[at : at + length], place)
                with opened(opener, Place(path, samples[begin], rows[begin])) as data:
                    for start, stop in runs:
                        span = out[offsets[start] : offsets[stop]].data
                        have = self._samples(data, starts[start], ends[start], span)
                        for n in range(start, stop):
                            place = Place(path, samples[n], rows[n])
                            if (rest := have - (offsets[n] - offsets[start])) < sizes[n]:
                                raise place.error(
                                    f"expected {sizes[n]} bytes, found {max(rest, 0)}: the file is truncated"
                                )
                            ids[n] = self.check(out[offsets[n] : offsets[n + 1]].data, layout, place)
        return ids

    def _at_once(self, here: Whereabouts, batch: Batch) -> list[Group]:
        """Read and verify one sample of each file, a call for each of its two; return what is to be read otherwise."""
        fill, layout = here.fill, here.layout
        is_small = self.index_bytes(layout.samples_per_file) <= AHEAD_BYTES and self.reads_index_at_once(layout)
        is_small = is_small and layout.sizes != "per_sample"
        if fill is None or not is_small or (in_order := here.in_order(batch)) is None:
            return [*by_file(batch)]
        files, order = in_order
        rows: list[int] = [0] * len(order) if layout.samples_per_file == 1 else batch.index.tolist()
        each = here.each(partial(self._read_each, here, fill, rows), layout.names_of(files), order)
        left, done = [n for some, _ in each for n in some], 2 * len(order)
        done -= 2 * len(left)
        here.count(done, done, sum(nbytes for _, nbytes in each))
        return groups_of(batch, left)

    def _read_each(
        self, here: Whereabouts, fill: AtOnce, rows: list[int], named: Iterator[Named]
    ) -> tuple[list[int], int]:
        """Return the places of samples that are to be read otherwise, and the bytes of the others' requests."""
        layout, number, left = here.layout, here.layout.samples_per_file, list[int]()
        samples, sizes, offsets, view = here.samples, here.sizes, here.offsets, here.view
        fill, is_right = here.checked(fill, self.judge(layout))
        index_bytes = self.index_bytes(number)
        content, around, nbytes = bytearray(index_bytes), memoryview(bytearray(2 * PAGE_BYTES)), 0
        known, index, end, suffix = -1, b"", -len(layout.extension), self.beside[0]
        for name, n in named:
            size, begin = sizes[n], offsets[n]
            if size != known:
                known, index = size, self.index_of(layout, 0, size)
            span, start = view[begin : begin + size], rows[n] * size
            first, last = self.page_edges(start, start + size, number * size)
            total = last - first
            buffers: tuple[memoryview, ...] = (span,)
            if total != size:
                buffers = (around[: start - first], span, around[PAGE_BYTES : PAGE_BYTES + last - start - size])
            if (
                fill(name[:end] + suffix, -1, index_bytes, 0, (content,))
                and content == index
                and fill(name, -1, total, first, buffers)
                and is_right(span, samples[n])
            ):
                nbytes += index_bytes + total
            else:
                left.append(n)
        return left, nbytes

    def page_edges(self, start: int, stop: int, size: int) -> tuple[int, int]:
        """Return the first byte and the end of the read for bytes ``start`` to ``stop`` of a file of ``size`` bytes."""
        return start, stop

    def _samples(self, stream: BinaryIO, start: int, end: int, span: memoryview) -> int:
        """Read samples from byte ``start`` on of a file that ends at ``end``; return the bytes that are there."""
        return read_into(stream, start, span)


class IndexedBinary(Indexed):
    """Two opens, one request for the whole index, then one for each run of samples."""

    opens_per_file: ClassVar[int] = 2

    def index(self, edges: NDArray[np.int64]) -> bytes:
        """Return signature, counts, offsets of dimensions, offsets, sizes and documents."""
        counts = np.arange(len(edges), dtype="<i8")
        head = OLDER.pack(b"TNTIDX\0\0", 1, UINT8, 1, len(edges) - 1, len(edges) - 1, len(edges))
        arrays = (counts, edges.astype("<i8"), np.diff(edges).astype("<i8"), counts)
        return b"".join([head, *(array.tobytes() for array in arrays)])

    def index_bytes(self, rows: int) -> int:
        """Return its bytes."""
        return OLDER.size + 8 * (4 * rows + 3)

    def reads_index_at_once(self, layout: Layout) -> bool:
        """Return True."""
        return True

    def index_reads(self, layout: Layout, first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the read of the whole index."""
        spans = np.zeros((len(first), 1, 2), np.int64)
        spans[:, 0, 1] = self.index_bytes(layout.samples_per_file)
        return spans


class MmapIndexedBinary(Indexed):
    """Two opens, then the pages of the index and of the samples that a run of samples touches."""

    opens_per_file: ClassVar[int] = 2

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Yield a message about samples that the index cannot describe."""
        if (size := scenario.dataset.sample_bytes.expected) > MAX_BYTES:
            yield f"dataset.sample_bytes={format_bytes(size)}: mmap_indexed_binary has samples of less than 2 GiB"

    def index(self, edges: NDArray[np.int64]) -> bytes:
        """Return signature, counts, sizes, offsets and documents."""
        head = NEWER.pack(b"MMIDIDX\0\0", 1, UINT8, len(edges) - 1, len(edges))
        arrays = (np.diff(edges).astype("<i4"), edges[:-1].astype("<i8"), np.arange(len(edges), dtype="<i8"))
        return b"".join([head, *(array.tobytes() for array in arrays)])

    def index_bytes(self, rows: int) -> int:
        """Return its bytes."""
        return NEWER.size + 12 * rows + 8 * (rows + 1)

    def reads_index_at_once(self, layout: Layout) -> bool:
        """Return True for a small index."""
        return self.index_bytes(layout.samples_per_file) <= AHEAD_BYTES

    def index_reads(self, layout: Layout, first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first page, then those of sizes and of offsets; a small index is read whole."""
        rows = layout.samples_per_file
        size, number = self.index_bytes(rows), len(first)
        if self.reads_index_at_once(layout):
            return np.stack([np.zeros((number, 1), np.int64), np.full((number, 1), size)], axis=2)
        spans = np.zeros((number, 3, 2), np.int64)
        spans[:, 0, 1] = PAGE_BYTES
        for place, (at, width) in enumerate(((NEWER.size, 4), (NEWER.size + 4 * rows, 8)), 1):
            start, stop = _pages(at + first * width, at + last * width, size)
            spans[:, place, 0], spans[:, place, 1] = start, stop - start
        return spans

    def data_span(
        self, start: NDArray[np.int64], stop: NDArray[np.int64], end: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first byte and the end of the pages of samples."""
        return _pages(start, stop, end)

    def page_edges(self, start: int, stop: int, size: int) -> tuple[int, int]:
        """Return the first byte and the end of the pages of bytes ``start`` to ``stop``."""
        return start // PAGE_BYTES * PAGE_BYTES, min(-(-stop // PAGE_BYTES) * PAGE_BYTES, size)

    def _samples(self, stream: BinaryIO, start: int, end: int, span: memoryview) -> int:
        begin, end = self.page_edges(start, start + len(span), end)
        if (begin, end) == (start, start + len(span)):
            return read_into(stream, start, span)
        pages = scratch(end - begin)
        have = read_into(stream, begin, pages)
        span[:] = pages[start - begin : start - begin + len(span)]
        return min(have - (start - begin), len(span))


def index_path(layout: Layout, number: int) -> str:
    """Return the path of a file's index."""
    return layout.path(number).removesuffix(layout.extension) + Indexed.beside[0]


@lru_cache(maxsize=64)
def _index_of_equal(form: Indexed, rows: int, nbytes: int) -> bytes:
    return form.index(np.arange(rows + 1, dtype=np.int64) * nbytes)


@lru_cache(maxsize=KEPT_FILES)
def _index_of_file(form: Indexed, layout: Layout, number: int) -> bytes:
    return form.index(edges_of(form, layout, number))


def _pages(
    start: NDArray[np.int64], stop: NDArray[np.int64], size: int | NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first byte and the end of the pages of a file of ``size`` bytes with bytes ``start`` to ``stop``."""
    return start // PAGE_BYTES * PAGE_BYTES, np.minimum(-(-stop // PAGE_BYTES) * PAGE_BYTES, size)


def _compare(stream: BinaryIO, at: int, wanted: bytes, place: Place) -> None:
    """Read a part of an index and compare it with the ``wanted`` bytes."""
    content = np.empty(len(wanted), np.uint8).data
    if (have := read_into(stream, at, content)) < len(wanted):
        raise place.error(f"expected {len(wanted)} bytes at byte {at} of the index, found {have}: it is truncated")
    if content != wanted:
        n = next(n for n, byte in enumerate(wanted) if byte != content[n])
        shown = bytes(content[n : n + 8])
        raise place.error(f"expected {wanted[n : n + 8]!r} at byte {at + n} of the index, found {shown!r}: {AGAIN}")
