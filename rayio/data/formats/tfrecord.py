"""TensorFlow's TFRecord without TensorFlow: framed records, each a ``tf.train.Example`` with ``x`` and ``y``.

=======  =======  ============================================================================
bytes    type     meaning
=======  =======  ============================================================================
8        u64, LE  length of the payload
4        u32, LE  masked CRC32C of these 8 bytes
length   bytes    payload: the serialized ``Example``
4        u32, LE  masked CRC32C of the payload
=======  =======  ============================================================================

Files need no index: all samples of a file have one size, and a label (the sample's id) takes one byte for every 7
bits, so the start of any record follows from its number.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats import gzipped
from rayio.data.formats.at_once import Frame, Group, Whereabouts, read_at_once
from rayio.data.formats.places import starts_of
from rayio.data.formats.reads import (
    Runs,
    as_one,
    check_length,
    opened,
    place_of,
    placed,
    placed_by_step,
    read_into,
    requests_of,
    scratch,
    whole_places,
)
from rayio.data.formats.sample import Judge, Place, check, fill, judge
from rayio.data.formats.tfrecord_example import around, decode, varint, without_label
from rayio.data.formats.tfrecord_options import TfRecordOptions, is_zipped
from rayio.data.layout import Batch, Layout, Paths
from rayio.scenario.kind import Kind
from rayio.storage.base import Opener, Requests, RequestTable

AGAIN = "the file is corrupted or foreign; delete it and generate it again"
HEAD, TAIL = struct.Struct("<QI"), struct.Struct("<I")
#: Neighbouring records are read together up to this many bytes; a longer record is a separate request.
READ_BYTES = 8 << 20
#: The smallest numbers with one more byte: a byte holds 7 bits.
_LONGER = np.left_shift(1, np.arange(7, 63, 7))


class TfRecord(Kind):
    """Records, one per sample; neighbours in a batch are read together, of gzip whole files."""

    extension = ".tfrecord"
    options = TfRecordOptions
    sizes_vary = True
    head_bytes: ClassVar[int] = 0
    reads_head: ClassVar[bool] = False
    reads_whole: ClassVar[bool] = False
    is_framed: ClassVar[bool] = True

    def file_bytes(self, layout: Layout, files: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sum of the records' sizes."""
        if is_zipped(layout):
            if layout.sizes == "per_file":
                return layout.samples_per_file * _slot(layout, layout.sample_bytes_of(files))
            samples = files[:, np.newaxis] * layout.samples_per_file + np.arange(layout.samples_per_file)
            sizes: NDArray[np.int64] = _slot(layout, layout.sizes_of(samples)).sum(axis=1)
            return sizes
        return _starts(layout, files, np.full_like(files, layout.samples_per_file), layout.sample_bytes_of(files))

    def record_sizes(self, layout: Layout, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of the records of ``samples``."""
        label_bytes: Any = _varint_bytes(samples)
        return _record_bytes(layout.sizes_of(samples))(label_bytes)

    def write(self, file: BinaryIO, layout: Layout, number: int) -> None:
        """Write one record after the other; a label is the sample's id."""
        whole = layout.whole_file(number)
        slots = _slot(layout, whole.nbytes).tolist()
        for sample, row_bytes, slot in zip(whole.samples.tolist(), whole.nbytes.tolist(), slots, strict=True):
            before, after = around(row_bytes, sample)
            length = len(before) + row_bytes + len(after)
            record = np.empty(HEAD.size + length + TAIL.size, np.uint8)
            payload = record[HEAD.size : -TAIL.size]
            payload[: len(before)] = np.frombuffer(before, np.uint8)
            fill(payload[len(before) : length - len(after)], layout.seed, sample, layout.compressibility)
            payload[length - len(after) :] = np.frombuffer(after, np.uint8)
            HEAD.pack_into(record.data, 0, length, masked_crc(np.array([length], "<u8")))
            TAIL.pack_into(record.data, HEAD.size + length, masked_crc(payload))
            if is_zipped(layout):
                gzipped.write_member(file, record, slot)
            else:
                file.write(record.data)

    def requests(self, layout: Layout, batch: Batch) -> Requests:
        """Return one read for each run of records."""
        address = (batch.rank, batch.epoch, batch.step)
        if not batch.nbytes.size:
            return Requests(address, 0, batch.nbytes)
        if is_zipped(layout):
            files = np.unique(batch.files)
            return Requests(address, len(files), self.file_bytes(layout, files), partial(whole_places, layout, files))
        runs = Runs.of(batch, _records_per_read(layout, batch))
        nbytes = _sizes(layout, runs, batch)
        return Requests(address, int(runs.is_first.sum()), nbytes, partial(self._places, layout, batch))

    def request_table(
        self, layout: Layout, files: NDArray[np.int64], index: NDArray[np.int64], nbytes: NDArray[np.int64]
    ) -> RequestTable | None:
        """Return the requests of many steps."""
        if not nbytes.size or is_zipped(layout):
            return None
        whole, apart = as_one(layout, files, index, nbytes)
        runs = Runs.of(apart, _records_per_read(layout, whole))
        places = placed_by_step(layout, partial(_placed, layout, runs, whole))
        return requests_of(runs, nbytes.shape, _sizes(layout, runs, whole)[:, np.newaxis], places)

    def _places(self, layout: Layout, batch: Batch) -> tuple[Paths, NDArray[np.int64], NDArray[np.int64]]:
        return placed(layout, *_placed(layout, Runs.of(batch, _records_per_read(layout, batch)), batch))

    def spans(self, layout: Layout, batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return the first byte of each record and one past its last; None in gzip."""
        return None if is_zipped(layout) else _spans(layout, batch)

    def head(self, rows: int, nbytes: int) -> bytes:
        """Return nothing: a file begins with a record."""
        return b""

    def leading(self, sample: int, nbytes: int) -> int:
        """Return the bytes of a record before its sample."""
        return len(_frame_of(nbytes, _label_bytes(sample))[0])

    def framing(self, layout: Layout) -> Frame:
        """Return a function from a sample, and its bytes that were read, to all bytes of its record around it."""
        from google_crc32c import extend

        def frame(sample: int, content: NDArray[np.uint8]) -> bytes:
            label = varint(sample)
            front, crc, after, _ = _frame_of(len(content), len(label))
            end = after + label
            return front + end + TAIL.pack(_masked(extend(extend(crc, content), end)))

        return frame

    def window_bytes(self, layout: Layout, batch: Batch, place: int) -> int:
        """Return none: a file has no head."""
        return 0

    def judge(self, layout: Layout) -> Judge:
        """Return a function that tells if bytes are a sample, by its number."""
        return judge(layout.seed)

    def read(self, opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Read runs of records, verify both checksums of each, unpack it and verify its sample."""
        if is_zipped(layout):
            return _read_zipped(opener, layout, batch, out)
        here = Whereabouts(opener, layout, batch, out)
        if not here.samples:
            return batch.samples
        if layout.samples_per_file == 1:
            named = zip(here.sizes, here.samples, strict=True)
            starts, records = (
                [0] * len(here.samples),
                [_frame_of(size, _label_bytes(sample))[3] for size, sample in named],
            )
            stops = records
        else:
            edges = _spans(layout, batch)
            starts, stops, records = edges[0].tolist(), edges[1].tolist(), (edges[1] - edges[0]).tolist()

        def groups() -> Iterable[Group]:
            return Runs.of(batch, _records_per_read(layout, batch)).by_file(batch)

        if not (left := read_at_once(self, here, batch, groups, starts, records)):
            return batch.samples
        ids, offsets = batch.samples.copy(), here.offsets
        for _, runs in left:
            with opened(opener, place_of(layout, batch, runs[0][0])) as stream:
                for start, stop in runs:
                    begin, num_bytes = starts[start], stops[stop - 1] - starts[start]
                    buffer = np.frombuffer(scratch(num_bytes), np.uint8)
                    length = read_into(stream, begin, buffer.data)
                    for row in range(start, stop):
                        place = place_of(layout, batch, row)
                        record = buffer[starts[row] - begin : stops[row] - begin]
                        have = min(length - (starts[row] - begin), len(record))
                        if have < len(record):
                            raise place.error(
                                f"expected a record of {len(record)} bytes at byte {starts[row]}, "
                                f"found {max(have, 0)}: the file is truncated"
                            )
                        ids[row] = _verified(record, out[offsets[row] : offsets[row + 1]], layout.seed, place)
        return ids


def _label_bytes(sample: int) -> int:
    """Return the bytes of a label: a byte for every 7 bits."""
    return -(-sample.bit_length() // 7) or 1


@lru_cache(maxsize=1024)
def _frame_of(row_bytes: int, label_bytes: int) -> tuple[bytes, int, bytes, int]:
    """Return the bytes of a record before ``x``, the CRC of its payload so far, those up to its label, and its length.

    ``x`` has ``row_bytes``.
    """
    import google_crc32c

    before, after = without_label(row_bytes, label_bytes)
    payload_bytes = len(before) + row_bytes + len(after) + label_bytes
    front = HEAD.pack(payload_bytes, masked_crc(np.array([payload_bytes], "<u8"))) + before
    return front, google_crc32c.value(before), after, HEAD.size + payload_bytes + TAIL.size


#: For places of records that differ in size.
_SIZED = TfRecord()


def _slot(layout: Layout, nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of a compressed record with a sample of ``nbytes``, in the longest encoding of a label."""
    return gzipped.slot(_record_bytes(nbytes)(len(varint(layout.num_samples - 1))), layout.compressibility)


def _read_zipped(opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Read whole files, inflate each up to its last wanted record, and verify and unpack the wanted ones."""
    check_length(batch.total_bytes, out)
    ids = np.empty(len(batch.samples), np.int64)
    offsets = [0, *np.cumsum(batch.nbytes).tolist()]
    starts, stops = (edges.tolist() for edges in _spans(layout, batch))
    order = np.lexsort((batch.index, batch.files)).tolist()
    file, inflated, at, record = -1, gzipped.Inflated(memoryview(b"")), 0, np.empty(0, np.uint8)
    for row in order:
        place = place_of(layout, batch, row)
        if batch.files[row] != file:
            file, at, record = int(batch.files[row]), 0, np.empty(0, np.uint8)
            with opened(opener, place) as stream:
                content = np.empty(int(TfRecord().file_bytes(layout, batch.files[row : row + 1])[0]), np.uint8).data
                have = read_into(stream, 0, content)
            if have < len(content):
                raise place.error(f"expected a file of {len(content)} bytes, found {have}: the file is truncated")
            inflated = gzipped.Inflated(content)
        try:
            while at < starts[row]:
                at += (length := len(inflated.read(min(starts[row] - at, READ_BYTES))))
                if not length:
                    break
            if at != stops[row]:  # not the record just read, which the batch has twice
                record = np.frombuffer(inflated.read(stops[row] - at) if at == starts[row] else b"", np.uint8)
                at += len(record)
        except zlib.error as error:
            raise place.error(f"expected a gzip stream of records, found none ({error}): {AGAIN}") from error
        if at != stops[row]:
            raise place.error(
                f"expected a record of {stops[row] - starts[row]} bytes at byte {starts[row]} of the gzip stream, "
                f"found {len(record)}: the file is truncated"
            )
        ids[row] = _verified(record, out[offsets[row] : offsets[row + 1]], layout.seed, place)
    return ids


def _verified(record: NDArray[np.uint8], sample: NDArray[np.uint8], seed: int, place: Place) -> int:
    """Unpack a record into ``sample`` and return its id, after a check of sample and label."""
    label = _unpack(record, sample, place)
    number = check(sample.data, seed, place)
    if label != place.sample:
        raise place.error(f"expected label {place.sample}, found {label}")
    return number


def masked_crc(data: NDArray[np.generic]) -> int:
    """Return TensorFlow's checksum: a CRC32C, rotated and shifted so that it can itself be checksummed."""
    import google_crc32c

    return _masked(google_crc32c.value(data))  # accepts an array, but no memoryview


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _unpack(record: NDArray[np.uint8], sample: NDArray[np.uint8], place: Place) -> int | None:
    """Verify a record's frame, copy its ``x`` into ``sample`` and return its ``y``."""
    length, length_crc = HEAD.unpack_from(record.data)
    expected = len(record) - HEAD.size - TAIL.size
    if length != expected:
        raise place.error(f"expected a record with a payload of {expected} bytes, found one of {length}: {AGAIN}")
    payload = record[HEAD.size : -TAIL.size]
    (payload_crc,) = TAIL.unpack_from(record.data, len(record) - TAIL.size)
    for name, written, data in (("length", length_crc, record[:8]), ("payload", payload_crc, payload)):
        if written != (computed := masked_crc(data)):
            raise place.error(f"expected CRC {written:08x} of the record's {name}, found {computed:08x}: {AGAIN}")
    before, after = around(len(sample), place.sample)
    end = len(payload) - len(after)
    if end - len(before) == len(sample) and payload.data[: len(before)] == before and payload.data[end:] == after:
        sample.data[:] = payload.data[len(before) : end]  # as rayio writes it
        return place.sample
    try:
        content, label = decode(payload.data)
    except (ValueError, TypeError) as error:
        raise place.error(f"expected a tf.train.Example with x and y, found none ({error}): {AGAIN}") from error
    if content is None or len(content) != len(sample):
        have = "none" if content is None else f"{len(content)} bytes"
        raise place.error(f"expected x of {len(sample)} bytes, found {have}: {AGAIN}")
    sample.data[:] = content
    return label


def _varint_bytes(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return 1 + _LONGER.searchsorted(values, side="right")


def _record_bytes(nbytes: NDArray[np.int64]) -> Callable[[int], NDArray[np.int64]]:
    """Return a function from the bytes of a label to the bytes of a record with a sample of ``nbytes``."""
    inner = nbytes + 1 + _varint_bytes(nbytes)
    inner = inner + 1 + _varint_bytes(inner)
    inner = inner + 3 + 1 + _varint_bytes(inner)
    inner = inner + 1 + _varint_bytes(inner) + 11

    def of_label(label_bytes: int) -> NDArray[np.int64]:
        content = inner + label_bytes
        return HEAD.size + 1 + _varint_bytes(content) + content + TAIL.size

    return of_label


def _starts(
    layout: Layout, files: NDArray[np.int64], index: NDArray[np.int64], nbytes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the start of record ``index`` of each file: the sizes of the records before it."""
    if layout.sizes == "per_sample":
        return starts_of(_SIZED, layout, files, index)
    first = files * layout.samples_per_file
    past = first + index
    if nbytes.size and (nbytes == nbytes.flat[0]).all():
        nbytes = nbytes.flat[:1]  # equal records have one size
    starts, record_bytes = np.zeros_like(index), _record_bytes(nbytes)
    lowest, highest = (int(first.min()), int(past.max())) if index.size else (0, 0)
    for label_bytes in range(_label_bytes(lowest), _label_bytes(max(highest - 1, 0)) + 1):
        low, high = (0 if label_bytes == 1 else 1 << 7 * (label_bytes - 1)), 1 << min(7 * label_bytes, 62)
        before = np.minimum(past, high) - np.maximum(first, low)
        starts += np.maximum(before, 0) * record_bytes(label_bytes)
    return starts


def _spans(layout: Layout, batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    edges = np.concatenate([batch.index, batch.index + 1])
    edges_at = _starts(layout, np.tile(batch.files, 2), edges, np.tile(batch.nbytes, 2))
    return edges_at[: len(batch.index)], edges_at[len(batch.index) :]


def _sizes(layout: Layout, runs: Runs, batch: Batch) -> NDArray[np.int64]:
    starts, stops = _spans(layout, batch)
    last = np.append(runs.starts[1:], len(runs.order)) - 1
    sizes: NDArray[np.int64] = stops[runs.order[last]] - starts[runs.order[runs.starts]]
    return sizes


def _placed(layout: Layout, runs: Runs, batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return file and offset of each read."""
    first = runs.order[runs.starts]
    files = batch.files[first]
    return files, _starts(layout, files, batch.index[first], batch.nbytes[first])


def _records_per_read(layout: Layout, batch: Batch) -> NDArray[np.int64]:
    record_bytes = _record_bytes(batch.nbytes)(len(varint(layout.num_samples - 1)))
    return np.maximum(1, READ_BYTES // record_bytes)
