"""Parquet: row groups of column chunks, read by pyarrow; a reader may read only some columns.

A sample is a row. Its id and checksum are the column ``id``; the bytes after them are cut into ``dataset.columns``
columns, as evenly as possible (``x``, or ``x0``, ``x1`` ...). A reader reads ``id`` and the first
``dataset.read_columns`` of the others, and delivers these bytes of each sample. Only whole row groups can be read: one
sample costs its row group, in these columns.

The requests are pyarrow's by default (``pre_buffer``): the last 64 KiB of the file, the description if it is longer,
and for each row group the chunks of these columns, neighbours together up to 32 MiB.

The description has a checksum of each chunk's values and place, so any set of columns can be verified.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats import parquet_file as described
from rayio.data.formats import parquet_ragged as ragged
from rayio.data.formats.at_once import Whereabouts
from rayio.data.formats.parquet_at_once import read_at_once
from rayio.data.formats.parquet_file import (
    DIGEST_BYTES,
    KEY,
    MAGIC,
    MAX_PAGE_BYTES,
    Shape,
    chunk_number,
    digest,
)
from rayio.data.formats.parquet_options import ParquetOptions, chosen
from rayio.data.formats.parquet_plan import check_group, ranges_of, sizes_of
from rayio.data.formats.parquet_stream import AGAIN, TAIL_BYTES, Chunk, Stream, parquet_in
from rayio.data.formats.reads import HEAD, opened, place_of
from rayio.data.formats.sample import HEADER, Place
from rayio.data.layout import Batch, Layout, Paths
from rayio.errors import RayioError
from rayio.scenario.kind import Kind
from rayio.schema.fields import show
from rayio.storage.base import Opener, Requests
from rayio.units import format_bytes

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario

#: pyarrow refuses descriptions with longer lists.
MAX_CHUNKS = 1_000_000


class Parquet(Kind):
    """One open, one or two requests for the description, then one or more for each row group that contains a sample."""

    extension = ".parquet"
    options = ParquetOptions
    sizes_vary = True

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Yield messages about more column chunks than pyarrow reads, or larger values than Parquet supports."""
        dataset, options = scenario.dataset, chosen(scenario.dataset.options)
        keys = options.model_dump(exclude_defaults=True, exclude={"row_group"})
        if dataset.sizes == "per_sample" and keys:
            key = next(iter(keys))
            yield (
                f"dataset.{key}={show(keys[key])}: not for samples that differ in size (dataset.sizes=per_sample); "
                "remove it"
            )
        if (size := dataset.sample_bytes.expected) > options.columns * MAX_PAGE_BYTES:
            yield (
                f"dataset.columns={options.columns}: samples of {format_bytes(size)} have values of 2 GiB or more, "
                "more than parquet supports; use more columns"
            )
        group_rows = options.group_rows(dataset.samples_per_file, dataset.sample_bytes.expected)
        groups = -(-dataset.samples_per_file // group_rows)
        if (chunks := groups * (options.columns + 1)) > MAX_CHUNKS:
            yield (
                f"dataset.row_group={options.row_group}: a file would have {chunks} column chunks, at most "
                f"{MAX_CHUNKS} are possible; use larger row groups or fewer columns"
            )

    def idle(self, scenario: Scenario) -> Iterator[str]:
        """Yield a note about a row group larger than the file."""
        dataset, options = scenario.dataset, chosen(scenario.dataset.options)
        if options.row_group is not None and options.row_group > dataset.samples_per_file:
            yield f"dataset.row_group={options.row_group}: a file has {dataset.samples_per_file} samples"

    def table(self, scenario: Scenario) -> Mapping[str, float]:
        """Return the cost of a sample: the expected bytes of a row group in the columns read."""
        dataset, options = scenario.dataset, chosen(scenario.dataset.options)
        shape = options.shape(dataset.samples_per_file, dataset.sample_bytes.expected)
        size = np.array([max(round(dataset.sample_bytes.expected), HEADER.size)])
        return {
            "row_group_bytes": float(shape.chunks(shape.group_rows, size, options.read_columns or options.columns)[0])
        }

    def file_bytes(self, layout: Layout, files: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sum of pages, their headers and the description."""
        if ragged.is_ragged(layout):
            return ragged.file_bytes(self, layout, files)
        return shape_of(layout).file_bytes(layout.sample_bytes_of(files))

    def write(self, file: BinaryIO, layout: Layout, number: int) -> None:
        """Write the file, see :mod:`rayio.data.formats.parquet_file`."""
        if ragged.is_ragged(layout):
            ragged.write(self, file, layout, number)
            return
        described.write(file, layout, shape_of(layout), number)

    def record_sizes(self, layout: Layout, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of ``samples`` in a file."""
        return layout.sizes_of(samples)

    def requests(self, layout: Layout, batch: Batch) -> Requests:
        """Return, per file, reads of its end and its description, then of the chunks of each row group."""
        if ragged.is_ragged(layout):
            return ragged.requests(self, layout, batch)
        address = (batch.rank, batch.epoch, batch.step)
        if not batch.nbytes.size:
            return Requests(address, 0, batch.nbytes)
        reads = _Reads.of(layout, batch)
        nbytes = reads.each(reads.tails, reads.footers, [ranges[1] for ranges in reads.ranges])
        return Requests(address, int(reads.is_first.sum()), nbytes, partial(self._places, layout, batch))

    def _places(self, layout: Layout, batch: Batch) -> tuple[Paths, NDArray[np.int64], NDArray[np.int64]]:
        reads = _Reads.of(layout, batch)
        files, file = np.unique(reads.files, return_inverse=True)
        footers_at = reads.sizes - len(MAGIC) - 4 - reads.footers
        offsets = reads.each(reads.sizes - reads.tails, footers_at, [ranges[0] for ranges in reads.ranges])
        number = reads.each(file, file, [np.full_like(r[0], f) for r, f in zip(reads.ranges, file, strict=True)])
        return layout.paths(files), number, offsets

    def units(self, layout: Layout, batch: Batch) -> NDArray[np.int64]:
        """Return that the description is kept, and the row group."""
        if ragged.is_ragged(layout):
            return ragged.units(self, layout, batch)
        reads = _Reads.of(layout, batch)
        heads, ranges = np.full_like(reads.files, HEAD), zip(reads.ranges, reads.groups, strict=True)
        return reads.each(heads, heads, [np.full_like(begins, group) for (begins, _), group in ranges])

    def read(self, opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Read the row groups with pyarrow, verify each chunk, and copy the wanted rows into ``out``."""
        if ragged.is_ragged(layout):
            return ragged.read(self, opener, layout, batch, out)
        here = Whereabouts(opener, layout, batch, out)
        done = read_at_once(here, batch, shape_of(layout), columns_of(layout))
        if len(done) == len(here.samples):
            return batch.samples
        ids = batch.samples.copy()
        rows = _Rows(layout, shape_of(layout), batch, out, ids)
        reads = _Reads.of(layout, batch)
        edges = [*np.flatnonzero(reads.is_first).tolist(), len(reads.files)]
        for begin, end in pairwise(edges):
            if int(reads.files[begin]) in done:
                continue
            place = place_of(layout, batch, int(reads.members[begin][0]))
            with (
                opened(opener, place) as file,
                parquet_in(file, place, int(reads.sizes[begin]), int(reads.footers[begin])) as (stream, parquet),
            ):
                for unit in range(begin, end):
                    rows.take(parquet, stream, reads, unit)
        return ids


def shape_of(layout: Layout) -> Shape:
    """Return the shape of a dataset's files."""
    return chosen(layout.options).shape(layout.samples_per_file, layout.sample_bytes.expected)


def columns_of(layout: Layout) -> int:
    """Return the number of columns ``x`` that are read."""
    options = chosen(layout.options)
    return options.read_columns or options.columns


class _Reads(NamedTuple):
    """The reads of a batch: an entry for each row group, those of a file together."""

    files: NDArray[np.int64]
    groups: NDArray[np.int64]
    is_first: NDArray[np.bool_]
    #: By entry, of its file: bytes of a sample, of the file, of its end that is read, of its description.
    sample_bytes: NDArray[np.int64]
    sizes: NDArray[np.int64]
    tails: NDArray[np.int64]
    footers: NDArray[np.int64]
    #: By entry: offsets and lengths of its requests.
    ranges: list[tuple[NDArray[np.int64], NDArray[np.int64]]]
    #: By entry: places of its samples in the batch.
    members: list[NDArray[np.int64]]

    @classmethod
    def of(cls, layout: Layout, batch: Batch) -> _Reads:
        shape, columns = shape_of(layout), columns_of(layout)
        group = batch.index // shape.group_rows
        order = np.lexsort((batch.index, group, batch.files))
        files, groups = batch.files[order], group[order]
        is_other = np.concatenate([[True], (files[1:] != files[:-1]) | (groups[1:] != groups[:-1])])
        starts = np.flatnonzero(is_other)
        files, groups = files[starts], groups[starts]
        is_whole = columns == shape.num_columns
        sample_bytes = batch.nbytes[order[starts]] if is_whole else layout.sample_bytes_of(files)
        if (sample_bytes == sample_bytes[0]).all():
            file_bytes, group_bytes = sizes_of(shape, int(sample_bytes[0]))
            sizes, starts_at = np.full_like(files, file_bytes), (len(MAGIC) + groups * group_bytes).tolist()
        else:
            sizes, starts_at = shape.file_bytes(sample_bytes), shape.group_at(sample_bytes, groups).tolist()
        ranges = []
        for number, offset, size in zip(groups.tolist(), starts_at, sample_bytes.tolist(), strict=True):
            begins, lengths = ranges_of(shape, shape.rows_of(number), size, columns)
            ranges.append((offset + begins, lengths))
        return cls(
            files,
            groups,
            np.concatenate([[True], files[1:] != files[:-1]]),
            sample_bytes,
            sizes,
            np.minimum(sizes, TAIL_BYTES),
            np.full_like(files, shape.footer_bytes()),
            ranges,
            np.split(order, starts[1:]),
        )

    def each(
        self, of_tails: NDArray[np.int64], of_footers: NDArray[np.int64], of_ranges: list[NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        """Return a value for each request, in order."""
        parts = []
        for unit, values in enumerate(of_ranges):
            if self.is_first[unit]:
                is_long = self.footers[unit] + 4 + len(MAGIC) > self.tails[unit]
                parts.append(of_tails[unit : unit + 1])
                if is_long:
                    parts.append(of_footers[unit : unit + 1])
            parts.append(values)
        return np.concatenate(parts)


class _Rows:
    def __init__(
        self, layout: Layout, shape: Shape, batch: Batch, out: NDArray[np.uint8], ids: NDArray[np.int64]
    ) -> None:
        self.layout, self.shape, self.batch, self.out, self.ids = layout, shape, batch, out, ids
        self.names = shape.names()[: columns_of(layout) + 1]
        self.offsets = np.concatenate([[0], np.cumsum(batch.nbytes)])
        #: The batch as a matrix, if its samples have one size.
        self.matrix = out.reshape(len(ids), -1) if (batch.nbytes == batch.nbytes[0]).all() else None

    def take(self, parquet: Any, stream: Stream, reads: _Reads, unit: int) -> None:
        number, group = int(reads.files[unit]), int(reads.groups[unit])
        members = reads.members[unit]
        place = place_of(self.layout, self.batch, int(members[0]))
        num_rows = self.shape.rows_of(group)
        widths = [HEADER.size, *self.shape.widths(int(reads.sample_bytes[unit]))[: len(self.names) - 1]]
        chunks = [Chunk(name, max(width, 1), num_rows) for name, width in zip(self.names, widths, strict=True)]
        check_group(parquet, place, group, chunks)
        stream.expect(place, reads.ranges[unit], chunks, self.shape)
        table = parquet.read_row_group(group, columns=self.names, use_threads=False)
        digests = (parquet.metadata.metadata or {}).get(KEY.encode(), b"")
        rows, offset = self.batch.index[members] - group * self.shape.group_rows, 0
        for column, (chunk, width) in enumerate(zip(chunks, widths, strict=True)):
            cells, at_chunk = _cells(table.column(column), chunk), chunk_number(self.shape, group, column)
            expected = digests[at_chunk * DIGEST_BYTES : (at_chunk + 1) * DIGEST_BYTES]
            if digest(cells.data, self.layout.seed, number, at_chunk) != expected:
                raise self._mismatch(place, cells, expected, number, at_chunk, chunk.name)
            if column == 0:
                self.ids[members] = np.ascontiguousarray(cells[rows, :8]).view("<i8")[:, 0]
            self._put(members, cells, rows, offset, width)
            offset += width
        wrong = np.flatnonzero(self.ids[members] != self.batch.samples[members])
        if wrong.size:
            sample = place_of(self.layout, self.batch, int(members[wrong[0]]))
            raise sample.error(f"expected id {sample.sample}, found id {self.ids[members[wrong[0]]]}: {AGAIN}")

    def _put(
        self, members: NDArray[np.int64], cells: NDArray[np.uint8], rows: NDArray[np.int64], offset: int, width: int
    ) -> None:
        if self.matrix is not None:
            self.matrix[_as_slice(members), offset : offset + width] = cells[_as_slice(rows), :width]
            return
        for start, row in zip((self.offsets[members] + offset).tolist(), rows.tolist(), strict=True):
            self.out[start : start + width] = cells[row, :width]

    def _mismatch(
        self, place: Place, cells: NDArray[np.uint8], expected: bytes, number: int, chunk: int, name: str
    ) -> RayioError:
        """Return an error for a chunk whose checksum is not the ``expected`` one."""
        seed = self.layout.seed
        if name == "id":
            read_id = int(cells[place.row % self.shape.group_rows, :8].copy().view("<u8")[0])
            if read_id != place.sample:
                file = read_id // self.shape.num_rows
                if expected and file < self.layout.num_files and digest(cells.data, seed, file, chunk) == expected:
                    return place.error(
                        f"expected id {place.sample}, found the sample with id {read_id}: files were swapped or renamed"
                    )
                return place.error(
                    f"expected id {place.sample}, found id {read_id} with a wrong checksum: "
                    f"the file is corrupted or of another dataset; delete it and generate it again"
                )
        text = expected.decode("ascii", "replace") if expected.isalnum() else "of 16 digits"
        computed = digest(cells.data, seed, number, chunk).decode()
        return place.error(
            f"expected checksum {text} of column {name}, its bytes give {computed}: "
            f"the file is corrupted or of another dataset; delete it and generate it again"
        )


def _as_slice(places: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Return ascending neighbours as a slice, which is copied faster."""
    first, last = int(places[0]), int(places[-1])
    if len(places) == 1:
        return slice(first, first + 1)
    is_run = last - first + 1 == len(places) and bool((places[1:] - places[:-1] == 1).all())
    return slice(first, last + 1) if is_run else places


def _cells(column: Any, chunk: Chunk) -> NDArray[np.uint8]:
    parts = []
    for part in column.chunks:
        values = np.frombuffer(part.buffers()[1], np.uint8)
        parts.append(values.reshape(-1, chunk.width)[part.offset : part.offset + len(part)])
    cells = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if len(cells) != chunk.num_rows:
        raise ValueError(f"{len(cells)} rows of column {chunk.name} in place of {chunk.num_rows}")
    return cells
