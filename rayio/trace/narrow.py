"""Columns of spans in a file without a name, in as few bytes as they need: what slices of a long run are read from.

Of some spans that come together each column is kept as what its numbers are above the least of them, in bytes that hold
the greatest of these; a column whose numbers are all alike takes none. What is the number of its span's own batch takes
the answer to whether it is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.place import batch_ids
from rayio.trace.arrow import numbers, plain, texts
from rayio.trace.aside import Unnamed
from rayio.trace.span import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns that take fewer bytes in slices than in span files.
_KINDS = {
    "name": "int16", "role": "int8", "index": "int32", "status": "int8", "file": "int32", "attributes": "int32",
}  # fmt: skip

#: What batches are numbered by; and the columns of such numbers, with what they hold where there is none.
_PLACE = ("rank", "epoch", "step")
_BATCHES = {"batch": -1, "link": 0}

#: Whose index begins with the number of a rank.
_OF_RANKS = ("rank", "reader", "queue")

#: Spans that are narrowed together: a file's, as each block of them costs whoever reads a slice.
TOGETHER = 1 << 20

#: Bytes that a number may be kept in.
_WIDTHS = (0, 1, 2, 4, 8)
_UNSIGNED = {width: np.dtype(f"u{width or 1}") for width in _WIDTHS}


class Narrow(NamedTuple):
    """How the numbers of a column were narrowed."""

    #: The least of them, and how many bytes hold what each is above it.
    low: int
    width: int
    #: Whether they say where a span has the number of its own batch.
    is_own: bool = False

    @classmethod
    def of(cls, low: int, high: int) -> Narrow:
        """Narrow numbers of which none is below or above these."""
        return cls(low, next(width for width in _WIDTHS if (high - low) >> 8 * width == 0))

    def narrowed(self, values: NDArray[np.integer[Any]], into: NDArray[np.uint8]) -> NDArray[np.unsignedinteger[Any]]:
        """Take from some numbers what is kept of each; it lies in these bytes."""
        above = into[: len(values) * self.width].view(_UNSIGNED[self.width])
        if self.width:
            # What is far above the least is beyond the numbers' type, but not beyond the unsigned one of its size.
            np.subtract(values, values.dtype.type(self.low), out=above, casting="unsafe")
        return above

    def widened(self, above: NDArray[Any], into: NDArray[Any]) -> None:
        """Fill an array with the numbers; ``above`` is not looked at where all are alike."""
        if not self.width:
            into[...] = self.low
            return
        into[...] = above
        if self.low:
            into += into.dtype.type(self.low)


class _Block(NamedTuple):
    """Some spans of a slice: where they lie in the file, how many they are, and which of them ranks may have."""

    begin: int
    size: int
    many: int
    of_ranks: tuple[int, int]
    #: How each column is kept, and after how many bytes of the others of each span.
    columns: Mapping[str, tuple[Narrow, int]]


class Narrowed:
    """Spans by slices, and once more those of a few ``names``, which are after the last slice.

    Among the ``columns`` are name, role, index, rank, epoch and step.

    Raises:
        StorageError: there is no space for them.
    """

    def __init__(self, columns: Sequence[str], number: int, names: Sequence[str]) -> None:
        self.number = number
        self._names = frozenset(names)
        self._kinds = {name: np.dtype(_KINDS.get(name, COLUMNS[name])) for name in columns}
        self._texts: dict[str, dict[str, int]] = {name: {} for name in columns if COLUMNS[name] == "text"}
        self._file = Unnamed()
        self._blocks: list[list[_Block]] = [[] for _ in range(number + 1)]
        #: Where columns are narrowed, one after the other, and where they lie by slices.
        self._room = np.empty((1, 0), np.uint8)

    @property
    def size(self) -> int:
        """Bytes that they take."""
        return self._file.end

    def keep(self, table: pa.Table, slice_of: NDArray[np.uint16], rows: int = TOGETHER) -> None:
        """Lay some spans aside, so many at a time, by the slice of each one's rank."""
        texts = {name: self._numbers(name, table[name]) for name in self._texts}
        for first in range(0, len(table), rows):
            part = table.slice(first, rows)
            self._keep(
                {
                    name: texts[name][first : first + rows] if name in texts else plain(part[name])
                    for name in self._kinds
                },
                slice_of,
            )

    def _keep(self, found: Mapping[str, NDArray[Any]], slice_of: NDArray[np.uint16]) -> None:
        """Lay some spans aside: those of a slice together, in their order."""
        few = np.flatnonzero(np.array([name in self._names for name in self._texts["name"]])[found["name"]])
        order, numbers, edges = _by_slice(self._where(found, slice_of), few, self.number)
        if len(self._room[0]) < (size := 8 * len(order)):
            self._room = np.empty((1 + len(found), size), np.uint8)
        own = batch_ids(*(found[name] for name in _PLACE))
        narrow = {name: _narrow(values, own, _BATCHES.get(name)) for name, values in found.items()}
        columns, kept, before = {}, list[NDArray[Any]](), 0
        # The widest first, so that all of them are aligned.
        for name, (how, values) in sorted(narrow.items(), key=lambda each: -each[1][0].width):
            columns[name] = how, before
            before += how.width
            if how.width:
                above = how.narrowed(values, self._room[0])
                into = self._room[1 + len(kept)][: len(order) * how.width].view(above.dtype)
                kept.append(np.take(above, order, out=into, mode="clip"))
        of_rank = np.flatnonzero((found["role"] == self._texts["role"].get("rank", -1))[order])
        among = np.searchsorted(of_rank, edges).tolist()
        pieces, begin = [], self._file.end
        for number, (low, high), (first, last) in zip(numbers, pairwise(edges), pairwise(among), strict=True):
            of = of_rank[first:last]
            of_ranks = (int(of[0]) - low, int(of[-1]) + 1 - low) if len(of) else (0, 0)
            size = (high - low) * before
            self._blocks[number].append(_Block(begin, size, high - low, of_ranks, columns))
            pieces += [column[low:high] for column in kept]
            begin += size
        self._file.append(pieces)

    def table(self, number: int, columns: Sequence[str], *, of_ranks: bool = False) -> pa.Table:
        """A slice, with these columns or all; ``of_ranks`` leaves out most of the spans that no rank has."""
        import pyarrow as pa

        columns = columns or [*self._kinds]
        blocks = [(block, *(block.of_ranks if of_ranks else (0, block.many))) for block in self._blocks[number]]
        many, at = sum(high - low for _, low, high in blocks), 0
        needed = dict.fromkeys((*columns, *(_PLACE if any(name in _BATCHES for name in columns) else ())))
        found = {name: np.empty(many, self._kinds[name]) for name in needed}
        room = np.empty(max((block.size for block, _, _ in blocks), default=0), np.uint8)
        for block, low, high in blocks:
            if low < high:
                self._widen(block, low, high, room, {name: into[at : at + high - low] for name, into in found.items()})
                at += high - low
        arrays = {}
        for name in columns:
            arrays[name] = column = numbers(found[name])
            if name in self._texts:  # whose numbers are known to be in the list
                arrays[name] = pa.DictionaryArray.from_arrays(column, texts(self._texts[name]), safe=False)
        return pa.table(arrays)

    def _widen(
        self, block: _Block, low: int, high: int, room: NDArray[np.uint8], into: Mapping[str, NDArray[Any]]
    ) -> None:
        """Fill columns with the spans of a block, from one on up to another."""
        columns = [(*block.columns[name], column) for name, column in into.items()]
        first = min(before for _, before, _ in columns) * block.many
        read = room[: max(before + how.width for how, before, _ in columns) * block.many - first]
        self._file.read(read.data, block.begin + first)
        for how, before, column in columns:
            begin = before * block.many - first
            above = read[begin + low * how.width : begin + high * how.width].view(_UNSIGNED[how.width])
            how.widened(above, column)
        for name, none in _BATCHES.items():
            if name in into and block.columns[name][0].is_own:
                has_own = into[name] == 1
                into[name][...] = none
                into[name][has_own] = batch_ids(*(into[one][has_own] for one in _PLACE))

    def _numbers(self, name: str, column: pa.ChunkedArray) -> NDArray[Any]:
        """Number the texts of a column, in the order in which they came up."""
        known, parts = self._texts[name], [np.zeros(0, np.int32)]
        for chunk in column.chunks:
            numbers = [known.setdefault(text, len(known)) for text in chunk.dictionary.to_pylist()]
            codes = plain(chunk.indices)
            parts.append(codes if numbers == [*range(len(numbers))] else np.array([*numbers, 0], np.int32)[codes])
        return parts[1] if len(parts) == 2 else np.concatenate(parts)

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


def _narrow(values: NDArray[Any], own: NDArray[np.int64], none: int | None) -> tuple[Narrow, NDArray[Any]]:
    """Say how a column is kept, and what of it: where it has spans' own batches, and else ``none``, or its values."""
    if none is not None:
        is_own = values == own
        if (is_own | (values == none)).all():
            return Narrow.of(int(is_own.min()), int(is_own.max()))._replace(is_own=True), is_own.view(np.uint8)
    return Narrow.of(int(values.min()), int(values.max())), values


def _by_slice(
    where: NDArray[np.uint16], again: NDArray[np.int64], number: int
) -> tuple[NDArray[np.int64], list[int], list[int]]:
    """The order in which spans lie by slices, and then some of them ``again`` as the slice of a ``number``.

    With it the slices that there are, and where in that order each begins, and at last its end.
    """
    first = np.flatnonzero(np.append(True, where[1:] != where[:-1]))
    runs = np.argsort(where[first], kind="stable")
    length = np.diff(first, append=len(where))[runs]
    begin = np.cumsum(length) - length
    order = np.empty(len(where) + len(again), np.int64)
    order[: len(where)] = np.repeat(first[runs] - begin, length)
    order[: len(where)] += np.arange(len(where))
    order[len(where) :] = again
    numbers, at = np.unique(where[first[runs]], return_index=True)
    there, edges = numbers.tolist(), begin[at].tolist()
    return order, there + [number] * (len(again) > 0), edges + [len(where)] * (len(again) > 0) + [len(order)]
