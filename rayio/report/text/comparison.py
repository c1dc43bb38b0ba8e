"""The text of a comparison: the verdict, the metrics that matter, the others, and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rayio.analyze.compare import label
from rayio.analyze.run_scenario import UNEDITED
from rayio.records.comparison import (
    FASTER,
    IN_DOUBT,
    NO_DIFFERENCE,
    NO_METRIC,
    REPEATS,
    Comparison,
    Difference,
    Failure,
    Group,
    MetricRow,
    Repeated,
    Verdict,
)
from rayio.records.metric_names import unit_of
from rayio.records.origin import PREDICTED
from rayio.report.text.doubts import reasons, warnings
from rayio.report.text.terms import capitalised, counted
from rayio.units import format_bytes, format_number, format_seconds

#: Names of the metrics that matter most; others have their names in result.json.
NAMES = {
    "samples_per_second": "throughput",
    "samples_per_second_dlio": "throughput as DLIO",
    "au": "AU",
    "au_dlio": "AU as DLIO",
    "data_wait_share": "exposed data loading",
    "percentiles.step_time.p99": "step time, p99",
    "wall_seconds": "wall time",
    "mib_per_second": "read",
    "goodput": "goodput",
}
#: Ends of the interval of another metric: no metrics that are compared.
BOUNDS = ("au_interval_low", "au_interval_high")
#: From so many percent on a difference is a factor.
MUCH = 200
#: A difference below so many percent, noise included, decides nothing: fewer than a change that is worth proposing.
MATTERS = 0.5
#: Two single runs that differ by fewer percent are called equal.
EQUAL = 0.05
#: Keys that set how much a run has to do.
WORK = (
    "cluster.nodes", "cluster.ranks_per_node", "dataset.num_files", "dataset.samples_per_file", "loader.batch_size",
    "train.epochs", "train.steps",
)  # fmt: skip
#: Repeats that a remedy proposes.
REPEAT = 5


def verdict_in_words(verdict: Verdict, comparison: Comparison) -> str:
    """Return a verdict as one or two sentences."""
    percent, letter = verdict.percent, verdict.group
    if verdict.outcome == REPEATS:
        lead = f"No key differs: these are {len(comparison.groups)} repeats of one scenario"
        if percent is None or verdict.metric is None:
            return f"{lead}."
        return (
            f"{lead}. {capitalised(NAMES[verdict.metric])} varies by {_percent(percent)} (standard deviation of a run)."
        )
    if verdict.outcome == NO_METRIC or percent is None:
        return f"{letter} and A have no throughput to compare."
    if verdict.outcome == IN_DOUBT:
        return f"No verdict on {letter} and A ({reasons(comparison.doubts)})."
    if percent >= MUCH and verdict.noise_percent is not None and verdict.outcome == FASTER:
        times = f"{1 + percent / 100:.1f} ± {verdict.noise_percent / 100:.1f} times"
        return f"{letter} is {times} as fast as A; more than noise{_pairs(verdict)}."
    digits = _digits(percent, verdict.noise_percent)
    by = f"{_percent(abs(percent), digits)}"
    how = _faster(verdict, percent)
    if verdict.noise_percent is None and abs(percent) < EQUAL:
        return f"{letter} and A are equally fast. Whether repeats differ is unknown: there are none."
    if verdict.noise_percent is None:
        return f"{letter} is {by} {how} than A. Whether that is more than noise is unknown: there are no repeats."
    noise = _percent(verdict.noise_percent, digits)
    if verdict.outcome == NO_DIFFERENCE:
        return f"No difference beyond noise: {letter} is {by} {how} than A, and noise is ± {noise}."
    matters = "" if abs(percent) + verdict.noise_percent >= MATTERS else ", but too little to matter"
    return f"{letter} is {by} ± {noise} {how} than A; more than noise{matters}{_pairs(verdict)}."


def _pairs(verdict: Verdict) -> str:
    return f" ({verdict.pairs} pairs of equal seeds)" if verdict.pairs else ""


def _faster(verdict: Verdict, percent: float) -> str:
    if verdict.metric in ("au", "au_dlio"):
        return "better in AU" if percent >= 0 else "worse in AU"
    return "faster" if percent >= 0 else "slower"


def _digits(*percents: float | None) -> int:
    """Return the decimals that show each of some percentages, 1 to 3.

    >>> _digits(3.14, 0.82), _digits(1.4, 0.021), _digits(0.04, None)
    (1, 2, 2)
    """
    least = min((abs(percent) for percent in percents if percent), default=1.0)
    return 1 if least >= 0.1 else 2 if least >= 0.01 else 3


def _percent(percent: float, digits: int | None = None) -> str:
    return f"{percent:.{_digits(percent) if digits is None else digits}f} %"


def lead(comparison: Comparison) -> list[str]:
    """Return that keys were edited after their runs, which a reader must know before the verdict."""
    if not comparison.edited:
        return []
    runs = ", ".join(comparison.edited)
    return [
        f"{runs}: scenario.yaml was edited after the run, and the keys that ran are unknown: this compares the edited "
        "keys."
    ]


def notes_in_words(comparison: Comparison) -> list[str]:
    """Return the notes on a comparison, a sentence each."""
    groups = comparison.groups
    notes = [*_unlike(groups), *(f"{run}: {UNEDITED}" for run in comparison.edits_ignored)]
    if work := [row.key for row in comparison.differing_keys if row.key in WORK]:
        notes.append(f"wall times include unequal work: {', '.join(work)} {'differs' if len(work) == 1 else 'differ'}")
    for number, group in enumerate(groups):
        notes += _failures(label(number), group)
        if not group.has_scenario:
            notes += [f"{run} has no scenario: its keys are not compared" for run in group.runs]
    if comparison.repeats is not None:
        return notes
    if all(len(group.runs) == 1 for group in groups):
        predicted = all(group.kind == PREDICTED for group in groups)
        command = "rayio simulate" if predicted else "rayio run"
        notes.append(f"to know the noise, repeat each side: {command} --repeat {REPEAT}, and give all directories")
        return notes
    if any(verdict.pairs is None for verdict in comparison.verdicts) and _could_pair(groups):
        notes.append(
            "the groups have other seeds, so their runs are no pairs; with equal seeds (rayio simulate --repeat) "
            "smaller differences show"
        )
    notes.append("the noise is a 95 % interval: of 20 metrics that chance alone moves, about one exceeds it")
    return notes


def _failures(letter: str, group: Group) -> Iterator[str]:
    """Yield a note for each exit code of a group's runs, with the first run that has it."""
    by_code: dict[int | None, list[Failure]] = {}
    for failure in group.failures:
        by_code.setdefault(failure.exit_code, []).append(failure)
    for code, failures in by_code.items():
        first = failures[0]
        if len(failures) == 1:
            yield f"{first.run} ended with exit code {code}: {first.error}"
        else:
            number = f"{letter}: {len(failures)} of {counted(len(group.runs), 'run')}"
            yield f"{number} ended with exit code {code}, such as {first.run}: {first.error}"


def _could_pair(groups: Sequence[Group]) -> bool:
    return all(group.kind == PREDICTED and None not in group.seeds for group in groups)


def _unlike(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a note where groups have different kinds: then their numbers were measured in different ways."""
    by_kind: dict[str, list[str]] = {}
    for number, group in enumerate(groups):
        by_kind.setdefault(group.kind or "of unknown origin", []).append(label(number))
    if len(by_kind) > 1:
        kinds = ", ".join(
            f"{' and '.join(labels)} {'is' if len(labels) == 1 else 'are'} {kind}" for kind, labels in by_kind.items()
        )
        yield f"unlike kinds: {kinds}; what differs is also the way in which the numbers were found"


def text(comparison: Comparison, *, everything: bool = False) -> str:
    """Return a comparison as plain text: verdicts, runs, differing keys, a table for each group but the first.

    The tables have the metrics that matter most, or ``everything``.
    """
    lines = [*lead(comparison), *(verdict.sentence for verdict in comparison.verdicts), ""]
    labels = [label(number) for number in range(len(comparison.groups))]
    if comparison.repeats is None:
        lines += [
            f"  {letter}  {group.kind:<9}  {', '.join(group.runs)}"
            for letter, group in zip(labels, comparison.groups, strict=True)
        ]
    else:
        lines.append(f"  runs  {', '.join(run for group in comparison.groups for run in group.runs)}")
    keys = comparison.differing_keys
    if comparison.repeats is None:
        lines += ["", "  keys that differ" if keys else "  no key differs"]
        lines += [f"  {row.key:<34}" + " | ".join(map(_short, row.values)) for row in keys]
        left = 0
        for number, letter in enumerate(labels[1:]):
            main, others = split(comparison, number)
            left = max(left, len(others))
            lines += ["", *_table([*main, *(others if everything else ())], number, letter)]
        lines += [] if everything or not left else ["", f"  {counted(left, 'more metric')}: --all"]
    else:
        lines += ["", *repeats_text(comparison.repeats, None if everything else comparison.main_metrics)]
    lines += [""] if comparison.notes or comparison.doubts else []
    lines += warnings(comparison.doubts)
    lines += [f"  note: {note}" for note in comparison.notes]
    return "\n".join(lines)


def split(comparison: Comparison, number: int) -> tuple[list[MetricRow], list[MetricRow]]:
    """Return the metrics that matter most, and the others that are not zero, of the first group and of one other."""
    by_name = {row.name: row for row in comparison.metrics}
    main = [by_name[name] for name in comparison.main_metrics]
    others = [
        row
        for row in comparison.metrics
        if row.name not in (*comparison.main_metrics, *BOUNDS)
        and any(side is not None and side.mean for side in (row.groups[0], row.groups[number + 1]))
    ]
    return main, others


def _table(rows: Sequence[MetricRow], number: int, letter: str) -> list[str]:
    differences = [row.differences[number] for row in rows]
    beyond = "  beyond noise" if any(each and each.noise is not None for each in differences) else ""
    cells = [cells_of(row, number) for row in rows]
    wide = max([30, *(len(row[0]) for row in cells)])
    lines = [f"  {'metric':<{wide}}{'A':>11}{letter:>11}{f'{letter} - A':>13}{'%':>10}{beyond}"]
    for name, a, b, by, share, verdict in cells:
        lines.append(f"  {name:<{wide}}{a:>11}{b:>11}{by:>13}{share:>10}  {verdict}".rstrip())
    return lines


def cells_of(row: MetricRow, number: int) -> tuple[str, str, str, str, str, str]:
    """Return a metric's name, both values, their difference, also in percent, and whether it exceeds the noise."""
    name = row.name
    a, b = (None if side is None else side.mean for side in (row.groups[0], row.groups[number + 1]))
    difference = row.differences[number]
    by, share, verdict = "", "", ""
    if difference is not None:
        by, share = _signed(name, difference.absolute), ratio(difference.percent)
        verdict = _beyond_noise(name, difference)
    return name_of(name), _bare(name, a), _bare(name, b), by, share, verdict


def name_of(name: str) -> str:
    """Return the name of a metric in a table, with its unit if the values are written without.

    >>> name_of("samples_per_second"), name_of("au")
    ('throughput, samples/s', 'AU')
    """
    unit = unit_of(name)
    return NAMES.get(name, name) + (f", {unit}" if unit.endswith("/s") else "")


def _beyond_noise(name: str, difference: Difference) -> str:
    """Return whether a difference exceeds the noise, and the noise; empty without repeats."""
    if difference.noise is None:
        return ""
    return f"{'yes' if difference.exceeds_noise else 'no':<4}(± {_points(name, difference.noise)})"


def _short(value: str | None) -> str:
    if value is None:
        return "-"
    return value if len(value) <= 60 else value[:57] + "..."


def repeats_text(rows: Sequence[Repeated], names: Sequence[str] | None = None) -> list[str]:
    """Return the spread of repeats as a table, without the metrics that are zero in all of them.

    ``names`` are the metrics to show; None shows all.
    """
    main, others = repeats_cells(rows, names)
    shown = main if names is not None else [*main, *others]
    wide = max([30, *(len(row[0]) for row in shown)])
    lines = [f"  {f'over {rows[0].runs if rows else 0} runs':<{wide}}{'mean':>11}{'stdev':>11}   95 % confidence"]
    lines += [f"  {name:<{wide}}{mean:>11}{deviation:>11}   {interval}" for name, mean, deviation, interval in shown]
    if left := len(others) if names is not None else 0:
        lines.append(f"  {counted(left, 'more metric')}: --all")
    return lines


def repeats_cells(
    rows: Sequence[Repeated], names: Sequence[str] | None = None
) -> tuple[list[list[str]], list[list[str]]]:
    """Return name, mean, standard deviation and interval of the metrics that are named, and of the others."""
    by_name = {row.name: row for row in rows if (row.mean or row.stdev) and row.name not in BOUNDS}
    main = [by_name.pop(name) for name in names or () if name in by_name]
    return [_spread_cells(row) for row in main], [_spread_cells(row) for row in by_name.values()]


def _spread_cells(row: Repeated) -> list[str]:
    name, mean, half = row.name, row.mean, row.ci95
    low = max(0.0, mean - (half or 0.0))  # none of the metrics can be below
    interval = "unknown" if half is None else f"{_bare(name, low)} to {_bare(name, mean + half)}"
    return [name_of(name), _bare(name, mean), _bare(name, row.stdev), interval]


def _signed(name: str, value: float) -> str:
    return f"{'+' if value >= 0 else '-'}{_points(name, abs(value))}"


def _points(name: str, value: float) -> str:
    """Return a difference: of percentages in points, so that it is not taken for a percentage of them."""
    return _bare(name, value).replace(" %", " pt")


def signed(name: str, value: float) -> str:
    """Return a difference with sign and unit; of percentages in points."""
    return f"{'+' if value >= 0 else '-'}{write(name, abs(value)).replace(' %', ' pt')}"


def ratio(percent: float | None) -> str:
    """Return a difference in percent with its sign, or as a factor if it is large; empty for None."""
    if percent is None:
        return ""
    return f"{percent:+.{_digits(percent)}f} %" if abs(percent) < 1000 else f"× {1 + percent / 100:,.1f}"


def write(name: str, value: float | None) -> str:
    """Return the value of a metric in its unit; "unknown" for None."""
    if value is None:
        return "unknown"
    unit = unit_of(name)
    if unit == "fraction":
        return f"{100 * value:.2f} %"
    if unit == "percent":
        return f"{value:.2f} %"
    if unit == "s":
        return format_seconds(value)
    if unit == "bytes":
        return format_bytes(value)
    if unit.endswith("/s"):
        return f"{_bare(name, value)} {unit}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _bare(name: str, value: float | None) -> str:
    """Return a value as :func:`write` does, but rates without their unit, which is in the name."""
    if value is None or not unit_of(name).endswith("/s"):
        return write(name, value)
    return format_number(value) if abs(value) >= 10 else f"{value:.3g}"
