"""The failures of a run in its result: restarts, steps done again, and the time that was lost by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rayio.records.failures import Restart, Survived
from rayio.records.run_result import RunResult

#: Restarts listed one by one in a result: the first ones.
LISTED = 64


def survived(result: RunResult, restarts: Sequence[Restart]) -> RunResult:
    """Return the result with its restarts; ``time.restart`` is what all ranks lost, ``wall_seconds`` of the last try.

    Without spans of steps (``trace.level: none``) only the last attempt has a length, and what was thrown away is
    unknown.
    """
    wall, total = result.wall_seconds, result.time.restart
    if result.trace is not None and result.trace.level == "none" and wall is not None:
        last = restarts[-1]
        wall += last.at + last.detect_seconds + last.restart_seconds
    detect = sum(restart.detect_seconds for restart in restarts)
    again = sum(restart.restart_seconds for restart in restarts)
    redo = None if total is None or not result.world_size else max(0.0, total / result.world_size - detect - again)
    parts = Survived(
        restarts=len(restarts),
        redone_steps=sum(restart.redone_steps for restart in restarts),
        detect_seconds=detect,
        restart_seconds=again,
        restore_seconds=0.0,
        redo_seconds=redo,
        lost_share=None if redo is None or not wall else (detect + again + redo) / wall,
        attempts=tuple(restarts[:LISTED]),
    )
    return replace(result, failures=parts, wall_seconds=wall)
