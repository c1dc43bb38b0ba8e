"""A sweep as text: a table that fits a terminal, and conclusions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rayio.analyze.worth import LEAST_AU
from rayio.records.doubts import SETTING, blocking
from rayio.records.sweeps import DONE, FAILED, IMPOSSIBLE, UNMET, SweepTable, TablePoint
from rayio.report.text.doubts import worded
from rayio.report.text.terms import LEAST_SYNC, counted, kept
from rayio.units import format_bytes

#: Points that a terminal shows; the files have all.
SHOWN_POINTS = 40
#: Different reasons of contradictory points to print; sweep.csv has all.
SHOWN_REASONS = 3
#: The fewest characters of a swept value, even in a narrow terminal.
SHORTEST_VALUE = 8

#: Columns that a narrow terminal leaves out, in this order; sweep.csv has them.
DISPENSABLE = ("data loading", "workers", "samples/s")


def head(points: Sequence[TablePoint]) -> tuple[str, ...]:
    """Return the titles of the columns after the swept values.

    Goodput is among them if runs had failures, which AU does not show, and sync if ranks waited for each other.
    """
    return tuple(title for title, _ in _columns(points))


def rows_of(points: Sequence[TablePoint]) -> list[list[str]]:
    """Return the cells of points, as :func:`head` has titles."""
    columns = _columns(points)
    return [[*point.values, *(cell(point) for _, cell in columns)] for point in points]


def _columns(points: Sequence[TablePoint]) -> list[tuple[str, Callable[[TablePoint], str]]]:
    """Return the titles of columns, and how a point's cell is made."""
    has_goodput = any(point.goodput is not None for point in points)
    has_sync = any((point.sync_share or 0.0) >= LEAST_SYNC for point in points)
    return [
        ("AU", _au),
        *([("goodput", lambda point: _share(point.goodput))] if has_goodput else []),
        ("samples/s", lambda point: "-" if point.samples_per_second is None else f"{point.samples_per_second:,.1f}"),
        ("data loading", lambda point: _share(point.data_wait_share)),
        *([("sync", lambda point: _share(point.sync_share))] if has_sync else []),
        ("workers", lambda point: "-" if point.workers is None else f"{point.workers:,}"),
        ("memory", lambda point: "-" if point.window_bytes is None else format_bytes(point.window_bytes)),
        ("", lambda point: ", ".join(remarks(point))),
    ]


def short_names(keys: Sequence[str]) -> list[str]:
    """Return keys by their last part, if it is unique."""
    lasts = [key.rpartition(".")[2] for key in keys]
    return [last if lasts.count(last) == 1 else key for key, last in zip(keys, lasts, strict=True)]


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _au(point: TablePoint) -> str:
    """Return a point's AU, with half of its interval if it was repeated."""
    if point.au is not None and point.au_half is not None:
        return f"{100 * point.au:.1f} ± {100 * point.au_half:.1f} %"
    return _share(point.au)


def remarks(point: TablePoint) -> list[str]:
    """Return the remarks on a point: knee, front (on the Pareto front), or its status if it failed."""
    words = ["knee"] * point.is_knee + ["front"] * point.is_on_front
    return [*words, *([] if point.status == DONE else [point.status])]


def text(table: SweepTable, width: int = 100) -> str:
    """Return a sweep as a table of at most ``width`` columns, with conclusions.

    If there are more than :data:`SHOWN_POINTS` points, it has the Pareto front and the first others.
    """
    points = shown(table)
    rows = rows_of(points)
    columns = head(points)
    titles = [*short_names(table.keys), *columns]
    if "sync" in columns and _needed([titles, *rows], 0) > width:  # rather than cut a swept key
        place = len(table.keys) + columns.index("sync")
        titles, *rows = ([*row[:place], *row[place + 1 :]] for row in (titles, *rows))
    brief = [[*["" for _ in table.keys], *row[len(table.keys) :]] for row in (titles, *rows)]
    places = kept(brief, width - len(table.keys) * SHORTEST_VALUE, *DISPENSABLE)
    titles, *rows = ([row[place] for place in places] for row in (titles, *rows))
    _shorten([titles, *rows], len(table.keys), width)
    wide = [max(len(titles[n]), *(len(row[n]) for row in rows)) for n in range(len(titles) - 1)]
    lines = [_line(titles, wide, width), *(_line(row, wide, width) for row in rows)]
    if (left := len(table.points) - len(points)) > 0:
        lines.append(f"  and {counted(left, 'more point')}: all are in sweep.csv")
    drawn = conclusions(table)
    return "\n".join([*lines, *([""] if drawn else []), *drawn])


def shown(table: SweepTable) -> list[TablePoint]:
    """Return the points of the table: all, or the Pareto front and the first others."""
    if len(table.points) <= SHOWN_POINTS:
        return [*table.points]
    order = sorted(range(len(table.points)), key=lambda index: not table.points[index].is_on_front)
    return [table.points[index] for index in sorted(order[:SHOWN_POINTS])]


def _shorten(rows: Sequence[list[str]], num_keys: int, width: int) -> None:
    """Cut the swept values of a table so that its numbers fit; sweep.csv has them whole."""
    if _needed(rows, 0) <= width:
        return
    taken = _needed(rows, num_keys)
    most = max(SHORTEST_VALUE, (width - taken) // num_keys - 2) if num_keys else 0
    for row in rows:
        row[:num_keys] = [cell if len(cell) <= most else f"{cell[: most - 1]}…" for cell in row[:num_keys]]


def _needed(rows: Sequence[list[str]], first: int) -> int:
    """Return the width of a table's columns from the one with number ``first`` on."""
    return 2 + sum(2 + max(len(row[n]) for row in rows) for n in range(first, len(rows[0])))


def _line(row: Sequence[str], wide: Sequence[int], width: int) -> str:
    line = "  " + "  ".join(f"{cell:>{n}}" for cell, n in zip(row[:-1], wide, strict=True)) + f"  {row[-1]}"
    line = line.rstrip()
    return line if len(line) <= width else line[: max(width - 1, 1)] + "…"


def conclusions(table: SweepTable) -> list[str]:
    """Return the conclusions: the best setting, the knee, met expectations, warnings, failed points."""
    names, points = short_names(table.keys), table.points
    lines = _sufficient(table, names)
    lines += [f"knee: {_place(names, p)}: more of it brings little AU" for p in points if p.is_knee]
    if not blocking((warned.doubt for warned in table.warnings), SETTING):
        lines += _most_goodput(names, points)
    met, unmet = (sum(point.status == status for point in points) for status in (DONE, UNMET))
    if unmet:
        meet = "meets" if met == 1 else "meet"
        lines.append(f"expect: {counted(met, 'point')} {meet} it, {unmet} {'does' if unmet == 1 else 'do'} not")
    if table.cheapest is not None:
        cheapest = _place(names, points[table.cheapest])
        which = "it is" if met == 1 else "the one of these with the fewest workers, then the least memory"
        lines.append(f"{which}: {cheapest}")
    for warned in table.warnings:
        (doubt,) = worded([warned.doubt])
        place = _place(names, points[warned.worst])
        where = place if warned.number == 1 else f"{warned.number} points (most of all {place})"
        lines.append(f"warning: {where}: {doubt.sentence}")
    for status, what in ((IMPOSSIBLE, "cannot be"), (FAILED, "failed, and the same command tries again")):
        of_status = [point.error or "" for point in points if point.status == status]
        if of_status:
            reasons = [*dict.fromkeys(of_status)]
            left = len(reasons) - SHOWN_REASONS
            more = f"; and {counted(left, 'other reason')}" if left > 0 else ""
            lines.append(f"{counted(len(of_status), 'point')} {what}: {'; '.join(reasons[:SHOWN_REASONS])}{more}")
    return lines


def _sufficient(table: SweepTable, names: Sequence[str]) -> list[str]:
    """Return the setting with most AU, and the cheapest one that has hardly less."""
    if table.sufficient is None:
        return []
    enough = table.points[table.sufficient]
    known = [(point.au, point) for point in table.points if point.au is not None]
    (most, best), least = max(known, key=lambda pair: pair[0]), min(au for au, _ in known)
    if most - least < LEAST_AU:
        costs = {(point.workers, point.window_bytes) for _, point in known}
        cheapest = f"; cheapest: {_place(names, enough)}" if len(costs) > 1 else ""
        low, high = f"{100 * least:.1f}", f"{100 * most:.1f}"
        equal = f"AU is {low} % at every point"
        lead = equal if low == high else f"AU changes by less than a point ({low} to {high} %)"
        return [f"{lead}{cheapest}"]
    lines = [f"most AU: {100 * most:.1f} % with {_place(names, best)}"]
    is_cheaper = (enough.workers, enough.window_bytes) != (best.workers, best.window_bytes)
    if is_cheaper and enough.au is not None:
        lines.append(f"cheapest within a point of it: {_place(names, enough)}, {100 * enough.au:.1f} %")
    return lines


def _most_goodput(names: Sequence[str], points: Sequence[TablePoint]) -> list[str]:
    """Return the point with the most goodput, where failures make that the metric that decides."""
    known = [point for point in points if point.goodput is not None]
    if len(known) < 2:
        return []
    best = max(known, key=lambda point: point.goodput or 0.0)
    hint = "" if any(point.au_half is not None for point in known) else " (one run each; --repeat 5 shows the noise)"
    return [f"most goodput: {_place(names, best)}, {100 * (best.goodput or 0.0):.1f} % of wall time{hint}"]


def _place(names: Sequence[str], point: TablePoint) -> str:
    return ", ".join(f"{name}={value}" for name, value in zip(names, point.values, strict=True))
