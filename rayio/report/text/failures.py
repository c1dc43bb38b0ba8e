"""The failures that a run survived, in words."""

from __future__ import annotations

from rayio.records.failures import Restart, Survived
from rayio.records.run_result import RunResult
from rayio.report.text.terms import seconds
from rayio.units import format_seconds, format_share

#: Restarts that a summary lists.
MOST = 4

#: Parts of the lost time, with their meaning.
PARTS = {
    "detect": "until failures were noticed",
    "restart": "from there until all ranks began again",
    "restore": "reading checkpoints back",
    "redo": "work that was thrown away, and done again",
}


def table(survived: Survived) -> list[tuple[str, str, str]]:
    """Return the parts of the lost time: name, time of a rank, meaning. Parts without time are left out."""
    times = {name: getattr(survived, f"{name}_seconds") for name in PARTS}
    return [(name, seconds(time), PARTS[name]) for name, time in times.items() if time != 0]


def headline(survived: Survived, wall: float | None) -> str:
    """Return a sentence on the number of restarts and their cost."""
    number = survived.restarts
    text = f"{number:,} restart{'s' * (number != 1)} after failures"
    if survived.lost_share is None or wall is None:
        return text
    return f"{text} took {format_share(survived.lost_share)} of {format_seconds(wall)}"


def attempt_line(restart: Restart) -> str:
    """Return what died, when, and where the ranks went on.

    >>> attempt_line(Restart(attempt=1, cause="rank 3", at=40.0, detect_seconds=10, restart_seconds=30,
    ...     is_from_checkpoint=True, epoch=0, step=120, redone_steps=16))
    'rank 3 died after 40 s: on from the checkpoint before epoch 0, step 120; 16 steps were done again'
    """
    again = "1 step was" if restart.redone_steps == 1 else f"{restart.redone_steps:,} steps were"
    place = f"on from the checkpoint before epoch {restart.epoch}, step {restart.step}"
    place += " (from the burst tier)" * bool(restart.is_from_burst)
    if not restart.is_from_checkpoint:
        place = "again from the start"
    how = "broke off" if restart.cause == "the run" else "died"
    return f"{restart.cause} {how} after {format_seconds(restart.at)}: {place}; {again} done again"


def lines(result: RunResult) -> list[str]:
    """Return the lines of a summary; empty for a run without restarts."""
    if (survived := result.failures) is None:
        return []
    rows = [f"  {headline(survived, result.wall_seconds)} (times of a rank)"]
    rows += [f"  {name:<12}{time:>12}  {what}" for name, time, what in table(survived)]
    rows += [f"    {attempt_line(restart)}" for restart in survived.attempts[:MOST]]
    more = survived.restarts - MOST
    return [*rows, f"    and {more:,} more: see result.json"] if more > 0 else rows
