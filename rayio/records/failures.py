"""Failures that a run survived, in ``result.json``."""

from __future__ import annotations

from rayio.records.record import Record, record, value


@record
class Restart(Record):
    """The death of a rank, a node or another part of a run, and where all ranks went on."""

    attempt: int = value("number of the attempt that began")
    cause: str = value("what died, in words; `the run` if it broke off and only that is known")
    at: float = value("time of the death, since the first rank's start", "s")
    detect_seconds: float = value("time until it was noticed", "s")
    restart_seconds: float = value("time from there until the ranks of the new attempt began", "s")
    is_from_checkpoint: bool = value("true if they went on from a checkpoint, false if from the start")
    is_from_burst: bool | None = value(
        "true if that checkpoint was read from the burst tier; null in results of older versions", default=None
    )
    epoch: int = value("epoch of their first step, from 0")
    step: int = value("their first step in that epoch, from 0")
    redone_steps: int = value(
        "steps that were done and are done again, of all ranks; on Ray without those of killed processes", "steps"
    )


@record
class Survived(Record):
    """The failures that a run survived, and the time that they cost: means over ranks, in seconds of wall time."""

    restarts: int = value("restarts of all ranks")
    redone_steps: int = value("steps, of all ranks, that were done again", "steps")
    detect_seconds: float = value("from failures until they were noticed", "s")
    restart_seconds: float = value("from there until the ranks began again", "s")
    restore_seconds: float = value("reading checkpoints back", "s")
    redo_seconds: float | None = value(
        "work that was thrown away, from the checkpoint to the failure; null without spans of steps", "s"
    )
    lost_share: float | None = value("the sum of these, of the wall time", "fraction")
    #: The first ones.
    attempts: tuple[Restart, ...] = value("restarts, at most the first 64", default=())
