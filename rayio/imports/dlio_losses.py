"""DLIO's own AU from the records of a run, and where the points that it lacks of 100 % went."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rayio.imports.dlio_files import number
from rayio.imports.dlio_formulas import EXCLUDED
from rayio.imports.dlio_results import Block, Floats, Results
from rayio.records.run_result import Imported, ImportedEpoch, LostPoints

#: The parts of 100 % - AU, in the order of a step; the meaning is for a reader.
LOSSES = {
    "data_wait": "waiting for its own batch",
    "bookkeeping": "between the batch and the end of compute, and not compute",
    "barrier_skew": "waiting at the barrier for the slowest rank of the step",
    "first_step_wait": "the same in the first step, whose own time the formula leaves out",
    "unrecorded": "in no record: between the end of a step and the start of the next",
}


def has_barrier(block: Block) -> bool:
    """Say whether a barrier after each step fits the records: the slowest ranks' steps together fill no more time.

    DLIO of MLPerf Storage v1.0 and later has one; a run of an older one without it takes less than their sum.
    """
    return float(block.proc.max(axis=0).sum()) <= block.seconds


def _lost(block: Block) -> dict[str, Floats]:
    """Split each rank's 100 % of a block: AU and :data:`LOSSES`, which sum to 100 exactly but for rounding.

    With rank 0's length of the block, ``T = (end - start) - Σ proc[:1]`` as in :mod:`rayio.imports.dlio_formulas`.
    """
    total = block.seconds - block.proc[:, :EXCLUDED].sum(axis=1)
    slowest = block.proc.max(axis=0) if has_barrier(block) else block.proc
    skew = np.broadcast_to(slowest, block.proc.shape) - block.proc
    spent = {
        "au": block.compute[:, EXCLUDED:],
        "data_wait": block.load[:, EXCLUDED:],
        "bookkeeping": (block.proc - block.load - block.compute)[:, EXCLUDED:],
        "barrier_skew": skew[:, EXCLUDED:],
        "first_step_wait": skew[:, :EXCLUDED],
    }
    is_long = total > 0
    points: dict[str, Floats] = {
        name: np.where(is_long, 100 * seconds.sum(axis=1) / np.where(is_long, total, 1), 0.0)
        for name, seconds in spent.items()
    }
    points["unrecorded"] = 100 - np.sum([*points.values()], axis=0)
    return points


def losses(results: Results) -> list[dict[str, float]]:
    """The AU and :data:`LOSSES` of each epoch in percentage points, means over ranks; each epoch sums to 100.

    An epoch's blocks count by their steps, as in DLIO.
    """
    table = []
    for epoch in range(results.epochs):
        blocks = results.of(epoch)
        steps = sum(block.steps for block in blocks)
        lost = [(_lost(block), block.steps / steps) for block in blocks]
        table.append(
            {name: sum(float(points[name].mean()) * weight for points, weight in lost) for name in ("au", *LOSSES)}
        )
    return table


def mean_of(table: list[dict[str, float]]) -> dict[str, float]:
    """The mean over epochs of each column."""
    return {name: float(np.mean([row[name] for row in table])) for name in ("au", *LOSSES)}


def batch_size(results: Results) -> int | None:
    """Find the batch size: from the configuration, else from the ranks' throughput, by either formula of DLIO.

    MLPerf Storage v1.0 has ``steps · batch / (end - start)``, later ones ``(steps - 2) · batch / T``.
    """
    reader = results.config.get("reader", results.config.get("data_reader"))
    given = reader.get("batch_size") if isinstance(reader, Mapping) else None
    if isinstance(given, int) and not isinstance(given, bool) and 0 < given < 1 << 31:
        return given
    block = max(results.blocks, key=lambda one: one.steps)
    rate = float(np.median(block.throughput))
    shorter = block.seconds - float(np.median(block.proc[:, 0]))
    for steps, seconds in ((block.steps, block.seconds), (block.steps - 2, shorter)):
        size = rate * seconds / steps if steps > 0 and np.isfinite(rate) else 0.0
        if round(size) > 0 and abs(size - round(size)) < 0.01 * size:
            return round(size)
    return None


def explained(results: Results) -> Imported:
    """The part of a result that says what was published, what the records give, and where the rest went."""
    table = losses(results)
    published = results.published.get("train_au_percentage")
    mean = mean_of(table)
    return Imported(
        au=mean["au"],
        published_au=number(results.published.get("train_au_mean_percentage")),
        lost_points=LostPoints(**{name: mean[name] for name in LOSSES}),
        epochs=tuple(
            ImportedEpoch(
                epoch=place,
                **row,
                published_au=float(published[place - 1]) if isinstance(published, list) else None,
                seconds=sum(block.seconds for block in results.of(place - 1)),
            )
            for place, row in enumerate(table, 1)
        ),
    )


def largest(told: Imported) -> tuple[str, float, str] | None:
    """The loss that took most of the points that AU lacks of 100: its name, its points, what it is; None unknown."""
    if told.lost_points is None:
        return None
    name = max(LOSSES, key=lambda one: getattr(told.lost_points, one))
    points: float = getattr(told.lost_points, name)
    return (name, points, LOSSES[name]) if points > 0 else None


def in_words(told: Imported) -> str:
    """Say in a sentence or two how the time of imported results was split, by their own benchmark's formula."""
    if told.reduced is not None or told.lost_points is None:
        return (
            f"AU {told.au:.2f} % by DLIO's formula, as published. Where the other {100 - told.au:.2f} points went is "
            "not known: no file of a rank is there."
        )
    said = f"AU {told.au:.2f} % by DLIO's formula"
    if (most := largest(told)) is None:
        return f"{said}."
    name, points, meaning = most
    said += f"; of the {100 - told.au:.2f} points that it lacks, {points:.2f} are {name}, {meaning}."
    if name != "data_wait":
        said += f" Exposed data loading, data_wait, is {told.lost_points.data_wait:.2f} points."
    return said
