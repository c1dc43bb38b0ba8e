"""The names of every number that ``expect:``, ``compare`` and ``sweep`` can use, and how one is found in a result."""

from __future__ import annotations

from dataclasses import fields

from rayio.records.hosts import Fetched
from rayio.records.record import Record
from rayio.records.run_result import Evaluation, Percentiles, RunResult, Seconds, Statistics

_NO_METRIC = ("version", "world_size", "dropped_samples_per_epoch", "capped_samples_per_epoch", "exit_code")


def _names(record: type[Record], *kinds: str) -> tuple[str, ...]:
    return tuple(each.name for each in fields(record) if not kinds or each.type in kinds)  # type: ignore[arg-type]


#: Numbers of a result that are not in tables.
HEADLINE = tuple(name for name in _names(RunResult, "Number", "int | None") if name not in _NO_METRIC)

#: What a rank's wall time is split into: phases, what a failure cost, and the rest.
SPLIT = _names(Seconds)

#: What of single things is given in ``percentiles``, beside their number.
STATISTICS = _names(Statistics, "float")

#: The things that have percentiles; nothing ever collated, though version 0.1 had the key.
TIMES = tuple(name for name in _names(Percentiles) if name != "collate")

#: Every number that ``expect:`` may name, by its dotted place in ``result.json``.
METRICS = (
    *HEADLINE,
    *(f"{table}.{name}" for table in ("time", "share") for name in SPLIT),
    *(f"percentiles.{name}.{statistic}" for name in TIMES for statistic in STATISTICS),
    *(f"evaluation.{name}" for name in _names(Evaluation)),
    *(f"fetched.{name}" for name in _names(Fetched, "int", "int | None", "float | None")),
)


def lookup(result: RunResult, name: str) -> float | None:
    """Find a number by its dotted name (``percentiles.data_wait.p99``); None where the result has none."""
    held: object = result
    for part in name.split("."):
        held = getattr(held, part, None)
    return float(held) if isinstance(held, (int, float)) else None
