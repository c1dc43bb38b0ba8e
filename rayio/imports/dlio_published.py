"""Reduced imports as a record and as text: published numbers, and what is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rayio.imports.dlio_files import STATS
from rayio.imports.dlio_saved import LOAD, SAVE, checkpoint_bytes, transfers
from rayio.imports.dlio_summaries import Epoch, Reduced
from rayio.records.run_result import Imported, ImportedEpoch, ImportedTransfers, ReducedImport, RunResult
from rayio.units import format_bytes, format_seconds

#: The most epochs to list; of more, the first ones and the last.
SHOWN = 6

_NO_STEPS = (
    "no times of steps, because there is no RANK_output.json: rayio cannot compute its own AU, shares, percentiles and "
    "losses"
)
_NO_LENGTHS = f"no lengths of epochs and checkpoints, because there is no {STATS}"
_NO_STEP_TIME = "no length of a step, because there is no compute time or number of steps (see config.yaml)"


def as_published(reduced: Reduced) -> Imported:
    """Return the imported part of a result: what was published, and what is missing."""
    steps, compute = reduced.steps, reduced.compute
    lacks = [_NO_STEPS]
    if not reduced.has_blocks:
        lacks.append(_NO_LENGTHS)
    if not steps or not compute:
        lacks.append(_NO_STEP_TIME)
    metric = reduced.summary["metric"]
    return Imported(
        checkpoint_bytes=checkpoint_bytes(metric),
        saved=transfers(metric, (), SAVE),
        restored=transfers(metric, (), LOAD),
        au=reduced.au,
        published_au=reduced.au,
        lost_points=None,
        epochs=tuple(_epoch(number, epoch, steps, compute) for number, epoch in enumerate(reduced.epochs, 1)),
        reduced=ReducedImport(files=reduced.files, lacks=tuple(lacks)),
    )


def _epoch(number: int, epoch: Epoch, steps: int | None, compute: float | None) -> ImportedEpoch:
    """Return an epoch, with the length of its steps from DLIO's formula: T = Σ compute[1:] · 100 / AU."""
    step = first = None
    if steps and compute and epoch.au:
        step = compute * 100 / epoch.au
        if epoch.seconds is not None and (left := epoch.seconds - (steps - 1) * step) > 0:
            first = left
    return ImportedEpoch(
        epoch=number,
        au=epoch.au,
        data_wait=None,
        bookkeeping=None,
        barrier_skew=None,
        first_step_wait=None,
        unrecorded=None,
        published_au=epoch.au,
        seconds=epoch.seconds,
        samples_per_second=epoch.samples_per_second,
        step_seconds=step,
        first_step_seconds=first,
        checkpoint_seconds=epoch.checkpoint_seconds,
    )


#: Columns of a reduced import's epochs: field, heading and format.
COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "au": ("AU", lambda value: f"{value:.2f} %"),
    "samples_per_second": ("samples/s", lambda value: f"{value:,.1f}"),
    "seconds": ("length", format_seconds),
    "first_step_seconds": ("first step", format_seconds),
    "step_seconds": ("other steps", format_seconds),
    "checkpoint_seconds": ("checkpoint", format_seconds),
}


#: Columns of published checkpoints: field, heading and format.
TRANSFERS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "number": ("checkpoints", str),
    "seconds": ("on rank 0", format_seconds),
    "seconds_stdev": ("±", format_seconds),
    "all_ranks_seconds": ("on all ranks", format_seconds),
    "mib_per_second": ("GiB/s", lambda value: f"{value / 1024:,.2f}"),
    "mib_per_second_stdev": ("± GiB/s", lambda value: f"{value / 1024:,.2f}"),
}


def table(imported: Imported) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the published epochs, without unknown columns."""
    names = [name for name in COLUMNS if any(getattr(epoch, name) is not None for epoch in imported.epochs)]
    rows = [
        [
            str(epoch.epoch),
            *("" if (cell := getattr(epoch, name)) is None else COLUMNS[name][1](cell) for name in names),
        ]
        for epoch in imported.epochs
    ]
    return ["epoch", *(COLUMNS[name][0] for name in names)], rows


def _transfers(imported: Imported) -> list[tuple[str, ImportedTransfers]]:
    named = (("saving", imported.saved), ("restoring", imported.restored))
    return [(name, moved) for name, moved in named if moved is not None]


def transfer_table(imported: Imported) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the published checkpoints, without unknown columns; no rows without any."""
    moved = _transfers(imported)
    names = [name for name in TRANSFERS if any(getattr(each, name) is not None for _, each in moved)]
    rows = [
        [what, *("" if (cell := getattr(each, name)) is None else TRANSFERS[name][1](cell) for name in names)]
        for what, each in moved
    ]
    return ["", *(TRANSFERS[name][0] for name in names)], rows


def transfer_lines(imported: Imported) -> list[str]:
    """Return the published checkpoints as lines, with a head; empty without any."""
    head, rows = transfer_table(imported)
    size = "" if imported.checkpoint_bytes is None else f", {format_bytes(imported.checkpoint_bytes)} each"
    if not rows:
        return []
    return [f"  checkpoints as published{size}", *(f"  {row[0]:<10}" + _cells(row[1:]) for row in (head, *rows))]


def _cells(cells: list[str]) -> str:
    return "".join(f"{cell:>15}" for cell in cells).rstrip()


def lines(result: RunResult, imported: Imported) -> list[str]:
    """Return a reduced import as lines for a terminal."""
    if imported.au is None:
        return transfer_lines(imported)
    rate, stdev = result.samples_per_second_dlio, result.au_dlio_stdev
    spread = "" if stdev is None else f" ± {stdev:.2f}"
    written = [
        f"  {'as DLIO':<12}{f'{imported.au:.2f} %':>16}  AU as published, mean of {len(imported.epochs)} epochs{spread}"
    ]
    if rate is not None:
        written.append(f"  {'throughput':<12}{f'{rate:,.1f} samples/s':>16}  as published")
    saved = transfer_lines(imported)
    return [*written, "", *epochs(imported), *([""] if saved else []), *saved]


def epochs(imported: Imported) -> list[str]:
    """Return the published epochs, a line each; without training the checkpoints."""
    if imported.au is None:
        return transfer_lines(imported)
    head, rows = table(imported)
    shown = rows if len(rows) <= SHOWN else [*rows[: SHOWN - 1], rows[-1]]
    left = len(rows) - len(shown)
    title = f"  epochs as published ({left} left out)" if left else "  epochs as published"
    return [title, *(_row(row) for row in (head, *shown))]


def _row(cells: list[str]) -> str:
    return (f"  {cells[0]:<6}" + "".join(f"{cell:>12}" for cell in cells[1:])).rstrip()


def lacking(imported: Imported) -> list[str]:
    """Return notes on what a reduced import lacks."""
    if imported.reduced is None:
        return []
    what = "times and rates" if imported.au is None else "AU and throughput"
    note = f"reduced import of {', '.join(imported.reduced.files)}: {what} are as published by DLIO"
    return [note, *imported.reduced.lacks]
