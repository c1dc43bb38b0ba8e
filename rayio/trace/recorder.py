"""Where a process keeps its spans until they are stored: packed bytes, so that a span costs well under a microsecond.

Nothing is ever dropped: ``recorded`` counts what was added, and what was drained must add up to it.
"""

from __future__ import annotations

from struct import Struct
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayio.trace.span import COLUMNS, SPANS, STATUSES, batch_id, batch_ids, schema

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


class _Codes(dict[str, int]):
    """Small numbers for texts, handed out in order of appearance."""

    def __missing__(self, text: str) -> int:
        self[text] = code = len(self)
        return code


class _Writers:
    """The registered roles as columns; made again only when more have registered."""

    def __init__(self, registered: list[tuple[str, str, int]]) -> None:
        roles, indexes = _Codes(), _Codes()
        self.number = len(registered)
        self._role = np.array([roles[role] for role, _, _ in registered], np.int32)
        self._index = np.array([indexes[index] for _, index, _ in registered], np.int32)
        self._node = np.array([node for _, _, node in registered], np.int32)
        self._roles, self._indexes = _strings(roles), _strings(indexes)

    def of(self, writer: NDArray[np.int32]) -> tuple[pa.Array, pa.Array, NDArray[np.int32]]:
        """Give the role, index and node of each of these writers."""
        import pyarrow as pa

        role = pa.DictionaryArray.from_arrays(self._role[writer], self._roles)
        return role, pa.DictionaryArray.from_arrays(self._index[writer], self._indexes), self._node[writer]


def _strings(codes: _Codes) -> pa.Array:
    import pyarrow as pa

    return pa.array(list(codes), pa.string())


def _texts(codes: NDArray[np.int16], texts: _Codes) -> pa.Array:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(codes.astype(np.int32), _strings(texts))


class Recorder:
    """The spans of one process, in the order in which they were added.

    Threads may add while another drains. ``chunk_rows`` bounds the packed buffer: beyond it, rows become an Arrow table
    inside, which is what :meth:`drain` gives out.
    """

    def __init__(self, chunk_rows: int = 1 << 15) -> None:
        self._packed = bytearray()
        self._limit = chunk_rows * _ROW.itemsize
        self._chunks: list[pa.Table] = []
        self._drained_rows = 0
        self._writers: dict[tuple[str, str, int], int] = {}
        self._lock = Lock()
        self._described: _Writers | None = None
        self._names = _Codes({name: code for code, name in enumerate(SPANS)})
        self._statuses = _Codes({status: code for code, status in enumerate(STATUSES)})

    def register(self, role: str, index: str, node: int) -> int:
        """Give the number under which a role adds its spans; asking again for the same role gives the same number."""
        with self._lock:
            return self._writers.setdefault((role, index, node), len(self._writers))

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
            with self._lock:
                self._take()

    #: The number of a batch, for ``link``.
    batch_id = staticmethod(batch_id)

    @property
    def recorded(self) -> int:
        """How many spans were ever added, drained or not."""
        with self._lock:
            return self._drained_rows + len(self._packed) // _ROW.itemsize

    def drain(self) -> pa.Table | None:
        """Give every span added since the last drain, in order, or None when there is none."""
        import pyarrow as pa

        with self._lock:
            self._take()
            chunks, self._chunks = self._chunks, []
        return pa.concat_tables(chunks) if chunks else None

    def _take(self) -> None:
        taken = bytes(self._packed)
        if taken:
            self._chunks.append(self._table(np.frombuffer(taken, _ROW)))
            self._drained_rows += len(taken) // _ROW.itemsize
            # In place, for an `add` may hold the buffer: what it appended meanwhile stays.
            del self._packed[: len(taken)]

    def _table(self, rows: NDArray[np.void]) -> pa.Table:
        import pyarrow as pa

        if self._described is None or self._described.number < len(self._writers):
            self._described = _Writers(list(self._writers))
        column = {name: np.ascontiguousarray(rows[name]) for name in _ROW.names or ()}
        role, index, node = self._described.of(column["writer"])
        columns = {
            "name": _texts(column["name"], self._names),
            "role": role,
            "index": index,
            "node": node,
            "lane": column["lane"],
            "rank": column["rank"],
            "epoch": column["epoch"],
            "step": column["step"],
            "attempt": column["attempt"],
            "batch": batch_ids(column["rank"], column["epoch"], column["step"]),
            "start_ns": column["start"],
            "duration_ns": column["end"] - column["start"],
            "bytes": column["bytes"],
            "requests": column["requests"],
            "parent": column["parent"],
            "link": column["link"],
            "status": _texts(column["status"], self._statuses),
        }
        return pa.Table.from_arrays([pa.array(columns[name]) for name in COLUMNS], schema=schema())
