"""The command import dlio."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from rayio.cli.arguments import AsJson
from rayio.cli.file_options import Force, check_replaced, local_file
from rayio.cli.output import print_json
from rayio.errors import ScenarioError

#: The first line of a file that this command wrote.
MARK = re.compile(rb"\A# Imported by rayio ")


def dlio(
    workload: Annotated[
        str | None, typer.Argument(help="Workload file of DLIO or MLPerf Storage, in YAML.", metavar="WORKLOAD")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="DLIO's ++workload.section.key=value, and rayio's section.key=value ...", metavar="KEY=VALUE"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Scenario file to write; replaces one that this command wrote.",
            show_default="print it",
            metavar="FILE",
            parser=local_file,
        ),
    ] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Print what becomes of each key of DLIO, in Markdown.")] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Import a workload file of DLIO as a scenario.

    It lists all keys that act otherwise than in DLIO, and those without effect. Ranks are not in such files.

    Example:  rayio import dlio unet3d_h100.yaml ++workload.reader.read_threads=8 cluster.ranks_per_node=8 --out my.yaml
    """
    from rayio.cli.scenarios import listed
    from rayio.imports.dlio_source import DLIO, to_text
    from rayio.records.answers import ImportedWorkload
    from rayio.scenario.dlio_keys import table
    from rayio.scenario.foreign import converted, split
    from rayio.scenario.load import load, pairs
    from rayio.storage.stores.refusals import write_text

    if keys:
        if as_json:
            raise typer.BadParameter("--keys prints Markdown, and --json is for a workload; leave one of the two out")
        print(table())
        return
    if workload is None:
        raise typer.BadParameter("Missing argument 'WORKLOAD'; give a workload file of DLIO, or --keys")
    source = f"dlio:{workload.removeprefix('dlio:')}"
    if out is not None:
        check_replaced(out, MARK, "import dlio", force=force)
    try:
        scenario = load(source, overrides or ())
    except ScenarioError as error:
        raise listed(error) from None
    made = converted(source, overrides or ())
    assert made is not None
    text = to_text(made, dict(pairs(split(DLIO, overrides or ())[1])))
    if out is not None:
        write_text(out, text)
    if as_json:
        print_json(
            ImportedWorkload(
                file=None if out is None else str(out), name=scenario.name, scenario=text, differs=made.changed,
                no_effect=made.idle,
            )
        )  # fmt: skip
        return
    for remark in made.remarks():
        print(f"rayio: {remark}", file=sys.stderr)
    print(text if out is None else f"{out}: written; next: rayio validate {out}", end="" if out is None else "\n")
