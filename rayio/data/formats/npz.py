"""NumPy's npz: an uncompressed zip with ``x.npy``, the samples as rows of bytes, and ``y.npy``, their labels.

A file equals ``numpy.savez(file, x=..., y=...)``. It is written a sample at a time, so memory does not grow with
``samples_per_file``, and read a row at a time, so one of thousands of samples does not cost the whole file.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats import npz_ragged as ragged
from rayio.data.formats.at_once import Group, Named, Whereabouts, groups_of
from rayio.data.formats.npy_header import HEADER_BYTES as NPY
from rayio.data.formats.npy_header import find_array, header
from rayio.data.formats.reads import (
    HEAD,
    NOT_KEPT,
    Runs,
    as_runs,
    by_file,
    opened,
    place_of,
    placed,
    placed_by_step,
    read_into,
    requests_of,
    window,
)
from rayio.data.formats.sample import LABEL, Place, check, fill, judge, wrong_label
from rayio.data.layout import Batch, Layout, Paths
from rayio.errors import DataError, RayioError
from rayio.storage.base import AtOnce, Opener, Requests, RequestTable
from rayio.storage.stores.counted import WINDOW_BYTES

SAMPLES, LABELS = "x.npy", "y.npy"
#: The earliest time of a zip: equal layouts give equal bytes.
DATE = (1980, 1, 1, 0, 0, 0)
#: Sizes in bytes: a zip's local header, its directory entry, its end; zip64's field with two sizes, zip64's end.
LOCAL, ENTRY, END, ZIP64_SIZES, ZIP64_END = 30, 46, 22, 20, 76
#: Offset of the rows of ``x.npy`` in a file written by rayio.
ROWS = LOCAL + len(SAMPLES) + ZIP64_SIZES + NPY
#: Bytes between the samples and the first label.
BEFORE_LABELS = LOCAL + len(LABELS) + ZIP64_SIZES + NPY
#: Of a local header and of an entry: signature, flags, method, lengths of name and extra field; an entry also has the
#: offset of its local header. Of the end: signature, size and offset of the directory.
LOCAL_FIELDS, ENTRY_FIELDS, END_FIELDS = map(struct.Struct, ("<4s2xHH16xHH", "<4s4xHH16xH12xI", "<4s8xII2x"))
END_OF_ZIP = struct.Struct("<4s4H2IH")
#: Values of fields, and a function that unpacks them from bytes, perhaps from an offset on.
Fields = tuple[Any, ...]
Unpack = Callable[..., Fields]
#: Their values for ``x.npy`` in a file written by rayio, without the length of the entry's extra field.
NAME = SAMPLES.encode()
FIRST_LOCAL, FIRST_ENTRY = (b"PK\3\4", 0, 0, len(NAME), ZIP64_SIZES), (b"PK\1\2", 0, 0, len(NAME), 0)


class Npz:
    """The format of unet3d in DLIO and MLPerf Storage, with ``samples_per_file`` rows of one size."""

    extension = ".npz"
    sizes_vary = True

    def file_bytes(self, layout: Layout, files: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sizes of samples, labels and the zip's records."""
        if ragged.is_ragged(layout):
            return self.bytes_with(ragged.members(self, layout, files))
        return file_bytes(layout.samples_per_file, layout.sample_bytes_of(files))

    def bytes_with(self, place: ragged.Members) -> NDArray[np.int64]:
        """Return the sizes of files whose samples differ in size, with their members at these places."""
        return zip_bytes((ragged.OFFSETS, SAMPLES, LABELS), [*place])

    def record_sizes(self, layout: Layout, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of ``samples`` in a file."""
        return layout.sizes_of(samples)

    def write(self, file: BinaryIO, layout: Layout, number: int) -> None:
        """Write samples and labels; a label is the sample's id."""
        whole = layout.whole_file(number)
        if ragged.is_ragged(layout):
            ragged.write(self, file, layout, whole, _member)
            return
        rows, row_bytes = len(whole.samples), int(whole.nbytes[0])
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            # zip64 is forced so that any size fits and rows start at a fixed offset.
            with archive.open(_member(SAMPLES), "w", force_zip64=True) as member:
                member.write(header("|u1", (rows, row_bytes)))
                row = np.empty(row_bytes, np.uint8)
                for sample in whole.samples.tolist():
                    fill(row, layout.seed, sample, layout.compressibility)
                    member.write(row.data)
            with archive.open(_member(LABELS), "w", force_zip64=True) as member:
                member.write(header("<i8", (rows,)))
                member.write(whole.samples.astype("<i8").tobytes())

    def requests(self, layout: Layout, batch: Batch) -> Requests:
        """Return, per file, reads of its end (the zip's directory), its start (the headers), then each run of rows."""
        if ragged.is_ragged(layout):
            return ragged.requests(self, layout, batch)
        address = (batch.rank, batch.epoch, batch.step)
        if _is_one_each(layout, batch.files, batch.nbytes):
            nbytes = np.full((batch.nbytes.size, 3), WINDOW_BYTES, np.int64)
            nbytes[:, 2] = batch.nbytes[np.argsort(batch.files, kind="stable")]
            return Requests(address, len(batch.files), nbytes.ravel(), partial(self._places, layout, batch))
        if not batch.nbytes.size:
            return Requests(address, 0, batch.nbytes)
        runs = Runs.of(batch)
        table = self._sizes(layout, runs, batch)
        places = partial(self._places, layout, batch)
        return Requests(address, int(runs.is_first.sum()), table[table > 0], places)

    def _sizes(self, layout: Layout, runs: Runs, batch: Batch) -> NDArray[np.int64]:
        """Return the bytes of each run's reads of a file's end, start and rows, shape (runs, 3); 0 for none."""
        file_bytes = self.file_bytes(layout, batch.files[runs.order[runs.starts]])
        table = np.zeros((len(runs.starts), 3), np.int64)
        table[:, 0] = np.where(runs.is_first, np.minimum(file_bytes, WINDOW_BYTES), 0)
        table[:, 1] = np.where(runs.is_first & (file_bytes > WINDOW_BYTES), WINDOW_BYTES, 0)
        table[:, 2] = np.add.reduceat(batch.nbytes[runs.order], runs.starts)
        return table

    def _places(self, layout: Layout, batch: Batch) -> tuple[Paths, NDArray[np.int64], NDArray[np.int64]]:
        return placed(layout, *self._placed(layout, Runs.of(batch), batch))

    def _placed(self, layout: Layout, runs: Runs, batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return file and offset of each read."""
        first = runs.order[runs.starts]
        files = batch.files[first]
        file_bytes = self.file_bytes(layout, files)
        offsets = np.zeros((len(first), 3), np.int64)
        offsets[:, 0] = np.where(runs.is_first, np.maximum(0, file_bytes - WINDOW_BYTES), -1)
        offsets[:, 1] = np.where(runs.is_first & (file_bytes > WINDOW_BYTES), 0, -1)
        offsets[:, 2] = ROWS + batch.index[first] * batch.nbytes[first]
        issued = offsets >= 0
        return np.repeat(files, issued.sum(axis=1)), offsets[issued]

    def units(self, layout: Layout, batch: Batch) -> NDArray[np.int64]:
        """Return that the directory and the headers are kept, and no rows."""
        if ragged.is_ragged(layout):
            return ragged.units(self, layout, batch)
        made = self._sizes(layout, Runs.of(batch), batch) > 0
        return np.broadcast_to([HEAD, HEAD, NOT_KEPT], made.shape)[made]

    def request_table(
        self, layout: Layout, files: NDArray[np.int64], index: NDArray[np.int64], nbytes: NDArray[np.int64]
    ) -> RequestTable | None:
        """Return the requests of many steps."""
        if not nbytes.size or ragged.is_ragged(layout):
            return None
        steps, size = nbytes.shape
        places = placed_by_step(layout, lambda: self._placed(layout, *as_runs(layout, files, index, nbytes)))
        if _is_one_each(layout, files, nbytes):
            table = np.full((steps, size, 3), WINDOW_BYTES, np.int64)
            table[:, :, 2] = np.take_along_axis(nbytes, np.argsort(files, axis=1, kind="stable"), axis=1)
            totals = (nbytes.sum(axis=1) + 2 * size * WINDOW_BYTES).tolist()
            edges = [*range(0, 3 * size * steps + 1, 3 * size)]
            return RequestTable([size] * steps, table.ravel(), edges, totals, places)
        runs, whole = as_runs(layout, files, index, nbytes)
        return requests_of(runs, nbytes.shape, self._sizes(layout, runs, whole), places)

    def read(self, opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Find the rows with zipfile and numpy, read the wanted ones into ``out`` and verify each."""
        if ragged.is_ragged(layout):
            return ragged.read(self, opener, layout, batch, out, _find_rows)
        here = Whereabouts(opener, layout, batch, out)
        if not (left := _at_once(here, batch)):
            return batch.samples
        offsets, samples, view = here.offsets, here.samples, here.view
        ids, rows = batch.samples.copy(), batch.index.tolist()
        for file, runs in left:
            path, begin = layout.path(file), runs[0][0]
            first = Place(path, samples[begin], rows[begin])
            with opened(opener, first) as stream:
                row_bytes = offsets[begin + 1] - offsets[begin]
                shape = (layout.samples_per_file, row_bytes)
                tail = _tail_if_plain(stream, shape)
                rows_at = ROWS if tail is not None else _find_rows(stream, first, SAMPLES, "|u1", shape)
                for start, stop in runs:
                    span = view[offsets[start] : offsets[stop]]
                    length = read_into(stream, rows_at + rows[start] * row_bytes, span)
                    for place in range(start, stop):
                        sample = first if place == begin else Place(path, samples[place], rows[place])
                        if (have := length - (offsets[place] - offsets[start])) < row_bytes:
                            raise sample.error(
                                f"expected {row_bytes} bytes, found {max(have, 0)}: the file is truncated"
                            )
                        row = span if stop - start == 1 else view[offsets[place] : offsets[place + 1]]
                        ids[place] = check(row, layout.seed, sample)
                    if tail is not None:
                        of = first if start == begin else Place(path, samples[start], rows[start])
                        _check_labels_in(*tail, shape, of, stop - start)
        return ids

    def check_labels(self, opener: Opener, layout: Layout, number: int) -> None:
        """Read the labels of a file and compare each with its sample's id; see :class:`Format`."""
        whole = layout.whole_file(number)
        place = place_of(layout, whole, 0)
        with opened(opener, place) as stream:
            offset = _find_rows(stream, place, LABELS, "<i8", (layout.samples_per_file,))
            _check_labels(stream, offset, place, layout.samples_per_file)


def file_bytes(rows: int, nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sizes of files of ``rows`` samples of ``nbytes``; they depend on zip64's limit."""
    labels_at = LOCAL + len(SAMPLES) + ZIP64_SIZES + NPY + rows * nbytes
    end = labels_at + LOCAL + len(LABELS) + ZIP64_SIZES + NPY + rows * LABEL
    return zip_bytes((SAMPLES, LABELS), [np.zeros_like(nbytes), labels_at, end])


def zip_bytes(names: Sequence[str], edges: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the sizes of zips of these members; ``edges`` are their beginnings, by file, and the end of the last."""
    limit, size = zipfile.ZIP64_LIMIT, edges[-1]
    for name, begin, end in zip(names, edges[:-1], edges[1:], strict=True):
        content = end - begin - LOCAL - len(name) - ZIP64_SIZES
        size = size + ENTRY + len(name) + _zip64_field(2 * (content > limit) + (begin > limit))
    sizes: NDArray[np.int64] = size + (edges[-1] > limit) * ZIP64_END + END
    return sizes


def _check_labels(stream: BinaryIO, offset: int, first: Place, rows: int) -> None:
    """Compare ``rows`` labels, from byte ``offset`` on, with the ids of ``first`` and the samples after it."""
    stream.seek(offset)
    content = stream.read(rows * LABEL)
    if len(content) < rows * LABEL:
        raise _few_labels(first, offset, rows, len(content))
    wrong_label(np.frombuffer(content, "<i8"), first, offset)


def _few_labels(first: Place, offset: int, rows: int, have: int) -> DataError:
    return first.error(f"expected {rows * LABEL} bytes of labels at byte {offset}, found {have}: truncated")


def _check_labels_in(tail_at: int, tail: bytes, shape: tuple[int, int], first: Place, rows: int) -> None:
    """Compare ``rows`` labels of a file written by rayio, as far as they are in the window at its end."""
    offset = ROWS + shape[0] * shape[1] + BEFORE_LABELS + first.row * LABEL - tail_at
    if offset < 0 or (rows == 1 and tail[offset : offset + LABEL] == first.sample.to_bytes(LABEL, "little")):
        return
    if (have := max(0, len(tail) - offset)) < rows * LABEL:
        raise _few_labels(first, tail_at + offset, rows, have)
    wrong_label(np.frombuffer(tail, "<i8", rows, offset), first, tail_at + offset)


def _tail_if_plain(stream: BinaryIO, shape: tuple[int, int]) -> tuple[int, bytes] | None:
    """Return the offset and bytes of the window at a file's end if rayio wrote the file, else None.

    Then its rows start at :data:`ROWS`. It checks what zipfile and numpy would (the directory at the end, the headers
    at the start) in a tenth of the time; other files are left to them.
    """
    find = getattr(stream, "window", None)
    size = stream.seek(0, io.SEEK_END) if find is None else stream.size  # type: ignore[attr-defined]
    find = find or partial(window, stream)
    if size < ROWS + ENTRY + len(SAMPLES) + END:
        return None
    tail_at = max(0, size - WINDOW_BYTES)
    tail_at, tail = find(tail_at, size - tail_at)
    if len(tail) < size - tail_at or (entry_at := _directory_in(tail_at, tail)) < 0:
        return None
    return (tail_at, tail) if _is_plain(tail, entry_at, find(0, ROWS)[1], header("|u1", shape)) else None


def _is_one_each(layout: Layout, files: NDArray[np.int64], nbytes: NDArray[np.int64]) -> bool:
    """Return True if the samples of each batch (a row) are whole files, none drawn twice, and larger than a window."""
    if layout.samples_per_file > 1 or not nbytes.size or nbytes.min() < WINDOW_BYTES:
        return False
    in_order = np.sort(files, axis=-1)
    return bool((in_order[..., 1:] != in_order[..., :-1]).all())


def _directory_in(tail_at: int, tail: bytes | bytearray) -> int:
    """Return the offset of the zip's directory in the window at a file's end; -1 if it is not there."""
    signature, directory_bytes, directory_at = END_FIELDS.unpack_from(tail, len(tail) - END)
    if signature != b"PK\5\6" or directory_at + directory_bytes != tail_at + len(tail) - END:
        return -1
    return max(-1, directory_at - tail_at) if directory_bytes >= ENTRY + len(SAMPLES) else -1


def _is_plain(tail: bytes | bytearray, entry_at: int, head: bytes | bytearray, described: bytes) -> bool:
    """Return True if the first entries of directory and file are those that rayio writes."""
    return (
        ENTRY_FIELDS.unpack_from(tail, entry_at) == FIRST_ENTRY
        and tail.startswith(NAME, entry_at + ENTRY)
        and len(head) >= ROWS
        and LOCAL_FIELDS.unpack_from(head) == FIRST_LOCAL
        and head.startswith(NAME, LOCAL)
        and head.startswith(described, ROWS - NPY)
    )


def _at_once(here: Whereabouts, batch: Batch) -> list[Group]:
    """Read and verify one sample of each file in one call each; return the files that are to be read otherwise."""
    fill, layout = here.fill, here.layout
    if fill is None or (in_order := here.in_order(batch)) is None:
        return [*by_file(batch)]
    files, order = in_order
    rows: list[int] = [0] * len(order) if layout.samples_per_file == 1 else batch.index.tolist()
    each = here.each(partial(_read_each, here, fill, rows), layout.names_of(files), order)
    left = [n for some, *_ in each for n in some]
    requests, nbytes = (sum(counts[number] for *_, counts in each) for number in range(2))
    here.count(len(order) - len(left), requests, nbytes)
    return groups_of(batch, left)


def _read_each(
    here: Whereabouts, fill: AtOnce, rows: list[int], named: Iterator[Named]
) -> tuple[list[int], tuple[int, int]]:
    """Return the places of samples that are to be read otherwise, and the requests and bytes of the others."""
    number = here.layout.samples_per_file
    fill, is_right = here.checked(fill, judge(here.layout.seed))
    samples, sizes, offsets, view = here.samples, here.sizes, here.offsets, here.view
    left: list[int] = []
    requests, nbytes, known, is_small, tail, head = 0, 0, -1, False, bytearray(), bytearray()
    for name, n in named:
        size, begin = sizes[n], offsets[n]
        if size != known:
            known, (file_bytes, tail_at, entry_at, of_entries, entries, of_start, start) = size, _shape_of(number, size)
            label_at, is_small = ROWS + number * size + BEFORE_LABELS - tail_at, file_bytes <= WINDOW_BYTES
            tail = bytearray(min(file_bytes, WINDOW_BYTES))
            head = tail if is_small else bytearray(WINDOW_BYTES)
            of_tail, of_head, total = (tail,), (0, (head,)), size + len(tail) + (not is_small) * WINDOW_BYTES
        span, label = view[begin : begin + size], label_at + rows[n] * LABEL
        of_row = ROWS + rows[n] * size, (span,)
        if (
            entry_at >= 0
            and (
                fill(name, file_bytes, total, 0, of_tail, of_row)
                if is_small
                else fill(name, file_bytes, total, tail_at, of_tail, of_head, of_row)
            )
            and of_entries(tail, entry_at) == entries
            and of_start(head) == start
            and (label < 0 or tail.startswith(samples[n].to_bytes(LABEL, "little"), label))
            and is_right(span, samples[n])
        ):
            requests, nbytes = requests + 3 - is_small, nbytes + total
        else:
            left.append(n)
    return left, (requests, nbytes)


@lru_cache(maxsize=256)
def _shape_of(rows: int, nbytes: int) -> tuple[int, int, int, Unpack, Fields, Unpack, Fields]:
    """Return what is known of a file with ``rows`` of ``nbytes``, as rayio writes it.

    These are its size, the offset of its last window, and the place of the zip's directory in the window (-1 if it is
    elsewhere). Then, of the directory and of the file's start, a function to what :func:`_is_plain` compares, and the
    values that it must have: one call for each, because a small file takes no longer than a dozen.
    """
    size = int(file_bytes(rows, np.array([nbytes]))[0])
    directory_at = ROWS + rows * nbytes + BEFORE_LABELS + rows * LABEL
    directory_bytes, tail_at = size - END - directory_at, max(0, size - WINDOW_BYTES)
    is_there = directory_at >= tail_at and size <= zipfile.ZIP64_LIMIT
    end = END_OF_ZIP.pack(b"PK\5\6", 0, 0, 2, 2, directory_bytes, directory_at, 0) if is_there else b""
    between = directory_bytes - ENTRY - len(NAME) if is_there else 0
    entries = struct.Struct(f"{ENTRY_FIELDS.format}{len(NAME)}s{between}x{END}s")
    start = struct.Struct(f"{LOCAL_FIELDS.format}{len(NAME)}s{ZIP64_SIZES}x{NPY}s")
    return (
        size, tail_at, directory_at - tail_at if is_there else -1, entries.unpack_from, (*FIRST_ENTRY, NAME, end),
        start.unpack_from, (*FIRST_LOCAL, NAME, header("|u1", (rows, nbytes))),
    )  # fmt: skip


def _find_rows(stream: BinaryIO, place: Place, name: str, descr: str, shape: tuple[int, ...]) -> int:
    """Return the offset of a member's first row, after checking that it is stored plainly with this type and shape."""
    try:
        with zipfile.ZipFile(stream) as archive:
            member = archive.getinfo(name)
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise place.error(f"expected {name} stored plainly, found it compressed or encrypted")
        stream.seek(member.header_offset)
        signature, name_bytes, extra_bytes = struct.unpack("<4s22xHH", stream.read(LOCAL))
        if signature != b"PK\3\4":
            raise place.error(f"expected the zip entry {name} at byte {member.header_offset}, found {signature!r}")
        stream.seek(name_bytes + extra_bytes, io.SEEK_CUR)
        return find_array(stream, place, name, descr, shape)
    except RayioError:
        raise
    except Exception as error:  # zipfile and numpy raise a dozen classes for invalid bytes
        raise place.error(
            f"expected an npz file with {name} of shape {shape}, found none ({error}): "
            f"truncated, corrupted or foreign; delete it and generate it again"
        ) from error


def _zip64_field(num_values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of a directory entry's zip64 field: 4 and 8 a value, none without values."""
    return (num_values > 0) * (4 + 8 * num_values)


def _member(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, DATE)
    member.create_system = 3
    member.external_attr = 0o644 << 16
    return member
