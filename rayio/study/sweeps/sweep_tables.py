"""A sweep as text: a table that fits a terminal, and conclusions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rayio.analyze.gate import of_result, of_runs
from rayio.records.doubts import SETTING, blocking
from rayio.report.text.doubts import worded
from rayio.schema.fields import show
from rayio.study.sweeps.sweep_rows import DONE, FAILED, IMPOSSIBLE, UNMET, Point
from rayio.study.sweeps.swept import Sweep
from rayio.units import format_bytes

#: Points that a terminal shows; the files have all.
SHOWN_POINTS = 40
#: Different reasons of contradictory points to print; sweep.csv has all.
SHOWN_REASONS = 3
#: The fewest characters of a swept value, even in a narrow terminal.
SHORTEST_VALUE = 8


def short_names(keys: Sequence[str]) -> list[str]:
    """Return keys by their last part, if it is unique."""
    lasts = [key.rpartition(".")[2] for key in keys]
    return [last if lasts.count(last) == 1 else key for key, last in zip(keys, lasts, strict=True)]


def written(value: Any) -> str:
    """Return a value as text in a scenario; - for None."""
    return "-" if value is None else value if isinstance(value, str) else show(value)


def cells(sweep: Sweep, point: Point) -> list[str]:
    """Return a point's cells: its values, AU, samples/s, exposed data loading, workers, memory, remarks."""
    spread = point.spread("au")
    au = "-" if spread is None else f"{100 * spread[0]:.1f} %"
    if spread is not None and spread[1] is not None:
        au = f"{100 * spread[0]:.1f} ± {100 * spread[1]:.1f} %"
    rate, wait = point.mean("samples_per_second"), point.mean("data_wait_share")
    memory = point.first.window_bytes
    return [
        *map(written, point.values),
        au,
        "-" if rate is None else f"{rate:,.1f}",
        "-" if wait is None else f"{100 * wait:.1f} %",
        "-" if point.first.readers is None else f"{point.first.readers:,}",
        "-" if memory is None else format_bytes(memory),
        ", ".join(remarks(sweep, point)),
    ]


def remarks(sweep: Sweep, point: Point) -> list[str]:
    """Return the remarks on a point: knee, front (on the Pareto front), or its status if it failed."""
    words = ["knee"] if point is sweep.knee else []
    words += ["front"] if any(point is other for other in sweep.front) else []
    return [*words, *([] if point.status == DONE else [point.status])]


HEAD = ("AU", "samples/s", "data loading", "readers", "memory", "")


def text(sweep: Sweep, width: int = 100) -> str:
    """Return a sweep as a table of at most ``width`` columns, with conclusions.

    If there are more than :data:`SHOWN_POINTS` points, it has the Pareto front and the first others.
    """
    points = shown(sweep)
    rows = [cells(sweep, point) for point in points]
    head = [*short_names(sweep.keys), *HEAD]
    _shorten([head, *rows], len(sweep.keys), width)
    wide = [max(len(head[n]), *(len(row[n]) for row in rows)) for n in range(len(head) - 1)]
    lines = [_line(head, wide, width), *(_line(row, wide, width) for row in rows)]
    if (left := len(sweep.points) - len(points)) > 0:
        lines.append(f"  and {left} more points: all are in sweep.csv")
    return "\n".join([*lines, "", *conclusions(sweep)])


def shown(sweep: Sweep) -> list[Point]:
    """Return the points of the table: all, or the Pareto front and the first others."""
    if len(sweep.points) <= SHOWN_POINTS:
        return sweep.points
    kept = [*{id(point): None for point in [*sweep.front, *sweep.points]}][:SHOWN_POINTS]
    return [point for point in sweep.points if id(point) in kept]


def _shorten(rows: Sequence[list[str]], num_keys: int, width: int) -> None:
    """Cut the swept values of a table so that its numbers fit; sweep.csv has them whole."""
    taken = 2 + sum(2 + max(len(row[n]) for row in rows) for n in range(num_keys, len(rows[0])))
    most = max(SHORTEST_VALUE, (width - taken) // num_keys - 2) if num_keys else 0
    for row in rows:
        row[:num_keys] = [cell if len(cell) <= most else f"{cell[: most - 1]}…" for cell in row[:num_keys]]


def _line(row: Sequence[str], wide: Sequence[int], width: int) -> str:
    line = "  " + "  ".join(f"{cell:>{n}}" for cell, n in zip(row[:-1], wide, strict=True)) + f"  {row[-1]}"
    line = line.rstrip()
    return line if len(line) <= width else line[: max(width - 1, 1)] + "…"


def conclusions(sweep: Sweep) -> list[str]:
    """Return the conclusions: the knee, met expectations, notes, contradictory and failed points."""
    names = short_names(sweep.keys)
    lines = []
    if (bend := sweep.knee) is not None:
        lines.append(f"knee: {_place(names, bend)}: more of it brings little AU")
    met = [point for point in sweep.points if point.status == DONE]
    unmet = sum(point.status == UNMET for point in sweep.points)
    if unmet:
        lines.append(f"expect: {len(met)} points meet it, {unmet} do not")
        is_doubted = blocking(of_runs(result for point in met for result in point.measured), SETTING)
        cheapest = min(met, key=lambda p: (p.first.readers or 0, p.first.window_bytes or 0.0), default=None)
        if cheapest is not None and not is_doubted:
            lines.append(f"the one of these with the fewest readers, then the least memory: {_place(names, cheapest)}")
    lines += _warnings(sweep, names)
    for status, what in ((IMPOSSIBLE, "cannot be"), (FAILED, "failed, and the same command tries again")):
        of_status = [point.error or "" for point in sweep.points if point.status == status]
        if of_status:
            reasons = [*dict.fromkeys(of_status)]
            lines.append(
                f"{len(of_status)} point{'s' * (len(of_status) != 1)} {what}: {'; '.join(reasons[:SHOWN_REASONS])}"
            )
            lines[-1] += f"; and {len(reasons) - SHOWN_REASONS} other reasons" if len(reasons) > SHOWN_REASONS else ""
    return lines


def _warnings(sweep: Sweep, names: Sequence[str]) -> list[str]:
    """Return a warning for each kind of doubt: the worst one, and the number of points that have it."""
    lines = []
    for doubt in worded(of_runs(result for point in sweep.points for result in point.measured)):
        mine = [p for p in sweep.points if any(d.code == doubt.code for r in p.measured for d in of_result(r))]
        worst = next(p for p in mine if any(d.numbers == doubt.numbers for r in p.measured for d in of_result(r)))
        number = f"{len(mine)} point{'s' * (len(mine) != 1)}"
        lines.append(f"warning: {number}, {_place(names, worst)} the most: {doubt.sentence}")
    return lines


def _place(names: Sequence[str], point: Point) -> str:
    return ", ".join(f"{name}={written(value)}" for name, value in zip(names, point.values, strict=True))
