"""Commands for a Ray cluster that is somewhere else: submit, status, stop, doctor."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from rayio.cli.arguments import AsJson, Overrides, Root, Source
from rayio.cli.fitting import columns, fit
from rayio.cli.output import alone, print_json
from rayio.cli.terminal import Terminal

if TYPE_CHECKING:
    from rayio.engines.ray.cluster.jobs import JobState
    from rayio.records.clusters import JobListed
    from rayio.remote.jobs.submit import Ended

#: Variables that say where a dashboard is, as Ray's own commands read them.
VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")

Dashboard = Annotated[
    str | None,
    typer.Option(
        help="The cluster's dashboard, such as http://head:8265.", show_default="RAY_API_SERVER_ADDRESS", metavar="URL"
    ),
]
JobId = Annotated[str, typer.Argument(help="A job's id, as submit and status print it.", metavar="JOB")]
ClusterRoot = Annotated[
    str | None,
    typer.Option(
        help="Folder that all nodes share, or address, from which relative paths and runs/ start.",
        show_default="the folder of --out",
        metavar="DIR",
    ),
]
Pip = Annotated[
    bool,
    typer.Option("--pip", help="Have Ray install what rayio needs for the job, with pip, where it is not there."),
]
Installed = Annotated[bool, typer.Option("--installed", help="Use the rayio that the cluster has, and send none.")]


def submit(
    source: Source,
    overrides: Overrides = None,
    address: Dashboard = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Run directory to make, relative to --root, or its address.",
            show_default="runs/<name>-<time>",
            metavar="DIR",
        ),
    ] = None,
    root: ClusterRoot = None,
    pip: Pip = False,
    installed: Installed = False,
    detach: Annotated[bool, typer.Option("--detach", help="Print the job's id and leave it alone.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a scenario on a Ray cluster as a job: send it and rayio there, follow it, print the numbers.

    The exit code is the run's. Ctrl-C stops the job, which writes what it has.

    Example:  rayio submit unet3d-small --address http://head:8265 --root /shared
    """
    from rayio.remote.jobs import submit as submitting

    terminal = Terminal()
    where = dashboard(address)
    with alone(as_json):
        jobs, job_id = submitting.submit(
            source, overrides or (), address=where, out=out, root=root, pip=pip, is_installed=installed,
            reporter=terminal,
        )  # fmt: skip
        ended = None if detach else submitting.follow(jobs, job_id, terminal)
    if ended is not None:
        _told(ended, as_json)
    elif as_json:
        print_json(_listed(jobs.state(job_id)))
    else:
        print(job_id)


def _told(ended: Ended, as_json: bool) -> None:
    """Print what a job came to, and leave with its exit code."""
    from rayio.remote.jobs.submit import LAST_LINES
    from rayio.report.text.summary import summary

    if ended.ran is not None and as_json:
        print_json(ended.ran)
    elif ended.ran is not None:
        print(fit(summary(ended.ran.result, run=ended.ran.directory), columns()), flush=True)
    if ended.exit_code:
        if ended.ran is None and ended.job.exit_code not in (2, 130):  # a line of rayio's own says enough
            print("\n".join(ended.output.splitlines()[-LAST_LINES:]), file=sys.stderr)
        print(f"rayio: {ended.complaint}", file=sys.stderr)
        raise typer.Exit(ended.exit_code)


def status(
    job: Annotated[
        str | None, typer.Argument(help="A job's id.", show_default="all that rayio submitted", metavar="[JOB]")
    ] = None,
    address: Dashboard = None,
    everything: Annotated[bool, typer.Option("--all", help="Jobs that rayio did not submit, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the jobs of a cluster that rayio submitted, or say how one is.

    Example:  rayio status --address http://head:8265
    """
    from rayio.engines.ray.cluster.jobs import Jobs

    where = dashboard(address)
    with alone(as_json):
        jobs = Jobs(where)
        found = [jobs.state(job)] if job is not None else [j for j in jobs.all() if everything or "rayio" in j.metadata]
    listed = tuple(map(_listed, found))
    if as_json:
        from rayio.records.clusters import JobsListed

        print_json(JobsListed(address=jobs.address, jobs=listed))
        return
    for one in listed:
        took = "" if one.seconds is None else f"  {one.seconds:.0f} s"
        code = f"  exit code {one.exit_code}" if one.exit_code else ""
        print(f"{one.id}  {one.status:<9}  {one.scenario or '-'}{took}{code}{f'  {one.out}' if one.out else ''}")
        if one.status in ("PENDING", "FAILED") and job is not None:
            print(f"  {' '.join(one.message.split())}")
    if not listed:
        print(f"no job of rayio at {jobs.address}")


def stop(job: JobId, address: Dashboard = None) -> None:
    """Ask a job to end; a run writes what it has.

    Example:  rayio stop rayio-0123456789ab --address http://head:8265
    """
    from rayio.engines.ray.cluster.jobs import Jobs

    jobs = Jobs(dashboard(address))
    before = jobs.state(job)
    if before.is_over:
        print(f"{job} is over: {before.status}")
        return
    jobs.stop(job)
    print(f"{job} is asked to end")


def doctor(
    address: Annotated[
        str | None,
        typer.Option(
            help="Ray cluster: auto, host:port, or its dashboard, such as http://head:8265.",
            show_default="look at this machine alone",
        ),
    ] = None,
    root: Root = None,
    pip: Pip = False,
    installed: Installed = False,
    as_json: AsJson = False,
) -> None:
    """Say whether this machine, or a cluster and each of its nodes, is fit for runs, and what to do if not.

    Looked at: versions, processors, memory, object stores, authentication, storage at --root, clocks, collectors.

    Example:  rayio doctor --address http://head:8265 --root /shared
    """
    from rayio.records.clusters import Doctored
    from rayio.remote.jobs import doctor as looking

    terminal = Terminal()
    with alone(as_json):
        if address is None:
            found = Doctored(findings=tuple(looking.here(root)))
        elif address.startswith(("http://", "https://")):
            from rayio.engines.ray.cluster.jobs import Jobs

            found = looking.by_job(Jobs(address), root, pip=pip, is_installed=installed, reporter=terminal)
        else:
            found = looking.cluster(address, root)
    terminal.done()
    problems = [one for one in found.findings if one.state == "problem"]
    if as_json:
        print_json(found)
    else:
        for one in found.findings:
            print(f"{one.state:<7}  {one.what}: {one.text}")
        for node in found.nodes:
            clock = f"clock {node.clock_offset_ms:+.1f} ± {node.clock_error_ms:.1f} ms"
            print(f"node     {node.host} ({node.id[:8]}): {node.resources.get('CPU', 0):g} CPU, {clock}")
    if problems:
        raise typer.Exit(2)


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    for command in (submit, status, stop, doctor):
        app.command()(command)


def dashboard(address: str | None) -> str:
    """Where the dashboard is: what was given, or what Ray's variables say."""
    found = address or next((v for name in VARIABLES if (v := os.environ.get(name, "")).startswith("http")), None)
    if found is None:
        raise typer.BadParameter(
            "say which cluster: --address http://HEAD:8265, or the variable RAY_API_SERVER_ADDRESS"
        )
    if found.startswith("ray://"):
        raise typer.BadParameter(f"--address {found}: give the dashboard's address, such as http://HEAD:8265")
    return (found if "://" in found else f"http://{found}").rstrip("/")


def _listed(job: JobState) -> JobListed:
    from rayio.records.clusters import JobListed

    started = None if job.start_ms is None else datetime.fromtimestamp(job.start_ms / 1000, UTC)
    ended = None if job.end_ms is None else datetime.fromtimestamp(job.end_ms / 1000, UTC)
    until = ended if job.is_over else datetime.now(UTC)
    return JobListed(
        id=job.id,
        status=job.status,
        scenario=job.metadata.get("scenario"),
        out=job.metadata.get("out"),
        started=None if started is None else started.isoformat(timespec="seconds"),
        seconds=None if started is None or until is None else (until - started).total_seconds(),
        exit_code=job.exit_code,
        message=job.message,
    )
