"""The command explain."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rayio.cli.arguments import RunPath
from rayio.cli.fitting import columns, fit
from rayio.cli.grouped import ASK
from rayio.cli.output import only_json
from rayio.cli.terminal import Terminal


def explain(
    path: RunPath,
    as_json: Annotated[bool, typer.Option("--json", help="Print the same numbers as JSON.")] = False,
    simulate: Annotated[
        bool, typer.Option(help="Replay the run on the virtual clock, to find what would help.")
    ] = True,
    whole: Annotated[bool, typer.Option("--whole", help="Replay all steps of a long run, not only the first.")] = False,
) -> None:
    """Explain where time was lost and what would help.

    Example:  rayio explain runs/four
    """
    if whole and not simulate:
        raise typer.BadParameter("--whole simulates all steps; remove --no-simulate, or --whole")
    from rayio.report.explain import explain as analyze
    from rayio.report.text.explanation import text

    with only_json(as_json):
        explained = analyze(path, simulate=simulate, whole=whole, reporter=Terminal())
    if as_json:
        print(json.dumps(explained.as_json(), indent=2, allow_nan=False))
    else:
        print(fit(text(explained), columns()), end="")


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command(rich_help_panel=ASK)(explain)
