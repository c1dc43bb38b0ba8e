"""The commands compare, query and import."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rayio.cli import traces
from rayio.cli.arguments import AsJson, RunPath, RunPaths
from rayio.cli.file_options import Force, check_replaced, local_file
from rayio.cli.fitting import columns, fit
from rayio.cli.fitting import shown as shown_columns
from rayio.cli.grouped import ASK, LOOK, TOOLS
from rayio.cli.output import end_with_reader, only_json, print_json, raw
from rayio.cli.workload_import import dlio
from rayio.errors import QueryError
from rayio.records.printed import escaped

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows of a table on a terminal; --csv and --json print all.
SHOWN_ROWS = 200


def compare(
    paths: RunPaths,
    everything: Annotated[bool, typer.Option("--all", help="Print all metrics.")] = False,
    out: Annotated[
        str | None,
        typer.Option(help="File to write the comparison to as a page; replaces one of compare.", metavar="FILE"),
    ] = None,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare runs: which is faster, and is it noise?

    The first run's group is A. Runs of one scenario are repeats, paired by equal seeds.

    Example:  rayio compare runs/two-* runs/four-* --out compare.html
    """
    from rayio.report.compare_page import MARK
    from rayio.report.text.comparison import text
    from rayio.session.compared import compare as comparing
    from rayio.storage.address import shown

    if out is not None:
        check_replaced(out, MARK, "compare", force=force)
    comparison = comparing(*paths, out=out)
    print(
        json.dumps(comparison.as_json(), indent=2)
        if as_json
        else fit(text(comparison, everything=everything), columns())
    )
    if out is not None:
        print(f"rayio: comparison: {shown(out)}", file=sys.stderr)


def query(
    path: RunPath,
    sql: Annotated[str, typer.Argument(help="One SELECT; the table is spans.")],
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of objects.")] = False,
) -> None:
    """Query a run's spans in SQL (DuckDB).

    A query reads only the spans and writes nothing.

    Example:  rayio query runs/four "select name, count(*), sum(duration_ns)/1e9 from spans group by name"
    """
    from rayio.trace.query import query as ask
    from rayio.trace.run_directory import RunDirectory

    if as_csv and as_json:
        raise typer.BadParameter("--csv and --json exclude each other")
    end_with_reader()
    answer = ask(RunDirectory.open(path), sql)
    for name in answer.damaged:
        print(f"rayio: {path}/spans/{name} is damaged; its spans are left out", file=sys.stderr)
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(answer.table.column_names)
        writer.writerows(_rows(answer.table))
    elif as_json:
        _print_json(answer.table)
    else:
        _print_table(answer.table)


def _rows(table: pa.Table) -> Iterator[list[Any]]:
    for batch in table.to_batches(max_chunksize=10_000):
        yield from map(list, zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _print_json(table: pa.Table) -> None:
    """Print a JSON list with one object per line; a number that is not finite becomes null."""
    names, between = table.column_names, "["
    if twice := [name for number, name in enumerate(names) if name in names[:number]]:
        raise QueryError(f"--json: two columns are named {twice[0]}; rename one with AS")
    for row in _rows(table):
        values = [None if isinstance(v, float) and not math.isfinite(v) else v for v in row]
        print(between, json.dumps(dict(zip(names, values, strict=True)), default=_plain), sep="\n", end="")
        between = ","
    print("\n]" if between == "," else "[]")


def _plain(value: Any) -> Any:
    """Return a value without a JSON type as a number (decimals) or text."""
    from decimal import Decimal

    if isinstance(value, Decimal):
        return int(value) if value == int(value) else float(value)
    return str(value)


def _print_table(table: pa.Table) -> None:
    from rich.console import Console
    from rich.table import Table

    names, width = [escaped(name) for name in table.column_names], columns()
    cells = [[_cell(value) for value in row] for row in _rows(table.slice(0, SHOWN_ROWS))]
    widths = [
        max([len(name), *(len(line) for row in cells for line in row[index].split("\n"))])
        for index, name in enumerate(names)
    ]
    chosen = shown_columns(widths, width)
    printed = Table()
    for index, wide in chosen:
        is_number = str(table.schema.types[index]).startswith(("int", "uint", "float", "double", "decimal", "half"))
        printed.add_column(names[index], justify="right" if is_number else "left", overflow="fold", width=wide)
    for row in cells:
        printed.add_row(*(row[index] for index, _ in chosen))
    console = Console(file=raw(sys.stdout), markup=False, highlight=False, emoji=False)
    console.width = sum(wide + 3 for _, wide in chosen) + 1
    console.print(printed)
    if (left := len(table) - SHOWN_ROWS) > 0:
        print(f"and {left} more rows; --csv and --json print all")
    if others := names[len(chosen) :]:
        more = f"{len(others)} more columns: {', '.join(others)}; widen the terminal, or use --csv or --json"
        print(fit(more, width))


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.9g}" if isinstance(value, float) else escaped(str(value))


def dlio_results(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder with summary.json and, for more detail, RANK_output.json.", metavar="DIR", parser=local_file
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(help="Run directory to make; must not exist.", show_default="runs/<DIR's name>", metavar="RUN"),
    ] = None,
    reduced: Annotated[bool, typer.Option("--reduced", help="Read only the summary, not the files of ranks.")] = False,
    as_json: AsJson = False,
) -> None:
    """Import a result folder of DLIO or MLPerf Storage as a run.

    Most published folders have no RANK_output.json; their import is reduced, and names what is missing.

    Example:  rayio import dlio-results results/unet3d/run_1 --out runs/published
    """
    from rayio.records.answers import Ran
    from rayio.session.imported import import_dlio_results

    with only_json(as_json):
        imported = import_dlio_results(folder, out, reduced=reduced)
    if as_json:
        print_json(Ran(directory=imported.address, result=imported.result))
    else:
        print(fit(imported.summary(), columns()))


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command(rich_help_panel=ASK)(compare)
    app.command(rich_help_panel=LOOK)(query)
    text = "Import files of others: results, workloads, traces.\n\nExample:  rayio import dlio unet3d_h100.yaml"
    imports = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=text)
    imports.command("dlio-results")(dlio_results)
    imports.command("dlio")(dlio)
    traces.add_to(imports)
    app.add_typer(imports, name="import", rich_help_panel=TOOLS)
