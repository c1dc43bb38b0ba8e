"""Files of a batch that are read in one call of their store each: small samples cost what the kernel's calls cost.

A format passes the places of its requests and the memory that they fill, looks at the bytes, and leaves everything
else (a file that is missing, shorter, damaged or written by another program) to its reader of open files, which knows
what to say. Bytes around samples go into a separate buffer in the same request, so that no sample is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.reads import check_length
from rayio.data.formats.sample import Judge, Running, judge
from rayio.data.layout import Batch, Layout
from rayio.storage.base import WHOLE_BYTES, AtOnce, Opener

T = TypeVar("T")
#: The name of a file, and the place of its sample in the batch.
Named = tuple[str, int]
#: A file with the runs of its samples as places in the batch: first and one past the last.
Group = tuple[int, list[tuple[int, int]]]
#: Returns the bytes of a record around a sample, from its number and its bytes.
Frame = Callable[[int, NDArray[np.uint8]], bytes]


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

    def framing(self, layout: Layout) -> Frame:
        """Return a function from a sample, and its bytes that were read, to all bytes of its record around it."""

    def window_bytes(self, layout: Layout, batch: Batch, place: int) -> int:
        """Return the bytes that are read of the beginning of a sample's file, if :attr:`reads_head`."""

    def judge(self, layout: Layout) -> Judge:
        """Return a function that tells if bytes are a sample, by its number."""


class Whereabouts:
    """A batch as lists: by place, the samples and sizes, and where each lies in the batch's memory.

    What runs once a batch is slow: the samples of a batch have then displaced it from the processor's own caches.
    """

    __slots__ = ("depth", "fill", "layout", "offsets", "opener", "out", "samples", "sizes", "view")

    def __init__(self, opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8]) -> None:
        self.layout = layout
        self.sizes: list[int] = batch.nbytes.tolist()
        self.offsets = [0, *accumulate(self.sizes)]
        check_length(self.offsets[-1], out)
        self.samples: list[int] = batch.samples.tolist()
        self.out, self.view = out, out.data
        self.opener = opener
        #: Reads a file in one call; None if the opener cannot.
        self.fill: AtOnce | None = getattr(opener, "fill", None)
        #: Requests that may be in flight.
        self.depth: int = getattr(opener, "depth", 1)

    def starts(self, compute: Callable[[], NDArray[np.int64]]) -> list[int]:
        """Return where records begin after a file's head."""
        starts: list[int] = [0] * len(self.sizes) if self.layout.samples_per_file == 1 else compute().tolist()
        return starts

    def in_order(self, batch: Batch) -> tuple[list[int], list[int]] | None:
        """Return the files in order, and the place of each one's sample; None if samples share a file."""
        files: list[int] = self.samples if batch.files is batch.samples else batch.files.tolist()
        if len({*files}) < len(files):
            return None
        order = sorted(range(len(files)), key=files.__getitem__)
        return [files[n] for n in order], order

    def each(self, read: Callable[[Iterator[Named]], T], names: list[str], order: list[int]) -> list[T]:
        """Call ``read`` with names of files and the places of their samples, in some threads if that helps."""
        pairs = iter([*zip(names, order, strict=True)])
        return self.opener.each(read, pairs, len(order))  # type: ignore[attr-defined, no-any-return]

    def checked(self, fill: AtOnce, is_right: Judge) -> tuple[AtOnce, Judge]:
        """Return both for one thread; large samples that arrive in pieces are judged by these, while in cache."""
        seed = self.layout.seed
        if not getattr(self.opener, "pours", False) or is_right is not judge(seed) or max(self.sizes) <= WHOLE_BYTES:
            return fill, is_right
        running = Running(seed)
        return partial(fill, seen=running.take), running.is_right

    def count(self, opens: int, requests: int, nbytes: int) -> None:
        """Count what was read in one call each."""
        self.opener.filled(opens, requests, nbytes)  # type: ignore[attr-defined]


def read_at_once(
    form: Framed, here: Whereabouts, batch: Batch, groups: Callable[[], Iterable[Group]], starts: list[int],
    records: list[int],
) -> list[Group]:  # fmt: skip
    """Read and verify files in one call each, and count them; return those that are to be read otherwise.

    ``starts`` and ``records`` are offset (after the head) and length of records.
    """
    is_one_read = form.is_framed and here.layout.samples_per_file == 1
    if here.fill is None or (form.reads_whole and not is_one_read) or (form.is_framed and form.reads_head):
        return [*groups()]
    if (in_order := here.in_order(batch)) is None:
        return [*groups()] if form.is_framed else _runs(form, here, batch, [*groups()], starts)
    files, order = in_order
    read = partial(_framed if form.is_framed else _headed if form.reads_head else _plain, form, here, batch, starts)
    each = here.each(partial(read, records), here.layout.names_of(files), order)
    left, nbytes = [n for some, _ in each for n in some], sum(nbytes for _, nbytes in each)
    done = len(order) - len(left)
    here.count(done, done * (1 + form.reads_head), nbytes)
    return groups_of(batch, left)


def groups_of(batch: Batch, left: list[int]) -> list[Group]:
    """Return samples of different files, by their places, as groups."""
    return [(int(batch.files[n]), [(n, n + 1)]) for n in left]


def _plain(
    form: Framed, here: Whereabouts, batch: Batch, starts: list[int], _: list[int], named: Iterator[Named]
) -> tuple[list[int], int]:
    """Read one sample of each file, without frame; return the places of those that were not read, and the bytes."""
    view, offsets, sizes, samples, base = here.view, here.offsets, here.sizes, here.samples, form.head_bytes
    assert here.fill is not None
    (fill, is_right), left, nbytes = here.checked(here.fill, form.judge(here.layout)), [], 0
    for name, n in named:
        span, size = view[offsets[n] : offsets[n + 1]], sizes[n]
        if fill(name, -1, size, base + starts[n], (span,)) and is_right(span, samples[n]):
            nbytes += size
        else:
            left.append(n)
    return left, nbytes


def _headed(
    form: Framed, here: Whereabouts, batch: Batch, starts: list[int], _: list[int], named: Iterator[Named]
) -> tuple[list[int], int]:
    """Read the same after the beginning of each file, with its head."""
    view, offsets, sizes, samples, base = here.view, here.offsets, here.sizes, here.samples, form.head_bytes
    assert here.fill is not None
    (fill, is_right), left, known, nbytes = here.checked(here.fill, form.judge(here.layout)), [], -1, 0
    window, expected = bytearray(), b""
    for name, n in named:
        size, begin = sizes[n], offsets[n]
        if size != known:
            known, window = size, bytearray(form.window_bytes(here.layout, batch, n))
            expected = form.head(here.layout.samples_per_file, size)
        span, total = view[begin : begin + size], size + len(window)
        if (
            fill(name, -1, total, 0, (window,), (base + starts[n], (span,)))
            and window.startswith(expected)
            and is_right(span, samples[n])
        ):
            nbytes += total
        else:
            left.append(n)
    return left, nbytes


def _framed(
    form: Framed, here: Whereabouts, batch: Batch, starts: list[int], records: list[int], named: Iterator[Named]
) -> tuple[list[int], int]:
    """Read one record of each file; formats that read whole files have their head in the same request."""
    view, out, offsets, sizes, samples = here.view, here.out, here.offsets, here.sizes, here.samples
    assert here.fill is not None
    (fill, is_right), left, nbytes = here.checked(here.fill, form.judge(here.layout)), [], 0
    frame = form.framing(here.layout)
    base, extra = (0, form.head_bytes) if form.reads_whole else (form.head_bytes, 0)
    known, expected, around = (-1, -1), b"", bytearray()
    before = after = memoryview(around)
    for name, n in named:
        size, begin, total = sizes[n], offsets[n], records[n] + extra
        if known != (size, total):
            known, around, cut = (size, total), bytearray(total - size), extra + form.leading(samples[n], size)
            before, after = memoryview(around)[:cut], memoryview(around)[cut:]
            expected = form.head(here.layout.samples_per_file, size) if extra else b""
        end = begin + size
        span = view[begin:end]
        if (
            fill(name, -1, total, base + starts[n], (before, span, after))
            and around == expected + frame(samples[n], out[begin:end])
            and is_right(span, samples[n])
        ):
            nbytes += total
        else:
            left.append(n)
    return left, nbytes


def _runs(form: Framed, here: Whereabouts, batch: Batch, groups: list[Group], starts: list[int]) -> list[Group]:
    """Read runs of samples without frames; with fewer files than requests in flight, all is left."""
    if len(groups) < here.depth:
        return groups
    each = here.opener.each(partial(_read_runs, form, here, batch, starts), iter(groups), len(groups))  # type: ignore[attr-defined]
    here.count(*map(sum, zip(*(counts for _, *counts in each), strict=True)))
    return [group for left, *_ in each for group in left]


def _read_runs(
    form: Framed, here: Whereabouts, batch: Batch, starts: list[int], groups: Iterator[Group]
) -> tuple[list[Group], int, int, int]:
    """Return the files that are to be read otherwise; opens, requests and bytes of the others."""
    view, offsets, samples, fill, head = here.view, here.offsets, here.samples, here.fill, form.head_bytes
    is_right, left, opens, requests, nbytes = form.judge(here.layout), list[Group](), 0, 0, 0
    assert fill is not None
    for file, runs in groups:
        first, window = runs[0][0], bytearray()
        reads: list[Any] = [(head + starts[start], (view[offsets[start] : offsets[stop]],)) for start, stop in runs]
        total = sum(offsets[stop] - offsets[start] for start, stop in runs)
        if form.reads_head:
            window = bytearray(form.window_bytes(here.layout, batch, first))
            reads.insert(0, (0, (window,)))
            total += len(window)
        if (
            fill(here.layout.path(file), -1, total, *reads[0], *reads[1:])
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
    return left, opens, requests, nbytes
