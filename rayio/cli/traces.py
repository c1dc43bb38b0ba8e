"""The commands import torch-profiler and import dftracer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rayio.cli.arguments import AsJson
from rayio.cli.file_options import local_file
from rayio.cli.fitting import columns, fit
from rayio.cli.output import only_json, print_json

if TYPE_CHECKING:
    from rayio.session.result import Run

Traces = Annotated[
    list[Path],
    typer.Argument(help="Trace files of one run, or folders of them.", metavar="TRACE...", parser=local_file),
]
Out = Annotated[
    str | None, typer.Option(help="Run directory to make; must not exist.", show_default="runs/<name>", metavar="RUN")
]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Samples of a batch, where traces do not tell.", metavar="N")
]


def torch_profiler(traces: Traces, out: Out = None, batch_size: BatchSize = None, as_json: AsJson = False) -> None:
    """Import traces of torch.profiler as a run: steps, waits for batches, work.

    Give one trace for each rank (.json or .json.gz).

    Example:  rayio import torch-profiler trace.json.gz --batch-size 32
    """
    from rayio.session.traces import import_torch_profiler

    with only_json(as_json):
        imported = import_torch_profiler(traces, out, batch_size=batch_size)
    _show(imported, as_json=as_json)


def dftracer(traces: Traces, out: Out = None, batch_size: BatchSize = None, as_json: AsJson = False) -> None:
    """Import traces of DFTracer, such as DLIO's, as a run: steps, waits for batches, work, reads.

    Give the files of all processes (.pfw or .pfw.gz), or their folder.

    Example:  rayio import dftracer results/unet3d
    """
    from rayio.session.traces import import_dftracer

    with only_json(as_json):
        imported = import_dftracer(traces, out, batch_size=batch_size)
    _show(imported, as_json=as_json)


def _show(imported: Run, *, as_json: bool) -> None:
    from rayio.records.answers import Ran

    if as_json:
        print_json(Ran(directory=imported.address, result=imported.result))
    else:
        print(fit(imported.summary(), columns()))


def add_to(imports: typer.Typer) -> None:
    """Register these commands."""
    imports.command("torch-profiler")(torch_profiler)
    imports.command("dftracer")(dftracer)
