"""The output of ``rayio compare --json``; ``rayio schema compare`` prints its schema."""

from __future__ import annotations

from dataclasses import dataclass

from rayio.records.record import Record, value
from rayio.records.run_result import Number

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Record):
    """Repeated runs: of one scenario on one engine."""

    runs: tuple[str, ...] = value("run directories as given")
    engine: str | None = value("ray, local, virtual, or dlio for imported results")
    kind: str = value("measured, predicted or imported; empty if unknown", default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferingKey(Record):
    """A key of the scenario or of run.json with different values."""

    key: str = value("dotted name")
    values: tuple[str | None, ...] = value(  # type: ignore[assignment]  # not the mapping's method
        "value of each group; null if it has none"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread(Record):
    """A metric over the repeats of a group, in the unit of the metric."""

    runs: int = value("runs with the metric", "runs")
    mean: float = value("mean")
    stdev: Number = value("sample standard deviation; null for one run")
    ci95: Number = value("half the width of the mean's 95 % confidence interval; null for one run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Record):
    """The difference of a metric from the first group's."""

    absolute: float = value("difference of the means, in the unit of the metric")
    percent: Number = value("difference as a share of the first group's mean; null if that is 0", "percent")
    noise: Number = value("difference that chance exceeds in 5 % of cases; null without repeats")
    exceeds_noise: bool | None = value("true if the difference exceeds the noise; null without repeats")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow(Record):
    """A metric of all groups."""

    name: str = value("dotted name in result.json")
    groups: tuple[Spread | None, ...] = value("spread in each group; null if no run has it")
    differences: tuple[Difference | None, ...] = value("differences of the other groups from the first")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated(Record):
    """A metric over repeated runs."""

    name: str = value("dotted name in result.json")
    runs: int = value("runs with the metric", "runs")
    mean: float = value("mean, in the unit of the metric")
    stdev: Number = value("sample standard deviation; null for one run")
    ci95: Number = value("half the width of the mean's 95 % confidence interval; null for one run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Record):
    """A comparison of groups of runs with the first group: the output of ``rayio compare --json``, version 1."""

    worded_by = "rayio.report.text.comparison:text"

    version: int = value("version of this schema", default=VERSION)
    groups: tuple[Group, ...] = value("groups of repeated runs; if all runs are repeats, a group for each")
    differing_keys: tuple[DifferingKey, ...] = value("keys with different values")
    metrics: tuple[MetricRow, ...] = value("metrics")
    notes: tuple[str, ...] = value("notes on the numbers, a sentence each")
    repeats: tuple[Repeated, ...] | None = value("spread over all runs, if all are repeats", can_be_absent=True)
