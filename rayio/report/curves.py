"""Figures of single points: a curve with intervals and a target, and values of runs in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rayio.report import axes, charts
from rayio.report.charts import SIDE

#: Equal parts of a figure's width, each with the tooltip of the nearest point.
PARTS = 60
#: The part of a column in which the values of its runs lie side by side.
COLUMN = 0.5


@dataclass(frozen=True, slots=True)
class Dot:
    """A point of a curve: its place along the axis (0 to 1), its tick, value, interval and tooltip."""

    at: float
    tick: str
    value: float
    half: float
    tip: str


def curve(
    dots: Sequence[Dot],
    *,
    label: str,
    unit: str,
    colour: str,
    ticks: Sequence[axes.Tick] | None = None,
    target: float | None = None,
    other: Sequence[Dot] = (),
    scattered: Sequence[Dot] = (),
    chosen: Dot | None = None,
    marks: Sequence[axes.Tick] = (),
    height: int = 200,
) -> str:
    """Return a curve from 0 on with the intervals of its points.

    Args:
        dots: the points, from left to right.
        label: what the figure shows, for readers of screens.
        unit: unit of the values; percentages end at 100.
        colour: name of the line's colour.
        ticks: those of the horizontal axis; None takes the points' without overlaps.
        target: value of a dashed line across.
        other: points of a second, dashed curve.
        scattered: points on no curve.
        chosen: a point that is drawn larger.
        marks: named vertical lines.
        height: in pixels.
    """
    if not dots:
        return ""
    high = axes.roof(max([*(dot.value + dot.half for dot in (*dots, *other, *scattered)), target or 0.0]))
    high = min(high, 100.0) if unit == "%" else high

    def place(dot: Dot, value: float) -> str:
        return f"{SIDE * dot.at:.1f} {SIDE * (1 - min(max(value, 0.0) / high, 1.0)):.1f}"

    band = ""
    if any(dot.half for dot in dots) and len(dots) > 1:
        over = [place(dot, dot.value + dot.half) for dot in dots]
        under = [place(dot, dot.value - dot.half) for dot in reversed(dots)]
        band = f'<path class="band l-{colour}" d="M{"L".join([*over, *under])}Z"/>'
    line = f'<path class="line l-{colour}" d="M{"L".join(place(dot, dot.value) for dot in dots)}"/>'
    points = f'<path class="dot l-{colour}" d="{"".join(f"M{place(dot, dot.value)}h.01" for dot in dots)}"/>'
    across = charts.line_at(target, high, "limit") if target is not None else ""
    if other:
        across += f'<path class="line dashed l-limit" d="M{"L".join(place(dot, dot.value) for dot in other)}"/>'
    if scattered:
        far = "".join(f"M{place(dot, dot.value)}h.01" for dot in scattered)
        across += f'<path class="dot faint" d="{far}"/>'
    if chosen is not None:
        points += f'<path class="dot chosen" d="M{place(chosen, chosen.value)}h.01"/>'
    shown = thin([(dot.at, dot.tick) for dot in dots]) if ticks is None else ticks
    drawn = charts.plot(
        band + line + across + points, label=label, x=shown, y=axes.linear(high),
        tips=nearest([(dot.at, dot.tip) for dot in (*dots, *scattered)]), marks=marks, height=height,
    )  # fmt: skip
    return f'<div class="dots">{drawn}</div>'


def nearest(tips: Sequence[axes.Tick]) -> list[str]:
    """Return for each of :data:`PARTS` parts of the width the text of the nearest place."""
    return [min(tips, key=lambda tip: abs(tip[0] - (part + 0.5) / PARTS))[1] for part in range(PARTS)]


def thin(ticks: Sequence[axes.Tick], apart: float = 0.06) -> list[axes.Tick]:
    """Return the ticks without labels that would overlap."""
    kept: list[axes.Tick] = []
    for position, text in ticks:
        if not kept or position - kept[-1][0] >= apart:
            kept.append((position, text if len(text) <= 24 else text[:23] + "…"))
    return kept


@dataclass(frozen=True, slots=True)
class Column:
    """Values side by side in a figure, their mean and half its interval (None if unknown), and tooltips."""

    name: str
    values: tuple[float, ...]
    mean: float
    half: float | None
    tips: tuple[str, ...]


def columns(columns: Sequence[Column], *, label: str, unit: str, zero: bool = False, height: int = 190) -> str:
    """Return each value as a dot in its column, with the mean as a line and its interval as a band.

    The axis begins near the least value, or shows 0 as a dashed line if ``zero``.
    """
    ends = [v for c in columns for v in (*c.values, c.mean - (c.half or 0.0), c.mean + (c.half or 0.0))]
    low, high = axes.around([*ends, 0.0] if zero else ends)

    def y(value: float) -> str:
        return f"{SIDE * (1 - (value - low) / (high - low)):.1f}"

    shapes, tips = [], []
    wide = 1 / len(columns)
    for number, column in enumerate(columns):
        left, right = (number + (1 - COLUMN) / 2) * wide, (number + (1 + COLUMN) / 2) * wide
        if column.half is not None:
            top, bottom = y(column.mean + column.half), y(column.mean - column.half)
            shapes.append(
                f'<path class="band l-au" d="M{SIDE * left:.1f} {top}H{SIDE * right:.1f}V{bottom}H{SIDE * left:.1f}Z"/>'
            )
        shapes.append(f'<path class="line l-au" d="M{SIDE * left:.1f} {y(column.mean)}H{SIDE * right:.1f}"/>')
        for place, (value, tip) in enumerate(zip(column.values, column.tips, strict=True)):
            at = left + (place + 0.5) / len(column.values) * (right - left)
            shapes.append(f'<path class="dot l-amount" d="M{SIDE * at:.1f} {y(value)}h.01"/>')
            tips.append((at, tip))
    if zero:
        shapes.append(f'<path class="line dashed l-limit" d="M0 {y(0.0)}H{SIDE}"/>')
    ticks = [((number + 0.5) * wide, column.name) for number, column in enumerate(columns)]
    drawn = charts.plot(
        "".join(shapes), label=label, x=ticks, y=axes.ranged(low, high, unit), tips=nearest(tips), height=height
    )
    return f'<div class="dots all">{drawn}</div>'
