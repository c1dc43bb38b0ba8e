"""A Parquet file as bytes: the exact place of every part, known before it is written.

======================  ====================================================================================
part                    content
======================  ====================================================================================
``PAR1``                4 bytes
row groups              each: column ``id``, then the columns ``x``, a chunk each; a chunk is pages of about 1 MiB
description             Thrift: schema, place and size of every chunk, a checksum of every chunk's values
length, ``PAR1``        8 bytes
======================  ====================================================================================

Every Thrift number that differs between files is written in a fixed number of bytes, so the description has a fixed
length. A chunk has a fixed length too: if a codec shrinks it further than planned, zeros follow its last page, where no
reader looks.
"""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from rayio import seeds
from rayio.data.formats.sample import HEADER, checksum, fill
from rayio.data.formats.thrift import (
    BINARY,
    END,
    FALSE,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    field,
    i32,
    i64,
    listed,
    text,
    varint,
)
from rayio.data.layout import Layout
from rayio.errors import DataError

MAGIC = b"PAR1"
#: A page holds as many whole cells as fit, and at least one.
PAGE_BYTES = 1 << 20
#: Limit of a page, a cell and a description: their lengths are signed 32-bit numbers.
MAX_PAGE_BYTES = (1 << 31) - (1 << 24)
#: Of every STRIPE_BYTES bytes of a compressed column some are random, the rest zero; then a codec's overheads.
STRIPE_BYTES, STRIPE_COST, PAGE_COST = 256, 24, 128
MAX_RATIO = 8.0
#: Parquet's numbers of codecs, by pyarrow's names.
CODECS = {"none": 0, "snappy": 1, "gzip": 2, "lz4": 7, "zstd": 6}
#: Length of the checksum of a chunk's values: 16 digits.
DIGEST_BYTES = 16
KEY = "rayio"
#: Parquet's number of byte arrays of one length.
FIXED_LEN_BYTE_ARRAY = 7


class Shape(NamedTuple):
    """The parameters that, with the sample size, determine the place of every byte in a file."""

    #: Samples in a file and in a row group.
    num_rows: int
    group_rows: int
    num_columns: int
    codec: str
    #: Uncompressed size divided by the size in the file, of a compressed column.
    ratio: float

    @property
    def num_groups(self) -> int:
        """Number of row groups in a file; the last may be smaller."""
        return -(-self.num_rows // self.group_rows)

    def rows_of(self, group: int) -> int:
        """Return the number of rows in a group."""
        return min(self.group_rows, self.num_rows - group * self.group_rows)

    def widths(self, sample_bytes: int) -> list[int]:
        """Return the bytes of a sample in each column ``x``.

        Raises:
            DataError: the sample is too large for the number of columns.
        """
        if sample_bytes - HEADER.size > self.num_columns * MAX_PAGE_BYTES:
            raise DataError(
                f"dataset.columns={self.num_columns}: a sample of {sample_bytes} bytes is too large for so few "
                f"columns; a value of parquet has less than 2 GiB"
            )
        return [*_widths(sample_bytes - HEADER.size, self.num_columns)]

    def slot(self, num_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the largest size of a page's values in the file; incompressible values are stored plainly."""
        if self.codec == "none":
            return num_bytes
        shrunk = np.ceil(num_bytes / self.ratio).astype(np.int64) + PAGE_COST
        return np.minimum(num_bytes, shrunk)

    def chunk(self, num_rows: int, width: NDArray[np.int64], *, is_id: bool = False) -> NDArray[np.int64]:
        """Return the bytes of a column chunk in the file, page headers included, for cells of ``width`` bytes."""
        rows = np.maximum(1, PAGE_BYTES // width)
        pages, left = num_rows // rows, num_rows % rows
        full, rest = (rows * width, left * width) if is_id else (self.slot(rows * width), self.slot(left * width))
        chunk: NDArray[np.int64] = pages * (PAGE_HEADER_BYTES + full) + (left > 0) * (PAGE_HEADER_BYTES + rest)
        return chunk

    def chunks(self, num_rows: int, sample_bytes: NDArray[np.int64], columns: Any) -> NDArray[np.int64]:
        """Return the bytes of ``id`` and the first ``columns`` (one or several numbers) in ``num_rows`` rows."""
        payload = sample_bytes - HEADER.size
        narrow = payload // self.num_columns
        wide = part_bytes(payload, columns, self.num_columns) - columns * narrow
        of_id = self.chunk(num_rows, np.array([HEADER.size]), is_id=True)
        of_narrow = self.chunk(num_rows, np.maximum(narrow, 1))
        sizes: NDArray[np.int64] = of_id + (columns - wide) * of_narrow + wide * self.chunk(num_rows, narrow + 1)
        return sizes

    def group_at(self, sample_bytes: NDArray[np.int64], group: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the offset of a row group."""
        return len(MAGIC) + group * self.chunks(self.group_rows, sample_bytes, self.num_columns)

    def footer_bytes(self) -> int:
        """Return the length of the description, without its length field and the end."""
        empty, single = _described(self._replace(num_rows=0)), _described(self._replace(num_rows=1, group_rows=1))
        return empty + self.num_groups * (single - empty)

    def file_bytes(self, sample_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of a file with samples of this size."""
        last = self.num_groups - 1
        groups_at = self.group_at(sample_bytes, np.full_like(sample_bytes, last))
        last_group = self.chunks(self.rows_of(last), sample_bytes, self.num_columns)
        sizes: NDArray[np.int64] = groups_at + last_group + self.footer_bytes() + 4 + len(MAGIC)
        return sizes

    def names(self) -> list[str]:
        """Return the names of the columns, ``id`` first."""
        digits = len(str(self.num_columns - 1))
        return ["id", *(["x"] if self.num_columns == 1 else [f"x{n:0{digits}}" for n in range(self.num_columns)])]


@lru_cache(maxsize=1024)
def _widths(payload: int, num_columns: int) -> tuple[int, ...]:
    """Return the bytes of a payload in each column."""
    return tuple(np.diff(part_bytes(payload, np.arange(num_columns + 1), num_columns)).tolist())


@lru_cache(maxsize=1024)
def chunk_bytes(shape: Shape, num_rows: int, width: int, is_id: bool) -> int:
    """Return the bytes of a column chunk in the file, as :meth:`Shape.chunk`, for one width."""
    return int(shape.chunk(num_rows, np.array([width]), is_id=is_id)[0])


def part_bytes(payload: Any, columns: Any, num_columns: int) -> Any:
    """Return the payload bytes of a sample in the first ``columns`` of ``num_columns``, rounded down."""
    # No product is much larger than the payload.
    quotient, rest = np.divmod(payload, num_columns)
    return quotient * columns + rest * columns // num_columns


def write(file: BinaryIO, layout: Layout, shape: Shape, number: int) -> None:
    """Write file ``number``, one row group at a time; memory grows with ``row_group``, as in every Parquet writer."""
    sample_bytes = int(layout.sample_bytes_of(np.array([number]))[0])
    widths = shape.widths(sample_bytes)
    first = number * layout.samples_per_file
    digests: list[bytes] = []
    file.write(MAGIC)
    for group in range(shape.num_groups):
        rows = np.empty((shape.rows_of(group), sample_bytes), np.uint8)
        for row in range(len(rows)):
            fill(rows[row], layout.seed, first + group * shape.group_rows + row, layout.compressibility)
        edges = [HEADER.size, *(HEADER.size + np.cumsum(widths)).tolist()]
        if shape.codec != "none":
            _stripe(rows, edges, shape, layout.seed)
        for column, (begin, end) in enumerate(zip([0, *edges], edges, strict=False)):
            # A Parquet value has at least one byte; a column without part of the sample holds a zero.
            cells = np.ascontiguousarray(rows[:, begin:end]) if end > begin else np.zeros((len(rows), 1), np.uint8)
            digests.append(digest(cells.data, layout.seed, number, chunk_number(shape, group, column)))
            _write_chunk(file, cells, shape, is_id=column == 0)
    described = _footer(shape, widths, b"".join(digests))
    file.write(described + struct.pack("<I", len(described)) + MAGIC)


def chunk_number(shape: Shape, group: int, column: int) -> int:
    """Return the number of a chunk in the order of a file; column 0 is ``id``."""
    return group * (shape.num_columns + 1) + column


def digest(cells: memoryview, seed: int, number: int, chunk: int) -> bytes:
    """Return the checksum of a chunk's values and place, as digits: no other chunk passes for it."""
    key = _digest_seed(seed) + (number << 24) + chunk
    return b"%016x" % xxhash.xxh3_64_intdigest(cells, key & seeds.MASK)


@lru_cache(maxsize=64)
def _digest_seed(seed: int) -> int:
    return seeds.key(seed, "chunk")


def _stripe(rows: NDArray[np.uint8], edges: list[int], shape: Shape, seed: int) -> None:
    """Set enough bytes of each column's pages to zero that every codec reaches the planned size."""
    keep = int(STRIPE_BYTES / shape.ratio) - STRIPE_COST
    for begin, end in pairwise(edges):
        if begin == end:
            continue
        many = max(1, PAGE_BYTES // (end - begin))
        for top in range(0, len(rows), many):
            page = np.ascontiguousarray(rows[top : top + many, begin:end])
            flat = page.reshape(-1)
            whole = len(flat) // STRIPE_BYTES * STRIPE_BYTES
            flat[:whole].reshape(-1, STRIPE_BYTES)[:, keep:] = 0
            flat[whole + keep :] = 0
            rows[top : top + many, begin:end] = page
    for row in rows:
        (sample, _) = HEADER.unpack_from(row)
        HEADER.pack_into(row.data, 0, sample, checksum(row.data[HEADER.size :], seed, sample))


def _write_chunk(file: BinaryIO, cells: NDArray[np.uint8], shape: Shape, *, is_id: bool) -> None:
    num_rows, width = cells.shape
    many, written = max(1, PAGE_BYTES // width), 0
    for top in range(0, num_rows, many):
        page = cells[top : top + many].reshape(-1)
        slot = len(page) if is_id else int(shape.slot(np.array([len(page)]))[0])
        content, is_compressed = page.data, False
        if not is_id and shape.codec != "none":
            shrunk = compressed(page, shape.codec)
            if len(shrunk) <= slot and len(shrunk) < len(page):
                content, is_compressed = memoryview(shrunk), True
        if len(content) > slot:
            raise RuntimeError(f"{shape.codec} made {len(content)} bytes of {len(page)}, planned were {slot}")
        crc = zlib.crc32(content)
        written += file.write(page_header(len(page), len(content), crc, len(cells[top : top + many]), is_compressed))
        written += file.write(content)
    end = int(shape.chunk(num_rows, np.array([width]), is_id=is_id)[0])
    file.write(bytes(end - written))


def compressed(page: NDArray[np.uint8], codec: str) -> bytes:
    """Return a page compressed with pyarrow's codec."""
    import pyarrow as pa

    # pyarrow's "lz4" is the frame format; Parquet uses raw blocks.
    shrunk: bytes = pa.Codec("lz4_raw" if codec == "lz4" else codec).compress(page, asbytes=True)
    return shrunk


def page_header(plain: int, stored: int, crc: int, num_rows: int, is_compressed: bool) -> bytes:
    """Return a page header of fixed length (``PageHeader`` with ``DataPageHeaderV2`` of ``parquet.thrift``)."""
    signed = crc - (crc >> 31 << 32)
    data = b"".join(
        [
            field(1, I32, i32(num_rows)),
            field(1, I32, i32(0)),  # nulls
            field(1, I32, i32(num_rows)),
            field(1, I32, varint(0, 1)),  # PLAIN
            field(1, I32, varint(0, 1)),  # no definition levels
            field(1, I32, varint(0, 1)),  # no repetition levels
            field(1, TRUE if is_compressed else FALSE),
            END,
        ]
    )
    head = field(1, I32, varint(3, 1)) + field(1, I32, i32(plain)) + field(1, I32, i32(stored))
    return head + field(1, I32, i32(signed)) + field(4, STRUCT, data) + END


PAGE_HEADER_BYTES = len(page_header(0, 0, 0, 0, False))


def stored_bytes(header: bytes) -> int:
    """Return the bytes of a page's values in the file, from its header."""
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(header[9:14])) >> 1


@lru_cache(maxsize=1024)
def _header_of(plain: int, num_rows: int) -> bytes:
    return page_header(plain, 0, 0, num_rows, False)


def is_header_of(header: bytes, plain: int, num_rows: int) -> bool:
    """Return True if the header describes a page of this size and rows, whatever its codec."""
    ours = _header_of(plain, num_rows)
    is_same = header[:9] == ours[:9] and header[14] == ours[14] and header[20:-3] == ours[20:-3]
    return len(header) == len(ours) and is_same and header[-3] in (16 | TRUE, 16 | FALSE) and header[-2:] == ours[-2:]


def _schema(names: list[str], widths: list[int]) -> bytes:
    parts = [field(4, BINARY, text(b"schema")) + field(1, I32, i32(len(names))) + END]
    for name, width in zip(names, widths, strict=True):
        parts.append(
            field(1, I32, varint(FIXED_LEN_BYTE_ARRAY, 1))
            + field(1, I32, i32(width))
            + field(1, I32, varint(0, 1))  # REQUIRED
            + field(1, BINARY, text(name.encode()))
            + END
        )
    return listed(STRUCT, len(parts)) + b"".join(parts)


def _column(name: str, codec: int, num_rows: int, plain: int, stored: int, offset: int) -> bytes:
    described = b"".join(
        [
            field(1, I32, varint(FIXED_LEN_BYTE_ARRAY, 1)),
            field(1, LIST, bytes([1 << 4 | I32]) + varint(0, 1)),  # PLAIN
            field(1, LIST, bytes([1 << 4 | BINARY]) + text(name.encode())),
            field(1, I32, varint(codec, 1)),
            field(1, I64, i64(num_rows)),
            field(1, I64, i64(plain)),
            field(1, I64, i64(stored)),
            field(2, I64, i64(offset)),
            END,
        ]
    )
    return field(2, I64, i64(offset)) + field(1, STRUCT, described) + END


def _footer(shape: Shape, widths: list[int], digests: bytes) -> bytes:
    names, codec, offset = shape.names(), CODECS[shape.codec], len(MAGIC)
    cells = [max(width, 1) for width in widths]
    columns = [
        (names[0], HEADER.size, 0),
        *((name, width, codec) for name, width in zip(names[1:], cells, strict=True)),
    ]
    groups = []
    for group in range(shape.num_groups):
        num_rows, parts, plain_bytes = shape.rows_of(group), [], 0
        sizes = _chunk_sizes(shape, num_rows, tuple(sorted({*cells})))
        for name, width, of_column in columns:
            plain, stored = sizes[0] if name == "id" else sizes[width]
            parts.append(_column(name, of_column, num_rows, plain, stored, offset))
            offset += stored
            plain_bytes += plain
        groups.append(
            field(1, LIST, listed(STRUCT, len(parts)) + b"".join(parts))
            + field(1, I64, i64(plain_bytes))
            + field(1, I64, i64(num_rows))
            + END
        )
    pair = field(1, BINARY, text(KEY.encode())) + field(1, BINARY, text(digests)) + END
    return b"".join(
        [
            field(1, I32, varint(2, 1)),
            field(1, LIST, _schema(names, [width for _, width, _ in columns])),
            field(1, I64, i64(shape.num_rows)),
            field(1, LIST, listed(STRUCT, len(groups)) + b"".join(groups)),
            field(1, LIST, listed(STRUCT, 1) + pair),
            field(1, BINARY, text(b"rayio")),
            END,
        ]
    )


@lru_cache(maxsize=64)
def _chunk_sizes(shape: Shape, num_rows: int, widths: tuple[int, ...]) -> dict[int, tuple[int, int]]:
    """Return a chunk's bytes before compression and in the file, with headers, by the width of a cell; 0 is ``id``."""
    plain = shape._replace(codec="none")
    sizes = {
        width: (int(plain.chunk(num_rows, np.array([width]))[0]), int(shape.chunk(num_rows, np.array([width]))[0]))
        for width in widths
    }
    of_id = int(shape.chunk(num_rows, np.array([HEADER.size]), is_id=True)[0])
    return sizes | {0: (of_id, of_id)}


@lru_cache(maxsize=64)
def _described(shape: Shape) -> int:
    """Return the length of the description of a file with at most one row group."""
    widths = [1] * shape.num_columns
    digests = bytes(DIGEST_BYTES * shape.num_groups * (shape.num_columns + 1))
    return len(_footer(shape, widths, digests))
