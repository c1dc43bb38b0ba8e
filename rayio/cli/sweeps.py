"""Commands that run a scenario at many points: sweep."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from rayio.cli import completion
from rayio.cli.arguments import Address, AsJson, Root, Source
from rayio.cli.file_options import local_file
from rayio.cli.output import alone, print_json
from rayio.cli.terminal import Terminal


def sweep(
    source: Source,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="Dotted keys: section.key=value,value sweeps, section.key=value holds.",
            metavar="[KEY=VALUE,...]...",
            autocompletion=completion.overrides,
        ),
    ] = None,
    points: Annotated[
        Path | None,
        typer.Option(help="File with the points, in place of lists: CSV or YAML.", metavar="FILE", parser=local_file),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="virtual (the virtual clock, all cores), or ray or local, one run after the other.",
            autocompletion=completion.among("virtual", "ray", "local"),
        ),
    ] = "virtual",
    repeat: Annotated[
        int, typer.Option(min=1, help="Runs of each point; on the virtual clock each with another seed.")
    ] = 1,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Simulations at a time.", show_default="one per CPU")
    ] = None,
    address: Address = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Directory of the sweep, relative to --root; one that is there goes on.", show_default="sweeps/<name>"
        ),
    ] = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Run a scenario at every combination of values: a table, CSV, Parquet, and a page with figures.

    Commas inside brackets, braces or quotes belong to a value.

    Example:  rayio sweep unet3d-h100 loader.num_workers=1,2,4,8 loader.prefetch_factor=2,4
    """
    from rayio.study.sweeps.answer import answer
    from rayio.study.sweeps.sweep_tables import text
    from rayio.study.sweeps.sweeping import sweep as swept

    if address is not None and engine != "ray":
        raise typer.BadParameter(f"--address {address} goes with --engine ray; {engine} uses no cluster")
    if processes is not None and engine != "virtual":
        raise typer.BadParameter(f"--processes {processes} goes with --engine virtual; {engine} runs one at a time")
    with alone(as_json):
        found = swept(
            source, overrides or (), points=points, engine=engine, repeat=repeat, processes=processes, address=address,
            out=out, root=root, reporter=Terminal(),
        )  # fmt: skip
    if as_json:
        print_json(answer(found))
        raise typer.Exit(found.exit_code)
    if found.rows:
        print(text(found, shutil.get_terminal_size((100, 40)).columns))
    print(f"\n  {found.path}: sweep.html, sweep.csv, sweep.parquet")
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command()(sweep)
