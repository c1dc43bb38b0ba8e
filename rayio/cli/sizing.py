"""The commands capacity, advise and datasize."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from rayio.cli import completion
from rayio.cli.arguments import Address, AsJson, Overrides, Root, Source
from rayio.cli.grouped import ASK
from rayio.cli.output import only_json, print_json
from rayio.cli.terminal import Terminal
from rayio.signals import INTERRUPTED


def capacity(
    source: Source,
    overrides: Overrides = None,
    target_au: Annotated[
        float | None, typer.Option(help="AU to keep, 0 to 1.", show_default="0.9, or that of --rules")
    ] = None,
    over: Annotated[
        str, typer.Option(help="Key to vary, of a whole number.", autocompletion=completion.keys_of_numbers)
    ] = "cluster.ranks_per_node",
    most: Annotated[
        int | None, typer.Option("--max", min=1, help="Largest value to try.", show_default="1024, or 32 when run")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="virtual (virtual clock, modelled storage), ray or local (real storage).",
            autocompletion=completion.among("virtual", "ray", "local"),
        ),
    ] = "virtual",
    rules: Annotated[
        str | None,
        typer.Option(
            help="mlperf: AU as defined by DLIO, 5 epochs, the smallest valid dataset.",
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
            help="Directory of the runs, relative to --root; an existing one is resumed.",
            show_default="capacity/<name>",
        ),
    ] = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Find how many accelerators a storage keeps busy.

    It prints a table, the bottleneck, and what would help. On real storage use storage.page_cache=drop, to measure
    storage and not memory.

    Example:  rayio capacity unet3d-h100 storage.model=s3
    """
    from rayio.report.text.sizing import text
    from rayio.study.sizing.capacity import capacity as search
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
        if memory < 1:
            raise typer.BadParameter(f"--host-memory {host_memory}: must be at least 1")
    with only_json(as_json):
        answer = search(
            source, overrides or (), target_au=target_au, over=over, most=most, engine=engine, rules=rules,
            host_memory=memory, address=address, out=out, root=root, reporter=Terminal(),
        )  # fmt: skip
    if as_json:
        print_json(answer)
    else:
        print(text(answer, shutil.get_terminal_size((100, 40)).columns))
        if answer.points:
            print(f"\n  {answer.directory}: capacity.html, sweep.csv, sweep.parquet")
    if not answer.is_finished:
        raise typer.Exit(INTERRUPTED)
    if answer.setting is None:
        raise typer.Exit(3)


def advise(
    source: Source,
    overrides: Overrides = None,
    vary: Annotated[
        str,
        typer.Option(
            help="Keys and values, by commas: section.key=1..16 (ordered) or section.key=a|b (alternatives).",
            metavar="KEY=VALUES,...",
        ),
    ] = "loader.num_workers=1..16,loader.prefetch_factor=1..8",
    reach: Annotated[
        str, typer.Option(help="Goal: au=0.9, or au_dlio=0.9 (AU as defined by DLIO).", metavar="GOAL")
    ] = "au=0.9",
    price: Annotated[
        str, typer.Option(help="Costs to minimize, most important first: workers, memory, nodes.")
    ] = "workers,memory,nodes",
    check: Annotated[
        str | None,
        typer.Option(
            help="Run the advised setting once on real storage: ray or local.",
            autocompletion=completion.among("ray", "local"),
        ),
    ] = None,
    address: Address = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Directory of the simulations, relative to --root; an existing one is resumed.",
            show_default="advice/<name>",
        ),
    ] = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Find the cheapest setting that reaches a goal.

    It varies some keys in few simulations.

    Example:  rayio advise unet3d-h100 --reach au=0.9 --vary loader.num_workers=1..16,loader.prefetch_factor=1..4
    """
    from rayio.report.text.advice import text
    from rayio.study.sizing.advise import advise as search

    if address is not None and check != "ray":
        raise typer.BadParameter(f"--address {address} goes with --check ray")
    with only_json(as_json):
        answer = search(
            source, overrides or (), vary=vary, reach=reach, price=price, check=check, address=address, out=out,
            root=root, reporter=Terminal(),
        )  # fmt: skip
    if as_json:
        print_json(answer)
    else:
        print(text(answer, shutil.get_terminal_size((100, 40)).columns))
        if answer.tried:
            print(f"\n  {answer.directory}: advice.html, sweep.csv, sweep.parquet")
    if not answer.is_finished:
        raise typer.Exit(INTERRUPTED)
    if not answer.is_reached:
        raise typer.Exit(3)


def datasize(
    source: Source,
    overrides: Overrides = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory of a host.", show_default="this machine's", metavar="BYTES")
    ] = None,
    accelerators: Annotated[
        int | None, typer.Option(help="Accelerators of all hosts.", show_default="the scenario's ranks")
    ] = None,
    hosts: Annotated[int | None, typer.Option(help="Hosts.", show_default="the scenario's nodes")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the least dataset that MLPerf Storage allows.

    It has 5 times the memory of all hosts, and 500 steps per accelerator in an epoch.

    Example:  rayio datasize unet3d-h100 --accelerators 8 --hosts 2 --memory 256GiB
    """
    from rayio.machine.host import memory_bytes
    from rayio.report.text.datasize import text
    from rayio.study.sizing.mlperf import datasize as size_of
    from rayio.units import parse_bytes

    try:
        nbytes = memory_bytes() if memory is None else parse_bytes(memory)
    except ValueError as error:
        raise typer.BadParameter(f"--memory {memory}: {error}") from None
    with only_json(as_json):
        answer = size_of(source, overrides or (), memory=int(nbytes), accelerators=accelerators, hosts=hosts)
    if as_json:
        print_json(answer)
    else:
        print(text(answer))


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command(rich_help_panel=ASK)(capacity)
    app.command(rich_help_panel=ASK)(advise)
    app.command(rich_help_panel=ASK)(datasize)
