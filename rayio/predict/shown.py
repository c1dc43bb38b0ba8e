"""The steps, reads, batches and checkpoints of a run, gathered slice by slice."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rayio.analyze.arrays import concatenated
from rayio.analyze.passes import Timelines
from rayio.analyze.timeline import Ints, Steps
from rayio.model.plan import Plan
from rayio.predict import observe
from rayio.predict.costs import SAVING, checkpoint_ns, is_full
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa


class Shown:
    """The steps, reads and batches of a run of a ``plan``; each is gathered at its first use."""

    def __init__(self, spans: pa.Table | Slices, plan: Plan) -> None:
        self.slices = Slices.of(spans)
        self.plan = plan

    @cached_property
    def steps(self) -> Steps:
        """Return the completed steps."""
        return Timelines(self.slices).steps

    @property
    def reads(self) -> observe.Reads:
        """Return the reads that ended well, sorted by batch."""
        return self._followed[0]

    @property
    def batches(self) -> observe.Batches:
        """Return the batches that went through a queue."""
        return self._followed[1]

    @cached_property
    def checkpoints(self) -> Ints:
        """Return the length of each checkpoint, in ns; of full ones, if there are increments."""
        return checkpoint_ns(self._full(self.slices.named("checkpoint", "snapshot", *SAVING)))

    def _full(self, spans: pa.Table) -> pa.Table:
        """Return the spans of full checkpoints."""
        saved = self.plan.checkpointing
        if saved is None or saved.incremental is None:
            return spans
        return spans.filter(is_full(spans, saved.incremental.fraction))

    @property
    def is_bound(self) -> bool:
        """Return True if the bound on bytes in flight closed a window."""
        return "memory_bound" in self.slices.names

    @cached_property
    def _followed(self) -> tuple[observe.Reads, observe.Batches]:
        plan, parts = self.plan, []
        for part in self.slices.parts(*observe.OF_BATCHES):
            read = observe.reads(part)
            queued = read.of(np.full(len(read.batch), plan.loader.num_workers > 0))
            seen = observe.batches(
                part, queued, plan.queue(0).window, network=any(layer.is_of_nodes for layer in plan.layers)
            )
            parts.append((read, seen))
        return _together([read for read, _ in parts]), concatenated([seen for _, seen in parts])


def reads_of(spans: pa.Table | Slices) -> observe.Reads:
    """Return the reads of a run that ended well, sorted by batch."""
    return _together([observe.reads(part) for part in Slices.of(spans).parts(*observe.OF_READS)])


def _together(parts: Sequence[observe.Reads]) -> observe.Reads:
    reads = concatenated(parts)
    is_sorted = bool((reads.batch[1:] >= reads.batch[:-1]).all())
    return reads if is_sorted else reads.of(np.argsort(reads.batch, kind="stable"))
