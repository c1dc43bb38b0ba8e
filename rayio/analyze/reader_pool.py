"""Spans -> the cost and use of the nodes that came for workers (``cluster.reader_pool``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.timeline import Ints, integers, is_text
from rayio.records.scaling import PoolUse
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa

_NOBODY: Ints = np.zeros(0, np.int64)
_WORK = ("read", "decode")


class Stretch(NamedTuple):
    """A time in which the readers of a rank were the same (ns), and how many it had at the start of the run."""

    rank: int
    begin: int
    end: int
    least: int


class Pool:
    """The nodes of a run that came and went; times in ns."""

    def __init__(self, spans: Slices) -> None:
        self.is_there = bool(spans.names.get("node_start"))
        #: When each was requested, how long it took to come, and when each that came was up and gone.
        self.requested = self.came = self.up = self.gone = _NOBODY
        #: When each had gone, or its request was given up.
        self.ends = _NOBODY
        self._numbers: set[int] = set()
        #: By rank: when a reader began, and when it had read its first batch.
        self._first: dict[int, list[tuple[int, int]]] = {}
        if not self.is_there:
            return
        started, lived = spans.named("node_start"), spans.named("node_up")
        self._numbers = set(integers(started, "node").tolist())
        self.requested = integers(started, "start_ns")
        begun, lasted = integers(lived, "start_ns"), integers(lived, "duration_ns")
        self.up, self.gone = begun, begun + lasted
        self.came = integers(started, "duration_ns")
        self.ends = _ends(started, lived)
        if spans.names.get("first_batch"):
            table = spans.named("first_batch")
            since = integers(table, "start_ns")
            until = since + integers(table, "duration_ns")
            for rank, a, b in zip(integers(table, "rank").tolist(), since.tolist(), until.tolist(), strict=True):
                self._first.setdefault(rank, []).append((a, b))

    def first_batch(self, rank: int, there: int, number: int) -> int | None:
        """Return how long so many new readers of a rank took until each had read a batch; None where one did not."""
        ends = [end for begin, end in self._first.get(rank, ()) if begin == there]
        return max(ends) - there if number > 0 and len(ends) >= number else None

    def use(
        self, spans: Slices, stretches: Sequence[Stretch], length: int, capacity: Sequence[int], given_up: int
    ) -> PoolUse:
        """Return the cost and use of the nodes in a run of a length (ns); ``capacity`` has times to capacity (ns)."""
        number, own, busy = self._work(spans, stretches)
        is_traced = number > 0
        spared = sum(
            max(0.0, ns / each.least - (each.end - each.begin))
            for ns, each in zip(busy, stretches, strict=True)
            if each.least
        )
        paid = float((self.ends - self.requested).sum())
        order = np.argsort(moments := np.concatenate([self.up, self.gone]), kind="stable")
        step = np.concatenate([np.ones(len(self.up), np.int64), -np.ones(len(self.gone), np.int64)])[order]
        last = np.append(np.diff(moments[order]) > 0, True) if len(order) else np.zeros(0, bool)
        there = self.came[np.isin(self.requested + self.came, self.up)]
        return PoolUse(
            node_seconds=paid / 1e9,
            mean=paid / max(length, 1),
            most=int(np.cumsum(step)[last].max(initial=0)),
            came=len(self.requested),
            slowest_seconds=float(there.max()) / 1e9 if len(there) else None,
            capacity_seconds=max(capacity) / 1e9 if capacity else None,
            given_up=given_up,
            batches=own if is_traced else None,
            batch_share=own / number if is_traced else None,
            spared_seconds=spared / 1e9 if is_traced else None,
        )

    def _work(self, spans: Slices, stretches: Sequence[Stretch]) -> tuple[int, int, NDArray[np.float64]]:
        """Return all reads, those on these nodes, and the readers' work within each stretch (ns)."""
        number = own = 0
        busy = np.zeros(len(stretches))

        def of(_: int, table: pa.Table) -> tuple[int, int, NDArray[np.float64]]:
            is_reader = is_text(table, "role", "reader") & (integers(table, "lane") == 0)
            reads = np.flatnonzero(is_reader & is_text(table, "name", "read"))
            nodes = integers(table, "node", reads)
            is_work = np.logical_or.reduce([is_text(table, "name", name) for name in _WORK])
            chosen = np.flatnonzero(is_reader & is_work)
            rank, start = integers(table, "rank", chosen), integers(table, "start_ns", chosen)
            end = start + integers(table, "duration_ns", chosen)
            within = [
                float(np.clip(np.minimum(end, s.end) - np.maximum(start, s.begin), 0, None)[rank == s.rank].sum())
                for s in stretches
            ]
            return len(reads), int(np.isin(nodes, [*self._numbers]).sum()), np.array(within)

        columns = ("role", "name", "lane", "node", "rank", "start_ns", "duration_ns")
        for reads, on_them, within in spans.each(of, *columns):
            number, own = number + reads, own + on_them
            busy += within
        return number, own, busy


def _ends(started: pa.Table, lived: pa.Table) -> Ints:
    start, end = integers(started, "start_ns"), integers(started, "duration_ns")
    begun = integers(lived, "start_ns")
    lives = dict(
        zip(
            zip(integers(lived, "node").tolist(), begun.tolist(), strict=True),
            (begun + integers(lived, "duration_ns")).tolist(),
            strict=True,
        )
    )
    there = zip(integers(started, "node").tolist(), (start + end).tolist(), strict=True)
    return np.array([lives.get(node, node[1]) for node in there], np.int64)
