"""The output of ``rayio status`` and ``rayio doctor`` with ``--json``."""

from __future__ import annotations

from rayio.records.record import Record, record, value


@record
class JobListed(Record):
    """A job of a cluster."""

    id: str = value("id for commands")
    status: str = value("PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED")
    scenario: str | None = value("name of its scenario; null if rayio did not submit it", default=None)
    out: str | None = value("run directory as given by --out; null without", default=None)
    started: str | None = value("start in UTC; null before", default=None)
    seconds: float | None = value("time since the start, or until the end", "s", default=None)
    exit_code: int | None = value("exit code of its command; null until the end", default=None)
    message: str = value("Ray's message")


@record
class JobsListed(Record):
    """The output of ``status``."""

    address: str = value("address of the cluster's dashboard")
    jobs: tuple[JobListed, ...] = value("its jobs by start")


@record
class NodeSeen(Record):
    """A node of a Ray cluster."""

    id: str = value("Ray's node id")
    host: str = value("name of its host")
    rayio: str = value("version of rayio")
    ray: str = value("version of Ray")
    python: str = value("version of Python")
    resources: dict[str, float] = value("Ray's resources: CPU, memory (bytes) and others")
    free_bytes: int = value("free memory", "bytes")
    object_store_bytes: int = value("size of its object store", "bytes")
    clock_offset_ms: float = value("offset of its clock from this machine's", "ms")
    clock_error_ms: float = value("possible error of the offset", "ms")


@record
class Finding(Record):
    """The result of a check."""

    what: str = value("subject of the check")
    state: str = value("ok, note (worth knowing) or problem (a run would fail)")
    text: str = value("finding and remedy")


@record
class Doctored(Record):
    """The output of ``doctor``."""

    findings: tuple[Finding, ...] = value("results of all checks")
    nodes: tuple[NodeSeen, ...] = value("nodes of the cluster; none without --address", default=())
