"""Results of a sweep: a row for every run, and points over their repeats."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayio.analyze.compare import spread
from rayio.records.metric_names import METRICS, lookup
from rayio.records.record import DamagedRecordError, Record, record, value
from rayio.records.run_result import RunResult, read_result
from rayio.records.sweeps import DONE, FAILED, IMPOSSIBLE, UNMET
from rayio.scenario import derive
from rayio.scenario.model import Scenario
from rayio.schema.fields import show
from rayio.study.sweeps.points import identity, number_of


@record
class _Line(Record):
    """A line of ``points.jsonl``, without its values and its result."""

    repeat: int = value("number of the repeat")
    status: str = value("status of the run")
    error: str | None = value("error of a failed run")
    readers: int | None = value("workers of all ranks")
    window_bytes: float | None = value("expected bytes of the full windows", "bytes")
    epochs: tuple[float, ...] = value("AU of each epoch", "fraction", default=())
    busy_share: float | None = value("busy share of the processors", "fraction", can_be_absent=True)


@dataclass(frozen=True)
class Row:
    """A run at a point, with the ``values`` of the swept keys; ``result`` is None if nothing ran."""

    values: tuple[Any, ...]
    repeat: int
    status: str
    error: str | None = None
    workers: int | None = None
    window_bytes: float | None = None
    result: RunResult | None = None
    #: AU of each epoch by DLIO's formula, as fractions, if runs are judged by it.
    epochs: tuple[float, ...] = ()
    #: Busy share of this machine's processors during the run, if measured.
    busy_share: float | None = None

    @property
    def identity(self) -> tuple[str, int]:
        """The key of a run in its sweep."""
        return identity(self.values), self.repeat

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain values."""
        return {
            "values": list(self.values),
            "repeat": self.repeat,
            "status": self.status,
            "error": self.error,
            "readers": self.workers,
            "window_bytes": self.window_bytes,
            "result": None if self.result is None else self.result.as_json(),
            **({"epochs": list(self.epochs)} if self.epochs else {}),
            **({"busy_share": self.busy_share} if self.busy_share is not None else {}),
        }

    @classmethod
    def of_json(cls, content: Mapping[str, Any], where: object) -> Row:
        """Return the row of plain values.

        Raises:
            DamagedRecordError: the content is not a row.
            StorageError: its result is damaged.
        """
        line, values, result = _Line.of_json(content), content.get("values"), content.get("result")
        if not isinstance(values, list):
            raise DamagedRecordError("values is not a list")
        if line.status not in (DONE, UNMET, IMPOSSIBLE, FAILED):
            raise DamagedRecordError(f"status is {line.status!r}, expected {DONE}, {UNMET}, {IMPOSSIBLE} or {FAILED}")
        if not isinstance(result, dict | None) or (result is None and line.status in (DONE, UNMET)):
            raise DamagedRecordError("result is not an object")
        return cls(
            tuple(values),
            line.repeat,
            line.status,
            line.error,
            line.readers,
            line.window_bytes,
            None if result is None else read_result(result, where),
            line.epochs,
            line.busy_share,
        )


def row_of(values: Sequence[Any], repeat: int, scenario: Scenario, result: RunResult) -> Row:
    """Return the row of a finished run."""
    status = {0: DONE, 3: UNMET}.get(result.exit_code, FAILED)
    return Row(
        tuple(values), repeat, status, result.error, derive.num_readers(scenario), window_bytes(scenario), result
    )


def window_bytes(scenario: Scenario) -> float:
    """Return the expected bytes of all ranks' full windows, bounded by ``max_bytes_in_flight``."""
    whole = derive.world_size(scenario) * derive.window_bytes(scenario)
    bound = scenario.loader.max_bytes_in_flight
    return min(whole, float(bound) * scenario.cluster.nodes) if isinstance(bound, int) else whole


@dataclass(frozen=True)
class Point:
    """A point over its repeats."""

    values: tuple[Any, ...]
    rows: tuple[Row, ...]

    @property
    def first(self) -> Row:
        """Its first run, which has the scenario's seed."""
        return self.rows[0]

    @functools.cached_property
    def measured(self) -> tuple[RunResult, ...]:
        """The results of its successful runs."""
        return tuple(row.result for row in self.rows if row.result is not None and row.status in (DONE, UNMET))

    def mean(self, metric: str) -> float | None:
        """Return the mean of a metric over the repeats that have it; None if none has."""
        return None if (mean := self.spread(metric)) is None else mean[0]

    def spread(self, metric: str) -> tuple[float, float | None] | None:
        """Return the mean and half the 95 % interval (Student's t) of a metric; None if no repeat has it."""
        known = [value for value in (lookup(result, metric) for result in self.measured) if value is not None]
        if not known:
            return None
        estimate = spread(known)
        return estimate.mean, estimate.ci95

    @property
    def status(self) -> str:
        """The worst status of its runs."""
        order = (FAILED, IMPOSSIBLE, UNMET, DONE)
        return min((row.status for row in self.rows), key=order.index)

    @property
    def error(self) -> str | None:
        """The first error of its runs."""
        return next((row.error for row in self.rows if row.error), None)


def points_of(rows: Sequence[Row]) -> list[Point]:
    """Return the points of rows, sorted by their values if these are numbers, else in the order of the rows."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(identity(row.values), []).append(row)
    points = [Point(group[0].values, tuple(sorted(group, key=lambda row: row.repeat))) for group in groups.values()]
    columns = [axis([point.values[key] for point in points]) for key in range(len(points[0].values) if points else 0)]
    places = [{identity(value): n for n, value in enumerate(column)} for column in columns]
    return sorted(points, key=lambda p: [place[identity(v)] for place, v in zip(places, p.values, strict=True)])


def axis(values: Sequence[Any]) -> list[Any]:
    """Return the distinct values, ascending if all are numbers or quantities, else in their order."""
    different = [*{identity(value): value for value in values}.values()]
    numbers = [number_of(value) for value in different]
    if any(number is None for number in numbers):
        return different
    return [value for _, value in sorted(zip(numbers, different, strict=True), key=lambda pair: pair[0] or 0.0)]


def columns(keys: Sequence[str], rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return rows as named columns: the swept keys, status, costs, every metric."""
    table: dict[str, list[Any]] = {key: [_cell(row.values[index]) for row in rows] for index, key in enumerate(keys)}
    for name in ("repeat", "status", "error", "workers", "window_bytes"):
        table[name] = [getattr(row, name) for row in rows]
    table["exit_code"] = [None if row.result is None else row.result.exit_code for row in rows]
    for metric in METRICS:
        table[metric] = [None if row.result is None else lookup(row.result, metric) for row in rows]
    return table


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else show(value)
