"""Names of the metrics of ``expect:``, ``compare`` and ``sweep``, and their lookup in a result."""

from __future__ import annotations

from dataclasses import fields
from functools import cache

from rayio.records.draining import Draining
from rayio.records.hosts import Fetched
from rayio.records.record import Record, units
from rayio.records.run_result import Evaluation, Percentiles, RunResult, Seconds, Statistics
from rayio.records.transfers import Transfers

_NO_METRIC = (
    "version",
    "world_size",
    "ranks_of_sample",
    "dropped_samples_per_epoch",
    "capped_samples_per_epoch",
    "exit_code",
)


def _names(record: type[Record], *kinds: str) -> tuple[str, ...]:
    return tuple(each.name for each in fields(record) if not kinds or each.type in kinds)  # type: ignore[arg-type]


#: Metrics at the top level of a result.
HEADLINE = tuple(name for name in _names(RunResult, "Number", "int | None") if name not in _NO_METRIC)

#: Parts of a rank's wall time: phases, losses to failures, and the rest.
SPLIT = _names(Seconds)

#: Statistics of ``percentiles``, without the count.
STATISTICS = _names(Statistics, "float")

#: Durations with percentiles; ``collate`` is a key of version 0.1 that was never recorded.
TIMES = tuple(name for name in _names(Percentiles) if name != "collate")

#: Every metric of ``expect:``, by its dotted name in ``result.json``.
METRICS = (
    *HEADLINE,
    *(f"{table}.{name}" for table in ("time", "share") for name in SPLIT),
    *(f"percentiles.{name}.{statistic}" for name in TIMES for statistic in STATISTICS),
    *(f"evaluation.{name}" for name in _names(Evaluation)),
    *(f"{table}.{name}" for table in ("saved", "restored") for name in _names(Transfers, "float", "float | None")),
    *(f"drained.{name}" for name in _names(Draining, "int", "float")),
    *(f"fetched.{name}" for name in _names(Fetched, "int", "int | None", "float | None")),
)


def lookup(result: RunResult, name: str) -> float | None:
    """Return a number by its dotted name (``percentiles.data_wait.p99``); None if the result has none."""
    content: object = result
    for part in name.split("."):
        content = getattr(content, part, None)
    return float(content) if isinstance(content, (int, float)) else None


def unit_of(name: str) -> str:
    """Return the unit of a metric in the schema (``fraction``, ``s``, ``samples/s``, ``steps``); empty without one."""
    return _units().get(name, "")


@cache
def _units() -> dict[str, str]:
    return {name: unit for name, unit, _ in units(RunResult)}
