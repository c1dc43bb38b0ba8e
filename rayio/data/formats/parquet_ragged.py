"""Parquet files whose samples differ in size: a column ``x`` of byte arrays, each a whole sample.

A page has a fixed number of rows, so that places follow from the sizes of samples. A sample is verified by its id and
checksum. Only whole row groups can be read, each in one request.
"""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats import thrift
from rayio.data.formats.parquet_file import (
    MAGIC,
    PAGE_BYTES,
    PAGE_HEADER_BYTES,
    page_header,
)
from rayio.data.formats.parquet_options import chosen
from rayio.data.formats.parquet_stream import AGAIN, TAIL_BYTES, Stream, parquet_in
from rayio.data.formats.places import edges_of, starts_of
from rayio.data.formats.reads import HEAD, check_length, opened, place_of
from rayio.data.formats.sample import Place, check, fill
from rayio.data.layout import Batch, Layout, Paths
from rayio.storage.base import Opener, Requests

#: Parquet's number of byte arrays, and the bytes before each value: its length.
BYTE_ARRAY, LENGTH = 6, 4


def is_ragged(layout: Layout) -> bool:
    """Return True if samples of a file differ in size."""
    return layout.sizes == "per_sample"


class Rows(NamedTuple):
    """The rows of a file, of a row group and of a page."""

    all: int
    group: int
    page: int

    @classmethod
    def of(cls, layout: Layout) -> Rows:
        """Return the rows of a layout's files."""
        number, expected = layout.samples_per_file, layout.sample_bytes.expected
        page = max(1, int(PAGE_BYTES // (expected + LENGTH)))
        return cls(number, chosen(layout.options).group_rows(number, expected), page)

    @property
    def groups(self) -> int:
        """Number of row groups."""
        return -(-self.all // self.group)

    def edges(self, group: int) -> list[int]:
        """Return the first row of each page of a group, and one past the last."""
        end = min(self.all, (group + 1) * self.group)
        return [*range(group * self.group, end, self.page), end]

    def before(self, row: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of page headers and lengths before a row that begins a group, or the end."""
        pages = row // self.group * -(-self.group // self.page) + -(-(row % self.group) // self.page)
        total: NDArray[np.int64] = pages * PAGE_HEADER_BYTES + row * LENGTH
        return total


def file_bytes(form: Any, layout: Layout, files: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of files."""
    rows = Rows.of(layout)
    last = np.full_like(files, rows.all)
    return _with_description(rows, rows.before(last) + starts_of(form, layout, files, last))


def _with_description(rows: Rows, data: NDArray[np.int64]) -> NDArray[np.int64]:
    return len(MAGIC) + data + footer_bytes(rows.groups) + 4 + len(MAGIC)


def write(form: Any, file: BinaryIO, layout: Layout, number: int) -> None:
    """Write a file, a page at a time."""
    rows, edges, whole = Rows.of(layout), edges_of(form, layout, number), layout.whole_file(number)
    sizes, groups, offset = np.diff(edges).tolist(), list[tuple[int, int, int]](), len(MAGIC)
    file.write(MAGIC)
    for group in range(rows.groups):
        begin = offset
        pages = rows.edges(group)
        for first, last in pairwise(pages):
            page = np.empty(int(edges[last] - edges[first]) + (last - first) * LENGTH, np.uint8)
            at = 0
            for sample, size in zip(whole.samples[first:last].tolist(), sizes[first:last], strict=True):
                page[at : at + LENGTH] = np.frombuffer(struct.pack("<I", size), np.uint8)
                fill(page[at + LENGTH : at + LENGTH + size], layout.seed, sample, layout.compressibility)
                at += LENGTH + size
            offset += file.write(page_header(len(page), len(page), zlib.crc32(page.data), last - first, False))
            offset += file.write(page.data)
        groups.append((pages[-1] - pages[0], offset - begin, begin))
    described = _footer(groups)
    file.write(described + struct.pack("<I", len(described)) + MAGIC)


def requests(form: Any, layout: Layout, batch: Batch) -> Requests:
    """Return, per file, reads of its end and its description, then of each row group with a sample."""
    address = (batch.rank, batch.epoch, batch.step)
    if not batch.nbytes.size:
        return Requests(address, 0, batch.nbytes)
    reads = _Reads.of(form, layout, batch)
    return Requests(
        address, int((reads.units == HEAD).sum()) // reads.heads, reads.nbytes, partial(reads.places, layout)
    )


def units(form: Any, layout: Layout, batch: Batch) -> NDArray[np.int64]:
    """Return that the description is kept, and the row group."""
    return _Reads.of(form, layout, batch).units


class _Reads(NamedTuple):
    """The reads of a batch that is not empty, in order."""

    files: NDArray[np.int64]
    offsets: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    #: The row group of each request, or ``HEAD``.
    units: NDArray[np.int64]
    #: Requests for the description of a file.
    heads: int

    @classmethod
    def of(cls, form: Any, layout: Layout, batch: Batch) -> _Reads:
        rows, footer = Rows.of(layout), footer_bytes(Rows.of(layout).groups)
        files, groups = np.divmod(np.unique(batch.files * rows.groups + batch.index // rows.group), rows.groups)
        edges = np.minimum(np.stack([groups * rows.group, (groups + 1) * rows.group, 0 * groups + rows.all]), rows.all)
        starts = starts_of(form, layout, np.tile(files, 3), edges.ravel()).reshape(edges.shape)
        begins, ends, data = rows.before(edges) + starts
        sizes = _with_description(rows, data)
        tails = np.minimum(sizes, TAIL_BYTES)
        is_first = np.concatenate([[True], files[1:] != files[:-1]])
        is_long = is_first & (footer + 4 + len(MAGIC) > tails)
        offsets = np.stack([sizes - tails, sizes - len(MAGIC) - 4 - footer, len(MAGIC) + begins], axis=1)
        nbytes = np.stack([tails, np.full_like(tails, footer), ends - begins], axis=1)
        made = np.stack([is_first, is_long, np.ones_like(is_first)], axis=1)
        unit = np.stack([np.full_like(groups, HEAD), np.full_like(groups, HEAD), groups], axis=1)
        heads = 1 + bool(is_long.any())
        return cls(np.repeat(files, made.sum(axis=1)), offsets[made], nbytes[made], unit[made], heads)

    def places(self, layout: Layout) -> tuple[Paths, NDArray[np.int64], NDArray[np.int64]]:
        """Return the files of the requests, in order, and their offsets."""
        files, file = np.unique(self.files, return_inverse=True)
        return layout.paths(files), file, self.offsets


class Pages(NamedTuple):
    """A column chunk to read, by rows and bytes of its pages (see :class:`rayio.data.formats.parquet_stream.Chunk`)."""

    name: str
    rows_and_bytes: list[tuple[int, int]]

    def pages(self) -> list[tuple[int, int]]:
        """Return rows and bytes of each page."""
        return self.rows_and_bytes


class PagesStream(Stream):
    """A file of which a row group is read whole, and whose pages have known rows and sizes."""

    def expect_group(self, place: Place, offset: int, nbytes: int, pages: list[tuple[int, int]]) -> None:
        """Plan the request for a row group."""
        self.place = place
        self._planned, self._window = {offset: nbytes}, memoryview(b"")
        self._chunks = [(offset, Pages("x", pages))]


def read(form: Any, opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Read the row groups with pyarrow, and copy and verify the wanted samples."""
    check_length(batch.total_bytes, out)
    ids = np.empty(len(batch.samples), np.int64)
    if not ids.size:
        return ids
    rows, edges_out = Rows.of(layout), np.concatenate([[0], np.cumsum(batch.nbytes)]).tolist()
    group_of = batch.index // rows.group
    for number in np.unique(batch.files).tolist():
        mine = np.flatnonzero(batch.files == number)
        first, edges = place_of(layout, batch, int(mine[0])), edges_of(form, layout, number)
        size = int(file_bytes(form, layout, np.array([number]))[0])
        with (
            opened(opener, first) as file,
            parquet_in(file, first, size, footer_bytes(rows.groups), PagesStream) as (stream, parquet),
        ):
            for group in np.unique(group_of[mine]).tolist():
                members = mine[group_of[mine] == group]
                place, pages = place_of(layout, batch, int(members[0])), rows.edges(group)
                _check_group(parquet, place, group, pages[-1] - pages[0])
                begin, end = (int(rows.before(np.array(row)) + edges[row]) for row in (pages[0], pages[-1]))
                planned = [(b - a, int(edges[b] - edges[a]) + (b - a) * LENGTH) for a, b in pairwise(pages)]
                stream.expect_group(place, len(MAGIC) + begin, end - begin, planned)
                column = parquet.read_row_group(group, columns=["x"], use_threads=False).column(0)
                for member in members.tolist():
                    row, sample = int(batch.index[member]), place_of(layout, batch, member)
                    value, wanted = column[row - pages[0]].as_buffer(), int(edges[row + 1] - edges[row])
                    if len(value) != wanted:
                        raise sample.error(f"expected {wanted} bytes, found {len(value)}: {AGAIN}")
                    ids[member] = check(memoryview(value), layout.seed, sample)
                    start, stop = edges_out[member], edges_out[member + 1]
                    out[start:stop] = np.frombuffer(value, np.uint8, stop - start)
    return ids


def _check_group(parquet: Any, place: Place, group: int, rows: int) -> None:
    """Refuse a file with another description than rayio's, before memory is allocated for its sizes."""
    import pyarrow as pa

    schema, described = parquet.schema_arrow, parquet.metadata
    if schema.names != ["x"] or schema.field("x").type != pa.binary():
        raise place.error(
            f"expected a column x of byte arrays, found {[*zip(schema.names, schema.types, strict=True)]}: {AGAIN}"
        )
    there = described.row_group(group).num_rows if group < described.num_row_groups else 0
    if there != rows:
        raise place.error(f"expected row group {group} of {rows} rows, found {there}: {AGAIN}")


@lru_cache(maxsize=64)
def footer_bytes(groups: int) -> int:
    """Return the length of the description of a file with so many row groups."""
    empty, single = len(_footer([])), len(_footer([(0, 0, 0)]))
    return empty + groups * (single - empty)


def _footer(groups: list[tuple[int, int, int]]) -> bytes:
    """Return the description of row groups, each its rows, bytes and offset."""
    described = []
    for rows, nbytes, offset in groups:
        of_chunk = b"".join(
            [
                thrift.field(1, thrift.I32, thrift.varint(BYTE_ARRAY, 1)),
                thrift.field(1, thrift.LIST, bytes([1 << 4 | thrift.I32]) + thrift.varint(0, 1)),  # PLAIN
                thrift.field(1, thrift.LIST, bytes([1 << 4 | thrift.BINARY]) + thrift.text(b"x")),
                thrift.field(1, thrift.I32, thrift.varint(0, 1)),  # uncompressed
                *(thrift.field(1, thrift.I64, thrift.i64(number)) for number in (rows, nbytes, nbytes)),
                thrift.field(2, thrift.I64, thrift.i64(offset)),
                thrift.END,
            ]
        )
        chunk = thrift.field(2, thrift.I64, thrift.i64(offset)) + thrift.field(1, thrift.STRUCT, of_chunk) + thrift.END
        described.append(
            thrift.field(1, thrift.LIST, thrift.listed(thrift.STRUCT, 1) + chunk)
            + thrift.field(1, thrift.I64, thrift.i64(nbytes))
            + thrift.field(1, thrift.I64, thrift.i64(rows))
            + thrift.END
        )
    root = thrift.field(4, thrift.BINARY, thrift.text(b"schema")) + thrift.field(1, thrift.I32, thrift.i32(1))
    x = (
        thrift.field(1, thrift.I32, thrift.varint(BYTE_ARRAY, 1))
        + thrift.field(2, thrift.I32, thrift.varint(0, 1))  # REQUIRED
        + thrift.field(1, thrift.BINARY, thrift.text(b"x"))
        + thrift.END
    )
    schema = thrift.listed(thrift.STRUCT, 2) + root + thrift.END + x
    return b"".join(
        [
            thrift.field(1, thrift.I32, thrift.varint(2, 1)),
            thrift.field(1, thrift.LIST, schema),
            thrift.field(1, thrift.I64, thrift.i64(sum(rows for rows, _, _ in groups))),
            thrift.field(1, thrift.LIST, thrift.listed(thrift.STRUCT, len(groups)) + b"".join(described)),
            thrift.field(2, thrift.BINARY, thrift.text(b"rayio")),
            thrift.END,
        ]
    )
