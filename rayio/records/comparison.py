"""The output of ``rayio compare --json``; ``rayio schema compare`` prints its schema."""

from __future__ import annotations

from rayio.records.doubts import Doubt
from rayio.records.record import Record, record, value
from rayio.records.run_result import Number

VERSION = 1

#: Outcomes of a verdict: beyond noise, within it, no repeats, no metric that both sides have, one scenario alone, and
#: numbers in doubt.
FASTER, SLOWER, NO_DIFFERENCE = "faster", "slower", "no_difference"
UNKNOWN, NO_METRIC, REPEATS = "unknown", "no_metric", "repeats"
IN_DOUBT = "in_doubt"


@record
class Failure(Record):
    """A run with an exit code other than 0."""

    run: str = value("run directory as given")
    exit_code: int = value("exit code")
    error: str | None = value("its reason")


@record
class Group(Record):
    """Repeated runs: of one scenario on one engine, with any seeds."""

    runs: tuple[str, ...] = value("run directories as given")
    engine: str | None = value("ray, local, virtual, or dlio for imported results")
    kind: str = value("measured, predicted or imported; empty if unknown", default="")
    scenario: str = value("name of the scenario", default="")
    seeds: tuple[int | None, ...] = value("seeds of the runs; null if unknown", default=())
    failures: tuple[Failure, ...] = value("runs that did not end with exit code 0", default=())
    has_scenario: bool = value("false if the runs have no scenario, so that their keys are unknown", default=True)


@record
class DifferingKey(Record):
    """A key of the scenario, other than the seed, or of run.json with different values."""

    key: str = value("dotted name")
    values: tuple[str | None, ...] = value(  # type: ignore[assignment]  # not the mapping's method
        "value of each group; null if it has none"
    )


@record
class Spread(Record):
    """A metric over the repeats of a group, in the unit of the metric."""

    runs: int = value("runs with the metric", "runs")
    mean: float = value("mean")
    stdev: Number = value("sample standard deviation; null for one run")
    ci95: Number = value("half the width of the mean's 95 % confidence interval; null for one run")
    of_runs: tuple[float | None, ...] = value("value of each run; null if it has none", default=())


@record
class Difference(Record):
    """The difference of a metric from the first group's."""

    absolute: float = value("difference of the means, in the unit of the metric")
    percent: Number = value("difference as a share of the first group's mean; null if that is 0", "percent")
    noise: Number = value("difference that chance exceeds in 5 % of cases; null without repeats")
    noise_percent: Number = value("the noise as a share of the first group's mean", "percent", default=None)
    exceeds_noise: bool | None = value("true if the difference exceeds the noise; null without repeats")
    pairs: int | None = value(
        "pairs of runs with equal seeds, whose differences give the noise; null if the groups have other seeds",
        default=None,
    )


@record
class MetricRow(Record):
    """A metric of all groups."""

    name: str = value("dotted name in result.json")
    groups: tuple[Spread | None, ...] = value("spread in each group; null if no run has it")
    differences: tuple[Difference | None, ...] = value("differences of the other groups from the first")


@record
class Repeated(Record):
    """A metric over repeated runs."""

    name: str = value("dotted name in result.json")
    runs: int = value("runs with the metric", "runs")
    mean: float = value("mean, in the unit of the metric")
    stdev: Number = value("sample standard deviation; null for one run")
    ci95: Number = value("half the width of the mean's 95 % confidence interval; null for one run")


@record
class Verdict(Record):
    """The comparison of a group with the first one, by the metric that counts most."""

    group: str = value("letter of the group; empty if all runs are repeats of one scenario")
    outcome: str = value(
        "faster or slower (beyond noise), no_difference (within noise), unknown (no repeats), no_metric (a group has "
        "no throughput), repeats (one scenario alone), in_doubt (see doubts)"
    )
    metric: str | None = value("dotted name of the metric, the throughput if both groups have it")
    percent: Number = value("difference from the first group; the standard deviation of repeats", "percent")
    noise_percent: Number = value("difference that chance exceeds in 5 % of cases", "percent")
    pairs: int | None = value("pairs of runs with equal seeds; null without", default=None)
    sentence: str = value("the verdict in words", default="")


@record
class Comparison(Record):
    """A comparison of groups of runs with the first group: the output of ``rayio compare --json``, version 1."""

    worded_by = "rayio.report.text.comparison:text"

    version: int = value("version of this schema", default=VERSION)
    verdicts: tuple[Verdict, ...] = value("a verdict for each group but the first, or one for repeats", default=())
    groups: tuple[Group, ...] = value("groups of repeated runs; if all runs are repeats, a group for each")
    differing_keys: tuple[DifferingKey, ...] = value("keys with different values")
    main_metrics: tuple[str, ...] = value("names of the metrics that matter most, at most five", default=())
    metrics: tuple[MetricRow, ...] = value("metrics")
    notes: tuple[str, ...] = value("notes on the numbers, a sentence each")
    doubts: tuple[Doubt, ...] = value("reasons why a verdict is not given", default=())
    repeats: tuple[Repeated, ...] | None = value("spread over all runs, if all are repeats", can_be_absent=True)
    edited: tuple[str, ...] = value(
        "runs whose scenario.yaml was edited later, and whose edited keys are the only ones known", default=()
    )
    edits_ignored: tuple[str, ...] = value(
        "runs whose scenario.yaml was edited later; the keys that ran are compared", default=()
    )
