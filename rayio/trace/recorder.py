"""The recorder of a process's spans, as packed bytes until they are stored: well under a microsecond a span.

No span is dropped: ``recorded`` counts all added ones, and all drained ones must add up to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import islice
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

#: A packed span: the fields of :meth:`Recorder.add`, names as codes, no padding.
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
    """A function that records a span of one role: name, times (ns), place (rank, epoch, step, attempt), and more."""

    def __call__(
        self, name: str, start: int, end: int, at: tuple[int, int, int, int], lane: int = 0, nbytes: int = 0,
        requests: int = 0, link: int = 0, status: str = "ok",
    ) -> None:  # fmt: skip
        """Record it."""


class _Codes(dict[str, int]):
    _texts: pa.Array | None = None

    def __missing__(self, text: str) -> int:
        self[text] = code = len(self)
        return code

    @property
    def texts(self) -> pa.Array:
        """Return the texts as a column, made again only after a new one; another thread may add one meanwhile."""
        known = self._texts
        if known is None or len(known) != len(self):
            known = self._texts = texts(self)
        return known


class _Writers:
    """The registered roles as columns; extended when more roles register."""

    def __init__(self) -> None:
        self._role_codes, self._index_codes = _Codes(), _Codes()
        self.number = 0
        self._role, self._index, self._node, self._pid = (np.zeros(0, np.int32) for _ in range(4))

    def extend(self, registered: Iterable[tuple[str, str, int, int | None]]) -> None:
        """Add the roles that registered since the last call; ``registered`` are all."""
        new = [*islice(registered, self.number, None)]
        self.number += len(new)
        roles, indexes = self._role_codes, self._index_codes
        self._role = _appended(self._role, [roles[role] for role, *_ in new])
        self._index = _appended(self._index, [indexes[index] for _, index, *_ in new])
        self._node = _appended(self._node, [node for *_, node, _ in new])
        self._pid = _appended(self._pid, [-1 if pid is None else pid for *_, pid in new])
        #: True if a role is in another process than the recorder.
        self.are_elsewhere = bool((self._pid >= 0).any())
        self._roles, self._indexes = texts(roles), texts(indexes)

    def of(self, writer: NDArray[np.int32]) -> tuple[pa.Array, pa.Array, NDArray[np.int32]]:
        role, index = coded(self._role[writer], self._roles), coded(self._index[writer], self._indexes)
        return role, index, self._node[writer]

    def pids(self, writer: NDArray[np.int32], own: NDArray[np.int32] | int) -> NDArray[np.int32]:
        return np.where(self._pid[writer] >= 0, self._pid[writer], own).astype(np.int32)


def _appended(column: NDArray[np.int32], values: list[int]) -> NDArray[np.int32]:
    return np.concatenate([column, np.array(values, np.int32)])


class Recorder:
    """The spans of one process, in the order in which they were added.

    Threads may add while another drains. After ``chunk_rows`` packed rows the recorder converts them to an Arrow table.
    Times are rounded down to multiples of ``resolution_ns``, so adjacent spans stay adjacent.
    """

    def __init__(self, chunk_rows: int = 1 << 15, resolution_ns: int = 1) -> None:
        #: The process id in the spans; 0 on the virtual clock.
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
        self._described = _Writers()
        self._names = _Codes({name: code for code, name in enumerate(SPANS)})
        self._statuses = _Codes({status: code for code, status in enumerate(STATUSES)})
        self._adders = self._made_adders()

    def register(self, role: str, index: str, node: int, pid: int | None = None) -> int:
        """Return the number under which a role adds its spans; the same for each call with the same role.

        ``pid`` is the role's process, if it is not the recorder's.
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
        """Record a span; positional arguments, because a simulation calls this for every span."""
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
        """Return a faster :meth:`add` for one role."""
        if type(self).add is Recorder.add:
            return self._adders(writer)

        def add(
            name: str, start: int, end: int, at: tuple[int, int, int, int], lane: int = 0, nbytes: int = 0,
            requests: int = 0, link: int = 0, status: str = "ok",
        ) -> None:  # fmt: skip
            self.add(writer, name, start, end, lane, *at, nbytes, requests, 0, link, status)

        return add

    def _made_adders(self) -> Callable[[int], Add]:
        """Return the factory of adders; it binds everything that they share."""
        packed, limit, names, statuses, pack = self._packed, self._limit, self._names, self._statuses, _pack

        def adder(writer: int) -> Add:
            def add(
                name: str, start: int, end: int, at: tuple[int, int, int, int], lane: int = 0, nbytes: int = 0,
                requests: int = 0, link: int = 0, status: str = "ok",
            ) -> None:  # fmt: skip
                nonlocal packed  # appended to in place: it stays the same buffer
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
        """Record a span with every column."""
        self._wide.append(span)
        if len(self._wide) >= self._rows:
            self._spill()

    #: The number of a batch, for ``link``.
    batch_id = staticmethod(batch_id)

    @property
    def recorded(self) -> int:
        """The number of spans added, drained or not."""
        with self._lock:
            buffered = len(self._packed) // _ROW.itemsize + len(self._wide) + sum(len(many.rows) for many in self._many)
            return self._drained_rows + buffered

    @property
    def drained(self) -> int:
        """The number of drained spans; after a drain without concurrent adds, equal to ``recorded``."""
        with self._lock:
            return self._drained_rows - sum(map(len, self._chunks))

    def drain(self) -> pa.Table | None:
        """Return all spans added since the last drain, in order; None if there are none."""
        import pyarrow as pa

        with uninterrupted(), self._lock:
            self._take()
            chunks, self._chunks = self._chunks, []
        return pa.concat_tables(chunks) if chunks else None

    def _take(self) -> None:
        """Convert the buffers to tables, in place: a concurrent `add` may append to a buffer meanwhile."""
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
        column = {name: np.ascontiguousarray(rows[name]) for name in _ROW.names or ()}
        return column | {
            "name": coded(column["name"], self._names.texts),
            "status": coded(column["status"], self._statuses.texts),
        }

    def _table(self, number: int, columns: dict[str, Any]) -> pa.Table:
        if self._described.number < len(self._writers):
            self._described.extend(list(self._writers))
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
