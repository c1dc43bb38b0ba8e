"""A scenario packed, submitted to a cluster as a job, and followed until it is over."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

from rayio import __version__
from rayio.engines.ray.cluster.jobs import Jobs, JobState
from rayio.errors import ClusterError, RayioError, ScenarioError
from rayio.records.answers import Ran
from rayio.records.record import DamagedRecordError
from rayio.records.running import LIVE_VARIABLE
from rayio.remote.jobs.wheel import requirements, write_wheel
from rayio.reporter import SILENT, Reporter
from rayio.scenario import checks
from rayio.scenario.load import load
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.session.dataset import paths_of
from rayio.storage.address import is_absolute, parent

#: Name of the scenario in the folder that is packed.
SCENARIO = "scenario.yaml"
#: Seconds between two questions how a job is: the first ones, and the longest.
FIRST_SECONDS, LONGEST_SECONDS = 0.2, 2.0
#: Seconds that a job which is stopped gets to write its results (Ray's own: 3), and that it is waited for.
STOP_SECONDS, STOPPED_SECONDS = 60, 75.0
#: Lines of a job's output that are worth showing where nothing else says why it failed.
LAST_LINES = 12


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that is over: what its run came to where it printed that, and all it printed."""

    job: JobState
    ran: Ran | None
    output: str

    @property
    def exit_code(self) -> int:
        """The command's exit code; 2 where it never began, 130 where it was stopped."""
        if self.job.exit_code is not None and self.job.exit_code >= 0:
            return self.job.exit_code
        return 130 if self.job.status == "STOPPED" else 0 if self.job.status == "SUCCEEDED" else 2

    @property
    def complaint(self) -> str:
        """One line on why it failed."""
        said = [line.removeprefix("rayio: ") for line in self.output.splitlines() if line.startswith("rayio: ")]
        lines = [line for line in self.output.splitlines() if line.strip()]
        if self.job.exit_code is None:
            return " ".join(self.job.message.split()) or f"the job {self.job.id} is {self.job.status}"
        if lines and (missing := _missing(lines[-1])) is not None:
            return missing
        return said[-1] if said else lines[-1] if lines else f"the job ended with exit code {self.job.exit_code}"


@dataclass(frozen=True, slots=True)
class Packed:
    """What is submitted: a command, and the folder and wheel that it needs."""

    entrypoint: str
    runtime_env: dict[str, Any]
    metadata: dict[str, str]


def pack(
    folder: Path, scenario: Scenario, *, out: str | None, root: str | None, pip: bool, is_installed: bool
) -> Packed:
    """Put into a folder what a scenario's run needs on a cluster; ``root`` is where its relative paths start.

    Raises:
        ScenarioError: paths that mean nothing on the cluster.
    """
    root = root_of(scenario, out, root)
    files = folder / "files"
    files.mkdir()
    (files / SCENARIO).write_text(to_yaml(scenario), encoding="utf-8")
    command = ["python", "-m", "rayio", "run", SCENARIO, "--json", "--root", root]
    command += ["--out", out] if out is not None else []
    metadata = {"rayio": __version__, "scenario": scenario.name, **({"out": out} if out is not None else {})}
    return Packed(shlex.join(command), environment(folder, files, pip=pip, is_installed=is_installed), metadata)


def environment(folder: Path, files: Path, *, pip: bool, is_installed: bool) -> dict[str, Any]:
    """The runtime environment of a job: a folder, this rayio as a wheel, and time to end when it is stopped."""
    found: dict[str, Any] = {
        "working_dir": str(files),
        "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS), LIVE_VARIABLE: "1"},
    }
    if not is_installed:
        found["py_modules"] = [str(write_wheel(folder))]
    if pip:
        found["pip"] = requirements()
    return found


def root_of(scenario: Scenario, out: str | None, root: str | None) -> str:
    """Where relative paths start on the cluster: what was asked for, or the folder of ``--out``.

    Raises:
        ScenarioError: neither means the same on every machine.
    """
    if root is not None:
        if not is_absolute(root):
            raise ScenarioError(
                f"--root {root} is relative, and a job's working directory on the cluster is a cache that is removed; "
                "give a path that all its nodes share, or an address such as s3://BUCKET/PREFIX"
            )
        return root
    if out is not None and is_absolute(out):
        return parent(out)
    relative = [path for path in paths_of(scenario) if not is_absolute(path)]
    what = f"{relative[0]} is relative" if relative else "the run directory is relative"
    raise ScenarioError(
        f"{what}, and a job's working directory on the cluster is a cache that is removed; give --root or --out: "
        "a path that all its nodes share, or an address such as s3://BUCKET/PREFIX"
    )


def submit(
    source: str,
    overrides: Sequence[str],
    *,
    address: str,
    out: str | None = None,
    root: str | None = None,
    pip: bool = False,
    is_installed: bool = False,
    reporter: Reporter = SILENT,
) -> tuple[Jobs, str]:
    """Submit a scenario's run to the cluster whose dashboard is at ``address``; return its jobs and this one's id.

    Everything that can be known of the scenario is checked before anybody is asked.

    Raises:
        RayioError: the scenario cannot be, or the cluster does not take it.
    """
    scenario = load(source, overrides)
    if scenario.dataset.is_modelled:
        checks.check_simulated(scenario)
    with TemporaryDirectory(prefix="rayio-submit-") as folder:
        packed = pack(Path(folder), scenario, out=out, root=root, pip=pip, is_installed=is_installed)
        job_id = f"rayio-{token_hex(6)}"
        jobs = Jobs(address)
        jobs.submit(packed.entrypoint, job_id, packed.runtime_env, packed.metadata)
    reporter.say(f"submitted {scenario.name} as {job_id}")
    return jobs, job_id


def follow(jobs: Jobs, job_id: str, reporter: Reporter = SILENT) -> Ended:
    """Wait until a job is over; its status is asked for, with growing pauses, and its output once at the end.

    An interrupt stops the job, which then writes its results, and is raised again when it is over.

    Raises:
        ClusterError: the cluster does not answer any more.
    """
    try:
        job = _wait(jobs, job_id, reporter)
    except KeyboardInterrupt:
        reporter.done()
        reporter.say(f"stopping {job_id}, which writes what it has; again to leave it alone")
        with suppress(RayioError):
            jobs.stop(job_id)
            _wait(jobs, job_id, reporter, STOPPED_SECONDS)
        raise
    reporter.done()
    output = jobs.output(job_id)
    return Ended(job, ran_in(output), output)


def _wait(jobs: Jobs, job_id: str, reporter: Reporter, seconds: float = float("inf")) -> JobState:
    began, pause, quiet = time.monotonic(), FIRST_SECONDS, Event()
    while not (job := jobs.state(job_id)).is_over:
        gone = time.monotonic() - began
        if gone > seconds:
            raise ClusterError(f"{job_id} is not over after {seconds:.0f} s; rayio stop {job_id} asks again")
        reporter.live(f"{job_id}: {job.status.lower()}" + (f", {gone:.0f} s" if gone >= 1 else ""))
        quiet.wait(pause)
        pause = min(LONGEST_SECONDS, pause * 1.2)
    return job


def ran_in(output: str) -> Ran | None:
    """What a run printed with ``--json`` at the end of its job's output; None where it came to none.

    >>> ran_in("rayio: interrupted") is None
    True
    """
    begin = output.rfind("\n{\n") + 1 if "\n{\n" in output else 0
    with suppress(ValueError, DamagedRecordError):
        found, _ = json.JSONDecoder().raw_decode(output[begin:].strip())
        return Ran.of_json(found)
    return None


def _missing(line: str) -> str | None:
    """What to do where a module is missing on the cluster."""
    if not line.startswith("ModuleNotFoundError: No module named "):
        return None
    name = line.split("'")[1]
    return (
        f"the cluster's Python has no {name}: use an image that has rayio (k8s/Dockerfile), install what rayio needs "
        "there, or have Ray do so for this job with --pip"
    )
