"""The figures of a sweep's page, as HTML: curves with intervals, heat maps, points against their cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rayio.report import axes, charts
from rayio.report.charts import SIDE
from rayio.report.markup import escape
from rayio.study.sweeps import choices
from rayio.study.sweeps.points import identity, number_of, written
from rayio.study.sweeps.sweep_rows import Point, axis

#: The least ratio of largest to smallest value for a logarithmic axis.
LOG_FROM = 8.0
#: Equal parts of a curve's width, each with the tooltip of the nearest point.
PARTS = 60
#: The most points of a scatter plot outside the Pareto front.
MOST_DOTS = 1500
#: The most rows and columns of a heat map.
MOST_CELLS = 40
_COLOURS = {"au": "au", "data_wait_share": "data_wait"}
#: Names of the metrics that decide.
TITLES = {"au": "AU", "goodput": "goodput"}
#: Number of colours of a heat map, from the least to the greatest AU.
CLASSES = 7


def places(values: Sequence[object]) -> list[float]:
    """Return the positions of values along an axis (0 to 1), logarithmic if they span a wide range."""
    numbers = [number_of(value) for value in values]
    known = [number for number in numbers if number is not None]
    if len(known) < len(values) or len(known) < 2 or known[0] == known[-1]:
        return [(n + 0.5) / len(values) for n in range(len(values))]
    if known[0] > 0 and known[-1] / known[0] >= LOG_FROM:
        known = [math.log(number) for number in known]
    return [0.03 + 0.94 * (number - known[0]) / (known[-1] - known[0]) for number in known]


def curve(points: Sequence[Point], metric: str, times: float, unit: str, knee: Point | None = None) -> str:
    """Return the curve of a metric over one key, with the 95 % interval of repeats; ``times`` scales to ``unit``."""
    known = [(point, spread) for point in points if (spread := point.spread(metric)) is not None]
    if not known:
        return ""
    position = dict(zip(map(id, points), places([point.values[0] for point in points]), strict=True))
    x = [position[id(point)] for point, _ in known]
    mean = [times * spread[0] for _, spread in known]
    half = [times * (spread[1] or 0.0) for _, spread in known]
    high = axes.roof(max(m + h for m, h in zip(mean, half, strict=True)))
    high = min(high, 100.0) if unit == "%" else high

    def dot(n: int, value: float) -> str:
        return f"{SIDE * x[n]:.1f} {SIDE * (1 - min(max(value, 0.0) / high, 1.0)):.1f}"

    band, colour = "", _COLOURS.get(metric, "rate")
    if any(half) and len(known) > 1:
        over = [dot(n, mean[n] + half[n]) for n in range(len(known))]
        under = [dot(n, mean[n] - half[n]) for n in reversed(range(len(known)))]
        band = f'<path class="band l-{colour}" d="M{"L".join([*over, *under])}Z"/>'
    line = f'<path class="line l-{colour}" d="M{"L".join(dot(n, mean[n]) for n in range(len(known)))}"/>'
    dots = f'<path class="dot l-{colour}" d="{"".join(f"M{dot(n, mean[n])}h.01" for n in range(len(known)))}"/>'
    texts = []
    for (point, _), m, h in zip(known, mean, half, strict=True):
        more = f" ± {axes.number(h)}" if h else ""
        texts.append(f"{written(point.values[0])}\n{axes.number(m)}{more} {unit}")
    tips = [texts[min(range(len(x)), key=lambda n: abs(x[n] - (part + 0.5) / PARTS))] for part in range(PARTS)]
    ticks = _thin([(position[id(point)], written(point.values[0])) for point in points])
    marks = [(position[id(knee)], "knee")] if knee is not None else []
    return charts.plot(
        band + line + dots, label=f"{metric} over the values", x=ticks, y=axes.linear(high), tips=tips, marks=marks,
        height=200,
    )  # fmt: skip


def _thin(ticks: Sequence[axes.Tick], apart: float = 0.06) -> list[axes.Tick]:
    """Return the ticks without labels that would overlap."""
    kept: list[axes.Tick] = []
    for position, text in ticks:
        if not kept or position - kept[-1][0] >= apart:
            kept.append((position, text if len(text) <= 24 else text[:23] + "…"))
    return kept


def heat_map(points: Sequence[Point], names: Sequence[str], metric: str = "au") -> str:
    """Return a metric over two keys as a table of coloured cells, with the first key as columns."""
    columns, rows = (axis([point.values[n] for point in points]) for n in range(2))
    left_out = len(columns) > MOST_CELLS or len(rows) > MOST_CELLS
    columns, rows = columns[:MOST_CELLS], rows[:MOST_CELLS]
    gain = {identity(point.values): point.mean(metric) for point in points}
    known = [value for value in gain.values() if value is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)

    def cell(column: object, row: object) -> str:
        value = gain.get(identity((column, row)))
        if value is None:
            return "<td>–</td>"
        level = min(int(CLASSES * (value - low) / (high - low)), CLASSES - 1) if high > low else 0
        return f'<td class="heat{level}">{100 * value:.1f}</td>'

    head = "".join(f"<th>{escape(written(value))}</th>" for value in columns)
    body = "".join(
        f"<tr><th>{escape(written(row))}</th>{''.join(cell(column, row) for column in columns)}</tr>" for row in rows
    )
    more = f'<p class="lead">The first {MOST_CELLS} values of each key; sweep.csv has all.</p>' if left_out else ""
    return (
        f'<p class="lead">{TITLES[metric]} in percent; columns: {escape(names[0])}, rows: {escape(names[1])}. '
        "Colours go from the lowest to the highest.</p>"
        f'<div class="scroll"><table class="grid"><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>'
        f"</div>{more}"
    )


@dataclass(frozen=True, slots=True)
class Scattered:
    """A point of a scatter plot."""

    index: int
    spent: float
    gain: float


def against(
    points: Sequence[Point],
    cost: Callable[[Point], float | None],
    write: Callable[[float], str],
    label: str,
    base: int = 10,
    metric: str = "au",
) -> str:
    """Return a scatter plot of a metric against a cost, with a Pareto front for each number of accelerators.

    Points with other accelerators do other work, so no front has both. It is empty where no two points with as many
    accelerators differ in cost. Ticks are round in powers of ``base``: 1024 for bytes.
    """
    groups: dict[int | None, list[Scattered]] = {}
    for index, point in enumerate(points):
        if (spent := cost(point)) is not None and (gain := point.mean(metric)) is not None:
            groups.setdefault(choices.accelerators(point), []).append(Scattered(index, spent, gain))
    if all(len({dot.spent for dot in dots}) < 2 for dots in groups.values()):
        return ""
    most = max(dot.spent for dots in groups.values() for dot in dots)
    unit = float(base) ** max(math.floor(math.log(most, base)), 0)
    wide = unit * axes.roof(most / unit)

    def at(dot: Scattered) -> str:
        return f"{SIDE * 0.97 * dot.spent / wide:.1f} {SIDE * (1 - dot.gain):.1f}"

    def tip(dot: Scattered) -> str:
        values = ", ".join(map(written, points[dot.index].values))
        return f"{values}\n{TITLES[metric]} {100 * dot.gain:.1f} % at {write(dot.spent)}"

    fronts, others = [], []
    for dots in groups.values():
        best = {dots[n].index for n in choices.front([points[dot.index] for dot in dots], cost, metric=metric)}
        fronts.append(sorted((dot for dot in dots if dot.index in best), key=lambda dot: dot.spent))
        others += [dot for dot in dots if dot.index not in best]
    others = others[:: max(1, -(-len(others) // MOST_DOTS))]
    # Steps of one front; those of several would seem to be joined.
    to = "H{0}V{1}" if len(fronts) == 1 else "L{0} {1}"
    steps = "".join(f"M{at(on[0])}" + "".join(to.format(*at(dot).split()) for dot in on[1:]) for on in fronts)
    drawn = (
        f'<path class="dot faint" d="{"".join(f"M{at(dot)}h.01" for dot in others)}"/>'
        f'<path class="line l-au" d="{steps}"/>'
        f'<path class="dot l-au" d="{"".join(f"M{at(dot)}h.01" for on in fronts for dot in on)}"/>'
    )
    on = [dot for front in fronts for dot in front]
    nearest = [min(on, key=lambda dot: abs(0.97 * dot.spent / wide - (n + 0.5) / PARTS)) for n in range(PARTS)]
    ticks = [(0.97 * value / wide, write(value)) for value in (unit * each for each in axes.values(wide / unit, 5))]
    percents = [(share, f"{100 * share:.0f} %") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return charts.plot(drawn, label=label, x=ticks, y=percents, tips=[*map(tip, nearest)], height=220)


def best_by_value(points: Sequence[Point], column: int, metric: str = "au") -> list[Point]:
    """Return for each value of one key the point with the most of a metric, as points of that key."""
    chosen: dict[str, Point] = {}
    for point in points:
        gain, key = point.mean(metric), identity(point.values[column])
        if gain is not None and (key not in chosen or gain > (chosen[key].mean(metric) or 0.0)):
            chosen[key] = point
    order = [identity(value) for value in axis([point.values[column] for point in points])]
    return [Point((chosen[key].values[column],), chosen[key].rows) for key in order if key in chosen]
