"""What came out at the points of a sweep: a row for every run, and the points over their repeats."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayio.analyze.compare import spread
from rayio.records.metric_names import METRICS, lookup
from rayio.records.run_result import RunResult, read_result
from rayio.scenario import derive
from rayio.scenario.model import Scenario
from rayio.schema.fields import show
from rayio.study.sweeps.points import identity, number_of

#: What became of a run: done, done with expectations unmet, cannot be, broke off.
DONE, UNMET, IMPOSSIBLE, FAILED = "done", "unmet", "impossible", "failed"


@dataclass(frozen=True)
class Row:
    """One run at one point. ``values`` are those of the swept keys; ``result`` is None where nothing ran."""

    values: tuple[Any, ...]
    repeat: int
    status: str
    error: str | None = None
    readers: int | None = None
    window_bytes: float | None = None
    result: RunResult | None = None
    #: AU of each epoch by DLIO's formula, as fractions, of runs that are judged by it.
    epochs: tuple[float, ...] = ()
    #: Share of this machine's processors that were busy meanwhile, of runs on a wall clock that were watched.
    busy_share: float | None = None

    @property
    def identity(self) -> tuple[str, int]:
        """What tells runs of one sweep apart."""
        return identity(self.values), self.repeat

    def as_json(self) -> dict[str, Any]:
        """Write it as plain values."""
        return {
            "values": list(self.values),
            "repeat": self.repeat,
            "status": self.status,
            "error": self.error,
            "readers": self.readers,
            "window_bytes": self.window_bytes,
            "result": None if self.result is None else self.result.as_json(),
            **({"epochs": list(self.epochs)} if self.epochs else {}),
            **({"busy_share": self.busy_share} if self.busy_share is not None else {}),
        }

    @classmethod
    def of_json(cls, content: Mapping[str, Any], where: object) -> Row:
        """Read it back.

        Raises:
            KeyError, TypeError: it is none.
            StorageError: its result is damaged.
        """
        result = content["result"]
        return cls(
            tuple(content["values"]),
            content["repeat"],
            content["status"],
            content["error"],
            content["readers"],
            content["window_bytes"],
            None if result is None else read_result(result, where),
            tuple(content.get("epochs", ())),
            content.get("busy_share"),
        )


def row_of(values: Sequence[Any], repeat: int, scenario: Scenario, result: RunResult) -> Row:
    """Make the row of a run that ended."""
    status = {0: DONE, 3: UNMET}.get(result.exit_code, FAILED)
    return Row(
        tuple(values), repeat, status, result.error, derive.num_readers(scenario), window_bytes(scenario), result
    )


def window_bytes(scenario: Scenario) -> float:
    """The expected bytes that the full windows of all ranks hold, as far as ``max_bytes_in_flight`` lets them."""
    whole = derive.world_size(scenario) * derive.window_bytes(scenario)
    bound = scenario.loader.max_bytes_in_flight
    return min(whole, float(bound) * scenario.cluster.nodes) if isinstance(bound, int) else whole


@dataclass(frozen=True)
class Point:
    """One point over its repeats."""

    values: tuple[Any, ...]
    rows: tuple[Row, ...]

    @property
    def first(self) -> Row:
        """Its first run, whose seed is the scenario's own."""
        return self.rows[0]

    @functools.cached_property
    def measured(self) -> tuple[RunResult, ...]:
        """The results of its runs that went well."""
        return tuple(row.result for row in self.rows if row.result is not None and row.status in (DONE, UNMET))

    def mean(self, metric: str) -> float | None:
        """The mean of a metric over the repeats that know it."""
        return None if (found := self.spread(metric)) is None else found[0]

    def spread(self, metric: str) -> tuple[float, float | None] | None:
        """The mean and half the 95 % interval (Student's t) of a metric; None where no repeat has it."""
        known = [value for value in (lookup(result, metric) for result in self.measured) if value is not None]
        if not known:
            return None
        found = spread(known)
        half = found["ci95"]
        return float(found["mean"] or 0.0), None if half is None else float(half)

    @property
    def status(self) -> str:
        """What became of it: the worst of its runs."""
        order = (FAILED, IMPOSSIBLE, UNMET, DONE)
        return min((row.status for row in self.rows), key=order.index)

    @property
    def error(self) -> str | None:
        """The line of the first run that has one."""
        return next((row.error for row in self.rows if row.error), None)


def points_of(rows: Sequence[Row]) -> list[Point]:
    """Gather rows by point, sorted by the values where they are numbers, else in the order in which they came."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(identity(row.values), []).append(row)
    points = [Point(of[0].values, tuple(sorted(of, key=lambda row: row.repeat))) for of in found.values()]
    columns = [axis([point.values[at] for point in points]) for at in range(len(points[0].values) if points else 0)]
    places = [{identity(value): n for n, value in enumerate(column)} for column in columns]
    return sorted(points, key=lambda p: [place[identity(v)] for place, v in zip(places, p.values, strict=True)])


def axis(values: Sequence[Any]) -> list[Any]:
    """The different values in order: ascending where all are numbers or quantities, else as they came."""
    different = [*{identity(value): value for value in values}.values()]
    numbers = [number_of(value) for value in different]
    if any(number is None for number in numbers):
        return different
    return [value for _, value in sorted(zip(numbers, different, strict=True), key=lambda pair: pair[0] or 0.0)]


def columns(keys: Sequence[str], rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Turn rows into named columns: the swept keys, how it went, what it costs, every metric."""
    table: dict[str, list[Any]] = {key: [_cell(row.values[at]) for row in rows] for at, key in enumerate(keys)}
    for name in ("repeat", "status", "error", "readers", "window_bytes"):
        table[name] = [getattr(row, name) for row in rows]
    table["exit_code"] = [None if row.result is None else row.result.exit_code for row in rows]
    for metric in METRICS:
        table[metric] = [None if row.result is None else lookup(row.result, metric) for row in rows]
    return table


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else show(value)
