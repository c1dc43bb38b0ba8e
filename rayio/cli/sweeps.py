"""The command sweep."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from rayio.cli import completion
from rayio.cli.arguments import Address, AsJson, Root, Source
from rayio.cli.file_options import local_file
from rayio.cli.grouped import RUN
from rayio.cli.output import only_json, print_json
from rayio.cli.terminal import Terminal


def sweep(
    source: Source,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="Dotted keys: section.key=value,value or 1..4 is varied, section.key=value is fixed.",
            metavar="KEY=VALUE,...",
            autocompletion=completion.overrides,
        ),
    ] = None,
    points: Annotated[
        Path | None,
        typer.Option(help="CSV or YAML file with the points, instead of lists.", metavar="FILE", parser=local_file),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="virtual (virtual clock, in parallel), ray or local (one run after the other).",
            autocompletion=completion.among("virtual", "ray", "local"),
        ),
    ] = "virtual",
    repeat: Annotated[
        int, typer.Option(min=1, help="Runs of each point; on the virtual clock with different seeds.")
    ] = 1,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Simulations in parallel.", show_default="one per CPU")
    ] = None,
    address: Address = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Directory of the sweep, relative to --root; an existing one is resumed.",
            show_default="sweeps/<name>",
        ),
    ] = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Run a scenario at every combination of values.

    It prints a table and writes CSV, Parquet and a page with figures. Commas inside brackets, braces or quotes belong
    to a value.

    Example:  rayio sweep unet3d-h100 loader.num_workers=1,2,4,8 loader.prefetch_factor=2,4
    """
    from rayio.report.text.sweep import text
    from rayio.study.sweeps.answer import answer
    from rayio.study.sweeps.sweeping import sweep as run_points

    if address is not None and engine != "ray":
        raise typer.BadParameter(f"--address {address} goes with --engine ray; {engine} uses no cluster")
    if processes is not None and engine != "virtual":
        raise typer.BadParameter(f"--processes {processes} goes with --engine virtual; {engine} runs one at a time")
    with only_json(as_json):
        swept = run_points(
            source, overrides or (), points=points, engine=engine, repeat=repeat, processes=processes, address=address,
            out=out, root=root, reporter=Terminal(),
        )  # fmt: skip
    if as_json:
        print_json(answer(swept))
        raise typer.Exit(swept.exit_code)
    if swept.rows:
        print(text(swept.table, shutil.get_terminal_size((100, 40)).columns))
    print(f"\n  {swept.path}: sweep.html, sweep.csv, sweep.parquet")
    if swept.exit_code:
        raise typer.Exit(swept.exit_code)


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command(rich_help_panel=RUN)(sweep)
