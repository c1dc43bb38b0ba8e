"""Arguments and options shared by commands."""

from __future__ import annotations

from typing import Annotated

import typer

from rayio.cli import completion
from rayio.cli.file_options import check_folder

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

    if is_path(root) and not is_job():
        check_folder(path_of(root), f"--root {root}", typer.BadParameter, root)
    return root


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
