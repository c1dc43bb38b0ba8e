"""The command calibrate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rayio.cli import completion
from rayio.cli.arguments import AsJson
from rayio.cli.file_options import Force, check_replaced, local_file
from rayio.cli.grouped import ASK
from rayio.cli.output import only_json, print_json
from rayio.cli.terminal import Terminal


def calibrate(
    path: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="Directory of a run on Ray or the local engine.", autocompletion=completion.runs
        ),
    ],
    others: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Short runs with other sample sizes, to fit the time for each byte.",
            autocompletion=completion.runs,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Scenario file to write; replaces one that calibrate wrote.",
            show_default="print it",
            metavar="FILE",
            parser=local_file,
        ),
    ] = None,
    busy_run: Annotated[
        bool,
        typer.Option(
            "--busy-run/--no-busy-run",
            help="Also make busy, lone and check runs for each RUN on Ray, and probe this machine's processors.",
        ),
    ] = True,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Fit costs from a run, for predictions.

    It writes the run's scenario with fitted loader overhead, storage, stage times and processors.

    Example:  rayio calibrate runs/four runs/small --out four.yaml && rayio simulate four.yaml loader.num_workers=8
    """
    from rayio.predict.calibrate import MARK
    from rayio.session.busy_runs import calibrated

    if out is not None:
        check_replaced(out, MARK, "calibrate", force=force)
    with only_json(as_json):
        learned = calibrated(path, *(others or ()), busy=busy_run, reporter=Terminal())
    for doubt in learned.doubts:
        print(f"rayio: warning: {doubt.sentence}", file=sys.stderr)
    if as_json:
        if out is not None:
            learned.write(out)
        print_json(learned.as_json(out))
        return
    if out is None:
        print(learned.to_yaml(), end="")
        return
    learned.write(out)
    for note in learned.notes[2:]:
        print(f"rayio: {note}", file=sys.stderr)
    print(f"{out}: written; next: rayio simulate {out}")


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command(rich_help_panel=ASK)(calibrate)
