"""The processes of ``stages`` in ``result.json``."""

from __future__ import annotations

from rayio.records.record import Record, record, value


@record
class StageResult(Record):
    """The processes of a stage that ended, with their files and requests."""

    stage: str = value("name of the stage")
    planned: int = value("planned processes")
    processes: int = value("processes that ended")
    files_read: int = value("files read", "files")
    reads: int = value("read requests", "requests")
    read_bytes: int = value("bytes read", "bytes")
    files_written: int = value("files written", "files")
    writes: int = value("write requests", "requests")
    written_bytes: int = value("bytes written", "bytes")
    opens: int = value("opens without a read or a write", "requests", default=0)
    seconds: float | None = value("from the start of its first process to the end of its last one", "s")
    io_seconds: float | None = value("time in which at least one of its processes reads or writes", "s")
    process_seconds: float | None = value("mean life of a process", "s")
    most_at_once: int | None = value("most processes at once")


@record
class Workflow(Record):
    """The processes of all stages; times are null without spans (``trace.level: none``)."""

    processes: int = value("processes of all stages that ended")
    seconds: float | None = value("from the first start of a process or rank to the last end", "s")
    io_seconds: float | None = value(
        "time in which at least one process, worker or checkpoint writer reads or writes", "s"
    )
    io_share: float | None = value("the same, of these seconds", "fraction")
    even: bool | None = value(
        "true if every process ended, and read and wrote what was planned; null if the run failed"
    )
    differences: tuple[str, ...] = value("a sentence for each stage with a difference", default=())
    stages: tuple[StageResult, ...] = value("the stages, in the order of the scenario")
