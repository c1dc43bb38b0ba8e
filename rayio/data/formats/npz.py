"""NumPy's npz: an uncompressed zip with ``x.npy``, the samples as rows of bytes, and ``y.npy``, their labels.

A file is what ``numpy.savez(file, x=..., y=...)`` makes, but for the order in time: it is written a sample at a time,
so memory does not grow with ``samples_per_file``, and read a row at a time, so one sample of a file of thousands does
not cost the whole file.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.sample import Place, check, fill
from rayio.data.layout import Batch, Layout
from rayio.errors import DataError, RayioError
from rayio.storage.base import Opener, Requests, RequestTable
from rayio.storage.posix import WINDOW_BYTES

SAMPLES, LABELS = "x.npy", "y.npy"
#: The earliest time a zip can say: equal layouts give equal bytes.
DATE = (1980, 1, 1, 0, 0, 0)
#: Fixed parts, in bytes: a zip's local header, its entry in the directory, the end; zip64's field with two sizes,
#: zip64's end; the header of an npy file.
LOCAL, ENTRY, END, ZIP64_SIZES, ZIP64_END, NPY = 30, 46, 22, 20, 76, 128
#: Where the rows of ``x.npy`` start in a file that we wrote.
ROWS = LOCAL + len(SAMPLES) + ZIP64_SIZES + NPY


class Runs(NamedTuple):
    """A batch cut into reads: rows that follow each other both in a file and in the batch are one read."""

    #: Places in the batch, those of one file together, and files in the order of their numbers.
    order: NDArray[np.int64]
    #: Where in ``order`` each run starts, and which of the runs are the first of a file.
    starts: NDArray[np.int64]
    is_first: NDArray[np.bool_]

    @classmethod
    def of(cls, batch: Batch) -> Runs:
        """Cut a batch that is not empty."""
        order = np.argsort(batch.files, kind="stable")
        files, index = batch.files[order], batch.index[order]
        new_file = np.concatenate([[True], files[1:] != files[:-1]])
        breaks = (index[1:] != index[:-1] + 1) | (order[1:] != order[:-1] + 1)
        starts = np.flatnonzero(new_file | np.concatenate([[True], breaks]))
        return cls(order, starts, new_file[starts])


class Npz:
    """The format of DLIO's and MLPerf Storage's unet3d, with ``samples_per_file`` rows of one size."""

    extension = ".npz"

    def file_bytes(self, layout: Layout, files: NDArray[np.int64]) -> NDArray[np.int64]:
        """Add up samples, labels and the zip's own records, whose size depends on zip64's limit."""
        limit, rows = zipfile.ZIP64_LIMIT, layout.samples_per_file
        x = NPY + rows * layout.sample_bytes_of(files)
        y = NPY + rows * 8
        labels_at = LOCAL + len(SAMPLES) + ZIP64_SIZES + x
        directory_at = labels_at + LOCAL + len(LABELS) + ZIP64_SIZES + y
        of_x, of_y = 2 * (x > limit), 2 * (y > limit) + (labels_at > limit)
        directory = ENTRY + len(SAMPLES) + _zip64_field(of_x) + ENTRY + len(LABELS) + _zip64_field(of_y)
        sizes: NDArray[np.int64] = directory_at + directory + (directory_at > limit) * ZIP64_END + END
        return sizes

    def write(self, file: BinaryIO, layout: Layout, number: int) -> None:
        """Write samples and labels; a label is the sample's id."""
        whole = layout.whole_file(number)
        rows, row_bytes = len(whole.samples), int(whole.nbytes[0])
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            # zip64 is forced so that any size fits and rows always start at the same place.
            with archive.open(_member(SAMPLES), "w", force_zip64=True) as member:
                member.write(_npy_header("|u1", (rows, row_bytes)))
                row = np.empty(row_bytes, np.uint8)
                for sample in whole.samples.tolist():
                    fill(row, layout.seed, sample)
                    member.write(row.data)
            with archive.open(_member(LABELS), "w", force_zip64=True) as member:
                member.write(_npy_header("<i8", (rows,)))
                member.write(whole.samples.astype("<i8").tobytes())

    def requests(self, layout: Layout, batch: Batch) -> Requests:
        """Give, per file: its end (the zip's directory), its start (the headers), then each run of rows."""
        address = (batch.rank, batch.epoch, batch.step)
        if layout.samples_per_file == 1 and batch.nbytes.size and batch.nbytes.min() >= WINDOW_BYTES:
            nbytes = np.full((batch.nbytes.size, 3), WINDOW_BYTES, np.int64)
            nbytes[:, 2] = batch.nbytes
            return Requests(address, len(batch.files), nbytes.ravel())
        if not batch.nbytes.size:
            return Requests(address, 0, batch.nbytes)
        runs = Runs.of(batch)
        file_bytes = self.file_bytes(layout, batch.files[runs.order[runs.starts]])
        table = np.zeros((len(runs.starts), 3), np.int64)
        table[:, 0] = np.where(runs.is_first, np.minimum(file_bytes, WINDOW_BYTES), 0)
        table[:, 1] = np.where(runs.is_first & (file_bytes > WINDOW_BYTES), WINDOW_BYTES, 0)
        table[:, 2] = np.add.reduceat(batch.nbytes[runs.order], runs.starts)
        return Requests(address, int(runs.is_first.sum()), table[table > 0])

    def request_table(
        self, layout: Layout, files: NDArray[np.int64], index: NDArray[np.int64], nbytes: NDArray[np.int64]
    ) -> RequestTable | None:
        """Give the requests of many steps at once where every file holds one sample larger than a window."""
        if layout.samples_per_file != 1 or not nbytes.size or nbytes.min() < WINDOW_BYTES:
            return None
        steps, size = nbytes.shape
        table = np.full((steps, size, 3), WINDOW_BYTES, np.int64)
        table[:, :, 2] = nbytes
        totals = (nbytes.sum(axis=1) + 2 * size * WINDOW_BYTES).tolist()
        edges = [*range(0, 3 * size * steps + 1, 3 * size)]
        return RequestTable([size] * steps, table.ravel(), edges, totals)

    def read(self, opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Find the rows with zipfile and numpy, read the wanted ones straight into ``out``, verify each."""
        if len(out) != batch.total_bytes:
            raise ValueError(f"out has {len(out)} bytes, the batch {batch.total_bytes}")
        ids = np.empty(len(batch.samples), np.int64)
        view = out.data
        offsets = [0, *np.cumsum(batch.nbytes).tolist()]
        for file, runs in _by_file(batch):
            path = layout.path(file)
            first = _place(layout, batch, runs[0][0])
            with _opened(opener, first) as stream:
                row_bytes = int(batch.nbytes[runs[0][0]])
                rows_at = _find_rows(stream, first, (layout.samples_per_file, row_bytes))
                for start, stop in runs:
                    index = int(batch.index[start])
                    span = view[offsets[start] : offsets[stop]]
                    length = _read_into(stream, rows_at + index * row_bytes, span)
                    for place in range(start, stop):
                        sample = Place(path, int(batch.samples[place]), int(batch.index[place]))
                        have = min(length - (offsets[place] - offsets[start]), row_bytes)
                        if have < row_bytes:
                            raise sample.error(
                                f"expected {row_bytes} bytes, found {max(have, 0)}: the file is truncated"
                            )
                        ids[place] = check(view[offsets[place] : offsets[place + 1]], layout.seed, sample)
        return ids


def _by_file(batch: Batch) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Give each file with its runs, as places in the batch: first and one past the last."""
    if not len(batch.samples):
        return
    runs = Runs.of(batch)
    lengths = np.diff(runs.starts, append=len(runs.order)).tolist()
    places = runs.order[runs.starts].tolist()
    edges = [*np.flatnonzero(runs.is_first).tolist(), len(places)]
    for begin, end in pairwise(edges):
        spans = [(places[run], places[run] + lengths[run]) for run in range(begin, end)]
        yield int(batch.files[places[begin]]), spans


def _place(layout: Layout, batch: Batch, place: int) -> Place:
    return Place(layout.path(int(batch.files[place])), int(batch.samples[place]), int(batch.index[place]))


def _opened(opener: Opener, place: Place) -> BinaryIO:
    """Open a sample's file; say which sample is missed when that is not possible."""
    try:
        return opener(place.path)
    except (DataError, OSError) as error:
        reason = "the file is missing" if isinstance(error, FileNotFoundError) else str(error)
        raise place.error(reason) from error


def _find_rows(stream: BinaryIO, place: Place, shape: tuple[int, int]) -> int:
    """Give the offset of the first row of ``x.npy``, having checked that it is stored plainly and of this shape."""
    try:
        with zipfile.ZipFile(stream) as archive:
            member = archive.getinfo(SAMPLES)
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise place.error(f"expected {SAMPLES} stored plainly, found it compressed or encrypted")
        stream.seek(member.header_offset)
        signature, name_bytes, extra_bytes = struct.unpack("<4s22xHH", stream.read(LOCAL))
        if signature != b"PK\3\4":
            raise place.error(f"expected the zip entry {SAMPLES} at byte {member.header_offset}, found {signature!r}")
        stream.seek(name_bytes + extra_bytes, io.SEEK_CUR)
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):
            raise place.error(f"expected npy version (1, 0) in {SAMPLES}, found {version}")
        found, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
        if found != shape or fortran_order or dtype != np.uint8:
            raise place.error(f"expected {SAMPLES} of shape {shape} and uint8, found {found} and {dtype}")
        return stream.tell()
    except RayioError:
        raise
    except Exception as error:  # zipfile and numpy raise a dozen kinds for bytes that are no npz
        raise place.error(
            f"expected an npz file with {SAMPLES} of shape {shape}, found none ({error}): "
            f"truncated, corrupted or foreign; delete it and generate it again"
        ) from error


def _read_into(stream: BinaryIO, offset: int, buffer: memoryview) -> int:
    """Read until ``buffer`` is full or the file ends; give the bytes read."""
    stream.seek(offset)
    length = 0
    while length < len(buffer):
        got = stream.readinto(buffer[length:])  # type: ignore[attr-defined]
        if not got:
            break
        length += got
    return length


def _zip64_field(num_values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the bytes of a directory entry's zip64 field: 4 and 8 a value, none without values."""
    return (num_values > 0) * (4 + 8 * num_values)


def _member(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, DATE)
    member.create_system = 3
    member.external_attr = 0o644 << 16
    return member


@lru_cache(maxsize=256)
def _npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    return header.getvalue()
