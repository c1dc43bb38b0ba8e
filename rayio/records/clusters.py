"""What ``rayio status`` and ``rayio doctor`` print with ``--json``."""

from __future__ import annotations

from dataclasses import dataclass

from rayio.records.record import Record, value


@dataclass(frozen=True, slots=True, kw_only=True)
class JobListed(Record):
    """One job of a cluster."""

    id: str = value("its name, which commands take")
    status: str = value("PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED")
    scenario: str | None = value("name of its scenario; null where it was submitted in another way", default=None)
    out: str | None = value("the run directory that was asked for; null where none was", default=None)
    started: str | None = value("when it started, in UTC; null when it has not", default=None)
    seconds: float | None = value("how long it has taken", "s", default=None)
    exit_code: int | None = value("exit code of its command; null until it has one", default=None)
    message: str = value("what Ray says of it")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsListed(Record):
    """What ``status`` prints."""

    address: str = value("address of the cluster's dashboard")
    jobs: tuple[JobListed, ...] = value("its jobs, the first that started first")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen(Record):
    """One node of a Ray cluster, as it says itself."""

    id: str = value("Ray's name of it")
    host: str = value("name of its host")
    rayio: str = value("version of rayio there")
    ray: str = value("version of Ray there")
    python: str = value("version of Python there")
    resources: dict[str, float] = value("what Ray may give away there: CPU, memory (bytes) and others")
    free_bytes: int = value("memory that is free there", "bytes")
    object_store_bytes: int = value("size of its object store", "bytes")
    clock_offset_ms: float = value("how far its clock is ahead of this one's", "ms")
    clock_error_ms: float = value("how far that may be from the truth", "ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Record):
    """One thing that was looked at."""

    what: str = value("what was looked at")
    state: str = value("ok, note (worth knowing) or problem (a run would fail)")
    text: str = value("what was found, and what to do")


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctored(Record):
    """What ``doctor`` prints."""

    findings: tuple[Finding, ...] = value("all that was looked at")
    nodes: tuple[NodeSeen, ...] = value("nodes of the cluster; none where no --address was given", default=())
