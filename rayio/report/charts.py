"""Figures as HTML: shapes in an SVG that stretches with the page, and labels around it that do not.

So a figure is readable at any width: an SVG with text in it would shrink its text on a phone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from rayio.report.axes import Tick
from rayio.report.figures import Floats
from rayio.report.markup import Html, escape

#: Units of a plot's own coordinates, in both directions.
SIDE = 1000


def attribute(tips: object) -> str:
    """Return a value as JSON for an attribute that the page's script reads."""
    return escape(json.dumps(tips, ensure_ascii=False, separators=(",", ":")))


def plot(
    shapes: str,
    *,
    label: str,
    x: Sequence[Tick],
    y: Sequence[Tick],
    tips: Sequence[str] = (),
    marks: Sequence[tuple[float, str]] = (),
    height: int = 170,
) -> str:
    """Return shapes with axes. ``tips`` are texts for equal parts of the width; ``marks`` are named vertical lines."""
    lines = "".join(f'<path class="grid" d="M0 {SIDE * (1 - at):.1f}H{SIDE}"/>' for at, _ in y)
    down = "".join(f'<path class="mark" d="M{SIDE * at:.1f} 0V{SIDE}"/>' for at, _ in marks)
    named = "".join(
        f'<span class="mark{" left" if at > 0.5 else ""}" style="left:{100 * at:.2f}%;top:{1.25 * n:.2f}em">'
        f"{escape(text)}</span>"
        for n, (at, text) in enumerate(marks)
    )
    tipped = f' data-tips="{attribute(list(tips))}"' if tips else ""
    return (
        f'<div class="plot" style="--h:{height}px"><div class="y">{labels(y, "bottom")}</div>'
        f'<div class="area"{tipped}><svg viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{lines}{shapes}{down}</svg>{named}</div>'
        f'<div class="x">{labels(x, "left")}</div></div>'
    )


def labels(ticks: Sequence[Tick], side: str) -> str:
    """Return ticks along a side, ``left`` or ``bottom``; a phone shows every other one."""
    return "".join(
        f'<span class="{"odd" if n % 2 else "even"}{" end" if at > 0.96 else ""}" '
        f'style="{side}:{100 * at:.2f}%">{escape(text)}</span>'
        for n, (at, text) in enumerate(ticks)
    )


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Return a legend of colours: pairs of a class of colour, and text or markup."""
    shown = "".join(f'<span><i class="c-{colour}"></i>{escape(text)}</span>' for colour, text in entries)
    return f'<p class="legend">{shown}</p>'


def stacked(series: Sequence[tuple[str, Floats]], high: float) -> str:
    """Return series on top of each other as steps, one class of colour each; NaN counts as nothing."""
    below, drawn = np.zeros(len(series[0][1])) if series else np.zeros(0), []
    for colour, values in series:
        above = below + np.nan_to_num(values)
        if (above > below).any():
            drawn.append(f'<path class="c-{colour}" d="{_band(below / high, above / high)}"/>')
        below = above
    return "".join(drawn)


def _band(below: Floats, above: Floats) -> str:
    """Return the outline of the area between two steps, without parts of no height."""
    held = np.flatnonzero(above - below > 1e-6)
    parts, number = [], len(below)
    for run in np.split(held, np.flatnonzero(np.diff(held) > 1) + 1) if len(held) else []:
        left = SIDE * run / number
        right = f"{SIDE * (run[-1] + 1) / number:.1f}"
        top, bottom = SIDE * (1 - above[run]), SIDE * (1 - below[run])
        up = "".join(f"H{x:.1f}V{y:.1f}" for x, y in zip(left[1:], top[1:], strict=True))
        down = "".join(f"V{y:.1f}H{x:.1f}" for x, y in zip(left[::-1], bottom[::-1], strict=True))
        parts.append(f"M{left[0]:.1f} {top[0]:.1f}{up}H{right}{down}Z")
    return "".join(parts)


def steps(values: Floats, high: float, colour: str) -> str:
    """Return a series as a line of steps; it breaks where a value is NaN."""
    number, path, is_on = len(values), [], False
    for at, value in enumerate(values):
        if np.isnan(value):
            is_on = False
            continue
        left, right, y = SIDE * at / number, SIDE * (at + 1) / number, SIDE * (1 - value / high)
        path.append(f"V{y:.1f}H{right:.1f}" if is_on else f"M{left:.1f} {y:.1f}H{right:.1f}")
        is_on = True
    return f'<path class="line l-{colour}" d="{"".join(path)}"/>'


def line_at(value: float, high: float, colour: str) -> str:
    """Return a dashed line across."""
    return f'<path class="line dashed l-{colour}" d="M0 {SIDE * (1 - value / high):.1f}H{SIDE}"/>'


def columns(groups: Sequence[tuple[str, Floats]], high: float) -> str:
    """Return bars, those of several groups side by side."""
    drawn, number = [], len(groups)
    for place, (colour, values) in enumerate(groups):
        wide = SIDE / len(values)
        part = wide * (0.94 if len(values) > 20 else 0.8) / number
        edge = (wide - part * number) / 2 + part * place
        path = "".join(
            f"M{at * wide + edge:.1f} {SIDE}V{SIDE * (1 - value / high):.1f}h{part:.1f}V{SIDE}Z"
            for at, value in enumerate(values)
            if value > 0
        )
        drawn.append(f'<path class="c-{colour}" d="{path}"/>')
    return "".join(drawn)


def cells(values: Floats, edges: Sequence[float], colour: str) -> str:
    """Return a grid of numbers as cells in classes of colour; equal neighbours in a row are one shape, NaN is empty."""
    rows, number = values.shape
    level = np.where(np.isnan(values), -1, np.searchsorted(np.array(edges), np.nan_to_num(values), side="right"))
    change = np.ones((rows, number), bool)
    change[:, 1:] = level[:, 1:] != level[:, :-1]
    paths: dict[int, list[str]] = {}
    for row in range(rows):
        first = np.flatnonzero(change[row])
        for left, right in zip(first, np.append(first[1:], number), strict=True):
            if level[row, left] >= 0:
                paths.setdefault(int(level[row, left]), []).append(f"M{left} {row}h{right - left}v1H{left}Z")
    drawn = "".join(f'<path class="{colour}{n}" d="{"".join(parts)}"/>' for n, parts in sorted(paths.items()))
    return f'<svg viewBox="0 0 {number} {rows}" preserveAspectRatio="none" aria-hidden="true">{drawn}</svg>'


def bar(begin: float, share: float, colour: str) -> Html:
    """Return one bar of a waterfall, as shares of the whole."""
    drawn = f'<i class="c-{colour}" style="left:{100 * begin:.3f}%;width:{100 * share:.3f}%"></i>' if share > 0 else ""
    return Html(f'<span class="bar">{drawn}</span>')
