"""Selection of steps during a run: each span is selected, left out, or waits for a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayio.export.select import picked, step_keys, times
from rayio.export.spans import Ints
from rayio.export.trace_kinds import BATCH, EVALUATED, STEP, WAITS, is_named, trace_kinds
from rayio.trace.arrow import is_text, plain

if TYPE_CHECKING:
    import pyarrow as pa

_NEVER, _EVER = np.iinfo(np.int64).max, np.iinfo(np.int64).min


class Following:
    """A selection that takes the same steps as :func:`rayio.export.select.chosen`, but during the run.

    Steps are counted in the order of their starts. A rank does one step after the other, so the order is final for all
    steps before the last one that *every* rank has reached.
    """

    def __init__(self, words: dict[str, int], world_size: int) -> None:
        self._words = words
        self._is_all = "all" in words
        #: Start of each rank's last known phase (ns); the largest integer once the rank is done.
        self._reached = np.full(world_size, _EVER)
        self._steps, self._first = np.zeros(0, np.int64), np.zeros(0, np.int64)
        #: Steps of evaluations, which are never selected.
        self._aside = np.zeros(0, np.int64)
        #: Consumed batches, and the step that consumed each.
        self._batches, self._takers = np.zeros(0, np.int64), np.zeros(0, np.int64)
        #: Steps selected so far.
        self.taken: Ints = np.zeros(0, np.int64)

    def add(self, table: pa.Table) -> None:
        """Update the known steps, the progress of ranks, and the consumers of batches from new spans."""
        if self._is_all:
            return
        steps, first, _ = times(table)
        both = np.concatenate([self._steps, steps])
        self._steps, of = np.unique(both, return_inverse=True)
        starts = np.concatenate([self._first, first])
        self._first = np.full(len(self._steps), _NEVER)
        np.minimum.at(self._first, of, starts)
        rank, lane, start = (plain(table[name]) for name in ("rank", "lane", "start_ns"))
        is_of_rank = (rank >= 0) & (rank < len(self._reached))
        phases = is_of_rank & (trace_kinds(table) == STEP) & (lane == 0)
        np.maximum.at(self._reached, rank[phases], start[phases])
        self._reached[rank[is_of_rank & is_named(table, ("life",)) & is_text(table["role"], "rank")]] = _NEVER
        keys = step_keys(table)
        self._aside = np.union1d(self._aside, keys[is_named(table, EVALUATED)])
        waits = is_named(table, WAITS)
        self._batches = np.concatenate([self._batches, plain(table["link"])[waits].astype(np.int64)])
        self._takers = np.concatenate([self._takers, keys[waits]])

    def sort(self, table: pa.Table, *, is_over: bool = False) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return two masks: spans selected and spans left out; the others wait, unless the run is over."""
        if self._is_all:
            every = np.ones(len(table), bool)
            return every, ~every
        until = _NEVER if is_over or not len(self._reached) else self._reached.min()
        is_placed = self._first < until
        steps, first = self._steps[is_placed], self._first[is_placed]
        self.taken = picked(steps, first, first, self._words)
        known = np.concatenate([steps, self._aside])
        keys, batch = step_keys(table), plain(table["batch"])
        is_batch = trace_kinds(table) == BATCH
        taken = (keys < 0) | np.isin(keys, self.taken)
        taken |= is_batch & np.isin(batch, self._batches[np.isin(self._takers, self.taken)])
        if is_over:
            return taken, ~taken
        # a batch may be consumed by another step than planned
        is_known = np.isin(keys, known) & (~is_batch | np.isin(batch, self._batches[np.isin(self._takers, known)]))
        return taken, is_known & ~taken
