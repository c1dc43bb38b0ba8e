"""Axes: the places of ticks, and their labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: A tick: its place as a fraction of the axis, and its label.
Tick = tuple[float, str]

_TIME_STEPS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400)


def step(span: float, wanted: int) -> float:
    """Return the least step of 1, 2 or 5 times a power of ten that makes at most ``wanted`` parts."""
    least = span / max(wanted, 1)
    power = 10.0 ** math.floor(math.log10(least)) if least > 0 else 1.0
    return next(power * times for times in (1, 2, 5, 10, 20) if power * times >= least * (1 - 1e-9))


def values(high: float, wanted: int, apart: float | None = None) -> list[float]:
    """Return round values from 0 to ``high``."""
    apart = apart or step(high, wanted)
    return [number * apart for number in range(int(high / apart * (1 + 1e-9)) + 1)]


def linear(high: float, wanted: int = 4, unit: str = "") -> list[Tick]:
    """Return the ticks of an axis from 0 to ``high``."""
    return [(value / high, number(value) + unit) for value in values(high, wanted)]


def roof(high: float, wanted: int = 4) -> float:
    """Return a round number at or above ``high``, to end an axis on."""
    if high <= 0:
        return 1.0
    apart = step(high, wanted)
    return math.ceil(high / apart * (1 - 1e-9)) * apart


def time(seconds: float, wanted: int = 8) -> list[Tick]:
    """Return the ticks of a time axis from 0 to ``seconds``."""
    least = seconds / wanted
    apart = next((float(each) for each in _TIME_STEPS if each >= least), None) if least > 0.5 else None
    return [(value / seconds, seconds_label(value, seconds)) for value in values(seconds, wanted, apart)]


def seconds_label(value: float, among: float) -> str:
    """Return the label of a time on an axis that ends at ``among`` seconds."""
    for unit, length in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if among >= 2 * length:
            return f"{number(value / length)} {unit}"
    return f"{number(value * 1e9)} ns"


def logarithmic(low: float, high: float) -> list[Tick]:
    """Return the ticks of a logarithmic axis of times in seconds: 1, 2 and 5 of each power of ten."""
    span = math.log(high / low)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    firsts = (1, 2, 5) if span < math.log(200) else (1,)
    ticks = [first * 10.0**power for power in powers for first in firsts]
    return [(math.log(v / low) / span, seconds_label(v, v * 2)) for v in ticks if low <= v <= high]


def between(low: float, high: float, wanted: int = 6) -> list[Tick]:
    """Return the ticks of an axis of times in seconds that does not begin at 0."""
    apart = step(high - low, wanted)
    first = math.ceil(low / apart * (1 - 1e-9))
    ticks = [n * apart for n in range(first, int(high / apart * (1 + 1e-9)) + 1)]
    return [((value - low) / (high - low), seconds_label(value, high)) for value in ticks]


def number(value: float) -> str:
    """Return a number with at most four significant digits, without trailing zeros."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def around(values: Sequence[float], wanted: int = 4) -> tuple[float, float]:
    """Return round ends of an axis that holds all values and need not begin at 0.

    >>> around([135.2, 136.9])
    (135.0, 137.0)
    """
    low, high = min(values), max(values)
    if low == high:
        low, high = low - max(abs(low) * 0.01, 1e-9), high + max(abs(high) * 0.01, 1e-9)
    apart = step(high - low, wanted)
    return math.floor(low / apart + 1e-9) * apart, math.ceil(high / apart - 1e-9) * apart


def ranged(low: float, high: float, unit: str = "", wanted: int = 4) -> list[Tick]:
    """Return the ticks of an axis from ``low`` to ``high``, each at the place of its value.

    >>> ranged(25.0, 30.0)
    [(0.2, '26'), (0.6, '28'), (1.0, '30')]
    """
    apart = step(high - low, wanted)
    first, last = math.ceil(low / apart - 1e-9), math.floor(high / apart + 1e-9)
    ticks = [n * apart for n in range(first, last + 1)]
    digits = max(0, -math.floor(math.log10(apart) + 1e-9))
    return [((value - low) / (high - low), f"{round(value, digits) + 0.0:,.{digits}f}{unit}") for value in ticks]
