"""The table of a sweep, made from its points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rayio.analyze.gate import badness, of_repeats
from rayio.analyze.worth import LEAST_AU
from rayio.records.doubts import SETTING, blocking
from rayio.records.sweeps import DONE, UNMET, SweepTable, TablePoint, Warned
from rayio.study.sweeps.choices import accelerators
from rayio.study.sweeps.points import written
from rayio.study.sweeps.sweep_rows import Point


def table_of(keys: Sequence[str], points: Sequence[Point], knee: Point | None, front: Sequence[Point]) -> SweepTable:
    """Return the table of a sweep over some keys; ``knee`` and ``front`` are some of its points."""
    on_front = {id(point) for point in front}
    has_failures = any(result.failures is not None for point in points for result in point.measured)
    return SweepTable(
        keys=tuple(keys),
        points=tuple(
            _row(point, is_knee=point is knee, is_on_front=id(point) in on_front, has_failures=has_failures)
            for point in points
        ),
        cheapest=_cheapest(points),
        sufficient=None if has_failures else _sufficient(points),
        warnings=tuple(_warnings(points)),
    )


def _row(point: Point, *, is_knee: bool, is_on_front: bool, has_failures: bool) -> TablePoint:
    au, half = point.spread("au") or (None, None)
    return TablePoint(
        values=tuple(map(written, point.values)),
        au=au,
        au_half=half,
        samples_per_second=point.mean("samples_per_second"),
        data_wait_share=point.mean("data_wait_share"),
        sync_share=point.mean("sync_share"),
        workers=point.first.workers,
        window_bytes=point.first.window_bytes,
        status=point.status,
        error=point.error,
        is_knee=is_knee,
        is_on_front=is_on_front,
        goodput=point.mean("goodput") if has_failures else None,
    )


def _cheapest(points: Sequence[Point]) -> int | None:
    """Return the index of the cheapest point that meets ``expect:``, where some do not."""
    met = [index for index, point in enumerate(points) if point.status == DONE]
    return None if all(point.status != UNMET for point in points) else _least(points, met, met)


def _sufficient(points: Sequence[Point]) -> int | None:
    """Return the index of the cheapest point whose AU is within a point of the best, where no ``expect:`` decides."""
    known = {index: au for index, point in enumerate(points) if (au := point.mean("au")) is not None}
    if len(known) < 2 or any(point.status == UNMET for point in points):
        return None
    best = max(known.values())
    return _least(points, [*known], [index for index, au in known.items() if best - au < LEAST_AU])


def _least(points: Sequence[Point], compared: Sequence[int], chosen: Sequence[int]) -> int | None:
    """Return the chosen index with the fewest workers, then the least memory; None if the gate holds a compared one.

    None also where those compared have different numbers of accelerators: fewer of them need fewer workers.
    """
    doubts = (doubt for index in compared for doubt in of_repeats(points[index].measured))
    if blocking(doubts, SETTING) or len({accelerators(points[index]) for index in compared}) > 1:
        return None
    costs = {index: (points[index].first.workers or 0, points[index].first.window_bytes or 0.0) for index in chosen}
    return min(chosen, key=lambda index: costs[index], default=None)


def _warnings(points: Sequence[Point]) -> Iterator[Warned]:
    """Yield each kind of doubt: the worst one, the number of points that have it, and the worst of them."""
    of_points = [of_repeats(point.measured) for point in points]
    for code in dict.fromkeys(doubt.code for doubts in of_points for doubt in doubts):
        mine = {index: doubt for index, doubts in enumerate(of_points) for doubt in doubts if doubt.code == code}
        worst = max(mine, key=lambda index: badness(mine[index]))
        yield Warned(doubt=mine[worst], number=len(mine), worst=worst)
