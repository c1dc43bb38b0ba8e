"""Comparison of runs: keys, metrics, and whether a difference is more than chance.

Runs of one scenario on one engine are repeats, with whatever seeds. A difference is compared with the noise, a 95 %
interval of Student's t. Where both groups have the same seeds, it is the interval of the differences of the pairs: runs
with equal seeds draw equal times, so most of their noise is equal too. Without repeats the noise is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, NamedTuple

import yaml

from rayio.analyze import gate
from rayio.analyze.student import t_quantile
from rayio.records.comparison import (
    FASTER,
    IN_DOUBT,
    NO_DIFFERENCE,
    NO_METRIC,
    REPEATS,
    SLOWER,
    UNKNOWN,
    Comparison,
    Difference,
    DifferingKey,
    Failure,
    Group,
    MetricRow,
    Repeated,
    Spread,
    Verdict,
)
from rayio.records.doubts import Doubt
from rayio.records.metric_names import METRICS, lookup
from rayio.records.origin import kind_of
from rayio.records.run_result import RunResult

#: Entries of ``run.json`` that are compared as if they were keys of the scenario.
_OF_THE_RUN = ("engine", "rayio", "cpus", "modelled_storage")
#: The key that no two repeats need to share.
SEED = "seed"
#: Metrics of a verdict, the first that all runs have: more is better.
DECIDING = ("samples_per_second", "samples_per_second_dlio", "au", "au_dlio")
#: The metrics that matter most; the first :data:`MOST_MAIN` that a run has are shown first.
MAIN = (
    "samples_per_second", "au", "data_wait_share", "percentiles.step_time.p99", "wall_seconds",
    "samples_per_second_dlio", "au_dlio", "mib_per_second", "goodput",
)  # fmt: skip
MOST_MAIN = 5
#: Relative error of sums of floats; a smaller difference is none.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Compared:
    """A run: a label, its result, its scenario as a mapping (empty when there is none), its run.json."""

    label: str
    result: RunResult
    scenario: Mapping[str, Any]
    info: Mapping[str, Any]
    #: True if scenario.yaml was edited after the run, and what ran is unknown.
    has_edited_keys: bool = False
    #: True if it was edited, and what ran is known.
    has_ignored_edits: bool = False

    @property
    def seed(self) -> int | None:
        """The seed of the scenario; None if it has none."""
        seed = self.scenario.get(SEED)
        return seed if type(seed) is int else None


Side = Sequence[Compared]


class Estimate(NamedTuple):
    """The mean of values, with its spread."""

    runs: int
    mean: float
    #: Sample standard deviation; None for one value.
    stdev: float | None
    #: Half the width of the mean's 95 % confidence interval.
    ci95: float | None


def spread(values: Sequence[float]) -> Estimate:
    """Return the mean of values and their spread."""
    number = len(values)
    deviation = stdev(values) if number > 1 else None
    half = t_quantile(number - 1) * deviation / math.sqrt(number) if deviation is not None else None
    return Estimate(number, fmean(values), deviation, half)


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


def noise_of_pairs(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the mean difference of at least two pairs that chance alone exceeds in 5 % of cases."""
    differences = [after - before for before, after in pairs]
    return t_quantile(len(pairs) - 1) * stdev(differences) / math.sqrt(len(pairs))


def compare(runs: Sequence[Compared]) -> Comparison:
    """Return the comparison of runs, repeats taken together; every group is compared with the first.

    Groups are in the order in which their first runs are given. When all runs are repeats of each other, each is a
    separate group, and ``repeats`` has the spread of all. Sentences are added by ``rayio/report/compare.py``.
    """
    groups: dict[str, list[Compared]] = {}
    for run in runs:
        groups.setdefault(_identity(run), []).append(run)
    sides = [*groups.values()]
    is_one = len(sides) == 1
    if is_one:
        sides = [[run] for run in runs]
    names = [name for name in METRICS if any(lookup(run.result, name) is not None for run in runs)]
    rows = tuple(_metric(name, sides) for name in names)
    spreads = tuple(repeats([run.result for run in runs])) if is_one else None
    verdicts = tuple(_of_repeats(spreads) if spreads is not None else _verdicts(rows, len(sides)))
    doubts: list[tuple[Doubt, ...]] = []
    if spreads is None:
        doubts = [_doubts(sides[0], *pair) for pair in zip(sides[1:], verdicts, strict=True)]
        pairs = zip(verdicts, doubts, strict=True)
        verdicts = tuple(replace(each, outcome=IN_DOUBT) if some else each for each, some in pairs)
    return Comparison(
        verdicts=verdicts,
        groups=tuple(map(_group, sides)),
        differing_keys=tuple(_differing([side[0] for side in sides])),
        main_metrics=tuple([name for name in MAIN if name in names][:MOST_MAIN]),
        metrics=rows,
        notes=(),
        doubts=tuple({doubt.code: doubt for some in doubts for doubt in some}.values()),
        repeats=spreads,
        edited=tuple(run.label for run in runs if run.has_edited_keys),
        edits_ignored=tuple(run.label for run in runs if run.has_ignored_edits),
    )


def _identity(run: Compared) -> str:
    """Return a text that is equal for repeats: scenario without seed, engine, version and machine."""
    if not run.scenario:  # runs without a scenario are no repeats
        return repr(run.label)
    keys = sorted(leaf for leaf in _flat(run.scenario) if leaf[0] != SEED)
    return repr((keys, [run.info.get(name) for name in _OF_THE_RUN]))


def _group(side: Side) -> Group:
    first = side[0]
    origin = first.result.origin
    failed = [run for run in side if run.result.exit_code]
    return Group(
        runs=tuple(run.label for run in side),
        engine=first.info.get("engine"),
        kind=origin.kind if origin else kind_of(first.info.get("engine")),
        scenario=first.result.scenario,
        seeds=tuple(run.seed for run in side),
        failures=tuple(
            Failure(run=run.label, exit_code=run.result.exit_code, error=run.result.error) for run in failed
        ),
        has_scenario=bool(first.scenario),
    )


def repeats(results: Sequence[RunResult]) -> list[Repeated]:
    """Return the spread over repeats of each metric that all of them have."""
    rows = []
    for name in METRICS:
        values = [value for value in (lookup(result, name) for result in results) if value is not None]
        if len(values) == len(results):
            rows.append(Repeated(name=name, **spread(values)._asdict()))
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
        leaves.pop(SEED, None)
    for key in dict.fromkeys(key for leaves in flat for key in leaves):
        values = [leaves.get(key) for leaves in flat]
        if len({*values}) > 1:
            yield DifferingKey(key=key, values=tuple(values))


def _metric(name: str, sides: Sequence[Side]) -> MetricRow:
    values = [[lookup(run.result, name) for run in side] for side in sides]
    known = [[value for value in side if value is not None] for side in values]
    first, *others = [*zip(sides, values, strict=True)]
    return MetricRow(
        name=name,
        groups=tuple(
            Spread(**spread(numbers)._asdict(), of_runs=tuple(side)) if numbers else None
            for side, numbers in zip(values, known, strict=True)
        ),
        differences=tuple(_difference(*first, *other) for other in others),
    )


def _difference(
    runs: Side, values: Sequence[float | None], other_runs: Side, other_values: Sequence[float | None]
) -> Difference | None:
    """Return the difference of the means; None if a side has no value."""
    a, b = ([value for value in side if value is not None] for side in (values, other_values))
    if not a or not b:
        return None
    pairs = _pairs(runs, values, other_runs, other_values)
    before, after = fmean(a), fmean(b)
    bound = noise_of_pairs(pairs) if pairs else noise(a, b)
    absolute = after - before
    return Difference(
        absolute=absolute,
        percent=100 * absolute / abs(before) if before else None,
        noise=bound,
        noise_percent=100 * bound / abs(before) if before and bound is not None else None,
        exceeds_noise=None if bound is None else abs(absolute) > bound + ROUNDING * abs(before),
        pairs=len(pairs) or None,
    )


def _pairs(
    runs: Side, values: Sequence[float | None], other_runs: Side, other_values: Sequence[float | None]
) -> list[tuple[float, float]]:
    """Return the values of runs with equal seeds; empty unless both sides have the same seeds, each once.

    All or nothing: the mean of the pairs' differences then is the difference of the groups' means.
    """
    seeds = [run.seed for run in runs]
    partners = {run.seed: value for run, value in zip(other_runs, other_values, strict=True)}
    is_paired = len({*seeds}) == len(seeds) == len(partners) == len(other_runs) >= 2 and {*seeds} == {*partners}
    if not is_paired or None in seeds:
        return []
    pairs = [(value, partners[seed]) for seed, value in zip(seeds, values, strict=True)]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    return known if len(known) == len(pairs) else []


def _verdicts(rows: Sequence[MetricRow], number: int) -> Iterator[Verdict]:
    """Yield the verdict of each group but the first, by the first deciding metric that every run has."""
    by_name = {row.name: row for row in rows}
    for place in range(1, number):
        deciding = (by_name[name] for name in DECIDING if name in by_name)
        row = next((row for row in deciding if row.differences[place - 1] is not None), None)
        difference = None if row is None else row.differences[place - 1]
        if row is None or difference is None:
            yield Verdict(group=label(place), outcome=NO_METRIC, metric=None, percent=None, noise_percent=None)
            continue
        outcome = UNKNOWN
        if difference.exceeds_noise is not None:
            beyond = FASTER if difference.absolute > 0 else SLOWER
            outcome = beyond if difference.exceeds_noise else NO_DIFFERENCE
        yield Verdict(
            group=label(place),
            outcome=outcome,
            metric=row.name,
            percent=difference.percent,
            noise_percent=difference.noise_percent,
            pairs=difference.pairs,
        )


def _doubts(first: Side, other: Side, verdict: Verdict) -> tuple[Doubt, ...]:
    """Return the doubts about a verdict; none where it says nothing of the difference."""
    if verdict.percent is None:
        return ()
    a, b = ([run.result for run in side] for side in (first, other))
    speed = gate.speed_of_runs([run.info for run in (*first, *other)])
    doubts = gate.of_comparison(a, b, verdict.percent, verdict.noise_percent)
    return doubts if speed is None else (*doubts, speed)


def _of_repeats(spreads: Sequence[Repeated]) -> Iterator[Verdict]:
    """Yield the verdict on repeats of one scenario: the spread of single runs."""
    by_name = {row.name: row for row in spreads}
    row = next((by_name[name] for name in DECIDING if name in by_name), None)
    share = None if row is None or row.stdev is None or not row.mean else 100 * row.stdev / abs(row.mean)
    yield Verdict(
        group="", outcome=REPEATS, metric=None if row is None else row.name, percent=share, noise_percent=None
    )


def label(number: int) -> str:
    """Return the letter of a group."""
    return chr(ord("A") + number) if number < 26 else f"R{number + 1}"
