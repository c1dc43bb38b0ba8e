"""The record that ``rayio sweep --json`` prints."""

from __future__ import annotations

from typing import Any

from rayio.records.answers import SweptPoints, SweptRun, Value
from rayio.schema.fields import show
from rayio.study.sweeps.finished import Sweep
from rayio.study.sweeps.sweep_rows import Point


def answer(sweep: Sweep) -> SweptPoints:
    """Return a sweep's finished runs in the order of its points, its knee and its Pareto front."""
    return SweptPoints(
        directory=str(sweep.path),
        name=sweep.name,
        engine=sweep.engine,
        swept=sweep.keys,
        missing=sweep.missing,
        knee=None if sweep.knee is None else _values(sweep.knee),
        front=tuple(_values(point) for point in sweep.front),
        runs=tuple(
            SweptRun(
                point=tuple(map(_plain, row.values)),
                repeat=row.repeat,
                status=row.status,
                error=row.error,
                workers=row.workers,
                window_bytes=row.window_bytes,
                result=row.result,
            )
            for point in sweep.points
            for row in point.rows
        ),
    )


def _values(point: Point) -> tuple[Value, ...]:
    return tuple(map(_plain, point.values))


def _plain(value: Any) -> Value:
    """Return a swept value for JSON; a list or a mapping as YAML text."""
    return value if value is None or isinstance(value, (str, int, float, bool)) else show(value)
