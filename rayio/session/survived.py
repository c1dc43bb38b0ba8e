"""The failures of a run in its result: restarts, steps done again, and the time that was lost by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rayio.analyze.timeline import integers
from rayio.records.failures import Restart, Survived
from rayio.records.run_result import RunResult
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa

#: Restarts listed one by one in a result: the first ones.
LISTED = 64


def restoring(spans: pa.Table | Slices, world_size: int) -> Survived:
    """Return the time of a rank that later attempts took to read checkpoints back; the rest comes from restarts."""
    slices, total = Slices.of(spans), 0
    if slices.has("restore"):
        table = slices.named("restore")
        is_again = integers(table, "attempt") > 0
        total = int(integers(table, "duration_ns")[is_again].sum())
    return Survived(
        restarts=0, redone_steps=0, detect_seconds=0.0, restart_seconds=0.0,
        restore_seconds=total / 1e9 / world_size, redo_seconds=None, lost_share=None,
    )  # fmt: skip


def survived(result: RunResult, restarts: Sequence[Restart]) -> RunResult:
    """Return the result with its restarts; ``time.restart`` is what all ranks lost, ``wall_seconds`` of the last try.

    Without spans of steps (``trace.level: none``) only the last attempt has a length, and what was thrown away is
    unknown.
    """
    if not restarts:
        return replace(result, failures=None)
    wall, total = result.wall_seconds, result.time.restart
    restore = result.failures.restore_seconds if result.failures is not None else 0.0
    if result.trace is not None and result.trace.level == "none" and wall is not None:
        last = restarts[-1]
        before, wall = wall, wall + last.at + last.detect_seconds + last.restart_seconds
        if result.samples_per_second is not None:
            result = replace(result, samples_per_second=result.samples_per_second * before / wall)
    detect = sum(restart.detect_seconds for restart in restarts)
    again = sum(restart.restart_seconds for restart in restarts)
    known = detect + again + restore
    redo = None if total is None or not result.world_size else max(0.0, total / result.world_size - known)
    parts = Survived(
        restarts=len(restarts),
        redone_steps=sum(restart.redone_steps for restart in restarts),
        detect_seconds=detect,
        restart_seconds=again,
        restore_seconds=restore,
        redo_seconds=redo,
        lost_share=None if redo is None or not wall else (known + redo) / wall,
        attempts=tuple(restarts[:LISTED]),
    )
    return replace(result, failures=parts, wall_seconds=wall)
