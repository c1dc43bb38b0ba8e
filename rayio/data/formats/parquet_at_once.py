"""Parquet files of which a batch needs one sample each, read in one call of their store and decoded from memory.

pyarrow gets a buffer as long as the file, in which only the planned requests have been made: the end and the row group.
Whatever is not as expected is left to the reader of open files, which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple

from rayio.data.formats.at_once import Named, Whereabouts
from rayio.data.formats.parquet_file import DIGEST_BYTES, KEY, Shape, chunk_number, digest
from rayio.data.formats.parquet_plan import check_group, ranges_of, sizes_of
from rayio.data.formats.parquet_stream import TAIL_BYTES, Chunk, chunks_at, wrong_page
from rayio.data.formats.reads import SCRATCH_BYTES, scratch
from rayio.data.formats.sample import HEADER, Place
from rayio.data.layout import Batch


class Plan(NamedTuple):
    """The reads of a row group: of a file of ``size`` bytes its end, then ``length`` bytes from ``begin`` on."""

    size: int
    tail_at: int
    begin: int
    length: int
    #: Bytes of a sample in each column, and the chunks with their offsets in the file.
    widths: list[int]
    chunks: list[tuple[int, Chunk]]


@lru_cache(maxsize=256)
def _plan(shape: Shape, columns: int, sample_bytes: int, group: int) -> Plan | None:
    """Return the reads of the first ``columns`` of a group; None if there are more than two, or they are large."""
    size, group_bytes = sizes_of(shape, sample_bytes)
    num_rows, tail = shape.rows_of(group), min(size, TAIL_BYTES)
    begins, lengths = ranges_of(shape, num_rows, sample_bytes, columns)
    if size > SCRATCH_BYTES or len(begins) > 1 or shape.footer_bytes() + 8 > tail:
        return None
    widths = [HEADER.size, *shape.widths(sample_bytes)[:columns]]
    named = zip(shape.names()[: columns + 1], widths, strict=True)
    begin = 4 + group * group_bytes + int(begins[0])
    chunks = [Chunk(name, max(width, 1), num_rows) for name, width in named]
    return Plan(size, size - tail, begin, int(lengths[0]), widths, chunks_at(begin, chunks, shape))


def read_at_once(here: Whereabouts, batch: Batch, shape: Shape, columns: int) -> set[int]:
    """Read one sample of each file, verify and count them; return the files that were read."""
    if here.fill is None or (in_order := here.in_order(batch)) is None:
        return set()
    files, order = in_order
    each = here.each(partial(_read_each, here, batch, shape, columns), here.layout.names_of(files), order)
    done = {file for some, _ in each for file in some}
    here.count(len(done), 2 * len(done), sum(nbytes for _, nbytes in each))
    return done


def _read_each(
    here: Whereabouts, batch: Batch, shape: Shape, columns: int, named: Iterator[Named]
) -> tuple[list[int], int]:
    """Return the files of which a sample was read, and the bytes of their requests."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    fill, layout, done = here.fill, here.layout, list[int]()
    assert fill is not None
    is_whole = columns == shape.num_columns
    sizes: list[int] = here.sizes if is_whole else layout.sample_bytes_of(batch.files).tolist()
    rows: list[int] = batch.index.tolist()
    numbers: list[int] = batch.files.tolist()
    nbytes = 0
    for name, n in named:
        file = numbers[n]
        group, row = divmod(rows[n], shape.group_rows)
        plan = _plan(shape, columns, sizes[n], group)
        if plan is None:
            continue
        size, tail_at, begin, length, _, chunks = plan
        memory, total = scratch(size), size - tail_at + length
        window = memory[begin : begin + length]
        if not fill(name, size, total, tail_at, (memory[tail_at:],), (begin, (window,))):
            continue
        is_read = False
        with suppress(Exception):  # pyarrow raises half a dozen classes for invalid bytes
            if not any(wrong_page(window, offset - begin, chunk) for offset, chunk in chunks):
                parquet = ParquetFile(pa.BufferReader(memory), pre_buffer=False)
                try:
                    place = Place(name, here.samples[n], rows[n])
                    is_read = _take(parquet, here, plan, shape, (file, group, row), place, here.offsets[n])
                finally:
                    parquet.close(force=True)
        if is_read:
            done.append(file)
            nbytes += total
    return done, nbytes


def _take(
    parquet: Any, here: Whereabouts, plan: Plan, shape: Shape, at: tuple[int, int, int], place: Place, start: int
) -> bool:
    """Copy a row of a row group to ``start`` of the batch's memory; return False if a value is not as written."""
    chunks, (file, group, row) = [chunk for _, chunk in plan.chunks], at
    check_group(parquet, place, group, chunks)
    table = parquet.read_row_group(group, columns=[chunk.name for chunk in chunks], use_threads=False)
    digests, seed, view = (parquet.metadata.metadata or {}).get(KEY.encode(), b""), here.layout.seed, here.view
    for column, (chunk, width) in enumerate(zip(chunks, plan.widths, strict=True)):
        values = table.column(column)
        array = values.chunk(0)
        if values.num_chunks != 1 or array.offset or len(array) != chunk.num_rows:
            return False
        cells = memoryview(array.buffers()[1]).cast("B")[: chunk.num_rows * chunk.width]
        number = chunk_number(shape, group, column)
        if digest(cells, seed, file, number) != digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]:
            return False
        cell = cells[row * chunk.width : row * chunk.width + width]
        if column == 0 and int.from_bytes(cell[:8], "little") != place.sample:
            return False
        view[start : start + width] = cell
        start += width
    return True
