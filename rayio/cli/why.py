"""Commands that say why a run was as it was: explain."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rayio.cli.arguments import RunPath
from rayio.cli.fitting import columns, fit
from rayio.cli.output import alone
from rayio.cli.terminal import Terminal


def explain(
    path: RunPath,
    as_json: Annotated[bool, typer.Option("--json", help="Print the same numbers as JSON.")] = False,
    simulate: Annotated[
        bool, typer.Option(help="Live the run again on the virtual clock, to say what would change it.")
    ] = True,
) -> None:
    """Say where a run's lost time went, which stage is to blame, and what to change.

    Example:  rayio explain runs/four
    """
    from rayio.report.explain import explain as explained
    from rayio.report.text.explanation import text

    with alone(as_json):
        found = explained(path, simulate=simulate, reporter=Terminal())
    if as_json:
        print(json.dumps(found.as_json(), indent=2, allow_nan=False))
    else:
        print(fit(text(found), columns()), end="")


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command()(explain)
