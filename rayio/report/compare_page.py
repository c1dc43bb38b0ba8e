"""The page of a comparison: one HTML file that opens without a network."""

from __future__ import annotations

import re

from rayio.analyze.compare import label
from rayio.records.comparison import FASTER, SLOWER, Comparison, Difference, MetricRow
from rayio.records.metric_names import unit_of
from rayio.report import tables
from rayio.report.answer_page import Tile, answer_page, eyebrow, notes, titled
from rayio.report.curves import Column, columns
from rayio.report.markup import Html, code, escape
from rayio.report.sections import section
from rayio.report.text.comparison import (
    NAMES,
    cells_of,
    lead,
    ratio,
    repeats_cells,
    signed,
    split,
    write,
)
from rayio.report.text.terms import capitalised, counted

#: The mark of a comparison's page: what ``compare --out`` may replace.
MARK = re.compile(rb"\A<!doctype html>.*" + eyebrow("compare").encode(), re.DOTALL)

#: The most differing keys that are shown below the verdict.
MOST_NAMED = 3

DEFINITIONS = {
    "noise": (
        "noise",
        "the difference that chance alone exceeds in 5 % of cases: half a 95 % interval of Student's t. If both groups "
        "have the same seeds, it is that of the pairs' differences; else Welch's interval of the difference of means",
    ),
    "pairs": ("pairs", "runs of both groups with equal seeds: they draw equal times and equal orders of samples"),
    "throughput": ("throughput", "samples delivered in the measured window, all ranks, per second"),
    "au": ("AU", "accelerator utilisation: time of compute / time of steps, in the window, mean over ranks"),
    "data-loading": (
        "exposed data loading",
        "time in which ranks waited for a batch that prefetching did not hide, of step time",
    ),
    "p99": ("step time, p99", "the time that 99 of 100 steps stay below"),
    "wall": ("wall time", "from the first rank's start to the last rank's end"),
}


def page(comparison: Comparison) -> str:
    """Return the page of a comparison with its sentences (see ``rayio/report/compare.py``)."""
    groups, verdicts = comparison.groups, comparison.verdicts
    first, *others = verdicts
    number = sum(len(group.runs) for group in groups)
    names = [*dict.fromkeys(group.scenario for group in groups)]
    kinds = [*dict.fromkeys(group.kind for group in groups if group.kind)]
    is_one = comparison.repeats is not None
    facts = [" and ".join(kinds), counted(number, "run"), "" if is_one else counted(len(groups), "group")]
    return answer_page(
        "compare",
        " and ".join(names),
        facts=facts,
        answer=first.sentence,
        leads=lead(comparison),
        more=[*(verdict.sentence for verdict in others), *_named(comparison)],
        tiles=_tiles(comparison),
        parts=[
            section("metrics", "The metrics that matter", _metrics(comparison)),
            section("runs-of", "Each run", _figures(comparison)),
            section("keys", "What differs", _keys(comparison)),
            section("groups", "Runs", _groups(comparison) + notes(comparison.notes)),
        ],
        definitions=DEFINITIONS,
        colour={FASTER: "met", SLOWER: "missed"}.get(first.outcome, ""),
        doubts=comparison.doubts,
    )


def _named(comparison: Comparison) -> list[str]:
    """Return the settings of each group, where they differ in few keys."""
    keys = comparison.differing_keys
    if not 1 <= len(keys) <= MOST_NAMED:
        return []
    settings = [
        f"{label(number)}: {', '.join(f'{row.key}={row.values[number]}' for row in keys)}"
        for number in range(len(comparison.groups))
    ]
    return ["; ".join(settings)]


def _tiles(comparison: Comparison) -> list[Tile]:
    tiles = []
    for row in _main(comparison):
        name = capitalised(NAMES.get(row.name, row.name))
        if comparison.repeats is not None:
            known = next((each for each in comparison.repeats if each.name == row.name), None)
            if known is not None:
                half = "" if known.ci95 is None else f"± {write(row.name, known.ci95)}"
                tiles.append(Tile(name, write(row.name, known.mean), half))
            continue
        difference = row.differences[0]
        a, b = row.groups[0], row.groups[1]
        if difference is not None and a is not None and b is not None:
            is_share = unit_of(row.name) in ("fraction", "percent")
            by = signed(row.name, difference.absolute) if is_share else ratio(difference.percent)
            remark = f"{write(row.name, a.mean)} → {write(row.name, b.mean)}"
            tiles.append(Tile(f"{name}, B − A", by, remark))
    return tiles[:4]


def _main(comparison: Comparison) -> list[MetricRow]:
    by_name = {row.name: row for row in comparison.metrics}
    return [by_name[name] for name in comparison.main_metrics]


def _metrics(comparison: Comparison) -> str:
    if comparison.repeats is not None:
        main, others = repeats_cells(comparison.repeats, comparison.main_metrics)
        head = ["metric", "mean", "standard deviation of a run", "95 % interval of the mean"]
        return tables.table(head, main) + _folded(tables.table(head, others), len(others))
    drawn = ""
    for number in range(len(comparison.groups) - 1):
        main_rows, other_rows = split(comparison, number)
        drawn += _table(main_rows, number) + _folded(_table(other_rows, number), len(other_rows))
    return drawn


def _folded(drawn: str, number: int) -> str:
    return f"<details><summary>{counted(number, 'more metric')}</summary>{drawn}</details>" if number else ""


def _table(rows: list[MetricRow], number: int) -> str:
    letter = label(number + 1)
    head = ["metric", "A", letter, f"{letter} − A", "difference", "beyond noise"]
    return tables.table(head, [[*cells_of(row, number)] for row in rows])


def _figures(comparison: Comparison) -> str:
    metric = comparison.verdicts[0].metric
    row = next((row for row in comparison.metrics if row.name == metric), None)
    if row is None:
        return ""
    title = f"{capitalised(NAMES.get(row.name, row.name))} of each run"
    remark = "the line is the mean, the band its 95 % interval; the axis need not begin at 0"
    drawn = titled(title, remark, columns(_columns(comparison, row), label=title, unit=""))
    for number, difference in enumerate(row.differences):
        if difference is not None and difference.pairs:
            drawn += _pairs(comparison, row, number + 1, difference)
    return drawn


def _columns(comparison: Comparison, row: MetricRow) -> list[Column]:
    """Return a column for each group, or one for all repeats."""
    by_group = [
        (label(number), [*zip(group.runs, side.of_runs, strict=True)], side.mean, side.ci95)
        for number, (group, side) in enumerate(zip(comparison.groups, row.groups, strict=True))
        if side is not None
    ]
    spread = next((each for each in comparison.repeats or () if each.name == row.name), None)
    if spread is not None:
        runs = [run for _, of_group, _, _ in by_group for run in of_group]
        by_group = [(counted(spread.runs, "repeat"), runs, spread.mean, spread.ci95)]
    return [
        Column(
            name,
            tuple(value for _, value in runs if value is not None),
            mean,
            half,
            tuple(f"{run}\n{write(row.name, value)}" for run, value in runs if value is not None),
        )
        for name, runs, mean, half in by_group
    ]


def _pairs(comparison: Comparison, row: MetricRow, number: int, difference: Difference) -> str:
    """Return the differences of the pairs of one group with the first, in percent of the first group's mean."""
    a, b = row.groups[0], row.groups[number]
    if a is None or b is None or not a.mean:
        return ""
    partners = dict(zip(comparison.groups[number].seeds, b.of_runs, strict=True))
    percents, tips = [], []
    for seed, before in zip(comparison.groups[0].seeds, a.of_runs, strict=True):
        after = partners.get(seed)
        if before is not None and after is not None:
            percents.append(100 * (after - before) / abs(a.mean))
            tips.append(f"seed {seed}\n{percents[-1]:+.2f} %")
    mean = difference.percent or 0.0
    column = Column(f"{label(number)} − A", tuple(percents), mean, difference.noise_percent, tuple(tips))
    title = f"{label(number)} − A of each pair, in percent"
    remark = "runs with equal seeds; no difference is the dashed line"
    return titled(title, remark, columns([column], label=title, unit=" %", zero=True))


def _keys(comparison: Comparison) -> str:
    if not comparison.differing_keys:
        return ""
    rows = [
        [code(row.key), *("–" if each is None else each for each in row.values)] for row in comparison.differing_keys
    ]
    return tables.table(["key", *map(label, range(len(comparison.groups)))], rows)


def _groups(comparison: Comparison) -> str:
    rows = [
        [
            label(number),
            group.kind,
            Html("<br>".join(map(escape, group.runs))),
            ", ".join(str(seed) for seed in group.seeds if seed is not None),
        ]
        for number, group in enumerate(comparison.groups)
    ]
    return tables.table(["", "kind", "runs", "seeds"], rows, "worded")
