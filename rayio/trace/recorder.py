"""Where a process keeps its spans until they are stored: packed bytes, so that a span costs well under a microsecond.

Nothing is ever dropped: ``recorded`` counts what was added, and what was drained must add up to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from struct import Struct
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rayio.place import batch_id, batch_ids
from rayio.signals import uninterrupted
from rayio.trace.arrow import coded, texts
from rayio.trace.rows import Many, Wide, columns_of, table_of, wide_columns
from rayio.trace.span import SPANS, STATUSES

if TYPE_CHECKING:
    import pyarrow as pa

#: One packed span: the fields of :meth:`Recorder.add` with names as codes, no padding.
_ROW = np.dtype(
    [
        ("start", "<i8"),
        ("end", "<i8"),
        ("bytes", "<i8"),
        ("parent", "<i8"),
        ("link", "<i8"),
        ("requests", "<i4"),
        ("writer", "<i4"),
        ("rank", "<i4"),
        ("epoch", "<i4"),
        ("step", "<i4"),
        ("attempt", "<i4"),
        ("name", "<i2"),
        ("lane", "<i2"),
        ("status", "<i2"),
    ]
)
_pack = Struct("<qqqqqiiiiiihhh").pack


class Add(Protocol):
    """Records one span of a role: its name, its times (ns), its place (rank, epoch, step, attempt), and the rest."""

    def __call__(
        self, name: str, start: int, end: int, at: tuple[int, int, int, int], lane: int = 0, nbytes: int = 0,
        requests: int = 0, link: int = 0, status: str = "ok",
    ) -> None:  # fmt: skip
        """Record it."""


class _Codes(dict[str, int]):
    """Small numbers for texts, handed out in order of appearance."""

    def __missing__(self, text: str) -> int:
        self[text] = code = len(self)
        return code


class _Writers:
    """The registered roles as columns; made again only when more have registered."""

    def __init__(self, registered: list[tuple[str, str, int, int | None]]) -> None:
        roles, indexes = _Codes(), _Codes()
        self.number = len(registered)
        self._role = np.array([roles[role] for role, *_ in registered], np.int32)
        self._index = np.array([indexes[index] for _, index, *_ in registered], np.int32)
        self._node = np.array([node for *_, node, _ in registered], np.int32)
        self._pid = np.array([-1 if pid is None else pid for *_, pid in registered], np.int32)
        #: Whether some live in a process other than the recorder's.
        self.are_elsewhere = bool((self._pid >= 0).any())
        self._roles, self._indexes = texts(roles), texts(indexes)

    def of(self, writer: NDArray[np.int32]) -> tuple[pa.Array, pa.Array, NDArray[np.int32]]:
        """The role, index and node of each of these writers."""
        role, index = coded(self._role[writer], self._roles), coded(self._index[writer], self._indexes)
        return role, index, self._node[writer]

    def pids(self, writer: NDArray[np.int32], own: NDArray[np.int32] | int) -> NDArray[np.int32]:
        """The process of each of these writers; ``own`` is what the recorder's process has for its own."""
        return np.where(self._pid[writer] >= 0, self._pid[writer], own).astype(np.int32)


class Recorder:
    """The spans of one process, in the order in which they were added.

    Threads may add while another drains. ``chunk_rows`` bounds the packed buffer: beyond it, rows become an Arrow table
    inside, which is what :meth:`drain` gives out. Times are cut down to multiples of ``resolution_ns``, so that spans
    that met still meet.
    """

    def __init__(self, chunk_rows: int = 1 << 15, resolution_ns: int = 1) -> None:
        #: What the spans say of their process; 0 on the virtual clock.
        self.pid = os.getpid()
        self.resolution_ns = resolution_ns
        self._rows = chunk_rows
        self._many: list[Many] = []
        self._wide: list[Wide] = []
        self._packed = bytearray()
        self._limit = chunk_rows * _ROW.itemsize
        self._chunks: list[pa.Table] = []
        self._drained_rows = 0
        self._writers: dict[tuple[str, str, int, int | None], int] = {}
        self._lock = Lock()
        self._described: _Writers | None = None
        self._names = _Codes({name: code for code, name in enumerate(SPANS)})
        self._statuses = _Codes({status: code for code, status in enumerate(STATUSES)})
        self._adders = self._made_adders()

    def register(self, role: str, index: str, node: int, pid: int | None = None) -> int:
        """The number under which a role adds its spans; asking again for the same role gives the same number.

        ``pid`` is the process of a role that lives elsewhere and has its spans entered here.
        """
        with self._lock:
            return self._writers.setdefault((role, index, node, pid), len(self._writers))

    def add(
        self,
        writer: int,
        name: str,
        start_ns: int,
        end_ns: int,
        lane: int = 0,
        rank: int = -1,
        epoch: int = -1,
        step: int = -1,
        attempt: int = 0,
        nbytes: int = 0,
        requests: int = 0,
        parent: int = 0,
        link: int = 0,
        status: str = "ok",
    ) -> None:
        """Record one span; arguments are positional because this runs for every span of a simulation."""
        packed = self._packed
        packed += _pack(
            start_ns,
            end_ns,
            nbytes,
            parent,
            link,
            requests,
            writer,
            rank,
            epoch,
            step,
            attempt,
            self._names[name],
            lane,
            self._statuses[status],
        )
        if len(packed) >= self._limit:
            self._spill()

    def adder(self, writer: int) -> Add:
        """What :meth:`add` does, for one role and quicker."""
        if type(self).add is Recorder.add:
            return self._adders(writer)

        def add(
            name: str, start: int, end: int, at: tuple[int, int, int, int], lane: int = 0, nbytes: int = 0,
            requests: int = 0, link: int = 0, status: str = "ok",
        ) -> None:  # fmt: skip
            self.add(writer, name, start, end, lane, *at, nbytes, requests, 0, link, status)

        return add

    def _made_adders(self) -> Callable[[int], Add]:
        """Make what makes adders: what all of them need is at hand, and there once."""
        packed, limit, names, statuses, pack = self._packed, self._limit, self._names, self._statuses, _pack

        def adder(writer: int) -> Add:
            def add(
                name: str, start: int, end: int, at: tuple[int, int, int, int], lane: int = 0, nbytes: int = 0,
                requests: int = 0, link: int = 0, status: str = "ok",
            ) -> None:  # fmt: skip
                nonlocal packed  # to be added to in place: it stays the same buffer
                rank, epoch, step, attempt = at
                packed += pack(
                    start, end, nbytes, 0, link, requests, writer, rank, epoch, step, attempt, names[name], lane,
                    statuses[status],
                )  # fmt: skip
                if len(packed) >= limit:
                    self._spill()

            return add

        return adder

    def _spill(self) -> None:
        with uninterrupted(), self._lock:
            self._take()

    def add_many(self, many: Many) -> None:
        """Record the requests of one call to storage."""
        self._many.append(many)
        if len(self._many) & 0xFF == 0:
            self._spill()

    def add_wide(self, span: Wide) -> None:
        """Record one span with every column."""
        self._wide.append(span)
        if len(self._wide) >= self._rows:
            self._spill()

    #: The number of a batch, for ``link``.
    batch_id = staticmethod(batch_id)

    @property
    def recorded(self) -> int:
        """How many spans were ever added, drained or not."""
        with self._lock:
            held = len(self._packed) // _ROW.itemsize + len(self._wide) + sum(len(one.rows) for one in self._many)
            return self._drained_rows + held

    @property
    def drained(self) -> int:
        """How many of them have been given out; after a drain with nobody adding, all."""
        with self._lock:
            return self._drained_rows - sum(map(len, self._chunks))

    def drain(self) -> pa.Table | None:
        """Every span added since the last drain, in order, or None when there is none."""
        import pyarrow as pa

        with uninterrupted(), self._lock:
            self._take()
            chunks, self._chunks = self._chunks, []
        return pa.concat_tables(chunks) if chunks else None

    def _take(self) -> None:
        """Turn what is held into tables. In place, for an `add` may hold a buffer: what it appended meanwhile stays."""
        if taken := bytes(self._packed):
            self._keep(self._columns(np.frombuffer(taken, _ROW)))
            del self._packed[: len(taken)]
        if many := self._many[:]:
            self._keep(columns_of(many))
            del self._many[: len(many)]
        if wide := self._wide[:]:
            self._keep(wide_columns(wide, self.pid))
            del self._wide[: len(wide)]

    def _keep(self, columns: dict[str, Any]) -> None:
        if number := len(columns["writer"]):
            self._chunks.append(self._table(number, columns))
            self._drained_rows += number

    def _columns(self, rows: NDArray[np.void]) -> dict[str, Any]:
        """Unpack spans that were added one by one."""
        column = {name: np.ascontiguousarray(rows[name]) for name in _ROW.names or ()}
        return column | {
            "name": coded(column["name"], self._names),
            "status": coded(column["status"], self._statuses),
        }

    def _table(self, number: int, columns: dict[str, Any]) -> pa.Table:
        if self._described is None or self._described.number < len(self._writers):
            self._described = _Writers(list(self._writers))
        role, index, node = self._described.of(columns["writer"])
        if self._described.are_elsewhere:
            columns = columns | {"pid": self._described.pids(columns["writer"], columns.get("pid", self.pid))}
        start, end = columns["start"], columns["end"]
        if self.resolution_ns > 1:
            start, end = start - start % self.resolution_ns, end - end % self.resolution_ns
        return table_of(
            number,
            {"pid": self.pid}
            | columns
            | {
                "role": role,
                "index": index,
                "node": node,
                "batch": batch_ids(columns["rank"], columns["epoch"], columns["step"]),
                "start_ns": start,
                "duration_ns": end - start,
            },
        )
