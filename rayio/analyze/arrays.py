"""What a run's numbers are made from: a few arrays, whether spans, a reader of slices or an engine yielded them.

Times are whole nanoseconds on one clock. Nothing here knows of tables: who has no spans can still fill these in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from rayio.analyze.timeline import Ints, Lives, Steps, integers, texts, timeline
from rayio.trace.arrow import rows
from rayio.trace.span import FOREIGN_LANE

if TYPE_CHECKING:
    import pyarrow as pa

#: Work that is told one by one, of readers, writers and ranks; steps have their own arrays.
TIMED = ("checkpoint", "evaluate", "read", "decode", "write", "fsync", "eval_compute", "eval_data_wait")


@dataclass(frozen=True, slots=True)
class Timed:
    """Pieces of work of one kind, in any order: whose, for which epoch, when each ended and how long it took (ns)."""

    rank: Ints
    epoch: Ints
    end: Ints
    duration: Ints

    @classmethod
    def nothing(cls) -> Timed:
        """Make one without entries."""
        return cls(*(np.empty(0, np.int64) for _ in range(4)))


@dataclass(frozen=True, slots=True)
class Reads:
    """Bytes that were read, by the number of the batch that they were for (as in :class:`Steps`); in any order."""

    batch: Ints
    nbytes: Ints


@dataclass(frozen=True, slots=True)
class RunArrays:
    """A run as arrays: one entry per rank (``lives``), per step (``steps``), per piece of work (``timed``).

    ``timed`` has the kinds of :data:`TIMED` that occurred; ``reads`` is empty where nothing was recorded of readers.
    """

    lives: Lives
    steps: Steps
    timed: Mapping[str, Timed] = field(default_factory=dict)
    reads: Reads = field(default_factory=lambda: Reads(np.empty(0, np.int64), np.empty(0, np.int64)))

    @classmethod
    def of_spans(cls, spans: pa.Table) -> RunArrays:
        """Take them out of a table of spans, in any order; those of other libraries are left out."""
        spans = own(spans).unify_dictionaries()
        lives, steps = timeline(spans)
        name = texts(spans, "name", TIMED)
        rank, epoch, batch, nbytes = (integers(spans, column) for column in ("rank", "epoch", "batch", "bytes"))
        duration = integers(spans, "duration_ns")
        end = integers(spans, "start_ns") + duration
        timed = {}
        for code, kind in enumerate(TIMED):
            chosen = np.flatnonzero(name == code)
            if len(chosen):
                timed[kind] = Timed(rank[chosen], epoch[chosen], end[chosen], duration[chosen])
        read = np.flatnonzero(name == TIMED.index("read"))
        return cls(lives, steps, timed, Reads(batch[read], nbytes[read]))

    def of(self, kind: str) -> Timed:
        """The work of one kind, timed; nothing where there was none."""
        return self.timed.get(kind) or Timed.nothing()


def own(spans: pa.Table) -> pa.Table:
    """Leave out the spans of other libraries: their names are their own."""
    is_own = integers(spans, "lane") < FOREIGN_LANE
    return spans if is_own.all() else rows(spans, is_own)
