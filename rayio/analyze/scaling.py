"""Spans -> the readers that came and went: how many there were when, what they cost, and AU beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.arrays import RunArrays
from rayio.analyze.timeline import Ints, integers
from rayio.results.scaling import ReaderChange, Scaling, ScalingPeriod
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa

#: Parts that a run is cut into, and changes that are listed, at most.
MOST_PERIODS, MOST_CHANGES = 60, 200


class _Change(NamedTuple):
    """One span ``scale``; times in ns."""

    rank: int
    start: int
    end: int
    before: int
    after: int
    why: str


def scaling(spans: pa.Table | Slices, run: RunArrays) -> Scaling | None:
    """Work out how a run's readers came and went; None where they did not, or no rank lived."""
    changes = _changes(Slices.of(spans))
    lives = run.lives
    if not changes or not len(lives.rank):
        return None
    begin, end = int(lives.begin.min()), int(lives.end.max())
    ends = dict(zip(lives.rank.tolist(), lives.end.tolist(), strict=True))
    paid, at_work = _Readers(changes, ends, end, is_paid=True), _Readers(changes, ends, end, is_paid=False)
    edges = np.linspace(begin, end, min(MOST_PERIODS, max(1, end - begin)) + 1)
    width = np.diff(edges)
    paid_then, worked_then = np.diff(paid.until(edges)), np.diff(at_work.until(edges))
    computed = np.diff(_until(edges, run.steps.computed - run.steps.parts["compute"], run.steps.computed))
    alive = np.diff(_until(edges, lives.begin, lives.end))
    came = [change.end - change.start for change in changes if change.after > change.before > 0]
    later = [change for change in changes if change.before > 0]
    total = float(paid.until(np.array([float(end)]))[0])
    first: dict[int, int] = {}  # a queue that is started again says once more what it has at the start
    for change in changes:
        first.setdefault(change.rank, change.start)
    counts = paid.counts(max(first.values()), min(ends.values()))  # where every rank has readers
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
            )
            for at in range(len(width)) if width[at] > 0
        ),
        changes=tuple(
            ReaderChange(
                rank=change.rank, at_seconds=(change.start - begin) / 1e9, seconds=(change.end - change.start) / 1e9,
                before=change.before, after=change.after, why=change.why,
            )
            for change in changes[:MOST_CHANGES]
        ),
    )  # fmt: skip


def _changes(spans: Slices) -> list[_Change]:
    """The changes of all ranks, by time."""
    if not spans.names.get("scale"):
        return []
    table = spans.named("scale")
    start = integers(table, "start_ns")
    end = start + integers(table, "duration_ns")
    told = [json.loads(text) for text in table["attributes"].to_pylist()]
    return [
        _Change(rank, first, last, said["from"], said["to"], said["why"])
        for rank, first, last, said in zip(
            integers(table, "rank").tolist(), start.tolist(), end.tolist(), told, strict=True
        )
    ]


class _Readers:
    """How many readers there were when: numbers that change at moments, of all ranks together.

    Paid is a reader from when it was wanted until it had gone; it is at work from when it was there until it was to go.
    A queue that was killed and started again has its first readers again.
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
        """Reader × ns before each of some moments."""
        return np.array([float((np.clip(edge - self.moment, 0, None) * self.step).sum()) for edge in edges])

    def counts(self, begin: int, end: int) -> list[int]:
        """Every number that there was from one moment until before another."""
        order = np.argsort(self.moment, kind="stable")
        moment, number = self.moment[order], np.cumsum(self.step[order])
        is_last = np.append(np.diff(moment) > 0, True)
        inside = is_last & (np.append(moment[1:], end) > begin) & (moment < end)
        return [int(one) for one in number[inside]] or [0]


def _until(edges: NDArray[np.float64], start: Ints, end: Ints) -> NDArray[np.float64]:
    """Sum up how long intervals lasted before each of some moments (ns)."""
    return np.array([float(np.clip(edge - start, 0, end - start).sum()) for edge in edges])
