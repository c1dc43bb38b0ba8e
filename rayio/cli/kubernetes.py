"""The command k8s."""

from __future__ import annotations

from typing import Annotated

import typer

from rayio.cli.arguments import Overrides, Source
from rayio.cli.grouped import CLUSTERS
from rayio.cli.terminal import Terminal


def k8s(
    source: Source,
    overrides: Overrides = None,
    image: Annotated[
        str, typer.Option(help="Image of every pod, with rayio and Ray; see k8s/Dockerfile.", metavar="IMAGE")
    ] = "",
    name: Annotated[
        str | None, typer.Option(help="Name of the RayJob.", show_default="rayio-<scenario>", metavar="NAME")
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(
            help="Base of relative paths and of runs/ in the pods: a folder in /data, or an address.",
            show_default="/data",
            metavar="DIR",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of worker pods.", show_default="cluster.nodes")
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option(
            help="PersistentVolumeClaim for /data.", show_default="a folder that ends with its pod", metavar="NAME"
        ),
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option(
            help="Secret whose entries are environment variables of the pods, such as AWS_ACCESS_KEY_ID.",
            metavar="NAME",
        ),
    ] = None,
    service_account: Annotated[
        str | None, typer.Option(help="ServiceAccount of the pods.", show_default="the namespace's", metavar="NAME")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            help="Run directory, kept in a claim or bucket, in which the job goes on each time it is tried again.",
            metavar="RUN",
        ),
    ] = None,
    retries: Annotated[
        int | None,
        typer.Option(min=0, max=100, help="Tries after the first, with --resume.", show_default="3 with --resume"),
    ] = None,
) -> None:
    """Print Kubernetes manifests that run a scenario.

    They are a RayJob (for KubeRay) and, for a scenario file, a ConfigMap. Pods, processors, memory and deadlines follow
    from the scenario's plan.

    Example:  rayio k8s unet3d-small --image rayio:0.1.0 --claim data | kubectl apply -f -
    """
    from rayio.remote.k8s.documents import documents, to_yaml
    from rayio.remote.k8s.scenario_job import job_of

    if not image:
        raise typer.BadParameter("no image for the pods; give --image IMAGE (k8s/Dockerfile builds one)")
    job = job_of(
        source, overrides or (), image=image, name=name, root=root, workers=workers, claim=claim, secret=secret,
        service_account=service_account, resumed=resume, retries=retries,
    )  # fmt: skip
    for warning in job.warnings:
        Terminal().warn(warning)
    print(to_yaml(documents(job)), end="")


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command(rich_help_panel=CLUSTERS)(k8s)
