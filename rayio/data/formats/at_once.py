"""Files of a batch that are read in one call of their store each: small samples cost what the kernel's calls cost.

A format passes the places of its requests and the memory that they fill, looks at the bytes, and leaves everything
else (a file that is missing, shorter, damaged or written by another program) to its reader of open files, which knows
what to say. Bytes around samples go into a separate buffer in the same request, so that no sample is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.reads import check_length
from rayio.data.formats.sample import Judge
from rayio.data.layout import Batch, Layout
from rayio.storage.base import AtOnce, Opener
from rayio.storage.stores.counted import WINDOW_BYTES

#: A file with the runs of its samples as places in the batch: first and one past the last.
Group = tuple[int, list[tuple[int, int]]]


class Framed(Protocol):
    """A format of records as it is read here; see :class:`rayio.data.formats.records.Records`."""

    head_bytes: ClassVar[int]
    reads_head: ClassVar[bool]
    reads_whole: ClassVar[bool]
    is_framed: ClassVar[bool]

    def head(self, rows: int, nbytes: int) -> bytes:
        """Return the bytes of a file before its first record."""

    def leading(self, sample: int, nbytes: int) -> int:
        """Return the bytes of a record before its sample."""

    def frame(self, layout: Layout, sample: int, content: NDArray[np.uint8]) -> bytes:
        """Return all bytes of a record around its sample, of which ``content`` was read."""

    def judge(self, layout: Layout) -> Judge:
        """Return a function that tells if bytes are a sample, by its number."""


class Whereabouts:
    """A batch as lists: by place, the samples, rows and sizes, and where each lies in the batch's memory."""

    __slots__ = ("fill", "layout", "offsets", "opener", "out", "rows", "samples", "sizes", "view")

    def __init__(self, opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8]) -> None:
        self.layout = layout
        self.sizes: list[int] = batch.nbytes.tolist()
        self.offsets = [0, *accumulate(self.sizes)]
        check_length(self.offsets[-1], out)
        self.samples: list[int] = batch.samples.tolist()
        self.rows: list[int] = batch.index.tolist()
        self.out, self.view = out, out.data
        self.opener = opener
        #: Reads a file in one call; None if the opener cannot.
        self.fill: AtOnce | None = getattr(opener, "fill", None)

    def starts(self, compute: Callable[[], NDArray[np.int64]]) -> list[int]:
        """Return where records begin after a file's head."""
        starts: list[int] = [0] * len(self.sizes) if self.layout.samples_per_file == 1 else compute().tolist()
        return starts

    def count(self, opens: int, requests: int, nbytes: int) -> None:
        """Count what was read in one call each."""
        self.opener.filled(opens, requests, nbytes)  # type: ignore[attr-defined]


def read_at_once(
    form: Framed, here: Whereabouts, batch: Batch, groups: Iterable[Group], starts: list[int], records: list[int],
    ends: list[int],
) -> Iterable[Group]:  # fmt: skip
    """Read and verify files in one call each, and count them; return those that are to be read otherwise.

    ``starts`` and ``records`` are offset (after the head) and length of records, ``ends`` sizes of files that are
    known for formats that read more than records.
    """
    if here.fill is None or (form.reads_whole and not (form.is_framed and here.layout.samples_per_file == 1)):
        return groups
    files = batch.files.tolist()
    if len(set(files)) == len(files):
        return _singles(form, here, files, starts, records, ends)
    return groups if form.is_framed else _runs(form, here, groups, starts, ends)


def _singles(
    form: Framed, here: Whereabouts, files: list[int], starts: list[int], records: list[int], ends: list[int]
) -> list[Group]:
    """Read one sample of each file."""
    layout, out, view, fill, is_right = here.layout, here.out, here.view, here.fill, form.judge(here.layout)
    offsets, sizes, samples, head, is_framed = here.offsets, here.sizes, here.samples, form.head_bytes, form.is_framed
    base, extra, reads_head = 0 if form.reads_whole else head, head if form.reads_whole else 0, form.reads_head
    assert fill is not None
    order = sorted(range(len(files)), key=files.__getitem__)
    left: list[Group] = []
    known, nbytes = (-1, -1), 0
    before = after = memoryview(b"")
    around, expected = bytearray(), b""
    for path, n in zip(layout.names_of([files[n] for n in order]), order, strict=True):
        size, begin, total = sizes[n], offsets[n], records[n] + extra
        span = view[begin : begin + size]
        if is_framed or reads_head:
            if known != (size, total):
                known, rows = (size, total), layout.samples_per_file
                expected = form.head(rows, size) if extra or reads_head else b""
                around = bytearray(min(ends[n], WINDOW_BYTES) if reads_head else total - size)
                before, after = memoryview(around), memoryview(b"")
                if is_framed:
                    cut = extra + form.leading(samples[n], size)
                    before, after = before[:cut], before[cut:]
            if is_framed:
                reads: Any = ((base + starts[n], (before, span, after)),)
            else:
                reads, total = ((0, (around,)), (base + starts[n], (span,))), total + len(around)
            is_read = fill(path, reads, total) and (
                around == expected + form.frame(layout, samples[n], out[begin : begin + size])
                if is_framed
                else around.startswith(expected)
            )
        else:
            is_read = fill(path, ((base + starts[n], (span,)),), total)
        if is_read and is_right(span, samples[n]):
            nbytes += total
        else:
            left.append((files[n], [(n, n + 1)]))
    done = len(order) - len(left)
    here.count(done, done * (1 + reads_head), nbytes)
    return left


def _runs(form: Framed, here: Whereabouts, groups: Iterable[Group], starts: list[int], ends: list[int]) -> list[Group]:
    """Read runs of samples without frames."""
    view, offsets, samples, fill, head = here.view, here.offsets, here.samples, here.fill, form.head_bytes
    is_right, left, opens, requests, nbytes = form.judge(here.layout), [], 0, 0, 0
    assert fill is not None
    for file, runs in groups:
        first, window = runs[0][0], bytearray()
        reads = [(head + starts[start], (view[offsets[start] : offsets[stop]],)) for start, stop in runs]
        total = sum(offsets[stop] - offsets[start] for start, stop in runs)
        if form.reads_head:
            window = bytearray(min(ends[first], WINDOW_BYTES))
            reads.insert(0, (0, (memoryview(window),)))
            total += len(window)
        if (
            fill(here.layout.path(file), reads, total)
            and (not window or window.startswith(form.head(here.layout.samples_per_file, here.sizes[first])))
            and all(
                is_right(view[offsets[n] : offsets[n + 1]], samples[n])
                for start, stop in runs
                for n in range(start, stop)
            )
        ):
            opens, requests, nbytes = opens + 1, requests + len(reads), nbytes + total
        else:
            left.append((file, runs))
    here.count(opens, requests, nbytes)
    return left
