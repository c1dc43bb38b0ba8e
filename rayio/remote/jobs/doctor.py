"""Checks whether a machine and a cluster are fit for runs, with a remedy for each problem."""

from __future__ import annotations

import json
import os
import platform
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

import psutil

from rayio import storage
from rayio.engines.ray.cluster import token
from rayio.engines.ray.cluster.jobs import Jobs
from rayio.engines.ray.cluster.survey import Surveyed, survey, why_not_reached, why_not_stored
from rayio.errors import ClusterError, RayioError
from rayio.export.collectors.settings import shown
from rayio.records.clusters import Doctored, Finding, NodeSeen
from rayio.remote.jobs.submit import environment, follow
from rayio.reporter import SILENT, Reporter
from rayio.units import format_bytes
from rayio.version import __version__

#: OpenTelemetry's variable with the collector's address.
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
#: Clock offset worth a note: spans are corrected for it, other tools' logs are not.
OFFSET_MS = 10.0
#: Optional packages and their uses.
EXTRAS = {"obstore": "s3://", "torch": "loader.kind: torch", "grpc": "--grpc"}
#: Free memory below which few actors fit.
LITTLE_BYTES = 2 << 30


def here(root: str | None) -> list[Finding]:
    """Return the findings on this machine."""
    return [*_here(root), _authentication()]


def _here(root: str | None) -> list[Finding]:
    findings = [
        Finding(
            what="versions",
            state="ok",
            text=f"rayio {__version__}, Ray {version('ray')}, Python {platform.python_version()}",
        ),
        *_extras(),
        *_machine(),
    ]
    where = root or "."
    mark = _mark()
    problem = None
    try:
        storage.open(where).write(mark, lambda file: file.write(mark.encode()))
        problem = why_not_stored(where, mark, "here")
    except RayioError as error:
        problem = str(error)
    finally:
        with suppress(RayioError):
            storage.open(where).remove(mark)
    findings.append(_finding("storage", problem, f"{where} can be read and written"))
    if (endpoint := os.environ.get(ENDPOINT)) is not None:
        findings.append(_finding("collector", why_not_reached(endpoint), f"{shown(endpoint)} accepts connections"))
    return findings


def _extras() -> Iterator[Finding]:
    for name, wanted in EXTRAS.items():
        with suppress(PackageNotFoundError):
            yield Finding(
                what="extras", state="ok", text=f"{name} {version('grpcio' if name == 'grpc' else name)} ({wanted})"
            )
            continue
        yield Finding(what="extras", state="note", text=f"{name} is not installed, so {wanted} is unavailable")


def _machine() -> Iterator[Finding]:
    memory = psutil.virtual_memory()
    text = f"{os.cpu_count()} processors, {format_bytes(memory.available)} of {format_bytes(memory.total)} memory free"
    little = memory.available < LITTLE_BYTES
    yield Finding(what="machine", state="note" if little else "ok", text=text + (": few actors fit" if little else ""))
    with suppress(OSError):
        shm = psutil.disk_usage("/dev/shm")
        wanted = 0.3 * memory.total
        state = "ok" if shm.total >= wanted else "note"
        text = f"/dev/shm has {format_bytes(shm.total)}"
        if state == "note":
            text += f", but Ray's object store needs {format_bytes(wanted)}: Ray uses /tmp, which is slow"
        yield Finding(what="object store", state=state, text=text)


def _authentication() -> Finding:
    source = token.source()
    mode = os.environ.get(token.MODE)
    if source is None:
        text = f"no token is sent ({token.MODE}={mode or 'not set'})"
        return Finding(what="authentication", state="ok" if mode != "token" else "problem", text=text)
    return Finding(what="authentication", state="ok", text=f"a token is sent, from {source}")


def cluster(address: str, root: str | None) -> Doctored:
    """Return the findings on this machine and on every node of a cluster.

    Raises:
        ClusterError: the cluster is unreachable, or a node does not answer.
    """
    findings = _here(root)
    mark = _mark()
    with TemporaryDirectory(prefix="rayio-doctor-") as folder:
        try:
            if root is not None:
                with suppress(RayioError):  # already a finding
                    storage.open(root).write(mark, lambda file: file.write(mark.encode()))
            nodes = survey(address, Path(folder) / "log.txt", root=root, mark=mark, collector=os.environ.get(ENDPOINT))
        finally:
            if root is not None:
                with suppress(RayioError):
                    storage.open(root).remove(mark)
    findings.append(_authentication())  # after the survey, which follows the cluster
    return Doctored(findings=(*findings, *of_nodes(nodes, root)), nodes=tuple(map(_node_record, nodes)))


def of_nodes(nodes: Sequence[Surveyed], root: str | None) -> Iterator[Finding]:
    """Iterate over the findings on the nodes of a cluster."""
    cpus = sum(surveyed.resources.get("CPU", 0) for surveyed in nodes)
    stores = sum(surveyed.node.object_store_bytes for surveyed in nodes)
    text = f"{len(nodes)}, with {cpus:g} CPU and object stores of {format_bytes(stores)} in all"
    yield Finding(what="nodes", state="ok" if cpus else "problem", text=text + ("" if cpus else ": no room for actors"))
    ours = {"rayio": __version__, "ray": version("ray"), "python": platform.python_version()}
    for surveyed in nodes:
        name = f"{surveyed.node.host} ({surveyed.node.node_id[:8]})"
        other = [f"{what} {theirs}" for what, own in ours.items() if (theirs := getattr(surveyed.node, what)) != own]
        if other:
            text = f"{name} has {', '.join(other)}; install the driver's versions there"
            yield Finding(what="versions", state="problem", text=text)
        offset, error = surveyed.clock.ns / 1e6, surveyed.clock.error_ns / 1e6
        if abs(offset) - error > OFFSET_MS:
            text = (
                f"the clock of {name} is {offset:+.0f} ms off the driver's: spans are corrected, logs are not; use NTP"
            )
            yield Finding(what="clocks", state="note", text=text)
        if surveyed.storage is not None:
            yield Finding(what="storage", state="problem", text=f"{name}: {surveyed.storage}")
        if surveyed.collector is not None:
            yield Finding(what="collector", state="problem", text=f"{name}: {surveyed.collector}")
    worst = max((abs(surveyed.clock.ns) / 1e6 for surveyed in nodes), default=0.0)
    yield Finding(what="clocks", state="ok", text=f"at most {worst:.1f} ms off the driver's")
    if root is not None and not any(surveyed.storage for surveyed in nodes):
        yield Finding(
            what="storage", state="ok", text=f"every node reads and writes {root}, and sees the driver's files"
        )


def by_job(jobs: Jobs, root: str | None, *, pip: bool, is_installed: bool, reporter: Reporter = SILENT) -> Doctored:
    """Return the findings of ``rayio doctor`` run as a job on a cluster.

    Raises:
        ClusterError: the job failed.
    """
    command = ["python", "-m", "rayio", "doctor", "--address", "auto", "--json"]
    command += ["--root", root] if root is not None else []
    job_id = f"rayio-doctor-{token_hex(6)}"
    with TemporaryDirectory(prefix="rayio-doctor-") as folder:
        runtime_env = environment(Path(folder), job_id, pip=pip, is_installed=is_installed)
        jobs.submit(shlex.join(command), job_id, runtime_env, {"rayio": __version__}, reporter)
    ended = follow(jobs, job_id, reporter)
    begin = ended.output.rfind("\n{\n") + 1
    try:
        content, _ = json.JSONDecoder().raw_decode(ended.output[begin:].strip())
        return Doctored.of_json(content)
    except ValueError:
        raise ClusterError(f"{jobs.address}: {ended.complaint}") from None


def _finding(what: str, problem: str | None, fine: str) -> Finding:
    return Finding(what=what, state="ok" if problem is None else "problem", text=fine if problem is None else problem)


def _node_record(surveyed: Surveyed) -> NodeSeen:
    return NodeSeen(
        id=surveyed.node.node_id,
        host=surveyed.node.host,
        rayio=surveyed.node.rayio,
        ray=surveyed.node.ray,
        python=surveyed.node.python,
        resources=surveyed.resources,
        free_bytes=surveyed.node.free_bytes,
        object_store_bytes=surveyed.node.object_store_bytes,
        clock_offset_ms=surveyed.clock.ns / 1e6,
        clock_error_ms=surveyed.clock.error_ns / 1e6,
    )


def _mark() -> str:
    return f"rayio-doctor-{token_hex(6)}"
