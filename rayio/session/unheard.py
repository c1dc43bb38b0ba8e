"""The consumption of ranks that did not answer when their run ended, from their spans."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import Ints, integers, is_text
from rayio.model.ledger import Tally
from rayio.scenario import evaluation
from rayio.scenario.model import Scenario
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ("name", "rank", "step", "attempt", "bytes")


def counted_from_spans(
    tallies: Sequence[Tally], unheard: Collection[int], scenario: Scenario, spans: Slices, attempt: int
) -> tuple[str, ...]:
    """Add to the tallies of the ``unheard`` ranks the batches that their spans of an attempt have; return notes.

    A batch counts its planned samples, also those that were skipped after errors.
    """
    if not unheard:
        return ()
    silent = f"{len(unheard)} of {len(tallies)} ranks did not answer at the end"
    if scenario.trace.level == "none":
        return (f"{silent}: their samples are not counted, as trace.level=none keeps no spans",)
    phase = evaluation.phase_of(scenario)
    shapes = {"data_wait": RunShape.of(scenario)}
    if phase is not None:
        shapes["eval_data_wait"] = RunShape.of(phase)
    for part in spans.parts(*_COLUMNS):
        for name, shape in shapes.items():
            waits = np.flatnonzero(is_text(part, "name", name))
            rank = integers(part, "rank", waits)
            chosen = np.isin(rank, [*unheard]) & (integers(part, "attempt", waits) == attempt)
            _add(tallies, part, waits[chosen], shape, evaluating=name != "data_wait")
    return (f"{silent}: their samples are counted from their spans",)


def _add(tallies: Sequence[Tally], part: pa.Table, waits: Ints, shape: RunShape, *, evaluating: bool) -> None:
    """Add the batches of some waits to the tallies of their ranks, which are in the order of the ranks."""
    rank = integers(part, "rank", waits)
    samples, nbytes = shape.samples(rank, integers(part, "step", waits)), integers(part, "bytes", waits)
    for number in np.unique(rank).tolist():
        of_rank, tally = rank == number, tallies[number]
        steps, delivered = int(of_rank.sum()), int(samples[of_rank].sum())
        tally.steps += steps
        tally.samples += delivered
        tally.nbytes += int(nbytes[of_rank].sum())
        if evaluating:
            tally.evaluation_steps += steps
            tally.evaluation_samples += delivered
