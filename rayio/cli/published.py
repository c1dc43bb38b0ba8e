"""The command check-published."""

from __future__ import annotations

from typing import Annotated

import typer

from rayio.cli import completion
from rayio.cli.arguments import AsJson
from rayio.cli.fitting import columns
from rayio.cli.grouped import TOOLS
from rayio.cli.output import only_json, print_json
from rayio.cli.terminal import Terminal
from rayio.errors import ExpectationError


def check_published(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCENARIO",
            help="Files, or names of packaged scenarios.",
            show_default="every packaged scenario with published facts",
            autocompletion=completion.scenarios,
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print one table in Markdown.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare published facts of workloads with simulated ones.

    It simulates each scenario in full. Exit code 3 if a fact differs and its scenario does not say why.

    Example:  rayio check-published candle_nt3 ffn
    """
    from rayio.report.text import checked_facts as words
    from rayio.study.facts.checking import check_published as check

    if markdown and as_json:
        raise typer.BadParameter("--markdown and --json exclude each other")
    with only_json(as_json):
        checked = check(names or (), reporter=Terminal())
    if as_json:
        print_json(checked)
    else:
        print(words.markdown(checked) if markdown else words.text(checked, columns()))
    if checked.unmet:
        raise ExpectationError(f"{words.summary(checked)}: a difference needs a reason (differs:), or a remedy")


def add_to(app: typer.Typer) -> None:
    """Register this command."""
    app.command("check-published", rich_help_panel=TOOLS)(check_published)
