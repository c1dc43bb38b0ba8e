"""Commands that say what would happen: calibrate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rayio.cli import completion
from rayio.cli.arguments import AsJson
from rayio.cli.file_options import Force, check_replaced, local_file
from rayio.cli.output import alone, print_json
from rayio.cli.terminal import Terminal


def calibrate(
    path: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="Directory of a run on Ray or on the local engine.", autocompletion=completion.runs
        ),
    ],
    others: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Short runs with samples of other sizes: they tell what each byte takes.",
            autocompletion=completion.runs,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Scenario file to write; one that calibrate wrote is replaced.",
            show_default="print it",
            metavar="FILE",
            parser=local_file,
        ),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Turn a run into the scenario that predicts it: its engine's costs, its storage, its stage times, its processors.

    Example:  rayio calibrate runs/four runs/small --out four.yaml && rayio simulate four.yaml loader.num_workers=8
    """
    from rayio.predict.calibrate import MARK, calibrate

    if out is not None:
        check_replaced(out, MARK, "calibrate", force=force)
    with alone(as_json):
        learned = calibrate(path, *(others or ()), reporter=Terminal())
    if as_json:
        import yaml

        if out is not None:
            learned.write(out)
        scenario = yaml.safe_load(learned.to_yaml())
        print_json({"file": None if out is None else str(out), "notes": [*learned.notes], "scenario": scenario})
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
    app.command()(calibrate)
