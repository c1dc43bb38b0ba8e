"""Spans made by hand, for tests of the numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rayio.analyze import metrics
from rayio.analyze.access import Accesses
from rayio.analyze.arrays import RunInSlices
from rayio.analyze.passes import summed
from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import timeline
from rayio.place import batch_id
from rayio.records.metric_names import HEADLINE
from rayio.records.run_result import Percentiles, RunResult, Seconds, Shares
from rayio.report.text.remarks import noted, sentences
from rayio.trace.recorder import Recorder
from rayio.trace.slices import Slices
from rayio.trace.span import FOREIGN_LANE, schema


class Trace:
    """Spans made by hand; times in ns after ``origin``."""

    def __init__(self, origin: int = 0) -> None:
        self.origin = origin
        self.recorder = Recorder()

    def add(self, role: str, name: str, start: int, end: int, lane: int = 0, *, nbytes: int = 0, **place: int) -> None:
        writer = self.recorder.register(role, str(place.get("rank", 0)), 0)
        link = batch_id(place["rank"], place["epoch"], place["step"]) if name == "data_wait" else 0
        self.recorder.add(
            writer, name, self.origin + start, self.origin + end, lane,
            place.get("rank", -1), place.get("epoch", -1), place.get("step", -1), place.get("attempt", 0), nbytes,
            0, 0, link,
        )  # fmt: skip

    def rank(
        self, rank: int, story: Iterable[tuple[str, int]], *, begin: int = 0, attempt: int = 0, step: int = 0,
        per_epoch: int = 1 << 20, life: bool = True,
    ) -> int:  # fmt: skip
        """Record phases one after the other, each with its length; ``gap`` is time with no span."""
        now, epoch = begin, 0
        step -= 1
        for name, length in story:
            if name == "data_wait":
                epoch, step = (epoch, step + 1) if step + 1 < per_epoch else (epoch + 1, 0)
            place = {"epoch": -1, "step": -1} if name == "startup" else {"epoch": epoch, "step": step}
            if name != "gap":
                self.add("rank", name, now, now + length, rank=rank, attempt=attempt, **place)
            now += length
        if life:
            self.add("rank", "life", begin, now, 1, rank=rank, attempt=attempt)
        return now

    @property
    def spans(self) -> pa.Table:
        table = self.recorder.drain()
        return schema().empty_table() if table is None else table


def with_foreign(spans: pa.Table) -> pa.Table:
    """Add to a run's spans, for each of them, a longer one of another library that has its name and its place."""
    lane = pc.add(spans["lane"], FOREIGN_LANE).cast(spans["lane"].type)
    longer = pc.multiply(spans["duration_ns"], 3)
    columns = {"lane": lane, "duration_ns": longer}
    foreign = spans
    for name, column in columns.items():
        foreign = foreign.set_column(foreign.schema.get_field_index(name), foreign.schema.field(name), column)
    return pa.concat_tables([spans, foreign])


def access_of(spans: pa.Table) -> dict[str, Any]:
    """How storage was used, from spans in any order."""
    accesses = summed(spans, Accesses(Slices.of(spans), timeline(spans)[0]))
    return {**accesses.result().as_json(), "notes": [*sentences(accesses.remarks)]}


def result(**known: Any) -> RunResult:
    """A result of which only this is known."""
    tables: dict[str, Any] = {"time": Seconds(), "share": Shares(), "percentiles": Percentiles(), "notes": ()}
    numbers: dict[str, Any] = dict.fromkeys(HEADLINE)
    return RunResult(**(numbers | tables | known))


def measure(run: RunInSlices, shape: RunShape) -> RunResult:
    """Give the result of a run, with its notes in words."""
    return noted(metrics.measure(run, shape))
