"""Commands that say how much is enough: capacity, advise."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from rayio.cli import completion
from rayio.cli.arguments import Address, AsJson, Overrides, Root, Source
from rayio.cli.output import alone, print_json
from rayio.cli.terminal import Terminal
from rayio.interrupts import INTERRUPTED


def capacity(
    source: Source,
    overrides: Overrides = None,
    target_au: Annotated[
        float | None, typer.Option(help="AU to keep, 0 to 1.", show_default="0.9, or what --rules asks for")
    ] = None,
    over: Annotated[
        str, typer.Option(help="Key of a whole number to search along.", autocompletion=completion.keys_of_numbers)
    ] = "cluster.ranks_per_node",
    most: Annotated[
        int | None, typer.Option("--max", min=1, help="Largest value to try.", show_default="1024, or 32 when run")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="virtual (modelled storage, the virtual clock), or ray or local (the storage that is there).",
            autocompletion=completion.among("virtual", "ray", "local"),
        ),
    ] = "virtual",
    rules: Annotated[
        str | None,
        typer.Option(
            help="mlperf: AU as DLIO counts it, 5 epochs, the smallest dataset that counts.",
            autocompletion=completion.among("mlperf"),
        ),
    ] = None,
    host_memory: Annotated[
        str | None,
        typer.Option(help="Memory of a host, for --rules mlperf.", show_default="this machine's, when run"),
    ] = None,
    address: Address = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Directory of the runs, relative to --root; one that is there goes on.",
            show_default="capacity/<name>",
        ),
    ] = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Find how many accelerators a storage keeps busy: a table, what binds there, and what would move it.

    On real storage give storage.page_cache=drop, else memory answers.

    Example:  rayio capacity unet3d-h100 storage.model=s3
    """
    from rayio.report.text.sizing import text
    from rayio.study.sizing.capacity import capacity as found_by
    from rayio.units import parse_bytes

    if address is not None and engine != "ray":
        raise typer.BadParameter(f"--address {address} goes with --engine ray; {engine} uses no cluster")
    if host_memory is not None and rules is None:
        raise typer.BadParameter(f"--host-memory {host_memory} goes with --rules mlperf")
    memory: int | None = None
    if host_memory is not None:
        try:
            memory = parse_bytes(host_memory)
        except ValueError as error:
            raise typer.BadParameter(f"--host-memory {host_memory}: {error}") from None
    with alone(as_json):
        found = found_by(
            source, overrides or (), target_au=target_au, over=over, most=most, engine=engine, rules=rules,
            host_memory=memory, address=address, out=out, root=root, reporter=Terminal(),
        )  # fmt: skip
    if as_json:
        print_json(found)
    else:
        print(text(found, shutil.get_terminal_size((100, 40)).columns))
        if found.points:
            print(f"\n  {found.directory}: sweep.html, sweep.csv, sweep.parquet")
    if not found.is_finished:
        raise typer.Exit(INTERRUPTED)
    if found.setting is None:
        raise typer.Exit(3)


def advise(
    source: Source,
    overrides: Overrides = None,
    vary: Annotated[
        str,
        typer.Option(
            help="Keys and their values: section.key=1..16 is ordered, section.key=a|b are alternatives; with commas.",
            metavar="KEY=VALUES,...",
        ),
    ] = "loader.num_workers=1..16,loader.prefetch_factor=1..8",
    reach: Annotated[str, typer.Option(help="au=0.9, or au_dlio=0.9 as DLIO counts it.", metavar="GOAL")] = "au=0.9",
    price: Annotated[
        str, typer.Option(help="What is dear, the dearest first: of readers, memory, nodes.")
    ] = "readers,memory,nodes",
    check: Annotated[
        str | None,
        typer.Option(
            help="Run what was found once: ray or local, on the storage that is there.",
            autocompletion=completion.among("ray", "local"),
        ),
    ] = None,
    address: Address = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Directory of the simulations, relative to --root; one that is there goes on.",
            show_default="advice/<name>",
        ),
    ] = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Find the cheapest setting of some keys that reaches a goal, with few simulations.

    Example:  rayio advise unet3d-h100 --reach au=0.9 --vary loader.num_workers=1..16,loader.prefetch_factor=1..4
    """
    from rayio.report.text.sizing import advice
    from rayio.study.sizing.advise import advise as advised_by

    if address is not None and check != "ray":
        raise typer.BadParameter(f"--address {address} goes with --check ray")
    with alone(as_json):
        found = advised_by(
            source, overrides or (), vary=vary, reach=reach, price=price, check=check, address=address, out=out,
            root=root, reporter=Terminal(),
        )  # fmt: skip
    if as_json:
        print_json(found)
    else:
        print(advice(found, shutil.get_terminal_size((100, 40)).columns))
        if found.tried:
            print(f"\n  {found.directory}: sweep.html, sweep.csv, sweep.parquet")
    if not found.is_finished:
        raise typer.Exit(INTERRUPTED)
    if found.advice is None or (found.check is not None and not found.check.reaches):
        raise typer.Exit(3)


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command()(capacity)
    app.command()(advise)
