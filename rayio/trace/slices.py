"""The spans of a run in slices of ranks, for passes over all spans: a long run is never in memory as a whole.

Span files are read once, one after the other, and the columns for numbers are copied into a file (``slice_file.py``).
Every span of rayio is in one slice: those of a rank, its readers and its queue together; spans without a rank are in
the first. Within a slice they keep the order of the files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from rayio.trace.arrow import empty_table, is_text, plain, rows, taken
from rayio.trace.slice_file import SliceFile
from rayio.trace.span import FOREIGN_LANE
from rayio.trace.span_files import DamagedError, SpanFile

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

#: Slices processed concurrently, in threads: numpy and Arrow release Python's lock.
TOGETHER = 2

#: Spans of a slice, unless a single rank has more.
SLICE_ROWS = 1 << 18

#: Columns for numbers; files and offsets only if requests have spans, attributes only if readers scale or requests were
#: repeated.
_NEEDED = (
    "name", "role", "index", "node", "lane", "rank", "epoch", "step", "attempt", "batch", "start_ns", "duration_ns",
    "bytes", "requests", "link", "status",
)  # fmt: skip
_OF_REQUESTS = ("file", "offset")
_SAID = ("attributes",)

#: Names of rare spans, which :meth:`Slices.named` returns.
FEW = (
    "checkpoint", "snapshot", "write", "fsync", "serialise", "load", "deserialise", "drain",
    "drain_wait", "restore", "scale", "life", "lost", "node_start", "node_up",
    "first_batch",
)  # fmt: skip


class Slices:
    """The spans of a run, slice by slice; :meth:`parts` can be called repeatedly."""

    def __init__(self, names: Mapping[str, int], table: pa.Table | None = None, aside: SliceFile | None = None) -> None:
        #: Number of spans by name.
        self.names = names
        self._table = table
        self._aside = aside

    @classmethod
    def of(cls, spans: pa.Table | Slices) -> Slices:
        """Return one slice of a table of spans, in any order, without those of other libraries."""
        if isinstance(spans, Slices):
            return spans
        table = own(spans).unify_dictionaries()
        return cls(_counted(table), table)

    def __len__(self) -> int:
        return sum(self.names.values())

    def parts(self, *columns: str) -> Iterator[pa.Table]:
        """Yield each slice, with these columns or all; texts have the same codes in all slices.

        There is at least one slice; that of a run without spans has no rows.
        """
        return (self._part(number, columns) for number in range(self.number))

    @property
    def number(self) -> int:
        """Number of slices."""
        return 1 if self._aside is None else self._aside.number

    def each(self, work: Callable[[int, pa.Table], T], *columns: str) -> Iterator[T]:
        """Yield the result of ``work`` for each slice (its number, and its spans with these columns or all), in order.

        Threads read and process slices, :data:`TOGETHER` at a time.
        """
        if self.number == 1:
            yield work(0, self._part(0, columns))
            return
        waiting: deque[Future[T]] = deque()
        with ThreadPoolExecutor(TOGETHER, "rayio-slice") as pool:
            try:
                for number in range(self.number):
                    waiting.append(pool.submit(lambda at: work(at, self._part(at, columns)), number))
                    if len(waiting) > TOGETHER:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for late in waiting:
                    late.cancel()

    def _part(self, number: int, columns: Sequence[str]) -> pa.Table:
        if self._table is not None:
            return self._table
        assert self._aside is not None
        return self._aside.table(number, columns)

    def has(self, *names: str) -> bool:
        """Return True if a span has one of these names."""
        return any(name in self.names for name in names)

    def named(self, *names: str) -> pa.Table:
        """Return all spans with some of the names of :data:`FEW`, sorted by start."""
        assert set(names) <= {*FEW}, names
        table = self._part(self.number, ()) if self._table is None else self._table
        if not self.has(*names):
            return table.slice(0, 0)
        named = rows(table, is_text(table["name"], *names))
        return taken(named, np.argsort(plain(named["start_ns"]), kind="stable"))


def own(spans: pa.Table) -> pa.Table:
    """Return the spans without those of other libraries, whose names are free."""
    is_own = plain(spans["lane"]) < FOREIGN_LANE
    return spans if is_own.all() else rows(spans, is_own)


def sliced(files: Sequence[SpanFile], rows: int = SLICE_ROWS) -> tuple[Slices, list[str]]:
    """Return the spans of files in slices, and the names of damaged files, whose spans are left out.

    Raises:
        StorageError: no space for a copy.
    """
    with _memory_kept():
        return _sliced(files, rows)


@contextmanager
def _memory_kept() -> Iterator[None]:
    """Make Arrow use the C library's memory, which keeps the memory of one file's columns for the next.

    Arrow's allocator returns it, and most of the kernel's time would go to new pages.
    """
    import pyarrow as pa

    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


def _sliced(files: Sequence[SpanFile], rows: int) -> tuple[Slices, list[str]]:
    whole, damaged, by_rank, names = [], list[str](), np.zeros(0, np.int64), dict[str, int]()
    for file, table in _ahead(files, ("name", "rank", "lane"), damaged):
        whole.append(file)
        rank = plain(table["rank"])
        counts = np.bincount(rank[rank >= 0])
        if len(counts) < len(by_rank):
            counts, by_rank = by_rank, counts
        counts[: len(by_rank)] += by_rank
        by_rank = counts
        for name, number in _counted(table).items():
            names[name] = names.get(name, 0) + number
    columns = (
        *_NEEDED,
        *(_OF_REQUESTS if any(name.startswith("io.") for name in names) else ()),
        *(_SAID if {"scale", "retry", "delay"} & names.keys() else ()),
    )
    # The slice of each rank: the number of full slices before it, renumbered without gaps.
    slice_of = np.unique((np.cumsum(by_rank) - by_rank) // rows, return_inverse=True)[1].astype(np.uint16)
    aside = SliceFile(columns, int(slice_of.max(initial=0)) + 1, FEW)
    kept = dict[str, int]()
    for _, table in _ahead(whole, columns, damaged):
        aside.keep(table, slice_of)
        for name, number in _counted(table).items():
            kept[name] = kept.get(name, 0) + number
    return Slices(kept, aside=aside), damaged


def _ahead(
    files: Sequence[SpanFile], columns: Sequence[str], damaged: list[str]
) -> Iterator[tuple[SpanFile, pa.Table]]:
    """Yield files, each read while the one before is processed; collect the names of damaged ones."""
    with ThreadPoolExecutor(1, "rayio-ahead") as pool:
        waiting: deque[Future[pa.Table]] = deque()
        try:
            for number in range(len(files) + 1):
                if number < len(files):
                    waiting.append(pool.submit(lambda file: own(file.read(columns)), files[number]))
                if number:
                    try:
                        table = waiting.popleft().result()
                    except DamagedError as error:
                        damaged.append(str(error))
                        continue
                    yield files[number - 1], table
        finally:
            for late in waiting:
                late.cancel()


def _counted(table: pa.Table) -> dict[str, int]:
    counts = dict[str, int]()
    for chunk in table["name"].chunks:
        number = np.bincount(plain(chunk.indices), minlength=len(chunk.dictionary))
        for name, many in zip(chunk.dictionary.to_pylist(), number.tolist(), strict=True):
            if many:
                counts[name] = counts.get(name, 0) + many
    return counts


def nothing() -> Slices:
    """Return the slices of a run without spans."""
    return Slices.of(empty_table())
