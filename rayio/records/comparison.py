"""What ``rayio compare --json`` prints, field by field; its schema is what ``rayio schema compare`` prints."""

from __future__ import annotations

from dataclasses import dataclass

from rayio.records.record import Record, value
from rayio.records.run_result import Number

#: Version of what ``rayio compare --json`` prints.
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Record):
    """Runs of one scenario on one engine: repeats of each other."""

    runs: tuple[str, ...] = value("the run directories, as they were given")
    engine: str | None = value("ray, local, virtual, or dlio of imported results")
    kind: str = value("measured, predicted or imported; empty where that is not known", default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferingKey(Record):
    """A key of the scenario, or of run.json, that is not the same everywhere."""

    key: str = value("its dotted name")
    values: tuple[str | None, ...] = value(  # type: ignore[assignment]  # not the mapping's method
        "what each group has, in the order of the groups; null where it has none"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread(Record):
    """A metric over the repeats of a group, in the unit of the metric."""

    runs: int = value("runs that have it", "runs")
    mean: float = value("its mean")
    stdev: Number = value("its sample standard deviation; null of one run")
    ci95: Number = value("half the width of the mean's 95 % confidence interval; null of one run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Record):
    """What a group has more of a metric than the first group."""

    absolute: float = value("the difference of the means, in the unit of the metric")
    percent: Number = value("the same, of the first group's mean; null where that is 0", "percent")
    noise: Number = value("what chance alone exceeds in 5 % of cases; null without repeats")
    exceeds_noise: bool | None = value("whether the difference is more than that; null without repeats")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow(Record):
    """One metric of all groups."""

    name: str = value("its dotted place in result.json")
    groups: tuple[Spread | None, ...] = value("its spread in each group; null where no run has it")
    differences: tuple[Difference | None, ...] = value("each group but the first against the first")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated(Record):
    """A metric over runs that are all repeats of each other."""

    name: str = value("its dotted place in result.json")
    runs: int = value("runs that have it", "runs")
    mean: float = value("its mean, in its own unit")
    stdev: Number = value("its sample standard deviation; null of one run")
    ci95: Number = value("half the width of the mean's 95 % confidence interval; null of one run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Record):
    """Runs side by side, every group held against the first: what ``rayio compare --json`` prints, version 1."""

    version: int = value("version of this schema", default=VERSION)
    groups: tuple[Group, ...] = value("the runs, repeats taken together; one run a group where all are repeats")
    differing_keys: tuple[DifferingKey, ...] = value("what was asked of them differently")
    metrics: tuple[MetricRow, ...] = value("what came out")
    notes: tuple[str, ...] = value("what a reader of the numbers should know, a sentence each")
    repeats: tuple[Repeated, ...] | None = value(
        "the spread over all runs, where all are repeats of each other", can_be_absent=True
    )
