"""A sweep as text: a table that fits a terminal, and what it comes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rayio.analyze.filled import note_of
from rayio.schema.fields import show
from rayio.study.sweeps.sweep_rows import DONE, FAILED, IMPOSSIBLE, UNMET, Point
from rayio.study.sweeps.swept import Sweep
from rayio.units import format_bytes

#: Points that a terminal shows; the files have all.
SHOWN_POINTS = 40
#: Different reasons of points that cannot be that are told in full; sweep.csv has each.
SHOWN_REASONS = 3
#: Characters that a swept value has room for, however narrow the terminal.
SHORTEST_VALUE = 8


def short_names(keys: Sequence[str]) -> list[str]:
    """Name keys by their last part where that tells them apart."""
    lasts = [key.rpartition(".")[2] for key in keys]
    return [last if lasts.count(last) == 1 else key for key, last in zip(keys, lasts, strict=True)]


def said(value: Any) -> str:
    """Write a value as a scenario has it."""
    return "-" if value is None else value if isinstance(value, str) else show(value)


def cells(found: Sweep, point: Point) -> list[str]:
    """Write a point: its values, AU, samples/s, exposed data loading, readers, memory, and what is to be said of it."""
    spread = point.spread("au")
    au = "-" if spread is None else f"{100 * spread[0]:.1f} %"
    if spread is not None and spread[1] is not None:
        au = f"{100 * spread[0]:.1f} ± {100 * spread[1]:.1f} %"
    rate, wait = point.mean("samples_per_second"), point.mean("data_wait_share")
    memory = point.first.window_bytes
    return [
        *map(said, point.values),
        au,
        "-" if rate is None else f"{rate:,.1f}",
        "-" if wait is None else f"{100 * wait:.1f} %",
        "-" if point.first.readers is None else f"{point.first.readers:,}",
        "-" if memory is None else format_bytes(memory),
        ", ".join(remarks(found, point)),
    ]


def remarks(found: Sweep, point: Point) -> list[str]:
    """Say what there is to a point: the knee, on the front, or that it is not well."""
    told = ["knee"] if point is found.knee else []
    told += ["front"] if any(point is other for other in found.front) else []
    return [*told, *([] if point.status == DONE else [point.status])]


HEAD = ("AU", "samples/s", "data loading", "readers", "memory", "")


def text(found: Sweep, width: int) -> str:
    """Write a sweep as a table of at most ``width`` columns, then what it comes to.

    Of more than :data:`SHOWN_POINTS` points those on the front come first, then the others in their order.
    """
    points = shown(found)
    rows = [cells(found, point) for point in points]
    head = [*short_names(found.keys), *HEAD]
    _shorten([head, *rows], len(found.keys), width)
    wide = [max(len(head[n]), *(len(row[n]) for row in rows)) for n in range(len(head) - 1)]
    lines = [_line(head, wide, width), *(_line(row, wide, width) for row in rows)]
    if (left := len(found.points) - len(points)) > 0:
        lines.append(f"  and {left} more points: all are in sweep.csv")
    return "\n".join([*lines, "", *conclusions(found)])


def shown(found: Sweep) -> list[Point]:
    """Choose the points of a table that fits: all, or those on the front and the first others."""
    if len(found.points) <= SHOWN_POINTS:
        return found.points
    kept = [*{id(point): None for point in [*found.front, *found.points]}][:SHOWN_POINTS]
    return [point for point in found.points if id(point) in kept]


def _shorten(rows: Sequence[list[str]], num_keys: int, width: int) -> None:
    """Cut the swept values of a table so that its numbers fit beside them; sweep.csv has them whole."""
    taken = 2 + sum(2 + max(len(row[n]) for row in rows) for n in range(num_keys, len(rows[0])))
    most = max(SHORTEST_VALUE, (width - taken) // num_keys - 2) if num_keys else 0
    for row in rows:
        row[:num_keys] = [cell if len(cell) <= most else f"{cell[: most - 1]}…" for cell in row[:num_keys]]


def _line(row: Sequence[str], wide: Sequence[int], width: int) -> str:
    """Write one line; what is said last is cut, so that it fits."""
    line = "  " + "  ".join(f"{cell:>{n}}" for cell, n in zip(row[:-1], wide, strict=True)) + f"  {row[-1]}"
    line = line.rstrip()
    return line if len(line) <= width else line[: max(width - 1, 1)] + "…"


def conclusions(found: Sweep) -> list[str]:
    """Say what a sweep comes to: the knee, the front, what could not be, and what expectations are met by."""
    names = short_names(found.keys)
    lines = []
    if (bend := found.knee) is not None:
        lines.append(f"knee: {_place(names, bend)}: more of it brings little AU")
    met = [point for point in found.points if point.status == DONE]
    unmet = sum(point.status == UNMET for point in found.points)
    if unmet:
        lines.append(f"expect: {len(met)} points meet it, {unmet} do not")
        if cheapest := min(met, key=lambda p: (p.first.readers or 0, p.first.window_bytes or 0.0), default=None):
            lines.append(f"the one of these with the fewest readers, then the least memory: {_place(names, cheapest)}")
    lines += _filling(found, names)
    for status, what in ((IMPOSSIBLE, "cannot be"), (FAILED, "failed, and the same command tries again")):
        of_status = [point.error or "" for point in found.points if point.status == status]
        if of_status:
            reasons = [*dict.fromkeys(of_status)]
            lines.append(
                f"{len(of_status)} point{'s' * (len(of_status) != 1)} {what}: {'; '.join(reasons[:SHOWN_REASONS])}"
            )
            lines[-1] += f"; and {len(reasons) - SHOWN_REASONS} other reasons" if len(reasons) > SHOWN_REASONS else ""
    return lines


def _filling(found: Sweep, names: Sequence[str]) -> list[str]:
    """Say once of how many points AU is partly that of filling, in the words of the one with the most memory."""
    noted = [(point, note) for point in found.points for one in point.measured if (note := note_of(one.notes))]
    of = {id(point) for point, _ in noted}
    if not noted:
        return []
    point, note = max(noted, key=lambda pair: pair[0].first.window_bytes or 0.0)
    return [f"note: {len(of)} point{'s' * (len(of) != 1)}, {_place(names, point)} the most: {note}"]


def _place(names: Sequence[str], point: Point) -> str:
    return ", ".join(f"{name}={said(value)}" for name, value in zip(names, point.values, strict=True))
