"""Arguments and options shared by commands."""

from __future__ import annotations

from typing import Annotated

import typer

from rayio.cli import completion

Source = Annotated[
    str,
    typer.Argument(help="Path of a scenario file, or the name of a packaged one.", autocompletion=completion.scenarios),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Dotted overrides: section.key=value ...", metavar="[KEY=VALUE]...", autocompletion=completion.overrides
    ),
]
RunPath = Annotated[str, typer.Argument(help="A run directory.", metavar="RUN", autocompletion=completion.runs)]
RunPaths = Annotated[
    list[str],
    typer.Argument(
        help="Run directories; runs of one scenario are repeats, with any seeds.",
        metavar="RUN...",
        autocompletion=completion.runs,
    ),
]
Root = Annotated[
    str | None,
    typer.Option(
        help="Base folder or address of the scenario's relative paths and of runs/.",
        show_default="the working directory",
        metavar="DIR",
    ),
]
Address = Annotated[str | None, typer.Option(help="Ray cluster: auto, or host:port.", show_default="start a local Ray")]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON on standard output; rayio schema describes it.")]
