"""Comparison of runs: keys, metrics, and whether a difference is more than chance.

Runs of one scenario on one engine are repeats. Differences are compared with their spread (a 95 % interval of Student's
t); without repeats nothing is known about chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import yaml

from rayio.analyze.student import t_quantile
from rayio.records.comparison import Comparison, Difference, DifferingKey, Group, MetricRow, Repeated, Spread
from rayio.records.metric_names import METRICS, lookup
from rayio.records.origin import kind_of
from rayio.records.run_result import RunResult

#: Entries of ``run.json`` that are compared as if they were keys of the scenario.
_OF_THE_RUN = ("engine", "rayio", "cpus", "modelled_storage")


@dataclass(frozen=True, slots=True)
class Compared:
    """A run: a label, its result, its scenario as a mapping (empty when there is none), its run.json."""

    label: str
    result: RunResult
    scenario: Mapping[str, Any]
    info: Mapping[str, Any]


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return the number, mean, sample standard deviation and half the width of the mean's 95 % confidence interval."""
    number = len(values)
    deviation = stdev(values) if number > 1 else None
    half = t_quantile(number - 1) * deviation / math.sqrt(number) if deviation is not None else None
    return {"runs": number, "mean": fmean(values), "stdev": deviation, "ci95": half}


def noise(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the difference of means that chance alone exceeds in 5 % of cases; None when neither side has repeats.

    Welch's interval when both sides have repeats; when one has, its deviation stands for the other's too.
    """
    if len(a) < 2 and len(b) < 2:
        return None
    if len(a) < 2 or len(b) < 2:
        known = a if len(a) > 1 else b
        return t_quantile(len(known) - 1) * stdev(known) * math.sqrt(1 / len(a) + 1 / len(b))
    parts = [stdev(side) ** 2 / len(side) for side in (a, b)]
    if not sum(parts):
        return 0.0
    freedom = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (a, b), strict=True))
    return t_quantile(freedom) * math.sqrt(sum(parts))


def compare(runs: Sequence[Compared]) -> Comparison:
    """Return the comparison of runs, repeats taken together; every group is compared with the first.

    When all runs are repeats of each other, each is a separate group, and ``repeats`` has the spread of all.
    """
    groups: dict[str, list[Compared]] = {}
    for run in runs:
        unknown = "" if run.scenario else run.label  # runs without a scenario are no repeats
        groups.setdefault(repr((sorted(_flat(run.scenario)), run.info.get("engine"), unknown)), []).append(run)
    sides = [*groups.values()]
    is_one = len(sides) == 1
    if is_one:
        sides = [[run] for run in runs]
    names = [name for name in METRICS if any(lookup(run.result, name) is not None for run in runs)]
    return Comparison(
        groups=tuple(_group(side) for side in sides),
        differing_keys=tuple(_differing([side[0] for side in sides])),
        metrics=tuple(_metric(name, sides) for name in names),
        notes=tuple(_notes(sides, is_one)),
        repeats=tuple(repeats([run.result for run in runs])) if is_one else None,
    )


def _group(side: Sequence[Compared]) -> Group:
    first = side[0]
    origin = first.result.origin
    kind = origin.kind if origin else kind_of(first.info.get("engine"))
    return Group(runs=tuple(run.label for run in side), engine=first.info.get("engine"), kind=kind)


def repeats(results: Sequence[RunResult]) -> list[Repeated]:
    """Return the spread over repeats of each metric that all of them have."""
    rows = []
    for name in METRICS:
        values = [value for value in (lookup(result, name) for result in results) if value is not None]
        if len(values) == len(results):
            rows.append(Repeated(name=name, **spread(values)))
    return rows


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif path and (path, value) != ("storage.cache", "none"):  # older runs have the key
        yield path, "none" if value in (None, {}) else _written(value)


def _written(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf).strip()


def _differing(runs: Sequence[Compared]) -> Iterator[DifferingKey]:
    flat = [dict(_flat(run.scenario)) for run in runs]
    for leaves, run in zip(flat, runs, strict=True):
        leaves |= {f"run.{key}": str(run.info[key]) for key in _OF_THE_RUN if key in run.info}
    for key in dict.fromkeys(key for leaves in flat for key in leaves):
        values = [leaves.get(key) for leaves in flat]
        if len({*values}) > 1:
            yield DifferingKey(key=key, values=tuple(values))


def _metric(name: str, sides: Sequence[Sequence[Compared]]) -> MetricRow:
    values = [[v for v in (lookup(run.result, name) for run in side) if v is not None] for side in sides]
    first, *others = values
    return MetricRow(
        name=name,
        groups=tuple(Spread(**spread(side)) if side else None for side in values),
        differences=tuple(_difference(first, other) if first and other else None for other in others),
    )


def _difference(a: Sequence[float], b: Sequence[float]) -> Difference:
    before, after, bound = fmean(a), fmean(b), noise(a, b)
    absolute = after - before
    return Difference(
        absolute=absolute,
        percent=100 * absolute / abs(before) if before else None,
        noise=bound,
        exceeds_noise=None if bound is None else abs(absolute) > bound,
    )


def _notes(sides: Sequence[Sequence[Compared]], is_one: bool) -> list[str]:
    notes = [*_unlike([_group(side) for side in sides])]
    for run in (run for side in sides for run in side):
        if run.result.exit_code:
            notes.append(f"{run.label} ended with exit code {run.result.exit_code}: {run.result.error}")
        if not run.scenario:
            notes.append(f"{run.label} has no scenario: its keys are not compared")
    if is_one:
        notes.append("all runs are repeats of one scenario: their spread is the noise, not a difference of scenarios")
    elif all(len(side) == 1 for side in sides):
        notes.append(
            "no repeats: whether a difference exceeds the noise cannot be said; "
            "make some with rayio run --repeat 5 and give all their directories"
        )
    else:
        notes.append("the noise is the 95 % interval: of 20 metrics that chance alone moves, about one exceeds it")
    return notes


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


def label(number: int) -> str:
    """Return the letter of a group."""
    return chr(ord("A") + number) if number < 26 else f"R{number + 1}"
