"""Commands for Kubernetes: k8s."""

from __future__ import annotations

from typing import Annotated

import typer

from rayio.cli.arguments import Overrides, Source
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
            help="Folder in /data, or address, from which relative paths and runs/ start in the pods.",
            show_default="/data",
            metavar="DIR",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Pods of ranks' nodes.", show_default="one for each of cluster.nodes")
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option(
            help="PersistentVolumeClaim that /data is.", show_default="a folder that ends with its pod", metavar="NAME"
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
) -> None:
    """Print what runs a scenario on Kubernetes: a RayJob (for KubeRay), and a file's scenario as a ConfigMap.

    Pods, processors, memory and deadlines follow from the scenario's plan.

    Example:  rayio k8s unet3d-small --image rayio:0.1.0 --claim data | kubectl apply -f -
    """
    from rayio.remote.k8s.documents import documents, to_yaml
    from rayio.remote.k8s.scenario_job import job_of

    if not image:
        raise typer.BadParameter("say which image the pods have: --image IMAGE (k8s/Dockerfile makes one)")
    job = job_of(
        source, overrides or (), image=image, name=name, root=root, workers=workers, claim=claim, secret=secret,
        service_account=service_account,
    )  # fmt: skip
    for warning in job.warnings:
        Terminal().say(f"warning: {warning}")
    print(to_yaml(documents(job)), end="")


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command()(k8s)
