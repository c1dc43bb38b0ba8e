"""Arguments and options that several commands have in common."""

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
        help="Run directories; runs of one scenario are repeats.", metavar="RUN...", autocompletion=completion.runs
    ),
]
Root = Annotated[
    str | None,
    typer.Option(
        help="Folder or address from which the scenario's relative paths and runs/ start.",
        show_default="here",
        metavar="DIR",
    ),
]
Address = Annotated[str | None, typer.Option(help="Ray cluster: auto, or host:port.", show_default="start a local Ray")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output; rayio schema describes it.")
]
