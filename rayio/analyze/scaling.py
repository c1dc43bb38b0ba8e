"""Spans -> the readers that came and went: their number over time, their cost, and AU."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.arrays import RunInSlices
from rayio.analyze.reader_pool import Pool, Stretch
from rayio.analyze.timeline import Ints, integers
from rayio.records.scaling import ReaderChange, Scaling, ScalingPeriod
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa

#: Most parts that a run is cut into, and most changes that are listed.
MOST_PERIODS, MOST_CHANGES = 60, 200


class _Change(NamedTuple):
    rank: int
    start: int
    end: int
    before: int
    after: int
    why: str
    #: How long nodes took to come (ns), None where none come, and the readers that no node came for.
    nodes: int | None = None
    missed: int = 0


def scaling(spans: pa.Table | Slices, run: RunInSlices) -> Scaling | None:
    """Return how a run's readers came and went; None where they did not, or no rank lived."""
    slices = Slices.of(spans)
    changes, pool = _changes(slices), Pool(slices)
    lives = run.lives
    if not changes or not len(lives.rank):
        return None
    begin, end = int(lives.begin.min()), int(lives.end.max())
    ends = dict(zip(lives.rank.tolist(), lives.end.tolist(), strict=True))
    paid, at_work = _Readers(changes, ends, end, is_paid=True), _Readers(changes, ends, end, is_paid=False)
    edges = np.linspace(begin, end, min(MOST_PERIODS, max(1, end - begin)) + 1)
    width = np.diff(edges)
    paid_then, worked_then = np.diff(paid.until(edges)), np.diff(at_work.until(edges))
    ended, lasted = (
        np.concatenate(column)
        for column in zip(*((some.computed, some.parts["compute"]) for some in run.steps.by_slice()), strict=True)
    )
    computed = np.diff(_until(edges, ended - lasted, ended))
    alive = np.diff(_until(edges, lives.begin, lives.end))
    came = [change.end - change.start for change in changes if change.after > change.before > 0]
    later = [change for change in changes if change.before > 0 and change.before != change.after]
    # A pool without nodes has no spans of nodes, but changes that wanted some.
    has_pool = pool.is_there or any(change.nodes is not None for change in changes)
    total = float(paid.until(np.array([float(end)]))[0])
    begins = dict(zip(lives.rank.tolist(), lives.begin.tolist(), strict=True))
    firsts = [pool.first_batch(change.rank, change.end, change.after - change.before) for change in changes]
    nodes_then = np.diff(_until(edges, pool.requested, pool.ends))
    first: dict[int, int] = {}  # a restarted queue records its first readers again
    for change in changes:
        first.setdefault(change.rank, change.start)
    counts = paid.counts(max(first.values()), min(ends.values()))  # where every rank has readers
    lived = [
        Stretch(rank, *times) for rank, life in begins.items() for times in _stretches(changes, rank, life, ends[rank])
    ]
    took = [
        change.end - change.start + batch for change, batch in zip(changes, firsts, strict=True) if batch is not None
    ]
    missed = sum(change.missed for change in changes)
    used = pool.use(slices, lived, end - begin, took, missed) if has_pool else None
    return Scaling(
        reader_seconds=total / 1e9,
        mean=total / max(end - begin, 1),
        least=min(counts),
        most=max(counts),
        num_changes=len(later),
        slowest_seconds=max(came) / 1e9 if came else None,
        over_time=tuple(
            ScalingPeriod(
                begin_seconds=(float(edges[at]) - begin) / 1e9, seconds=float(width[at]) / 1e9,
                paid=float(paid_then[at] / width[at]), at_work=float(worked_then[at] / width[at]),
                au=float(computed[at] / alive[at]) if alive[at] > 0 else None,
                nodes=float(nodes_then[at] / width[at]) if has_pool else None,
            )
            for at in range(len(width)) if width[at] > 0
        ),
        changes=tuple(
            ReaderChange(
                rank=change.rank, at_seconds=(change.start - begin) / 1e9, seconds=(change.end - change.start) / 1e9,
                before=change.before, after=change.after, why=change.why,
                node_seconds=None if change.nodes is None else change.nodes / 1e9,
                first_batch_seconds=None if batch is None else batch / 1e9,
            )
            for change, batch in zip(changes[:MOST_CHANGES], firsts, strict=False)
        ),
        pool=used,
    )  # fmt: skip


def _changes(spans: Slices) -> list[_Change]:
    if not spans.names.get("scale"):
        return []
    table = spans.named("scale")
    start = integers(table, "start_ns")
    end = start + integers(table, "duration_ns")
    attributes = [json.loads(text) for text in table["attributes"].to_pylist()]
    return [
        _Change(rank, first, last, row["from"], row["to"], row["why"], *_of_pool(row))
        for rank, first, last, row in zip(
            integers(table, "rank").tolist(), start.tolist(), end.tolist(), attributes, strict=True
        )
    ]


def _stretches(changes: Sequence[_Change], rank: int, begin: int, end: int) -> list[tuple[int, int, int]]:
    """Return the times between a rank's changes: begin, end (ns), and its readers at the start of the run."""
    own = [change for change in changes if change.rank == rank]
    least = own[0].after if own else 0
    edges = [begin, *(change.end for change in own if change.before > 0), end]
    return [(first, last, least) for first, last in itertools.pairwise(edges) if last > first]


def _of_pool(attributes: Mapping[str, Any]) -> tuple[int | None, int]:
    """Return how long nodes took to come (ns), and for how many readers none came."""
    nodes = round(1e9 * attributes["nodes"]) if "nodes" in attributes else None
    return nodes, max(0, attributes.get("wanted", 0) - attributes["to"])


class _Readers:
    """The number of readers of all ranks over time.

    A reader is paid from when it was wanted until it had gone; it is at work from when it was there until it was to go.
    A queue that was killed and restarted has its first readers again.
    """

    def __init__(self, changes: Sequence[_Change], ends: dict[int, int], end: int, *, is_paid: bool) -> None:
        moments: list[tuple[int, int]] = []
        there: dict[int, int] = {}
        for change in changes:
            more = change.after > change.before
            step = change.after - there.get(change.rank, 0)
            there[change.rank] = change.after
            moments.append((change.start if more == is_paid else change.end, step))
        moments += [(ends.get(rank, end), -number) for rank, number in there.items()]
        self.moment: Ints = np.array([moment for moment, _ in moments], np.int64)
        self.step: Ints = np.array([step for _, step in moments], np.int64)

    def until(self, edges: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.array([float((np.clip(edge - self.moment, 0, None) * self.step).sum()) for edge in edges])

    def counts(self, begin: int, end: int) -> list[int]:
        order = np.argsort(self.moment, kind="stable")
        moment, number = self.moment[order], np.cumsum(self.step[order])
        is_last = np.append(np.diff(moment) > 0, True)
        inside = is_last & (np.append(moment[1:], end) > begin) & (moment < end)
        return [int(readers) for readers in number[inside]] or [0]


def _until(edges: NDArray[np.float64], start: Ints, end: Ints) -> NDArray[np.float64]:
    return np.array([float(np.clip(edge - start, 0, end - start).sum()) for edge in edges])
