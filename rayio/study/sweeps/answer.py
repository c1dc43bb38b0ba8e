"""A sweep as the record that ``rayio sweep --json`` prints."""

from __future__ import annotations

from typing import Any

from rayio.records.answers import SweptPoints, SweptRun, Value
from rayio.schema.fields import show
from rayio.study.sweeps.sweep_rows import Point
from rayio.study.sweeps.swept import Sweep


def answer(found: Sweep) -> SweptPoints:
    """Every run of a sweep that ended, in the order of its points, and what it comes to."""
    return SweptPoints(
        directory=str(found.path),
        name=found.name,
        engine=found.engine,
        swept=found.keys,
        missing=found.missing,
        knee=None if found.knee is None else _place(found.knee),
        front=tuple(_place(point) for point in found.front),
        runs=tuple(
            SweptRun(
                point=tuple(map(_plain, row.values)),
                repeat=row.repeat,
                status=row.status,
                error=row.error,
                readers=row.readers,
                window_bytes=row.window_bytes,
                result=row.result,
            )
            for point in found.points
            for row in point.rows
        ),
    )


def _place(point: Point) -> tuple[Value, ...]:
    return tuple(map(_plain, point.values))


def _plain(value: Any) -> Value:
    """A swept value as JSON has it; a list or a mapping as YAML would write it."""
    return value if value is None or isinstance(value, (str, int, float, bool)) else show(value)
