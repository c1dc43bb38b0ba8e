"""Arguments and options shared by commands."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from rayio.cli import completion

Source = Annotated[
    str,
    typer.Argument(
        help="Path of a scenario file, the name of a packaged one, or dlio:FILE.",
        metavar="SCENARIO",
        autocompletion=completion.scenarios,
    ),
]
MaybeSource = Annotated[
    str | None,
    typer.Argument(
        help="Path of a scenario file, or the name of a packaged one.",
        metavar="SCENARIO",
        autocompletion=completion.scenarios,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Dotted overrides: section.key=value ...", metavar="KEY=VALUE", autocompletion=completion.overrides
    ),
]
RunPath = Annotated[str, typer.Argument(help="A run directory.", metavar="RUN", autocompletion=completion.runs)]
RunPaths = Annotated[
    list[str],
    typer.Argument(
        help="Run directories; runs of one scenario are repeats, with any seeds.",
        metavar="RUN",
        autocompletion=completion.runs,
    ),
]


def _existing(context: typer.Context, root: str | None) -> str | None:
    """Return the folder of --root. A missing one is refused, or made if the user at the terminal agrees.

    A Ray job makes it: nobody watches, and the path is the cluster's.

    Raises:
        typer.BadParameter: there is no such folder.
    """
    if root is None or context.resilient_parsing:
        return root
    from rayio.session.dataset import is_job
    from rayio.storage.address import is_path, path_of

    if not is_path(root) or (path := path_of(root)).is_dir() or is_job():
        return root
    if path.exists():
        raise typer.BadParameter(f"{root} is not a folder")
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        if typer.confirm(f"rayio: --root {root} does not exist. Make it?", err=True):
            path.mkdir(parents=True)
            return root
        raise typer.Abort
    raise typer.BadParameter(f"{root} does not exist; make it (mkdir -p {shlex.quote(root)}), or correct it")


Root = Annotated[
    str | None,
    typer.Option(
        help="Base folder or address of the scenario's relative paths and of runs/.",
        show_default="the working directory",
        metavar="DIR",
        callback=_existing,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(help="Ray cluster: auto, or host:port.", show_default="start a local Ray"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON on standard output; rayio schema describes it.")]
