"""Exposed data loading by stage while a run goes, a few seconds late, from the spans that have arrived.

Waits are charged as in ``rayio explain`` (``stages.cut``), over the spans that a wait may go back to: those of batches
that no rank has got yet, and of the last seconds. The sum is the data wait of all completed steps.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.delays import ATTRIBUTES
from rayio.analyze.part import COLUMNS, Part
from rayio.analyze.stages import STAGES, cut
from rayio.analyze.timeline import Ints, integers, is_text
from rayio.trace.arrow import plain, rows

if TYPE_CHECKING:
    import pyarrow as pa

#: Seconds between two looks at the spans; and after which all spans of a step have come in.
EVERY_SECONDS, LATE_SECONDS = 5.0, 2.0
#: Seconds for which spans are kept that a wait may go back to, and those of batches that no rank gets.
BACK_SECONDS, KEPT_SECONDS = 10.0, 120.0
#: Most spans that are charged together; beyond that, some ranks stand for all.
MOST_ROWS = 1 << 16

_NAMES = (
    "startup", "restore", "gap", "data_wait", "device_copy", "bubble", "compute", "sync", "drain_wait", "checkpoint",
    "evaluate",
    "life", "lease", "transfer", "memory_bound", "open", "read", "retry", "decode", "put", "overshoot", "lost", "delay",
    "pin",
)  # fmt: skip


class Waits:
    """Data wait by stage, step by step as they complete. ``payload``: batches carry their bytes."""

    def __init__(self, *, payload: bool, most_rows: int = MOST_ROWS) -> None:
        self.payload = payload
        self.most_rows = most_rows
        self.ns = Counter[str](dict.fromkeys(STAGES, 0))
        self._new: list[pa.Table] = []
        self._held: pa.Table | None = None
        #: The time up to which steps are charged, and the last one that is, by rank: (epoch, step) as one number.
        self._until = -(1 << 62)
        self._last = np.full(0, -1, np.int64)
        self._turn = 0

    def add(self, table: pa.Table) -> None:
        """Add spans."""
        self._new.append(table)

    def charge(self, until: int) -> None:
        """Charge the steps whose compute was over before a time (ns), whose spans have all come in."""
        import pyarrow as pa

        wanted = [rows(table, is_text(table, "name", *_NAMES)).select([*COLUMNS, ATTRIBUTES]) for table in self._new]
        self._new = []
        if self._held is not None:
            wanted.insert(0, self._held)
        if not wanted:
            return
        spans = pa.concat_tables(wanted).unify_dictionaries()
        seen, share = self._some(spans)
        part = Part(seen)
        lives, steps = part.timed
        mine = (steps.computed > self._until) & (steps.computed <= until)
        if mine.any():
            for stage, ns in cut(part, payload=self.payload).items():
                self.ns[stage] += int(ns[mine].sum()) * share
            rank = lives.rank[steps.life[mine]]
            self._note(rank, _place(steps.epoch[mine], steps.step[mine]))
        self._until = until
        self._held = rows(spans, self._wanted(spans))

    @property
    def seconds(self) -> dict[str, float]:
        """Return seconds by stage, without stages in which no rank waited."""
        return {stage: ns / 1e9 for stage, ns in self.ns.items() if ns}

    def _some(self, spans: pa.Table) -> tuple[pa.Table, int]:
        """Return the spans of some ranks, others each time, and for how many ranks each of them stands."""
        share = -(-len(spans) // self.most_rows)
        if share <= 1:
            return spans, 1
        rank = integers(spans, "rank")
        share = min(share, int(rank.max(initial=0)) + 1)
        self._turn += 1
        return rows(spans, (rank < 0) | (rank % share == self._turn % share)), share

    def _note(self, rank: Ints, place: Ints) -> None:
        if (more := int(rank.max()) + 1 - len(self._last)) > 0:
            self._last = np.append(self._last, np.full(more, -1, np.int64))
        np.maximum.at(self._last, rank, place)

    def _wanted(self, spans: pa.Table) -> NDArray[np.bool_]:
        rank, over = integers(spans, "rank"), integers(spans, "start_ns") + integers(spans, "duration_ns")
        place = _place(integers(spans, "epoch"), integers(spans, "step"))
        last = np.append(self._last, -1)[np.where(rank < len(self._last), rank, -1)]
        is_recent = over > self._until - round(BACK_SECONDS * 1e9)
        is_open = (place > last) & (plain(spans["step"]) >= 0) & (over > self._until - round(KEPT_SECONDS * 1e9))
        return is_recent | is_open


def _place(epoch: Ints, step: Ints) -> Ints:
    return (epoch << 32) | step
