"""npz files whose samples differ in size: ``x`` has their bytes, ``offsets`` the beginning of each, ``y`` the labels.

A file equals ``numpy.savez(file, offsets=..., x=..., y=...)``. ``offsets`` has one more number than there are samples.
A batch reads the zip's directory at the file's end, looks each run of samples up in ``offsets``, and reads their bytes.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.npy_header import HEADER_BYTES as NPY
from rayio.data.formats.npy_header import header
from rayio.data.formats.places import OFFSET, check_offsets, edges_of, starts_of
from rayio.data.formats.reads import (
    HEAD,
    NOT_KEPT,
    Runs,
    by_file,
    check_length,
    opened,
    place_of,
    read_into,
    window,
)
from rayio.data.formats.sample import LABEL, Place, check, fill
from rayio.data.layout import Batch, Layout, Paths
from rayio.storage.base import Opener, Requests
from rayio.storage.stores.counted import WINDOW_BYTES

OFFSETS, SAMPLES, LABELS = "offsets.npy", "x.npy", "y.npy"
#: Bytes of a zip's local header with zip64's sizes, but for the name.
LOCAL = 30 + 20


class Members(NamedTuple):
    """Where the members of some files begin: their zip headers, by file; and the end of the last."""

    offsets: NDArray[np.int64]
    samples: NDArray[np.int64]
    labels: NDArray[np.int64]
    end: NDArray[np.int64]

    @classmethod
    def of(cls, rows: int, nbytes: NDArray[np.int64]) -> Members:
        """Return the members of files with so many rows, of ``nbytes`` in all."""
        samples = np.full_like(nbytes, LOCAL + len(OFFSETS) + NPY + (rows + 1) * OFFSET)
        labels = samples + LOCAL + len(SAMPLES) + NPY + nbytes
        return cls(np.zeros_like(nbytes), samples, labels, labels + LOCAL + len(LABELS) + NPY + rows * LABEL)

    @property
    def first_offset(self) -> int:
        """The place of the first offset."""
        return LOCAL + len(OFFSETS) + NPY

    @property
    def first_sample(self) -> NDArray[np.int64]:
        """The place of the first sample."""
        return self.samples + LOCAL + len(SAMPLES) + NPY


def is_ragged(layout: Layout) -> bool:
    """Return True if samples of a file differ in size."""
    return layout.sizes == "per_sample"


def members(form: Any, layout: Layout, files: NDArray[np.int64]) -> Members:
    """Return where the members of files begin."""
    last = np.full_like(files, layout.samples_per_file)
    return Members.of(layout.samples_per_file, starts_of(form, layout, files, last))


def write(form: Any, file: BinaryIO, layout: Layout, whole: Batch, member: Callable[[str], zipfile.ZipInfo]) -> None:
    """Write a file; ``member`` returns the description of a member of this name."""
    edges = edges_of(form, layout, int(whole.files[0]))
    space = np.empty(int(whole.nbytes.max()), np.uint8)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        with archive.open(member(OFFSETS), "w", force_zip64=True) as part:
            part.write(header("<i8", edges.shape))
            part.write(edges.astype("<i8").tobytes())
        with archive.open(member(SAMPLES), "w", force_zip64=True) as part:
            part.write(header("|u1", (int(edges[-1]),)))
            for sample, nbytes in zip(whole.samples.tolist(), whole.nbytes.tolist(), strict=True):
                fill(space[:nbytes], layout.seed, sample, layout.compressibility)
                part.write(space[:nbytes].data)
        with archive.open(member(LABELS), "w", force_zip64=True) as part:
            part.write(header("<i8", whole.samples.shape))
            part.write(whole.samples.astype("<i8").tobytes())


def requests(form: Any, layout: Layout, batch: Batch) -> Requests:
    """Return, per file, a read of its end (the zip's directory), then of each run its offsets and its bytes."""
    address = (batch.rank, batch.epoch, batch.step)
    if not batch.nbytes.size:
        return Requests(address, 0, batch.nbytes)
    runs = Runs.of(batch)
    nbytes, offsets = _reads(form, layout, batch, runs)
    made = nbytes > 0
    places = partial(_places, layout, batch.files[runs.order[runs.starts]], made, offsets)
    return Requests(address, int(runs.is_first.sum()), nbytes[made], places)


def units(form: Any, layout: Layout, batch: Batch) -> NDArray[np.int64]:
    """Return that the directory is kept."""
    nbytes, _ = _reads(form, layout, batch, Runs.of(batch))
    return np.broadcast_to([HEAD, NOT_KEPT, NOT_KEPT], nbytes.shape)[nbytes > 0]


def _reads(form: Any, layout: Layout, batch: Batch, runs: Runs) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return bytes and places of each run's reads, shape (runs, 3): directory, offsets, samples; 0 bytes for none."""
    first = runs.order[runs.starts]
    rows, files, index = np.diff(runs.starts, append=len(runs.order)), batch.files[first], batch.index[first]
    nbytes, offsets = (np.zeros((len(first), 3), np.int64) for _ in range(2))
    last = np.full_like(files, layout.samples_per_file)
    starts = starts_of(form, layout, np.concatenate([files, files]), np.concatenate([last, index]))
    place = Members.of(layout.samples_per_file, starts[: len(files)])
    sizes = form.bytes_with(place)
    nbytes[:, 0] = np.where(runs.is_first, np.minimum(sizes, WINDOW_BYTES), 0)
    offsets[:, 0] = np.maximum(0, sizes - WINDOW_BYTES)
    nbytes[:, 1], offsets[:, 1] = (rows + 1) * OFFSET, place.first_offset + index * OFFSET
    nbytes[:, 2] = np.add.reduceat(batch.nbytes[runs.order], runs.starts)
    offsets[:, 2] = place.first_sample + starts[len(files) :]
    return nbytes, offsets


def _places(
    layout: Layout, of_runs: NDArray[np.int64], made: NDArray[np.bool_], offsets: NDArray[np.int64]
) -> tuple[Paths, NDArray[np.int64], NDArray[np.int64]]:
    files, file = np.unique(of_runs, return_inverse=True)
    return layout.paths(files), np.repeat(file, made.sum(axis=1)), offsets[made]


def read(
    form: Any, opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8], find: Callable[..., int]
) -> NDArray[np.int64]:
    """Read and verify a batch; ``find(stream, place, name, descr, shape)`` finds arrays of other programs."""
    check_length(batch.total_bytes, out)
    ids, edges_out = np.empty(len(batch.samples), np.int64), [0, *np.cumsum(batch.nbytes).tolist()]
    for number, runs in by_file(batch) if len(ids) else ():
        first, edges = place_of(layout, batch, runs[0][0]), edges_of(form, layout, number)
        with opened(opener, first) as stream:
            offsets_at, samples_at = _located(stream, first, edges, form, layout, number, find)
            for start, stop in runs:
                row, place = int(batch.index[start]), place_of(layout, batch, start)
                begins = np.empty(stop - start + 1, "<i8")
                _read_exactly(stream, offsets_at + row * OFFSET, begins.view(np.uint8), place)
                check_offsets(begins, edges[row : row + len(begins)], place, offsets_at + row * OFFSET)
                part = out[edges_out[start] : edges_out[stop]]
                length = read_into(stream, samples_at + int(edges[row]), part.data)
                for n in range(start, stop):
                    sample = place_of(layout, batch, n)
                    if (have := length - (edges_out[n] - edges_out[start])) < batch.nbytes[n]:
                        wanted = batch.nbytes[n]
                        raise sample.error(f"expected {wanted} bytes, found {max(have, 0)}: the file is truncated")
                    ids[n] = check(out[edges_out[n] : edges_out[n + 1]].data, layout.seed, sample)
    return ids


def _located(
    stream: BinaryIO, first: Place, edges: NDArray[np.int64], form: Any, layout: Layout, number: int,
    find: Callable[..., int],
) -> tuple[int, int]:  # fmt: skip
    """Return the places of the first offset and the first sample.

    They are known if the zip's directory is as rayio writes it; other files are searched.
    """
    size = stream.seek(0, io.SEEK_END)
    window(stream, max(0, size - WINDOW_BYTES), min(size, WINDOW_BYTES))
    place = members(form, layout, np.array([number]))
    begins = [int(each[0]) for each in place]
    wanted: Sequence[tuple[str, int, int, int]] = [
        (name, begin, end - begin - LOCAL - len(name), 0)
        for name, begin, end in zip((OFFSETS, SAMPLES, LABELS), begins[:3], begins[1:], strict=True)
    ]
    try:
        with zipfile.ZipFile(stream) as archive:
            is_plain = wanted == [
                (each.filename, each.header_offset, each.file_size, each.compress_type | each.flag_bits & 1)
                for each in archive.infolist()
            ]
    except Exception:  # of a file that is no zip; zipfile raises a dozen classes
        is_plain = False
    if is_plain:
        return place.first_offset, int(place.first_sample[0])
    return (
        find(stream, first, OFFSETS, "<i8", edges.shape),
        find(stream, first, SAMPLES, "|u1", (int(edges[-1]),)),
    )


def _read_exactly(stream: BinaryIO, at: int, out: NDArray[np.uint8], place: Place) -> None:
    if (got := read_into(stream, at, out.data)) < len(out):
        raise place.error(f"expected {len(out)} bytes of offsets at byte {at}, found {got}: the file is truncated")
