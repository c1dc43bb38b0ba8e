"""HDF5 through h5py: a dataset ``x`` of shape (samples, bytes), uint8, and the labels ``y``, int64.

``x`` is contiguous, or cut into chunks of at most ``dataset.chunk`` bytes. A chunk holds as many whole samples as fit,
or an equal part of one. Chunks lie one after the other (HDF5's implicit index), the last ones filled with zeros, so a
file's size and the requests of any batch are known without the file. The chunk cache holds one chunk, and h5py reads
Python's files without a sieve buffer: a sample costs its bytes or its chunk's.

The files are those of HDF5 1.10 and later, with metadata checksums and without times. Only a version number shows the
release line of the HDF5 library (1.14, 2.0): bytes are equal for equal seeds and equal lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats import hdf5_ragged as ragged
from rayio.data.formats.chunks import Hdf5Options, Reads, chunk_of, chunk_shape
from rayio.data.formats.hdf5_description import description
from rayio.data.formats.hdf5_filtered import ChunkReads, Filtered
from rayio.data.formats.hdf5_filtered import reads as chunk_reads
from rayio.data.formats.hdf5_known import Known, described
from rayio.data.formats.hdf5_several import Several
from rayio.data.formats.hdf5_stream import Stream, opened_by_hdf5
from rayio.data.formats.places import check_offsets, edges_of
from rayio.data.formats.reads import HEAD, NOT_KEPT, by_file, check_length, opened, place_of
from rayio.data.formats.sample import Place, check, fill, wrong_label
from rayio.data.layout import Batch, Layout, Paths
from rayio.errors import RayioError
from rayio.scenario.change import Change, with_keys
from rayio.scenario.kind import Kind
from rayio.schema.fields import show
from rayio.storage.base import Opener, Requests
from rayio.storage.stores.counted import WINDOW_BYTES
from rayio.units import BYTES

if TYPE_CHECKING:
    from rayio.scenario.change import Run
    from rayio.scenario.model import Scenario

#: Bytes of a file's metadata: superblock, groups, descriptions of both datasets. Reading ``x`` needs only the start.
METADATA_BYTES = 715
#: Bytes of metadata before ``x``.
HEAD_BYTES = 447
#: Limit of a batch's requests: each is planned separately.
MAX_REQUESTS = 1 << 22


class Hdf5(Kind):
    """One open, one request for the description, then one for each run of samples or for each chunk."""

    extension = ".hdf5"
    options = Hdf5Options
    sizes_vary = True

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Yield a message if chunks are so small that a batch takes too many requests."""
        dataset, options = scenario.dataset, scenario.dataset.options
        if dataset.sizes == "per_sample" and (keys := options.model_dump(exclude_defaults=True)):
            key = next(iter(keys))
            yield (
                f"dataset.{key}={show(keys[key])}: not for samples that differ in size (dataset.sizes=per_sample); "
                "remove it"
            )
        if isinstance(options, Hdf5Options) and options.chunk is not None:
            parts = -(-dataset.sample_bytes.expected // options.chunk) * scenario.loader.batch_size
            if parts > MAX_REQUESTS:
                yield (
                    f"dataset.chunk={BYTES.exact(options.chunk)}: a batch is read in {parts:.0f} requests; at most "
                    f"{MAX_REQUESTS} are possible"
                )

    def changes(self, run: Run) -> Iterator[Change]:
        """Yield a change to larger chunks."""
        options = run.scenario.dataset.options
        if isinstance(options, Hdf5Options) and options.chunk is not None:
            larger = options.model_copy(update={"chunk": 2 * options.chunk})
            key = f"dataset.chunk={BYTES.exact(2 * options.chunk)}"
            yield Change("chunk × 2", kind="setting", to=with_keys("dataset", options=larger), key=key)

    def file_bytes(self, layout: Layout, files: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sum of whole chunks, labels and metadata."""
        if ragged.is_ragged(layout):
            return ragged.file_bytes(self, layout, files)
        nbytes = layout.sample_bytes_of(files)
        for packing in (Filtered.of(layout), Several.of(layout)):
            if packing is not None:
                return packing.file_bytes(layout, nbytes)
        rows, columns = chunk_shape(layout, nbytes)
        x = -(-layout.samples_per_file // rows) * rows * -(-nbytes // columns) * columns
        sizes: NDArray[np.int64] = METADATA_BYTES + x + layout.samples_per_file * 8
        return sizes

    def write(self, file: BinaryIO, layout: Layout, number: int) -> None:
        """Write HDF5's description, samples and labels; a label is the id of a sample."""
        whole = layout.whole_file(number)
        if ragged.is_ragged(layout):
            ragged.write(self, file, layout, whole)
            return
        num_rows, row_bytes = shape = len(whole.samples), int(whole.nbytes[0])
        rows, columns = chunk = tuple(int(edge[0]) for edge in chunk_shape(layout, whole.nbytes[:1]))
        for packing in (Filtered.of(layout), Several.of(layout)):
            if packing is not None:
                packing.write(file, layout, whole)
                return
        head, middle = description(shape, None if chunk_of(layout) is None else chunk)
        file.write(head)
        # Chunks hold whole samples or consecutive parts of one: x is one sample after the other.
        row = np.zeros(-(-row_bytes // columns) * columns, np.uint8)
        for sample in whole.samples.tolist():
            fill(row[:row_bytes], layout.seed, sample, layout.compressibility)
            file.write(row.data)
        for _ in range(-num_rows % rows):
            file.write(bytes(len(row)))
        file.write(middle)
        file.write(whole.samples.astype("<i8").data)

    def record_sizes(self, layout: Layout, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of ``samples`` in a file."""
        return layout.sizes_of(samples)

    def requests(self, layout: Layout, batch: Batch) -> Requests:
        """Return, per file, a read of its start, then of each run of samples or each new chunk."""
        address = (batch.rank, batch.epoch, batch.step)
        if not batch.nbytes.size:
            return Requests(address, 0, batch.nbytes)
        if (of_chunks := self._chunk_reads(layout, batch)) is not None:
            nbytes = np.array(of_chunks.nbytes, np.int64)
            return Requests(address, of_chunks.num_files, nbytes, partial(of_chunks.places, layout))
        if (several := Several.of(layout)) is not None or ragged.is_ragged(layout):
            of_runs = (ragged if several is None or ragged.is_ragged(layout) else several).reads(self, layout, batch)
            return Requests(address, int(of_runs.is_first.sum()), of_runs.nbytes, partial(of_runs.places, layout))
        reads = Reads.of(layout, batch)
        heads = np.minimum(self.file_bytes(layout, reads.files), WINDOW_BYTES)
        nbytes = reads.repeated(heads, reads.nbytes)
        return Requests(address, int(reads.is_first.sum()), nbytes, partial(self._places, layout, batch))

    def _chunk_reads(self, layout: Layout, batch: Batch) -> ChunkReads | None:
        """Return the reads of chunks that are compressed or next to other datasets; None of other files."""
        if chunk_of(layout) is None or ragged.is_ragged(layout):
            return None
        is_plain = Filtered.of(layout) is None and Several.of(layout) is None
        return None if is_plain else chunk_reads(self, layout, batch)

    def _places(self, layout: Layout, batch: Batch) -> tuple[Paths, NDArray[np.int64], NDArray[np.int64]]:
        """Return the files of the requests, in order, and the offset of each request in its file."""
        reads = Reads.of(layout, batch)
        files, file = np.unique(reads.files, return_inverse=True)
        offsets = reads.repeated(np.zeros_like(reads.starts), HEAD_BYTES + reads.starts)
        # Requests of an entry are consecutive in the file; a file's first entry follows its head.
        times = reads.is_first + reads.times
        number = np.arange(len(offsets)) - np.repeat(np.cumsum(times) - times, times) - np.repeat(reads.is_first, times)
        offsets += np.maximum(number, 0) * np.repeat(reads.nbytes, times)
        return layout.paths(files), np.repeat(file, times), offsets

    def units(self, layout: Layout, batch: Batch) -> NDArray[np.int64]:
        """Return that the description is kept, and the chunk in HDF5's cache: its offset."""
        if ragged.is_ragged(layout):
            return np.where(ragged.reads(self, layout, batch).offsets == 0, HEAD, NOT_KEPT)
        if (of_chunks := self._chunk_reads(layout, batch)) is not None:
            return np.array(of_chunks.units, np.int64)
        if (several := Several.of(layout)) is not None:
            return np.where(several.reads(self, layout, batch).offsets == 0, HEAD, NOT_KEPT)
        reads, offsets = Reads.of(layout, batch), self._places(layout, batch)[2]
        is_head = reads.repeated(np.ones_like(reads.starts), np.zeros_like(reads.starts)) > 0
        return np.where(is_head, HEAD, NOT_KEPT if chunk_of(layout) is None else offsets)

    def read(self, opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Read the wanted rows with HDF5 into ``out``, directly or through its chunk cache, and verify each."""
        check_length(batch.total_bytes, out)
        ids = np.empty(len(batch.samples), np.int64)
        if not ids.size:
            return ids
        import h5py

        offsets = [0, *np.cumsum(batch.nbytes).tolist()]
        if ragged.is_ragged(layout):
            self._read_ragged(opener, layout, batch, out, ids)
            return ids
        known: dict[int, Known] = {}
        for _, runs in by_file(batch):
            place, row_bytes = place_of(layout, batch, runs[0][0]), int(batch.nbytes[runs[0][0]])
            if (here := known.get(row_bytes)) is None:
                here = known[row_bytes] = Known(layout, row_bytes)
            with (
                opened(opener, place) as file,
                _one_line(place, here.shape, stream := Stream(file)),
                here.compared(file, place),
                opened_by_hdf5(stream) as h5,
            ):
                others = [here.of_ids(h5, name, place, stream) for name in here.others]
                x = here.of_samples(h5, place, stream)
                allowed = stream.allowed
                for start, stop in runs:
                    stream.allowed = allowed
                    wanted = _rows(x, int(batch.index[start]), stop - start, row_bytes)
                    part = out[offsets[start] : offsets[stop]].reshape(-1, row_bytes)
                    x.read(h5py.h5s.create_simple(part.shape), wanted, part)
                    if stream.missing:
                        raise place_of(layout, batch, start).error(stream.missing)
                    for row in range(start, stop):
                        sample = place_of(layout, batch, row)
                        ids[row] = check(part[row - start].data, layout.seed, sample)
                    for other in others:
                        _check_rows(other, place_of(layout, batch, start), stop - start, stream)
        return ids

    def _read_ragged(
        self, opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8], ids: NDArray[np.int64]
    ) -> None:
        """Read samples that differ in size, of each run first the offsets."""
        edges_out = [0, *np.cumsum(batch.nbytes).tolist()]
        for file_number, runs in by_file(batch):
            place, edges = place_of(layout, batch, runs[0][0]), edges_of(self, layout, file_number)
            shape = (int(edges[-1]),)
            with (
                opened(opener, place) as file,
                _one_line(place, shape, stream := Stream(file)),
                opened_by_hdf5(stream) as h5,
            ):
                offsets = described(h5, b"offsets", np.dtype("<i8"), place, edges.shape, stream)
                stream.is_described = False
                x = described(h5, b"x", np.dtype(np.uint8), place, shape, stream)
                allowed = stream.allowed
                for start, stop in runs:
                    stream.allowed, row, first = allowed, int(batch.index[start]), place_of(layout, batch, start)
                    begins = np.empty(stop - start + 1, "<i8")
                    _read_part(offsets, row, begins, stream, first)
                    check_offsets(begins, edges[row : row + len(begins)], first, ragged.HEAD_BYTES + row * 8)
                    part = out[edges_out[start] : edges_out[stop]]
                    _read_part(x, int(edges[row]), part, stream, first)
                    for number in range(start, stop):
                        sample = out[edges_out[number] : edges_out[number + 1]].data
                        ids[number] = check(sample, layout.seed, place_of(layout, batch, number))

    def check_labels(self, opener: Opener, layout: Layout, number: int) -> None:
        """Read ``y`` of a file and compare each label with its sample's id; see :class:`Format`."""
        import h5py

        whole = layout.whole_file(number)
        place, shape = place_of(layout, whole, 0), (layout.samples_per_file,)
        with (
            opened(opener, place) as file,
            _one_line(place, shape, stream := Stream(file)),
            opened_by_hdf5(stream) as h5,
        ):
            y = described(h5, b"y", np.dtype("<i8"), place, shape, stream)
            labels = np.empty(shape, "<i8")
            y.read(h5py.h5s.ALL, h5py.h5s.ALL, labels)
            if stream.missing:
                raise place.error(stream.missing)
            wrong_label(labels, place, y.get_offset())


@contextmanager
def _one_line(place: Place, shape: tuple[int, ...], stream: Stream) -> Iterator[None]:
    """Turn h5py's exceptions for invalid bytes into a DataError of one line."""
    try:
        yield
    except RayioError:
        raise
    except Exception as error:  # h5py raises a dozen classes
        reason = stream.missing if stream.allowed < 0 else " ".join(str(error).split())
        raise place.error(
            f"expected an hdf5 file with x of shape {shape}, found none ({reason}): "
            f"truncated, corrupted or foreign; delete it and generate it again"
        ) from error


def _check_rows(dataset: Any, first: Place, rows: int, stream: Stream) -> None:
    """Read the numbers of some rows, which are the ids of samples, and compare them."""
    numbers = np.empty(rows, "<i8")
    _read_part(dataset, first.row, numbers, stream, first)
    wrong_label(numbers, first, dataset.get_offset() + first.row * 8)


def _read_part(dataset: Any, start: int, out: NDArray[Any], stream: Stream, first: Place) -> None:
    """Read consecutive values of a dataset into ``out``, which is as long."""
    import h5py

    space = dataset.get_space()
    space.select_hyperslab((start,), out.shape)
    dataset.read(h5py.h5s.create_simple(out.shape), space, out)
    if stream.missing:
        raise first.error(stream.missing)


def _rows(x: Any, first: int, rows: int, row_bytes: int) -> Any:
    space = x.get_space()
    space.select_hyperslab((first, 0), (rows, row_bytes))
    return space
