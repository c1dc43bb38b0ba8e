"""What a run shows of its engine and its stages, gathered slice by slice: a long run is never held whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rayio.analyze.passes import Timelines
from rayio.analyze.timeline import Ints, Steps
from rayio.model.plan import Plan
from rayio.predict import observe
from rayio.predict.costs import checkpoint_ns
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa


class Shown:
    """The steps, the reads and the batches of a run that was lived by a ``plan``; each is gathered when it is asked."""

    def __init__(self, spans: pa.Table | Slices, plan: Plan) -> None:
        self.slices = Slices.of(spans)
        self.plan = plan

    @cached_property
    def steps(self) -> Steps:
        """The steps that were completed."""
        return Timelines(self.slices).steps

    @property
    def reads(self) -> observe.Reads:
        """The reads that ended well, sorted by batch."""
        return self._followed[0]

    @property
    def batches(self) -> observe.Batches:
        """The batches that went through a queue."""
        return self._followed[1]

    @cached_property
    def checkpoints(self) -> Ints:
        """How long each checkpoint took, in ns."""
        return checkpoint_ns(self.slices.named("checkpoint", "snapshot", "write", "fsync"))

    @property
    def is_bound(self) -> bool:
        """Whether the bound on bytes in flight closed a window."""
        return "memory_bound" in self.slices.names

    @cached_property
    def _followed(self) -> tuple[observe.Reads, observe.Batches]:
        plan, found = self.plan, []
        for part in self.slices.parts(*observe.OF_BATCHES):
            read = observe.reads(part)
            queued = read.of(np.full(len(read.batch), plan.loader.num_workers > 0))
            seen = observe.batches(
                part, queued, plan.queue(0).window, network=any(layer.is_of_nodes for layer in plan.layers)
            )
            found.append((read, seen))
        batches = (np.concatenate([getattr(seen, one.name) for _, seen in found]) for one in fields(observe.Batches))
        return _together([read for read, _ in found]), observe.Batches(*batches)


def reads_of(spans: pa.Table | Slices) -> observe.Reads:
    """The reads of a run that ended well, sorted by batch."""
    return _together([observe.reads(part) for part in Slices.of(spans).parts(*observe.OF_READS)])


def _together(parts: Sequence[observe.Reads]) -> observe.Reads:
    """Put the reads of slices together; slices come by rank, and batches are numbered by it."""
    reads = observe.Reads(*(np.concatenate([getattr(one, each.name) for one in parts]) for each in fields(parts[0])))
    is_sorted = bool((reads.batch[1:] >= reads.batch[:-1]).all())
    return reads if is_sorted else reads.of(np.argsort(reads.batch, kind="stable"))
