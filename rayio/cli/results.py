"""Commands that compare runs, ask them questions, and make runs of other benchmarks' results."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rayio.cli.arguments import AsJson, RunPath, RunPaths
from rayio.cli.file_options import local_file
from rayio.cli.fitting import columns, fit, shown
from rayio.cli.output import alone, print_json
from rayio.errors import QueryError, ScenarioError

if TYPE_CHECKING:
    import pyarrow as pa

    from rayio.analyze.compare import Compared

#: Rows that a table on a terminal shows; files (--csv, --json) have all.
SHOWN_ROWS = 200


def compare(
    paths: RunPaths,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare runs: keys that differ, each metric with its difference, and whether it exceeds the noise.

    Example:  rayio compare runs/two runs/four
    """
    from rayio.analyze.compare import compare as comparing
    from rayio.report.text.comparison import text
    from rayio.storage.address import is_path, path_of

    if len(paths) < 2:
        raise typer.BadParameter("give at least two run directories")
    places = [str(path_of(path).resolve()) if is_path(path) else path.rstrip("/") for path in paths]
    if twice := next((path for number, path in enumerate(paths) if places[number] in places[:number]), None):
        raise typer.BadParameter(f"{twice} is given twice; a run is no repeat of itself")
    comparison = comparing([_compared(path) for path in paths])
    print(json.dumps(comparison.as_json(), indent=2) if as_json else fit(text(comparison), columns()))


def _compared(path: str) -> Compared:
    import yaml

    from rayio import session
    from rayio.analyze.compare import Compared
    from rayio.scenario.source import UNREADABLE, plain

    run = session.Run.open(path)
    result, text = run.result, run.directory.scenario
    try:
        scenario = plain(text) if text else {}
    except (yaml.YAMLError, *UNREADABLE):
        scenario = None
    if not isinstance(scenario, dict):
        raise ScenarioError(f"{path}/scenario.yaml is not a scenario: the file is damaged; restore or remove it")
    return Compared(str(path), result, scenario, run.directory.info)


def query(
    path: RunPath,
    sql: Annotated[str, typer.Argument(help="One SELECT; the table is spans.")],
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of objects.")] = False,
) -> None:
    """Ask a run's spans in SQL (DuckDB); nothing else can be read, and nothing written.

    Example:  rayio query runs/four "select name, count(*), sum(duration_ns)/1e9 from spans group by name"
    """
    from rayio.trace.query import query as ask
    from rayio.trace.run_directory import RunDirectory

    if as_csv and as_json:
        raise typer.BadParameter("--csv and --json exclude each other")
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
    """The rows of a table, without holding all of them as Python objects."""
    for batch in table.to_batches(max_chunksize=10_000):
        yield from map(list, zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _print_json(table: pa.Table) -> None:
    """Print one object per line in a list; a number that is not finite is null."""
    names, between = table.column_names, "["
    if twice := [name for number, name in enumerate(names) if name in names[:number]]:
        raise QueryError(f"--json: two columns are named {twice[0]}; name them apart with AS")
    for row in _rows(table):
        values = [None if isinstance(v, float) and not math.isfinite(v) else v for v in row]
        print(between, json.dumps(dict(zip(names, values, strict=True)), default=_plain), sep="\n", end="")
        between = ","
    print("\n]" if between == "," else "[]")


def _plain(value: Any) -> Any:
    """Turn what JSON has no type for into what it has: a whole decimal into a number, anything else into text."""
    from decimal import Decimal

    if isinstance(value, Decimal):
        return int(value) if value == int(value) else float(value)
    return str(value)


def _print_table(table: pa.Table) -> None:
    from rich.console import Console
    from rich.table import Table

    names, width = table.column_names, columns()
    cells = [[_cell(value) for value in row] for row in _rows(table.slice(0, SHOWN_ROWS))]
    widths = [
        max([len(name), *(len(line) for row in cells for line in row[place].split("\n"))])
        for place, name in enumerate(names)
    ]
    chosen = shown(widths, width)
    told = Table()
    for place, wide in chosen:
        is_number = str(table.schema.types[place]).startswith(("int", "uint", "float", "double", "decimal", "half"))
        told.add_column(names[place], justify="right" if is_number else "left", overflow="fold", width=wide)
    for row in cells:
        told.add_row(*(row[place] for place, _ in chosen))
    console = Console(markup=False, highlight=False, emoji=False)
    console.width = sum(wide + 3 for _, wide in chosen) + 1
    console.print(told)
    if (left := len(table) - SHOWN_ROWS) > 0:
        print(f"and {left} more rows; --csv and --json print all")
    if others := [name for place, name in enumerate(names) if place >= len(chosen)]:
        more = f"{len(others)} more columns: {', '.join(others)}; --csv and --json print all, a wider terminal more"
        print(fit(more, width))


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)


def dlio_results(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder with summary.json; RANK_output.json beside it say more.", metavar="DIR", parser=local_file
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(help="Run directory to make; must not exist.", show_default="runs/<DIR's name>", metavar="RUN"),
    ] = None,
    reduced: Annotated[
        bool, typer.Option("--reduced", help="Take the summary alone, although there are files of ranks.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a run directory of a result folder of DLIO or MLPerf Storage, and say where its AU went.

    Most published folders have no RANK_output.json: their import is reduced, and says what it lacks.

    Example:  rayio import dlio-results results/unet3d/run_1 --out runs/published
    """
    from rayio.records.answers import Ran
    from rayio.session.imported import import_dlio_results

    with alone(as_json):
        made = import_dlio_results(folder, out, reduced=reduced)
    if as_json:
        print_json(Ran(directory=made.address, result=made.result))
    else:
        print(fit(made.summary(), columns()))


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command()(compare)
    app.command()(query)
    told = "Make runs of other benchmarks' results.\n\nExample:  rayio import dlio-results results/unet3d/run_1"
    imports = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=told)
    imports.command("dlio-results")(dlio_results)
    app.add_typer(imports, name="import")
