"""The spans of a run by slices of its ranks, for whoever goes through all of them: a long run is never held whole.

Span files are read once, one after the other, and what numbers are made of is laid aside as plain columns, in a file
that has no name. Every span of rayio's own is in one slice: those of a rank together, with those of its readers and its
queue; what belongs to no rank is in the first. Within a slice they are in the order of the files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rayio.trace.arrow import empty_table, is_text, numbers, plain, rows, texts
from rayio.trace.aside import Unnamed
from rayio.trace.files import DamagedError, SpanFile
from rayio.trace.span import COLUMNS, FOREIGN_LANE

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

#: Slices that are worked at side by side, in threads: numpy and Arrow let others run meanwhile.
TOGETHER = 2

#: Spans of a slice, unless a single rank has more.
SLICE_ROWS = 1 << 19

#: What numbers are made of; files and offsets only where requests have spans, attributes where readers came and
#: went, or requests were made again.
_NEEDED = (
    "name", "role", "index", "node", "lane", "rank", "epoch", "step", "attempt", "batch", "start_ns", "duration_ns",
    "bytes", "requests", "link", "status",
)  # fmt: skip
_OF_REQUESTS = ("file", "offset")
_SAID = ("attributes",)

#: The place of a span among all, in the order of the files: a column of slices.
ROW = "row"

#: Whose index begins with the number of a rank.
_OF_RANKS = ("rank", "reader", "queue")


class Slices:
    """The spans of a run, slice by slice; :meth:`parts` goes through them as often as it is called."""

    def __init__(self, names: Mapping[str, int], table: pa.Table | None = None, aside: _Aside | None = None) -> None:
        #: How many spans there are, by name.
        self.names = names
        self._table = table
        self._aside = aside

    @classmethod
    def of(cls, spans: pa.Table | Slices) -> Slices:
        """Make one slice of a table of spans, of any order; those of other libraries are left out."""
        if isinstance(spans, Slices):
            return spans
        table = own(spans).unify_dictionaries()
        return cls(_counted(table), table)

    def __len__(self) -> int:
        return sum(self.names.values())

    def parts(self, *columns: str) -> Iterator[pa.Table]:
        """Each slice, with these columns or all; texts have the same numbers in all of them.

        There is one at least; that of a run without spans has no rows.
        """
        return (self._part(number, columns) for number in range(self.number))

    @property
    def number(self) -> int:
        """How many slices there are."""
        return 1 if self._aside is None else self._aside.number

    def each(self, work: Callable[[int, pa.Table], T], *columns: str) -> Iterator[T]:
        """What some work gives of each slice (its number, and its spans with these columns or all), in their order.

        Slices are read and worked at in threads, :data:`TOGETHER` at a time.
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

    def named(self, *names: str) -> pa.Table:
        """All spans of these names, which are few, sorted by start."""
        import pyarrow as pa

        found = []
        for part in self.parts():
            is_wanted = np.zeros(len(part), np.bool_)
            for name in names:
                is_wanted |= is_text(part["name"], name)
            found.append(rows(part, is_wanted))
        table = pa.concat_tables(found).unify_dictionaries()
        place = plain(table[ROW]) if ROW in table.column_names else np.arange(len(table))
        return table.take(numbers(np.lexsort((place, plain(table["start_ns"])))))


def own(spans: pa.Table) -> pa.Table:
    """Leave out the spans of other libraries: their names are their own."""
    is_own = plain(spans["lane"]) < FOREIGN_LANE
    return spans if is_own.all() else rows(spans, is_own)


def sliced(files: Sequence[SpanFile], rows: int = SLICE_ROWS) -> tuple[Slices, list[str]]:
    """Lay aside the spans of some files, and name the files that are damaged, whose spans are left out.

    Raises:
        StorageError: there is no space for them.
    """
    whole, damaged, by_rank, names = [], [], np.zeros(0, np.int64), dict[str, int]()
    for file in files:
        try:
            table = own(file.read(("name", "rank", "lane")))
        except DamagedError as error:
            damaged.append(str(error))
            continue
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
        *(_SAID if "scale" in names or "retry" in names else ()),
    )
    # The slice of each rank: what lies before it in whole slices, numbered on without gaps.
    slice_of = np.unique((np.cumsum(by_rank) - by_rank) // rows, return_inverse=True)[1].astype(np.uint16)
    aside = _Aside(columns, int(slice_of.max(initial=0)) + 1)
    kept = dict[str, int]()
    for table in _ahead(whole, columns, damaged):
        aside.keep(table, slice_of, rows)
        for name, number in _counted(table).items():
            kept[name] = kept.get(name, 0) + number
    return Slices(kept, aside=aside), damaged


def _ahead(files: Sequence[SpanFile], columns: Sequence[str], damaged: list[str]) -> Iterator[pa.Table]:
    """Read files one after the other, each while the one before it is worked at; name those that are damaged."""
    with ThreadPoolExecutor(1, "rayio-ahead") as pool:
        waiting: deque[Future[pa.Table]] = deque()
        try:
            for number in range(len(files) + 1):
                if number < len(files):
                    waiting.append(pool.submit(lambda file: own(file.read(columns)), files[number]))
                if number:
                    try:
                        yield waiting.popleft().result()
                    except DamagedError as error:  # in a column that was not looked at before
                        damaged.append(str(error))
        finally:
            for late in waiting:
                late.cancel()


class _Aside:
    """Columns of slices in a file without a name: it is gone with the process, however that ends."""

    def __init__(self, columns: Sequence[str], number: int) -> None:
        self.number = number
        self._texts: dict[str, dict[str, int]] = {name: {} for name in columns if COLUMNS[name] == "text"}
        kinds = {name: np.dtype(_KINDS.get(name, COLUMNS[name])) for name in columns}
        self._kinds = kinds | {ROW: np.dtype(np.uint32)}
        self._file = Unnamed()
        #: By slice: where each of its blocks begins, and of how many spans it is.
        self._blocks: list[list[tuple[int, int]]] = [[] for _ in range(number)]
        self._rows = 0

    def keep(self, table: pa.Table, slice_of: NDArray[np.uint16], rows: int) -> None:
        """Lay some spans aside, by the slice of each one's rank."""
        texts = {name: self._numbers(name, table[name]) for name in self._texts}
        for first in range(0, len(table), rows):
            part = table.slice(first, rows)
            found: dict[str, NDArray[Any]] = {
                name: texts[name][first : first + rows] if name in texts else plain(part[name])
                for name in self._kinds
                if name != ROW
            }
            found[ROW] = np.arange(self._rows, self._rows + len(part))
            self._rows += len(part)
            columns = [np.ascontiguousarray(found[name], kind) for name, kind in self._kinds.items()]
            where = self._where(found, slice_of)
            if np.count_nonzero(where[1:] != where[:-1]) > len(where) >> 4:  # in the order of time, and not of ranks
                order = np.argsort(where, kind="stable")
                columns, where = [column[order] for column in columns], where[order]
            for number, ranges in _ranges(where):
                length = sum(high - low for low, high in ranges)
                self._blocks[number].append((self._file.end, length))
                self._file.append([column[low:high] for column in columns for low, high in ranges])

    def table(self, number: int, columns: Sequence[str]) -> pa.Table:
        """A slice, with these columns or all."""
        import pyarrow as pa

        arrays = {}
        for name in columns or self._kinds:
            column = numbers(self._column(number, name))
            is_text = name in self._texts
            arrays[name] = pa.DictionaryArray.from_arrays(column, texts(self._texts[name])) if is_text else column
        return pa.table(arrays)

    def _column(self, number: int, name: str) -> NDArray[Any]:
        blocks, kind = self._blocks[number], self._kinds[name]
        before = sum(self._kinds[other].itemsize for other in [*self._kinds][: [*self._kinds].index(name)])
        values = np.empty(sum(many for _, many in blocks), kind)
        if not len(values):
            return values
        view, at = values.data.cast("B"), 0
        for begin, many in blocks:
            end = at + many * kind.itemsize
            self._file.read(view[at:end], begin + many * before)
            at = end
        return values

    def _numbers(self, name: str, column: pa.ChunkedArray) -> NDArray[Any]:
        """Number the texts of a column, in the order in which they came up."""
        known, parts = self._texts[name], [np.zeros(0, np.int32)]
        for chunk in column.chunks:
            numbers = [known.setdefault(text, len(known)) for text in chunk.dictionary.to_pylist()]
            parts.append(np.array([*numbers, 0], np.int32)[plain(chunk.indices)])
        return np.concatenate(parts)

    def _where(self, found: Mapping[str, NDArray[Any]], slice_of: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """The slice of each span: that of its rank, or of the rank whose role it is of; the first of any other."""
        rank = found["rank"]
        if len(none := np.flatnonzero(rank < 0)):
            rank = rank.copy()
            roles = np.array([role in _OF_RANKS for role in self._texts["role"]])
            first = [index.partition("-")[0] for index in self._texts["index"]]
            numbers = np.array([int(text) if text.isdecimal() and len(text) < 9 else 0 for text in first])
            wanted = np.where(roles[found["role"][none]], numbers[found["index"][none]], 0)
            rank[none] = np.where(wanted < len(slice_of), wanted, 0)
        return slice_of[rank] if len(slice_of) else np.zeros(len(rank), np.uint16)


def _ranges(where: NDArray[np.uint16]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Where the rows of each slice lie, as ranges."""
    first = np.flatnonzero(np.append(True, where[1:] != where[:-1])[: len(where)])
    of, edges = where[first], [*first.tolist(), len(where)]
    order = np.argsort(of, kind="stable")
    starts = [*np.searchsorted(of[order], np.unique(of)).tolist(), len(order)]
    for low, high in pairwise(starts):
        yield int(of[order[low]]), [(edges[at], edges[at + 1]) for at in order[low:high].tolist()]


#: Columns that are laid aside with fewer bytes than they have in memory.
_KINDS = {
    "name": "int16", "role": "int8", "index": "int32", "status": "int8", "file": "int32", "attributes": "int32",
    "lane": "int16",
}  # fmt: skip


def _counted(table: pa.Table) -> dict[str, int]:
    """How many spans there are of each name."""
    counts = dict[str, int]()
    for chunk in table["name"].chunks:
        number = np.bincount(plain(chunk.indices), minlength=len(chunk.dictionary))
        for name, many in zip(chunk.dictionary.to_pylist(), number.tolist(), strict=True):
            if many:
                counts[name] = counts.get(name, 0) + many
    return counts


def nothing() -> Slices:
    """The slices of a run without spans."""
    return Slices.of(empty_table())
