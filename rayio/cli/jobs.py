"""The commands for remote Ray clusters: submit, status, stop, doctor."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from rayio.cli.arguments import AsJson, MaybeSource, Overrides
from rayio.cli.fitting import columns, fit
from rayio.cli.grouped import CLUSTERS
from rayio.cli.output import only_json, print_json
from rayio.cli.terminal import Terminal

if TYPE_CHECKING:
    from rayio.engines.ray.cluster.jobs import JobState
    from rayio.records.clusters import JobListed
    from rayio.remote.jobs.submit import Ended

#: Variables with the dashboard's address, as Ray's own commands read them.
VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")

Dashboard = Annotated[
    str | None,
    typer.Option(
        help="The cluster's dashboard, such as http://head:8265.", show_default="RAY_API_SERVER_ADDRESS", metavar="URL"
    ),
]
JobId = Annotated[str, typer.Argument(help="A job's id, printed by submit and status.", metavar="JOB")]
ClusterRoot = Annotated[
    str | None,
    typer.Option(
        help="Base of relative paths and of runs/: a folder that all nodes share, or an address.",
        show_default="the folder of --out",
        metavar="DIR",
    ),
]
Pip = Annotated[
    bool,
    typer.Option("--pip", help="Let Ray install rayio's missing dependencies for the job, with pip."),
]
Installed = Annotated[bool, typer.Option("--installed", help="Use the cluster's rayio instead of sending this one.")]


def submit(
    source: MaybeSource = None,
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
    resume: Annotated[
        str | None,
        typer.Option(
            help="Go on with the run in this directory if it broke off. With SCENARIO it is started if there is none.",
            metavar="RUN",
        ),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Print the job's id and do not wait for it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a scenario as a job on a Ray cluster.

    It sends the scenario and rayio, follows the job and prints the results. The exit code is the run's. Ctrl-C stops
    the job; its run writes what was recorded.

    Example:  rayio submit unet3d-small --address http://head:8265 --root /shared
    """
    from rayio.remote.jobs import submit as submitting

    if source is None and resume is None:
        raise typer.BadParameter("give a SCENARIO, or --resume RUN")
    for option, value in (("--out", out), ("--root", root if source is None else None)):
        if resume is not None and value is not None:
            raise typer.BadParameter(f"{option} {value} does not go with --resume: the run has its own")
    terminal = Terminal()
    where = dashboard(address)
    with only_json(as_json):
        jobs, job_id = submitting.submit(
            source, overrides or (), address=where, out=out, resumed=resume, root=root, pip=pip,
            is_installed=installed, reporter=terminal,
        )  # fmt: skip
        ended = None if detach else submitting.follow(jobs, job_id, terminal)
    if ended is not None:
        _print_end(ended, as_json)
    elif as_json:
        print_json(_listed(jobs.state(job_id)))
    else:
        print(job_id)


def _print_end(ended: Ended, as_json: bool) -> None:
    from rayio.remote.jobs.submit import LAST_LINES
    from rayio.report.text.summary import summary

    if ended.ran is not None and as_json:
        print_json(ended.ran)
    elif ended.ran is not None:
        print(fit(summary(ended.ran.result, run=ended.ran.directory), columns()), flush=True)
    if ended.exit_code:
        if ended.ran is None and ended.job.exit_code not in (2, 130):  # those are one line
            print("\n".join(ended.output.splitlines()[-LAST_LINES:]), file=sys.stderr)
        print(f"rayio: {ended.complaint}", file=sys.stderr)
        raise typer.Exit(ended.exit_code)


def status(
    job: Annotated[
        str | None, typer.Argument(help="A job's id.", show_default="all jobs of rayio", metavar="JOB")
    ] = None,
    address: Dashboard = None,
    everything: Annotated[bool, typer.Option("--all", help="List jobs that rayio did not submit, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List rayio's jobs on a cluster, or show one.

    Example:  rayio status --address http://head:8265
    """
    from rayio.engines.ray.cluster.jobs import Jobs

    where = dashboard(address)
    with only_json(as_json):
        jobs = Jobs(where)
        chosen = (
            [jobs.state(job)] if job is not None else [j for j in jobs.all() if everything or "rayio" in j.metadata]
        )
    listed = tuple(map(_listed, chosen))
    if as_json:
        from rayio.records.clusters import JobsListed

        print_json(JobsListed(address=jobs.address, jobs=listed))
        return
    for row in listed:
        took = "" if row.seconds is None else f"  {row.seconds:.0f} s"
        code = f"  exit code {row.exit_code}" if row.exit_code else ""
        print(f"{row.id}  {row.status:<9}  {row.scenario or '-'}{took}{code}{f'  {row.out}' if row.out else ''}")
        if row.status in ("PENDING", "FAILED") and job is not None:
            print(f"  {' '.join(row.message.split())}")
    if not listed:
        print(f"no job of rayio at {jobs.address}")


def stop(job: JobId, address: Dashboard = None) -> None:
    """Stop a job; its run writes what was recorded.

    Example:  rayio stop rayio-0123456789ab --address http://head:8265
    """
    from rayio.engines.ray.cluster.jobs import Jobs

    jobs = Jobs(dashboard(address))
    before = jobs.state(job)
    if before.is_over:
        print(f"{job} is over: {before.status}")
        return
    jobs.stop(job)
    print(f"{job} is stopping")


def doctor(
    address: Annotated[
        str | None,
        typer.Option(
            help="Ray cluster: auto, host:port, or its dashboard, such as http://head:8265.",
            show_default="check only this machine",
        ),
    ] = None,
    root: Annotated[
        str | None, typer.Option(help="Folder or address to try, on this machine or each node.", metavar="DIR")
    ] = None,
    pip: Pip = False,
    installed: Installed = False,
    as_json: AsJson = False,
) -> None:
    """Check whether this machine or a cluster is fit for runs.

    It checks versions, processors, memory, object stores, authentication, storage at --root, clocks and collectors of
    each node, and says what to do about each problem.

    Example:  rayio doctor --address http://head:8265 --root /shared
    """
    from rayio.records.clusters import Doctored
    from rayio.remote.jobs import doctor as checks

    by_job = address is not None and address.startswith(("http://", "https://"))
    for option, is_given in (("--pip", pip), ("--installed", installed)):
        if is_given and not by_job:
            remedy = "the dashboard's address, such as --address http://HEAD:8265"
            raise typer.BadParameter(f"{option} goes with {remedy}")
    terminal = Terminal()
    with only_json(as_json):
        if address is None:
            doctored = Doctored(findings=tuple(checks.here(root)))
        elif by_job:
            from rayio.engines.ray.cluster.jobs import Jobs

            doctored = checks.by_job(Jobs(address), root, pip=pip, is_installed=installed, reporter=terminal)
        else:
            doctored = checks.cluster(address, root)
    terminal.done()
    if as_json:
        print_json(doctored)
    else:
        for finding in doctored.findings:
            print(f"{finding.state:<7}  {finding.what}: {finding.text}")
        for node in doctored.nodes:
            clock = f"clock {node.clock_offset_ms:+.1f} ± {node.clock_error_ms:.1f} ms"
            print(f"node     {node.host} ({node.id[:8]}): {node.resources.get('CPU', 0):g} CPU, {clock}")
    if any(finding.state == "problem" for finding in doctored.findings):
        raise typer.Exit(2)


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command(rich_help_panel=CLUSTERS)(submit)
    app.command(rich_help_panel=CLUSTERS)(status)
    app.command(rich_help_panel=CLUSTERS)(stop)
    app.command(rich_help_panel=CLUSTERS)(doctor)


def dashboard(address: str | None) -> str:
    """Return the dashboard's address: as given, or from Ray's variables."""
    url = address or next((v for name in VARIABLES if (v := os.environ.get(name, "")).startswith("http")), None)
    if url is None:
        raise typer.BadParameter(
            "no cluster given; use --address http://HEAD:8265 or the variable RAY_API_SERVER_ADDRESS"
        )
    if "://" in url and not url.startswith(("http://", "https://")):
        raise typer.BadParameter(f"--address {url}: give the dashboard's address, such as http://HEAD:8265")
    return (url if "://" in url else f"http://{url}").rstrip("/")


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
