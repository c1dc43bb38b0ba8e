"""Records: a file is a head, one record for each sample, and a tail.

So the place of any sample follows from its number, or from the sizes before it. A format of this kind says what stands
around the samples, and how one is made and verified.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.at_once import Frame, Whereabouts, read_at_once
from rayio.data.formats.places import starts_of
from rayio.data.formats.reads import (
    HEAD,
    NOT_KEPT,
    Runs,
    as_one,
    by_file,
    opened,
    placed,
    placed_by_step,
    read_into,
    requests_of,
    scratch,
)
from rayio.data.formats.sample import Judge, Place, check, fill, judge
from rayio.data.layout import Batch, Layout
from rayio.errors import DataError
from rayio.scenario.kind import Kind
from rayio.storage.base import Opener, Requests, RequestTable
from rayio.storage.stores.counted import WINDOW_BYTES

AGAIN = "the file is corrupted or foreign; delete it and generate it again"
#: Neighbouring framed records are read together up to this many bytes; a longer record is a separate request.
READ_BYTES = 8 << 20


class Records(Kind):
    """A format of records. Samples without a frame are read straight into the batch's memory."""

    extension: ClassVar[str]
    #: Bytes before the first record, and True if a batch reads them (4 KiB, as a library's buffer does).
    head_bytes: ClassVar[int] = 0
    reads_head: ClassVar[bool] = False
    #: Suffixes of other files that belong to each file (see :class:`rayio.data.formats.Format`), and files opened.
    beside: ClassVar[tuple[str, ...]] = ()
    opens_per_file: ClassVar[int] = 1
    #: True if bytes stand around samples, in their records.
    is_framed: ClassVar[bool] = False
    before_bytes: ClassVar[int] = 0
    #: True if samples of a file may differ in size.
    sizes_vary: ClassVar[bool] = True
    #: True if ``explain`` may propose the format for other data.
    is_proposed: ClassVar[bool] = False
    #: True if a batch reads the whole file, however few samples it needs.
    reads_whole: ClassVar[bool] = False

    def after_bytes(self, nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of a record after its sample, for samples of ``nbytes``."""
        return np.zeros_like(nbytes)

    def tail_bytes(self, end: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of files after their last records, which end at ``end``."""
        return np.zeros_like(end)

    def head(self, rows: int, nbytes: int) -> bytes:
        """Return the bytes of a file before its first record; there are ``rows`` of samples of ``nbytes``."""
        return b""

    def fill(self, out: NDArray[np.uint8], layout: Layout, sample: int) -> None:
        """Write a sample into ``out``."""
        fill(out, layout.seed, sample, layout.compressibility)

    def check(self, sample: memoryview, layout: Layout, place: Place) -> int:
        """Verify a sample and return its id; see :func:`rayio.data.formats.sample.check`."""
        return check(sample, layout.seed, place)

    def leading(self, sample: int, nbytes: int) -> int:
        """Return the bytes of a record before its sample."""
        return self.before_bytes

    def framing(self, layout: Layout) -> Frame:
        """Return a function from a sample and its bytes to all bytes of its record around it."""
        return lambda sample, content: b""

    def window_bytes(self, layout: Layout, batch: Batch, place: int) -> int:
        """Return the bytes that are read of the beginning of a sample's file, with its head."""
        if self.head_bytes + int(batch.nbytes[place]) >= WINDOW_BYTES:
            return WINDOW_BYTES
        return min(int(self.sizes_of_files(layout, batch)[place]), WINDOW_BYTES)

    def judge(self, layout: Layout) -> Judge:
        """Return a function that tells if bytes are a sample, by its number, as :meth:`check` does."""
        return judge(layout.seed)

    def check_head(self, stream: BinaryIO, layout: Layout, nbytes: int, place: Place) -> int:
        """Verify the bytes before the first record, and return their number."""
        return self.head_bytes

    def record_bytes(self, nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of records with samples of ``nbytes``."""
        return nbytes + self.before_bytes + self.after_bytes(nbytes) if self.is_framed else nbytes

    def file_bytes(self, layout: Layout, files: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sum of head, records and tail."""
        end = self._starts(layout, files, np.full_like(files, layout.samples_per_file), layout.sample_bytes_of(files))
        return end + self.tail_bytes(end)

    def sizes_of_files(self, layout: Layout, batch: Batch) -> NDArray[np.int64]:
        """Return the size of each sample's file, by the samples' sizes if all of a file are equal."""
        if layout.sizes == "per_sample":
            return self.file_bytes(layout, batch.files)
        end = self.head_bytes + layout.samples_per_file * self.record_bytes(batch.nbytes)
        return end + self.tail_bytes(end)

    def record_sizes(self, layout: Layout, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of the records of ``samples``."""
        return self.record_bytes(layout.sizes_of(samples))

    def _starts(
        self, layout: Layout, files: NDArray[np.int64], index: NDArray[np.int64], nbytes: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the start of record ``index`` of each file; samples have ``nbytes``, if those of a file are equal."""
        if layout.sizes == "per_sample":
            return self.head_bytes + starts_of(self, layout, files, index)
        return self.head_bytes + index * self.record_bytes(nbytes)

    def write(self, file: BinaryIO, layout: Layout, number: int) -> None:
        """Write head, records and tail, a record at a time."""
        whole = layout.whole_file(number)
        file.write(self.head(len(whole.samples), int(whole.nbytes[0])))
        records = self.record_bytes(whole.nbytes)
        space, begin, end = np.empty(int(records.max()), np.uint8), self.before_bytes, self.head_bytes
        frame = self.framing(layout)
        for sample, nbytes, length in zip(whole.samples.tolist(), whole.nbytes.tolist(), records.tolist(), strict=True):
            record = space[:length]
            self.fill(record[begin : begin + nbytes], layout, sample)
            end += length
            if self.is_framed:
                around = frame(sample, record[begin : begin + nbytes])
                record.data[:begin] = around[:begin]
                record.data[begin + nbytes :] = around[begin:]
            file.write(record.data)
        file.write(bytes(int(self.tail_bytes(np.array([end]))[0])))

    def requests(self, layout: Layout, batch: Batch) -> Requests:
        """Return, per file, a read of its head if any, then of each run of records; or of the whole file."""
        address = (batch.rank, batch.epoch, batch.step)
        if not batch.nbytes.size:
            return Requests(address, 0, batch.nbytes)
        runs = self._runs(batch)
        table = self._sizes(layout, runs, batch)
        places = partial(self._places, layout, batch)
        return Requests(address, int(runs.is_first.sum()) * self.opens_per_file, table[table > 0], places)

    def request_table(
        self, layout: Layout, files: NDArray[np.int64], index: NDArray[np.int64], nbytes: NDArray[np.int64]
    ) -> RequestTable | None:
        """Return the requests of many steps."""
        if not nbytes.size:
            return None
        whole, apart = as_one(layout, files, index, nbytes)
        runs = self._runs(apart)
        places = None if self.beside else placed_by_step(layout, partial(self._placed, layout, runs, whole))
        table = requests_of(runs, nbytes.shape, self._sizes(layout, runs, whole), places)
        if self.opens_per_file == 1:
            return table
        return table._replace(num_opens=[self.opens_per_file * opens for opens in table.num_opens])

    def _runs(self, batch: Batch) -> Runs:
        return Runs.of(batch, np.maximum(1, READ_BYTES // self.record_bytes(batch.nbytes)) if self.is_framed else None)

    def _sizes(self, layout: Layout, runs: Runs, batch: Batch) -> NDArray[np.int64]:
        """Return the bytes of each run's reads of a file's head and of its records, shape (runs, 2); 0 for none."""
        first = runs.order[runs.starts]
        table = np.zeros((len(first), 2), np.int64)
        if self.reads_whole:
            table[:, 1] = np.where(runs.is_first, self.file_bytes(layout, batch.files[first]), 0)
            return table
        if self.reads_head:
            sizes = np.minimum(self.file_bytes(layout, batch.files[first]), WINDOW_BYTES)
            table[:, 0] = np.where(runs.is_first, sizes, 0)
        table[:, 1] = np.add.reduceat(self.record_bytes(batch.nbytes[runs.order]), runs.starts)
        return table

    def _places(self, layout: Layout, batch: Batch) -> tuple[Sequence[str], NDArray[np.int64], NDArray[np.int64]]:
        return placed(layout, *self._placed(layout, self._runs(batch), batch))

    def _placed(self, layout: Layout, runs: Runs, batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return file and offset of each read."""
        first = runs.order[runs.starts]
        files, issued = batch.files[first], self._sizes(layout, runs, batch) > 0
        offsets = np.zeros((len(first), 2), np.int64)
        if not self.reads_whole:
            offsets[:, 1] = self._starts(layout, files, batch.index[first], batch.nbytes[first])
        return np.repeat(files, issued.sum(axis=1)), offsets[issued]

    def spans(self, layout: Layout, batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return the first byte of each record and one past its last; None if reading one needs other bytes too."""
        if self.reads_head or self.reads_whole or self.beside:
            return None
        starts = self._starts(layout, batch.files, batch.index, batch.nbytes)
        return starts, starts + self.record_bytes(batch.nbytes)

    def units(self, layout: Layout, batch: Batch) -> NDArray[np.int64]:
        """Return that heads and whole files are kept, and no records."""
        made = self._sizes(layout, self._runs(batch), batch) > 0
        kept = np.full(made.shape, HEAD)
        kept[:, -1] = HEAD if self.reads_whole else NOT_KEPT
        return kept[made]

    def read(self, opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Read runs of records, verify each sample and what stands around it."""
        here = Whereabouts(opener, layout, batch, out)
        sizes, offsets, samples, view = here.sizes, here.offsets, here.samples, here.view
        records = self.record_bytes(batch.nbytes).tolist() if self.is_framed else sizes
        starts = here.starts(lambda: self._starts(layout, batch.files, batch.index, batch.nbytes) - self.head_bytes)
        if not (left := read_at_once(self, here, batch, lambda: self._by_file(batch), starts, records)):
            return batch.samples
        ids, rows = batch.samples.copy(), batch.index.tolist()
        ends = self.sizes_of_files(layout, batch).tolist() if self.reads_whole else []
        is_framed, is_copied, check_row = self.is_framed, self.is_framed or self.reads_whole, self.check
        for file, runs in left:
            path, begin = layout.path(file), runs[0][0]
            first = Place(path, samples[begin], rows[begin])
            with opened(opener, first) as stream:
                head = self.check_head(stream, layout, sizes[begin], first) if self.reads_head else self.head_bytes
                whole = self._whole(stream, ends[begin], layout, first) if self.reads_whole else None
                for start, stop in runs:
                    at, all_bytes = head + starts[start], starts[stop - 1] + records[stop - 1] - starts[start]
                    if whole is not None:
                        content, length = whole[at : at + all_bytes], all_bytes
                    else:
                        content = scratch(all_bytes) if is_framed else view[offsets[start] : offsets[stop]]
                        length = read_into(stream, at, content)
                    for n in range(start, stop):
                        place = first if n == begin else Place(path, samples[n], rows[n])
                        begins, record = starts[n] - starts[start], records[n]
                        if (have := length - begins) < record:
                            raise place.error(f"expected {record} bytes, found {max(have, 0)}: the file is truncated")
                        row = content if record == all_bytes else content[begins : begins + record]
                        if is_framed:
                            row = self._unframed(row, sizes[n], layout, place)
                        if is_copied:
                            view[offsets[n] : offsets[n + 1]] = row
                            row = view[offsets[n] : offsets[n + 1]]
                        ids[n] = check_row(row, layout, place)
        return ids

    def _by_file(self, batch: Batch) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        return self._runs(batch).by_file(batch) if self.is_framed and len(batch.samples) else by_file(batch)

    def _whole(self, stream: BinaryIO, nbytes: int, layout: Layout, place: Place) -> memoryview:
        """Return the bytes of a file, in one request."""
        content = scratch(nbytes)
        if (length := read_into(stream, 0, content)) < len(content):
            raise place.error(f"expected a file of {len(content)} bytes, found {length}: the file is truncated")
        return content

    def _unframed(self, record: memoryview, nbytes: int, layout: Layout, place: Place) -> memoryview:
        """Return the sample of a record, after comparing what stands around it."""
        have, wanted = self._around(record, nbytes, layout, place)
        if have != wanted:
            raise self.wrong_frame(record, nbytes, layout, place)
        return record[self.before_bytes : self.before_bytes + nbytes]

    def _around(self, record: memoryview, nbytes: int, layout: Layout, place: Place) -> tuple[bytes, bytes]:
        """Return the bytes of a record around its sample: those that were read, and those expected."""
        begin, end = self.before_bytes, self.before_bytes + nbytes
        sample = np.frombuffer(record[begin:end], np.uint8)
        return b"".join((record[:begin], record[end:])), self.framing(layout)(place.sample, sample)

    def wrong_frame(self, record: memoryview, nbytes: int, layout: Layout, place: Place) -> DataError:
        """Return the error for a record with other bytes around its sample; of another sample, the sample's error."""
        begin = self.before_bytes
        try:
            self.check(record[begin : begin + nbytes], layout, place)
        except DataError as error:
            return error
        have, wanted = self._around(record, nbytes, layout, place)
        at = next(n for n, byte in enumerate(wanted) if byte != have[n])
        which, end = ("before", min(at + 8, begin)) if at < begin else ("after", at + 8)
        return place.error(f"expected {wanted[at:end]!r} {which} its bytes, found {have[at:end]!r}: {AGAIN}")
