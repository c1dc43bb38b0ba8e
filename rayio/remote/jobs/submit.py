"""Submission of a scenario to a cluster: packed, sent as a job, followed until it is over."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from threading import Event
from time import monotonic
from typing import Any, TypeVar

from rayio.engines.ray.cluster.jobs import PENDING, Jobs, JobState, SilentError
from rayio.errors import ClusterError, RayioError, ScenarioError
from rayio.records.answers import Ran
from rayio.records.record import DamagedRecordError
from rayio.records.running import LIVE_VARIABLE
from rayio.remote.jobs.package import requirements, write_package
from rayio.remote.jobs.setup_errors import why_not_set_up
from rayio.reporter import SILENT, Reporter
from rayio.scenario import checks
from rayio.scenario.load import load
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.session.dataset import paths_of
from rayio.storage.address import is_absolute, parent
from rayio.version import __version__

T = TypeVar("T")

#: Files of a job's folder: the scenario, and the job's id.
SCENARIO, JOB = "scenario.yaml", "job.txt"
#: Seconds between two queries of a job's status: at first, and at most.
FIRST_SECONDS, LONGEST_SECONDS = 0.2, 2.0
#: Seconds that a stopped job has to write its results (Ray's default: 3), and that we wait for it.
STOP_SECONDS, STOPPED_SECONDS = 60, 75.0
#: Seconds that a head may be silent while its job is followed.
SILENCE_SECONDS = 300.0
#: Seconds after which a job that has not begun is explained.
PENDING_SECONDS = 60.0
#: Lines of a job's output to show if it failed for an unknown reason.
LAST_LINES = 12


@dataclass(frozen=True, slots=True)
class Ended:
    """A finished job: its state, its run's result if printed, and its output."""

    job: JobState
    ran: Ran | None
    output: str

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 2 if the job never started, 130 if it was stopped."""
        if self.job.exit_code is not None and self.job.exit_code >= 0:
            return self.job.exit_code
        return 130 if self.job.status == "STOPPED" else 0 if self.job.status == "SUCCEEDED" else 2

    @property
    def complaint(self) -> str:
        """A line on why the job failed."""
        messages = [line.removeprefix("rayio: ") for line in self.output.splitlines() if line.startswith("rayio: ")]
        lines = [line for line in self.output.splitlines() if line.strip()]
        if self.job.exit_code is None:
            return why_not_set_up(self.job.message) or f"the job {self.job.id} is {self.job.status}"
        if lines and (missing := _missing(lines[-1])) is not None:
            return missing
        if messages or lines:
            return (messages or lines)[-1]
        return f"the job ended with exit code {self.job.exit_code}"


@dataclass(frozen=True, slots=True)
class Packed:
    """A job to submit: its id and command, and a runtime environment with its folder."""

    job_id: str

    entrypoint: str
    runtime_env: dict[str, Any]
    metadata: dict[str, str]


def pack(
    folder: Path,
    scenario: Scenario | None,
    *,
    out: str | None,
    root: str | None,
    pip: bool,
    is_installed: bool,
    resumed: str | None = None,
) -> Packed:
    """Write all that a scenario's run needs into a folder; return the job to submit.

    ``resumed`` is a run directory in which the job goes on, if its run broke off; with it, ``scenario`` may be None.

    Raises:
        ScenarioError: a path has no meaning on the cluster.
    """
    command = ["python", "-m", "rayio", "run"]
    if scenario is not None:
        command += [SCENARIO, "--root", root_of(scenario, resumed or out, root)]
    elif resumed is None or not is_absolute(resumed):
        raise ScenarioError(
            f"--resume {resumed} is relative, but Ray removes the working directory of a job; give the run's full path "
            "or address"
        )
    job_id = f"rayio-{token_hex(6)}"
    runtime_env = environment(folder, job_id, pip=pip, is_installed=is_installed)
    metadata = {"rayio": __version__}
    if scenario is not None:
        (folder / SCENARIO).write_text(to_yaml(scenario), encoding="utf-8")
        metadata["scenario"] = scenario.name
    for option, where in (("--out", out), ("--resume", resumed)):
        if where is not None:
            command += [option, where]
            metadata["out"] = where
    return Packed(job_id, shlex.join([*command, "--json"]), runtime_env, metadata)


def environment(folder: Path, job_id: str, *, pip: bool, is_installed: bool) -> dict[str, Any]:
    """Fill a folder for a job, and return its runtime environment: the folder, and time to write results when stopped.

    Ray names folders by their content. With the job's id in it, no other job shares or removes this one.
    """
    (folder / JOB).write_text(f"{job_id}\n")
    if not is_installed:
        write_package(folder)
    runtime_env: dict[str, Any] = {
        "working_dir": str(folder),
        "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS), LIVE_VARIABLE: "1"},
    }
    if pip:
        runtime_env["pip"] = requirements()
    return runtime_env


def root_of(scenario: Scenario, out: str | None, root: str | None) -> str:
    """Return the base of relative paths on the cluster: ``root``, or the folder of ``out``.

    Raises:
        ScenarioError: neither is absolute.
    """
    if root is not None:
        if not is_absolute(root):
            raise ScenarioError(
                f"--root {root} is relative, but Ray removes the working directory of a job; "
                "give a path that all nodes share, or an address such as s3://BUCKET/PREFIX"
            )
        return root
    if out is not None and is_absolute(out):
        return parent(out)
    relative = [path for path in paths_of(scenario) if not is_absolute(path)]
    what = f"{relative[0]} is relative" if relative else "the run directory is relative"
    raise ScenarioError(
        f"{what}, but Ray removes the working directory of a job; give --root or --out: "
        "a path that all nodes share, or an address such as s3://BUCKET/PREFIX"
    )


def submit(
    source: str | None,
    overrides: Sequence[str],
    *,
    address: str,
    out: str | None = None,
    resumed: str | None = None,
    root: str | None = None,
    pip: bool = False,
    is_installed: bool = False,
    reporter: Reporter = SILENT,
) -> tuple[Jobs, str]:
    """Check a scenario and submit its run; return the cluster's jobs and the job's id.

    ``address`` is that of the cluster's dashboard, ``resumed`` a run directory to go on in, perhaps without ``source``.

    Raises:
        RayioError: the scenario is invalid, or the cluster refuses the job.
    """
    scenario = None if source is None else load(source, overrides)
    if scenario is not None and scenario.dataset.is_modelled:
        checks.check_simulated(scenario)
    with TemporaryDirectory(prefix="rayio-submit-") as folder:
        packed = pack(
            Path(folder), scenario, out=out, root=root, pip=pip, is_installed=is_installed, resumed=resumed
        )  # fmt: skip
        jobs = Jobs(address)
        jobs.submit(packed.entrypoint, packed.job_id, packed.runtime_env, packed.metadata, reporter)
    reporter.say(f"submitted {resumed if scenario is None else scenario.name} as {packed.job_id}")
    return jobs, packed.job_id


def follow(jobs: Jobs, job_id: str, reporter: Reporter = SILENT) -> Ended:
    """Wait until a job is over and return it.

    An interrupt stops the job, waits for its results, and is raised again.

    Raises:
        ClusterError: the cluster does not answer.
    """
    try:
        job = _wait(jobs, job_id, reporter)
    except KeyboardInterrupt:
        reporter.done()
        reporter.say(f"stopping {job_id}; its run writes what was recorded (Ctrl-C again: do not wait)")
        with suppress(RayioError):
            jobs.stop(job_id)
            _wait(jobs, job_id, reporter, STOPPED_SECONDS)
        raise
    output = _patiently(lambda: jobs.output(job_id), job_id, reporter)
    reporter.done()
    return Ended(job, ran_in(output), output)


def _wait(jobs: Jobs, job_id: str, reporter: Reporter, seconds: float = float("inf")) -> JobState:
    began, pause, quiet, is_explained = monotonic(), FIRST_SECONDS, Event(), False
    while not (job := _patiently(lambda: jobs.state(job_id), job_id, reporter)).is_over:
        gone = monotonic() - began
        if gone > seconds:
            raise ClusterError(f"{job_id} did not end within {seconds:.0f} s; try rayio stop {job_id}")
        if job.status == PENDING and gone >= PENDING_SECONDS and not is_explained:
            is_explained = True
            reporter.warn(
                f"{job_id} has been pending for {gone:.0f} s: the cluster still prepares its environment, has no free "
                "CPU, or its agent for environments does not answer (runtime_env_agent.log in Ray's logs); "
                f"rayio stop {job_id} gives up"
            )
        reporter.live(f"{job_id}: {job.status.lower()}" + (f", {gone:.0f} s" if gone >= 1 else ""))
        quiet.wait(pause)
        pause = min(LONGEST_SECONDS, pause * 1.2)
    return job


def _patiently(call: Callable[[], T], job_id: str, reporter: Reporter) -> T:
    """Ask a cluster, again if its head is silent: a busy one can need more than a minute."""
    began = monotonic()
    while True:
        try:
            return call()
        except SilentError:
            silence = monotonic() - began
            if silence >= SILENCE_SECONDS:
                raise
            reporter.live(f"{job_id}: the cluster has not answered for {silence:.0f} s")


def ran_in(output: str) -> Ran | None:
    """Return the record that a run printed with ``--json`` at the end of its job's output; None without one.

    >>> ran_in("rayio: interrupted") is None
    True
    """
    begin = output.rfind("\n{\n") + 1 if "\n{\n" in output else 0
    with suppress(ValueError, DamagedRecordError):
        content, _ = json.JSONDecoder().raw_decode(output[begin:].strip())
        return Ran.of_json(content)
    return None


def _missing(line: str) -> str | None:
    """Return a message on a missing module of the cluster's Python; None for other lines."""
    if not line.startswith("ModuleNotFoundError: No module named "):
        return None
    name = line.split("'")[1]
    return (
        f"the cluster's Python has no {name}; use an image with rayio (k8s/Dockerfile), install rayio's dependencies "
        "there, or use --pip"
    )
