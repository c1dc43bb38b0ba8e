"""The text of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from rayio.analyze.compare import label
from rayio.records.comparison import Comparison, MetricRow, Repeated
from rayio.units import format_seconds

#: Metrics that are printed in percent, in addition to those that end in ``share``.
_FRACTIONS = ("au", "au_min", "au_max", "goodput", "evaluation.au", "evaluation.au_min", "evaluation.au_max")


def text(comparison: Comparison) -> str:
    """Return a comparison as plain text: the runs, the differing keys, a table for each group but the first."""
    labels = [label(number) for number in range(len(comparison.groups))]
    lines = []
    for letter, group in zip(labels, comparison.groups, strict=True):
        lines += [f"  {letter}  {group.kind:<9}  {', '.join(group.runs)}"]
    keys = comparison.differing_keys
    lines += ["", "  keys that differ" if keys else "  no key differs"]
    lines += [f"  {row.key:<34}" + " | ".join(map(_short, row.values)) for row in keys]
    for number, letter in enumerate(labels[1:]):
        differences = [row.differences[number] for row in comparison.metrics]
        verdict = "  beyond noise" if any(each and each.noise is not None for each in differences) else ""
        lines += ["", f"  {'metric':<30}{labels[0]:>11}{letter:>11}{f'{letter} - {labels[0]}':>13}{'%':>9}{verdict}"]
        for row in comparison.metrics:
            lines += _row(row, number)
    if comparison.repeats is not None:
        lines += ["", *repeats_text(comparison.repeats)]
    lines += [f"  note: {note}" for note in comparison.notes]
    return "\n".join(lines)


def _short(value: str | None) -> str:
    if value is None:
        return "-"
    return value if len(value) <= 60 else value[:57] + "..."


def _row(row: MetricRow, number: int) -> list[str]:
    """Return one metric; one that is zero on both sides has nothing to compare."""
    name, difference = row.name, row.differences[number]
    a, b = row.groups[0], row.groups[number + 1]
    values = [None if side is None else side.mean for side in (a, b)]
    if not any(values):
        return []
    line = f"  {name:<30}{_write(name, values[0]):>11}{_write(name, values[1]):>11}"
    if difference is not None:
        line += f"{_signed(name, difference.absolute):>13}{_ratio(difference.percent):>9}"
        if difference.noise is not None:
            beyond = "yes" if difference.exceeds_noise else "no"
            line += f"  {beyond:<4}(± {_points(name, difference.noise)})"
    return [line.rstrip()]


def repeats_text(rows: Sequence[Repeated]) -> list[str]:
    """Return the spread of repeats as a table, without the metrics that are zero in all of them."""
    runs = rows[0].runs if rows else 0
    lines = [f"  {f'over {runs} runs':<30}{'mean':>11}{'stdev':>11}   95 % confidence"]
    for row in rows:
        name, mean, half = row.name, row.mean, row.ci95
        if mean or row.stdev:
            low = max(0.0, mean - (half or 0.0))  # none of the metrics can be below
            interval = "unknown" if half is None else f"{_write(name, low)} to {_write(name, mean + half)}"
            lines.append(f"  {name:<30}{_write(name, mean):>11}{_write(name, row.stdev):>11}   {interval}")
    return lines


def _signed(name: str, value: float) -> str:
    return f"{'+' if value >= 0 else '-'}{_points(name, abs(value))}"


def _points(name: str, value: float) -> str:
    """Return a difference: of percentages in points, so that it is not taken for a percentage of them."""
    return _write(name, value).replace(" %", " pt")


def _ratio(percent: float | None) -> str:
    if percent is None:
        return ""
    return f"{percent:+.1f} %" if abs(percent) < 1000 else f"× {1 + percent / 100:,.0f}"


def _write(name: str, value: float | None) -> str:
    if value is None:
        return "unknown"
    if name.startswith("share.") or name.endswith("_share") or name in _FRACTIONS:
        return f"{100 * value:.2f} %"
    if name.startswith("au_dlio"):
        return f"{value:.2f} %"
    if name.startswith(("time.", "percentiles.")) or name.endswith("_seconds"):
        return format_seconds(value)
    return f"{value:,.1f}" if abs(value) < 1e5 else f"{value:,.0f}"
