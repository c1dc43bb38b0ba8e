"""The throughput of checkpoints, written or read back; part of ``result.json``."""

from __future__ import annotations

from rayio.records.hosts import Fetched
from rayio.records.record import Record, record, value


@record
class Transfers(Record):
    """The checkpoints that a run wrote, or read back: what storage gave, without the comparing of bytes."""

    checkpoints: int = value("checkpoints", "things")
    files: int | None = value("files of all of them; null if unknown, in imported results", "things")
    bytes: int = value("bytes of all of them", "bytes")
    seconds: float = value(
        "from the first request of a checkpoint on any rank to the last file of all ranks, durable if written; sum of "
        "all checkpoints; in imported results without files of all ranks, the time of rank 0",
        "s",
    )
    mib_per_second: float | None = value("by wall clock: bytes over seconds", "MiB/s")
    slowest_rank: float | None = value(
        "the slowest rank: its bytes over the time of its files, from the first request to the last", "MiB/s"
    )
    mean_rank: float | None = value("mean over ranks with files", "MiB/s")
    fastest_rank: float | None = value("the fastest rank", "MiB/s")
    fetched: Fetched | None = value("sources of the bytes read back from real storage", can_be_absent=True)
