"""How storage was used, as Darshan would print it: requests, sizes, order, files, and the time that it took.

Requests come from spans ``io.open``, ``io.read``, ``io.write`` and ``io.fsync`` (``trace.level: io``). Without them the
spans of whole batches give what they can, and the result says which level has the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.intervals import Lookup, Occupied
from rayio.analyze.part import Part
from rayio.analyze.timeline import Ints, Lives, integers, is_text, nearest_rank, texts
from rayio.records.doubts import Remark, remark
from rayio.records.explained import Access, Bandwidth, FileAccess, Moved, Operation, RankAccess
from rayio.storage.base import OPEN, READ
from rayio.trace.arrow import plain
from rayio.trace.order import order_by, sums_by
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa

#: Operations; at level ``io`` their spans are named ``io.<operation>``.
OPERATIONS = ("open", "read", "write", "fsync")

#: Upper ends of the bins of request sizes, in bytes (Darshan's), and their names.
SIZES: dict[str, int] = {
    "0-100": 100, "100-1K": 1000, "1K-10K": 10**4, "10K-100K": 10**5, "100K-1M": 10**6, "1M-4M": 4 * 10**6,
    "4M-10M": 10**7, "10M-100M": 10**8, "100M-1G": 10**9, "1G+": np.iinfo(np.int64).max,
}  # fmt: skip

#: Files and ranks listed one by one.
LISTED = 64


class Accesses:
    """A run's requests, summed up; seconds, bytes, shares from 0 to 1, None where no span records a number.

    ``sequential_share`` and ``consecutive_share`` count requests that follow another by the same role to the same file;
    ``time_share`` is the time with a request in flight over the wall time of its rank, ``exposed_share`` the part
    during which that rank did not compute. ``operations`` has a row for each operation that occurred; without spans of
    requests, ``requests`` and ``bytes`` are those that batches and checkpoint files counted.
    """

    def __init__(self, slices: Slices, lives: Lives) -> None:
        self.is_fine = any(f"io.{operation}" in slices.names for operation in OPERATIONS)
        self.columns = (*_COLUMNS, *(_OF_FILES if self.is_fine else ()))
        self.lives = lives
        self._sums = _Sums(lives)
        self._epochs = _evaluated(slices) if self.is_fine else np.empty(0, np.int64)
        self._files = _Files(self._epochs) if self.is_fine else None

    def of(self, part: Part) -> tuple[_Sums, _Files | None]:
        """Return the sums of a slice."""
        requests = Requested.of(part.spans, is_fine=self.is_fine)
        sums, files = _Sums(self.lives), _Files(self._epochs) if self.is_fine else None
        sums.take(part.spans, requests)
        if files is not None:
            files.take(part.spans, requests)
        return sums, files

    def add(self, sums: tuple[_Sums, _Files | None]) -> None:
        """Add the sums of a slice."""
        own, files = sums
        self._sums.add(own)
        if self._files is not None and files is not None:
            self._files.add(files)

    def result(self) -> Access:
        """Return the sums of all slices."""
        access = self._sums.result("io" if self.is_fine else "batch")
        return access if self._files is None else self._files.added_to(access)

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """Return a remark for each thing that the spans do not record."""
        return (remark("needs_io_level"),) if self._files is None else (*self._files.remarks,)


def _evaluated(slices: Slices) -> Ints:
    if "eval_data_wait" not in slices.names:
        return np.empty(0, np.int64)
    epochs = [
        np.unique(integers(part, "epoch")[texts(part, "name", ("eval_data_wait",)) == 0])
        for part in slices.parts("name", "epoch")
    ]
    return np.unique(np.concatenate(epochs))


#: Columns that requests are counted from, and those of single requests.
_COLUMNS = ("name", "role", "lane", "rank", "start_ns", "duration_ns", "bytes", "requests")
_OF_FILES = ("index", "epoch", "file", "offset")


@dataclass(frozen=True, slots=True)
class Requested:
    """A table of requests, or of the batches and files that they were made for.

    ``chosen`` are their rows in the table of spans.
    """

    chosen: Ints
    operation: Ints
    nbytes: Ints
    counted: Ints
    rank: Ints
    start: Ints
    length: Ints

    @classmethod
    def of(cls, spans: pa.Table, *, is_fine: bool) -> Requested:
        """Return single requests (``is_fine``) or whole batches and files of some spans."""
        if is_fine:
            names = tuple(f"io.{operation}" for operation in OPERATIONS)
            chosen = np.flatnonzero(is_text(spans, "name", *names))
        else:
            names = OPERATIONS
            is_of_rank = is_text(spans, "role", "rank")
            is_any = is_of_rank | is_text(spans, "role", "reader", "checkpoint_writer")
            is_there = plain(spans.column("lane")) == is_of_rank
            chosen = np.flatnonzero(is_any & is_there & is_text(spans, "name", *names))
        counted = np.ones(len(chosen), np.int64) if is_fine else integers(spans, "requests", chosen)
        nbytes, rank, start, length = (
            integers(spans, column, chosen) for column in ("bytes", "rank", "start_ns", "duration_ns")
        )
        return cls(chosen, texts(spans, "name", names, chosen).astype(np.int64), nbytes, counted, rank, start, length)


class _Sums:
    def __init__(self, lives: Lives) -> None:
        self.lives = lives
        listed = min(LISTED, len(lives.rank))
        self.listed = listed
        self.number, self.moved, self.length = (np.zeros(len(OPERATIONS), np.int64) for _ in range(3))
        self.occurred = np.zeros(len(OPERATIONS), np.bool_)
        #: For requests that moved something: bytes and ns of all together, and bytes per second of each.
        self.of_moving = np.zeros((len(OPERATIONS), 2), np.int64)
        self.each: list[list[NDArray[np.float64]]] = [[] for _ in OPERATIONS]
        self.used = 0
        self.total, self.hidden = (np.zeros(len(lives.rank), np.int64) for _ in range(2))
        self.by_rank = np.zeros((2, listed, len(OPERATIONS)), np.int64)

    def take(self, spans: pa.Table, requests: Requested) -> None:
        for code in range(len(OPERATIONS)):
            mine = np.flatnonzero(requests.operation == code)
            if not len(mine):
                continue
            nbytes, length = requests.nbytes[mine], requests.length[mine]
            self.occurred[code] = True
            self.number[code] += requests.counted[mine].sum()
            self.moved[code] += nbytes.sum()
            self.length[code] += length.sum()
            moving = (nbytes > 0) & (length > 0)
            nbytes, length = nbytes[moving], length[moving]
            self.of_moving[code] += (nbytes.sum(), length.sum())
            self.each[code].append(nbytes / (length / 1e9))
        self.used += int(integers(spans, "bytes", is_text(spans, "name", "data_wait", "eval_data_wait")).sum())
        self._add_time(spans, requests)
        listed = self.lives.rank[: self.listed]
        _add_operations(self.by_rank, Lookup(listed, listed).find(requests.rank), requests)

    def add(self, others: _Sums) -> None:
        for name in ("number", "moved", "length", "of_moving", "total", "hidden", "by_rank"):
            getattr(self, name)[...] += getattr(others, name)
        self.occurred |= others.occurred
        self.used += others.used
        for mine, theirs in zip(self.each, others.each, strict=True):
            mine += theirs

    def _add_time(self, spans: pa.Table, requests: Requested) -> None:
        """Add by rank the time with a request in flight, and the part of it in which the rank computed."""
        lives = self.lives
        life = Lookup(lives.rank, lives.rank).find(requests.rank)
        known = life >= 0
        life, start, end = life[known], requests.start[known], (requests.start + requests.length)[known]
        start, end = np.maximum(start, lives.first), np.minimum(end, lives.last)
        held = start < end
        busy = Occupied.union(life[held], start[held], end[held])
        lane = plain(spans.column("lane"))
        is_compute = is_text(spans, "name", "compute") & (lane == 0) | is_text(spans, "name", "eval_compute") & (
            lane == 1
        )
        computes = np.flatnonzero(is_compute & is_text(spans, "role", "rank"))
        begin = integers(spans, "start_ns", computes)
        of = Lookup(lives.rank, lives.rank).find(integers(spans, "rank", computes))
        compute = Occupied.union(of, begin, begin + integers(spans, "duration_ns", computes))
        self.total += sums_by(busy.group, busy.end - busy.start, len(self.total))
        self.hidden += sums_by(busy.group, busy.within(compute), len(self.hidden))

    def result(self, level: str) -> Access:
        lives, total, hidden = self.lives, self.total, self.hidden
        operations = {
            what: Operation(
                requests=int(self.number[code]),
                bytes=int(self.moved[code]),
                seconds=int(self.length[code]) / 1e9,
                bytes_per_second=_bandwidth(self.of_moving[code], self.each[code]),
            )
            for code, what in enumerate(OPERATIONS)
            if self.occurred[code]
        }
        read = int(self.moved[OPERATIONS.index("read")])
        every = lives.wall * len(lives.rank)
        rows = (
            RankAccess(
                rank=int(lives.rank[n]),
                wall_seconds=lives.wall / 1e9,
                io_seconds=int(total[n]) / 1e9,
                exposed_seconds=int(total[n] - hidden[n]) / 1e9,
                **_operations(self.by_rank[:, n]),
            )
            for n in range(self.listed)
        )
        return Access(
            level=level,
            operations=operations,
            read_amplification=read / self.used if self.used and read else None,
            time_share=int(total.sum()) / every if every else None,
            exposed_share=int((total - hidden).sum()) / every if every else None,
            ranks=(*rows,),
            sizes={},
        )


def _bandwidth(sums: Ints, rates: list[NDArray[np.float64]]) -> Bandwidth | None:
    """Return bytes per second from ``sums`` of bytes and ns, and nearest-rank percentiles of ``rates``."""
    if not any(map(len, rates)):
        return None
    each = np.concatenate(rates)
    places = {f"p{percent}": nearest_rank(len(each), percent) for percent in (50, 99)}
    each.partition([*places.values()])
    percentiles = {name: float(each[place]) for name, place in places.items()}
    return Bandwidth(mean=float(sums[0] / (sums[1] / 1e9)), **percentiles)


def _add_operations(sums: Ints, place: Ints, requests: Requested) -> None:
    """Add requests and bytes (the two of ``sums``) by row and operation; ``place`` is the row of each, -1 for none."""
    known = np.flatnonzero(place >= 0)
    at = (place[known], requests.operation[known])
    np.add.at(sums[0], at, requests.counted[known])
    np.add.at(sums[1], at, requests.nbytes[known])


def _operations(sums: Ints) -> dict[str, Moved]:
    return {
        OPERATIONS[code]: Moved(requests=int(sums[0, code]), bytes=int(sums[1, code]))
        for code in np.flatnonzero(sums[0])
    }


class _Files:
    """Sums that need requests with a file and an offset. ``epochs`` are those of batches of evaluations."""

    def __init__(self, epochs: Ints) -> None:
        self.epochs = epochs
        #: Requests by their size, of each operation that moves bytes and occurred.
        self.sizes: dict[str, Ints] = {}
        self.remarks: list[Remark] = []
        self.names: list[str] = []
        #: By file and operation; training's files come first, then evaluations' files of the same names.
        self.number, self.moved = (np.zeros((0, len(OPERATIONS)), np.int64) for _ in range(2))
        #: Requests that have one before them, those at its end or after it, those right at its end.
        self.followed = self.ahead = self.at_once = 0

    def take(self, spans: pa.Table, requests: Requested) -> None:
        for what in ("read", "write"):
            mine = requests.operation == OPERATIONS.index(what)
            if mine.any():
                self.sizes[what] = self.sizes.get(what, 0) + _by_size(requests.nbytes[mine])
        missing = [column for column in ("file", "offset") if column not in spans.column_names]
        if missing:
            self.remarks = [remark("no_files_in_spans", missing=" and no ".join(missing))]
            return
        files, names = _numbered(spans, "file", requests.chosen)
        self.names = names
        # The files of an evaluation's dataset have the names of training's, in another folder.
        epoch = integers(spans, "epoch")[requests.chosen]
        files = files + (np.isin(epoch, self.epochs) & np.isin(requests.operation, (OPEN, READ))) * len(names)
        place, size = files * len(OPERATIONS) + requests.operation, 2 * len(names) * len(OPERATIONS)
        if not len(self.number):
            self.number, self.moved = (np.zeros((2 * len(names), len(OPERATIONS)), np.int64) for _ in range(2))
        self.number += np.bincount(place, minlength=size).reshape(self.number.shape)
        np.add.at(self.moved.reshape(-1), place, requests.nbytes)
        who = _numbered(spans, "role", requests.chosen)[0] * (1 << 40) + _numbered(spans, "index", requests.chosen)[0]
        self._add_order(requests, who, files, integers(spans, "offset")[requests.chosen])

    def add(self, others: _Files) -> None:
        for what, sizes in others.sizes.items():
            self.sizes[what] = self.sizes.get(what, 0) + sizes
        self.remarks, self.names = others.remarks, others.names
        if len(others.number):
            if not len(self.number):
                self.number, self.moved = (np.zeros_like(others.number) for _ in range(2))
            self.number += others.number
            self.moved += others.moved
        self.followed += others.followed
        self.ahead += others.ahead
        self.at_once += others.at_once

    def _add_order(self, requests: Requested, who: Ints, files: Ints, offset: Ints) -> None:
        operation, nbytes = requests.operation, requests.nbytes
        is_move = np.isin(operation, [OPERATIONS.index("read"), OPERATIONS.index("write")])
        moves = np.flatnonzero(is_move & (offset >= 0))
        order = moves[order_by(who[moves], files[moves], operation[moves], requests.start[moves])]
        same: NDArray[np.bool_] = np.ones(max(len(order) - 1, 0), np.bool_)
        for column in (operation, files, who):
            same &= column[order][1:] == column[order][:-1]
        after, before = offset[order][1:][same], (offset + nbytes)[order][:-1][same]
        self.followed += len(after)
        self.ahead += int((after >= before).sum())
        self.at_once += int((after == before).sum())

    def added_to(self, access: Access) -> Access:
        sizes: dict[str, dict[str, int]] = {
            what: dict(zip(SIZES, self.sizes[what].tolist(), strict=True))
            for what in ("read", "write")
            if what in self.sizes
        }
        access = replace(access, sizes=sizes)
        if self.remarks:
            return access
        names = [*self.names, *(f"{name} (evaluation)" if name else "" for name in self.names)]
        is_named = np.array([bool(name) for name in names], np.bool_)
        opens = np.where(is_named, self.number[:, OPERATIONS.index("open")], 0)
        touched, moved = is_named & self.number.any(axis=1), self.moved.sum(axis=1)
        first = np.lexsort((np.arange(len(names)), -moved))
        first = first[touched[first]][:LISTED]
        opened = opens[opens > 0]
        return replace(
            access,
            sequential_share=self.ahead / self.followed if self.followed else None,
            consecutive_share=self.at_once / self.followed if self.followed else None,
            num_files=int(touched.sum()),
            opens_per_file=float(opened.mean()) if len(opened) else None,
            most_opens_of_a_file=int(opened.max()) if len(opened) else None,
            once_share=float((opened == 1).mean()) if len(opened) else None,
            files=tuple(
                FileAccess(file=names[file], **_operations(np.stack([self.number[file], self.moved[file]])))
                for file in first
            ),
        )


def _by_size(nbytes: Ints) -> Ints:
    ends = np.array([*SIZES.values()])
    counts: Ints = np.bincount(np.searchsorted(ends, nbytes, side="left"), minlength=len(ends))
    return counts


def _numbered(spans: pa.Table, column: str, chosen: Ints) -> tuple[Ints, list[str]]:
    """Return the numbers of some spans' texts, and the texts; a column of plain strings is numbered here."""
    import pyarrow as pa

    values = spans.column(column)
    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    whole = values.unify_dictionaries().combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = whole.chunk(0)
    codes: Ints = plain(whole.indices).astype(np.int64)[chosen]
    return codes, [name or "" for name in whole.dictionary.to_pylist()]
