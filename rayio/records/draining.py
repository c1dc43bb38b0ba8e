"""Checkpoints that were drained from a burst tier; part of ``result.json``."""

from __future__ import annotations

from rayio.records.record import Record, record, value


@record
class Draining(Record):
    """The checkpoints that a run drained from its burst tier to checkpoint.path."""

    checkpoints: int = value("checkpoints that are drained", "things")
    files: int = value("files of all of them", "things")
    bytes: int = value("bytes of all of them", "bytes")
    mean_seconds: float = value("mean time of a drain, from its first file's begin to its last file's end", "s")
    mean_lag: float = value("mean time from when a checkpoint was in the tier until it was drained", "s")
    longest_lag: float = value("the longest such time: a lost node may throw so much training away, and more", "s")
    most_bytes: int = value("the most bytes in the tier, of all nodes, that were not drained at one time", "bytes")
    end_seconds: float = value("the longest time that a rank waited for drains after its last step", "s")
