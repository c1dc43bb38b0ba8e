"""DLIO's AU from the records of a run, and the losses that make up the rest of 100 %."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rayio.imports.dlio_files import number
from rayio.imports.dlio_formulas import EXCLUDED
from rayio.imports.dlio_results import Block, Floats, Results
from rayio.imports.dlio_saved import LOAD, SAVE, checkpoint_bytes, transfers
from rayio.records.run_result import Imported, ImportedEpoch, LostPoints
from rayio.units import format_bytes, format_seconds

#: The parts of 100 % - AU in the order of a step, with their meanings.
LOSSES = {
    "data_wait": "waiting for the rank's own batch",
    "bookkeeping": "time between batch and end of compute that is not compute",
    "barrier_skew": "waiting at the barrier for the slowest rank",
    "first_step_wait": "waiting at the barrier in the first step, whose own time the formula excludes",
    "unrecorded": "unrecorded time between a step and the next",
}


def has_barrier(block: Block) -> bool:
    """Return True if the records fit a barrier after each step: the slowest steps' sum is at most the block's time.

    DLIO has a barrier since MLPerf Storage v1.0. Without one, a block takes less than that sum.
    """
    return float(block.proc.max(axis=0).sum()) <= block.seconds


def _lost(block: Block) -> dict[str, Floats]:
    """Return each rank's AU and :data:`LOSSES` of a block in percent; they sum to 100.

    ``T = (end - start) - Σ proc[:1]`` as in :mod:`rayio.imports.dlio_formulas`, with rank 0's times of the block.
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
    """Return the AU and :data:`LOSSES` of each epoch in percent, means over ranks and steps; they sum to 100."""
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
    """Return the mean over epochs of each column."""
    return {name: float(np.mean([row[name] for row in table])) for name in ("au", *LOSSES)}


def batch_size(results: Results) -> int | None:
    """Return the batch size from the configuration, else from the ranks' throughput; None if unknown.

    DLIO's throughput is ``steps · batch / (end - start)`` in MLPerf Storage v1.0, later ``(steps - 2) · batch / T``.
    """
    reader = results.config.get("reader", results.config.get("data_reader"))
    given = reader.get("batch_size") if isinstance(reader, Mapping) else None
    if isinstance(given, int) and not isinstance(given, bool) and 0 < given < 1 << 31:
        return given
    block = max(results.blocks, key=lambda block: block.steps)
    rate = float(np.median(block.throughput))
    shorter = block.seconds - float(np.median(block.proc[:, 0]))
    for steps, seconds in ((block.steps, block.seconds), (block.steps - 2, shorter)):
        size = rate * seconds / steps if steps > 0 and np.isfinite(rate) else 0.0
        if round(size) > 0 and abs(size - round(size)) < 0.01 * size:
            return round(size)
    return None


def explained(results: Results) -> Imported:
    """Return the imported part of a result: published AU, AU from the records, and losses."""
    table = losses(results)
    published = results.published.get("train_au_percentage")
    mean = mean_of(table)
    return Imported(
        au=mean["au"],
        published_au=number(results.published.get("train_au_mean_percentage")),
        lost_points=LostPoints(**{name: mean[name] for name in LOSSES}),
        checkpoint_bytes=checkpoint_bytes(results.published),
        saved=transfers(results.published, results.checkpoints, SAVE),
        restored=transfers(results.published, results.checkpoints, LOAD),
        epochs=tuple(
            ImportedEpoch(
                epoch=epoch,
                **row,
                published_au=float(published[epoch - 1]) if isinstance(published, list) else None,
                seconds=sum(block.seconds for block in results.of(epoch - 1)),
                checkpoint_seconds=_saving(results, epoch - 1),
            )
            for epoch, row in enumerate(table, 1)
        ),
    )


def _saving(results: Results, epoch: int) -> float | None:
    """Return the seconds of rank 0's checkpoints in an epoch; None without any."""
    mine = [each.seconds_of_rank_0 for each in results.checkpoints if each.epoch == epoch]
    return sum(mine) if mine else None


def largest(imported: Imported) -> tuple[str, float, str] | None:
    """Return the largest loss: name, percentage points and meaning; None if unknown."""
    if imported.lost_points is None:
        return None
    name = max(LOSSES, key=lambda loss: getattr(imported.lost_points, loss))
    points: float = getattr(imported.lost_points, name)
    return (name, points, LOSSES[name]) if points > 0 else None


def checkpoints_in_words(imported: Imported) -> str:
    """Return a sentence on the checkpoints of imported results."""
    words = []
    for does, moved in (("written", imported.saved), ("read back", imported.restored)):
        if moved is not None and moved.seconds is not None:
            rate = "" if moved.mib_per_second is None else f" ({moved.mib_per_second / 1024:.2f} GiB/s)"
            words.append(f"{does} in {format_seconds(moved.seconds)}{rate}")
    size = "" if imported.checkpoint_bytes is None else f" of {format_bytes(imported.checkpoint_bytes)}"
    return f"Checkpoints{size}, without training: {', '.join(words) or 'without times'}, on rank 0 in the mean."


def in_words(imported: Imported) -> str:
    """Return a sentence or two on the AU and the largest loss of imported results, by DLIO's formula."""
    if imported.au is None:
        return checkpoints_in_words(imported)
    if imported.reduced is not None or imported.lost_points is None:
        return (
            f"AU {imported.au:.2f} % by DLIO's formula, as published. The causes of the other "
            f"{100 - imported.au:.2f} points need files of ranks, and there are none."
        )
    text = f"AU {imported.au:.2f} % by DLIO's formula"
    if (most := largest(imported)) is None:
        return f"{text}."
    name, points, meaning = most
    text += f"; of the {100 - imported.au:.2f} points lost, {points:.2f} are {name} ({meaning})."
    if name != "data_wait":
        text += f" Exposed data loading (data_wait) is {imported.lost_points.data_wait:.2f} points."
    return text
