"""A reduced import as a result's record, and in words: what was published, and what cannot be known."""

from __future__ import annotations

from collections.abc import Callable

from rayio.imports.dlio_files import STATS
from rayio.imports.dlio_summaries import Epoch, Reduced
from rayio.records.run_result import Imported, ImportedEpoch, ReducedImport, RunResult
from rayio.units import format_seconds

#: Epochs that are told one by one; of more, the first and the last.
SHOWN = 6

_NO_STEPS = (
    "no RANK_output.json, so no time of any step: rayio's own AU, shares and percentiles, and where the points that AU "
    "lacks of 100 went, are not known"
)
_NO_LENGTHS = f"no {STATS}, so how long an epoch or a checkpoint took is not known"
_NO_STEP_TIME = (
    "no configured compute time, or no number of steps, so how long a step took is not known (config.yaml says both)"
)


def as_published(reduced: Reduced) -> Imported:
    """The part of a result that says what was published, and what it does not say."""
    steps, compute = reduced.steps, reduced.compute
    lacks = [_NO_STEPS]
    if not reduced.has_blocks:
        lacks.append(_NO_LENGTHS)
    if not steps or not compute:
        lacks.append(_NO_STEP_TIME)
    return Imported(
        au=reduced.au,
        published_au=reduced.au,
        lost_points=None,
        epochs=tuple(_epoch(place, epoch, steps, compute) for place, epoch in enumerate(reduced.epochs, 1)),
        reduced=ReducedImport(files=reduced.files, lacks=tuple(lacks)),
    )


def _epoch(place: int, epoch: Epoch, steps: int | None, compute: float | None) -> ImportedEpoch:
    """An epoch, with what DLIO's formula turned round says of its steps: T = Σ compute[1:] · 100 / AU."""
    step = first = None
    if steps and compute and epoch.au:
        step = compute * 100 / epoch.au
        if epoch.seconds is not None and (left := epoch.seconds - (steps - 1) * step) > 0:
            first = left
    return ImportedEpoch(
        epoch=place,
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


#: Columns of a reduced import's epochs: of a record, its heading and how its value is written.
COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "au": ("AU", lambda value: f"{value:.2f} %"),
    "samples_per_second": ("samples/s", lambda value: f"{value:,.1f}"),
    "seconds": ("length", format_seconds),
    "first_step_seconds": ("first step", format_seconds),
    "step_seconds": ("other steps", format_seconds),
    "checkpoint_seconds": ("checkpoint", format_seconds),
}


def table(told: Imported) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of the epochs as they were published, without columns of which nothing is known."""
    names = [name for name in COLUMNS if any(getattr(epoch, name) is not None for epoch in told.epochs)]
    rows = [
        [
            str(epoch.epoch),
            *("" if (held := getattr(epoch, name)) is None else COLUMNS[name][1](held) for name in names),
        ]
        for epoch in told.epochs
    ]
    return ["epoch", *(COLUMNS[name][0] for name in names)], rows


def lines(result: RunResult, told: Imported) -> list[str]:
    """Write a reduced import for a terminal, in place of the numbers that it lacks."""
    rate, stdev = result.samples_per_second_dlio, result.au_dlio_stdev
    spread = "" if stdev is None else f" ± {stdev:.2f}"
    written = [f"  {'as DLIO':<12}{f'{told.au:.2f} %':>16}  AU as published, mean of {len(told.epochs)} epochs{spread}"]
    if rate is not None:
        written.append(f"  {'throughput':<12}{f'{rate:,.1f} samples/s':>16}  as published")
    return [*written, "", *epochs(told)]


def epochs(told: Imported) -> list[str]:
    """Write the epochs as they were published, a line each."""
    head, rows = table(told)
    shown = rows if len(rows) <= SHOWN else [*rows[: SHOWN - 1], rows[-1]]
    left = len(rows) - len(shown)
    title = f"  the epochs as published ({left} between them left out)" if left else "  the epochs as published"
    return [title, *(_row(row) for row in (head, *shown))]


def _row(cells: list[str]) -> str:
    return (f"  {cells[0]:<6}" + "".join(f"{cell:>12}" for cell in cells[1:])).rstrip()


def lacking(told: Imported) -> list[str]:
    """What a reduced import lacks, as notes of a result."""
    if told.reduced is None:
        return []
    made = f"reduced import, made of {', '.join(told.reduced.files)}: AU and throughput are as DLIO published them"
    return [made, *told.reduced.lacks]
