"""Decisions from a sweep's points: the knee (diminishing returns) and the Pareto front (best trade-offs)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rayio.analyze.worth import LEAST_AU
from rayio.study.sweeps.points import number_of
from rayio.study.sweeps.sweep_rows import Point

#: The least height of a knee above the diagonal, as a share of the rise.
LEAST_BEND = 0.05


@dataclass(frozen=True)
class Knee:
    """A knee: the index of its point, and its height above the diagonal (0 to 1)."""

    index: int
    bend: float


def knee(x: Sequence[float], y: Sequence[float]) -> Knee | None:
    """Return the knee of a rising curve, where diminishing returns begin; None without one.

    Both axes are scaled to 0 to 1: ``x`` (ascending) from first to last, ``y`` from first to greatest. The knee has the
    largest y - x, the difference curve of Kneedle (Satopää, Albrecht, Irwin, Raghavan: "Finding a 'Kneedle' in a
    Haystack", ICDCS workshops 2011). There is none with fewer than three points, without a rise, or below
    :data:`LEAST_BEND`.
    """
    if len(y) < 3 or max(y) <= y[0]:
        return None
    wide, high = x[-1] - x[0], max(y) - y[0]
    bends = [(b - y[0]) / high - (a - x[0]) / wide for a, b in zip(x, y, strict=True)]
    index = max(range(len(y)), key=lambda n: (bends[n], -n))
    return Knee(index, bends[index]) if bends[index] >= LEAST_BEND else None


def is_rise(shares: Sequence[float]) -> bool:
    """Return True if AU rises enough to advise it (see ``rayio/analyze/worth.py``).

    >>> is_rise([0.65, 0.66 - 1e-3]), is_rise([0.65, 0.7])
    (False, True)
    """
    return max(shares) - shares[0] >= LEAST_AU


def knee_of(points: Sequence[Point], metric: str = "au") -> Knee | None:
    """Return the knee of a sweep over one key, with its index in ``points``; None if its values are not numbers."""
    if not points or len(points[0].values) != 1:
        return None
    known = [
        (index, x, y)
        for index, point in enumerate(points)
        if (x := number_of(point.values[0])) is not None and (y := point.mean(metric)) is not None
    ]
    if any(number_of(point.values[0]) is None for point in points):
        return None
    if metric == "au" and known and not is_rise([y for _, _, y in known]):
        return None
    among_known = knee([x for _, x, _ in known], [y for _, _, y in known])
    return None if among_known is None else Knee(known[among_known.index][0], among_known.bend)


def front(points: Sequence[Point], *costs: Callable[[Point], float | None], metric: str = "au") -> set[int]:
    """Return the indices of the Pareto front: no other point has at least as much of the metric at no more cost.

    Of equal points the first is taken.
    """
    known: list[tuple[int, float, tuple[float, ...]]] = []
    for index, point in enumerate(points):
        gain, spent = point.mean(metric), [cost(point) for cost in costs]
        paid = tuple(value for value in spent if value is not None)
        if gain is not None and len(paid) == len(costs):
            known.append((index, gain, paid))
    # sorted by falling gain, then by cost: a point that dominates another comes before it
    kept: list[tuple[int, float, tuple[float, ...]]] = []
    for entry in sorted(known, key=lambda entry: (-entry[1], entry[2], entry[0])):
        if not any(all(a <= b for a, b in zip(other[2], entry[2], strict=True)) for other in kept):
            kept.append(entry)
    return {index for index, _, _ in kept}


def accelerators(point: Point) -> int | None:
    """Return a point's ranks; None without a result."""
    result = point.first.result
    return None if result is None else result.world_size


def workers(point: Point) -> float | None:
    """Return a point's cost in processes: the workers of all ranks."""
    return point.first.workers


def memory(point: Point) -> float | None:
    """Return a point's cost in memory: the bytes of all ranks' full windows."""
    return point.first.window_bytes
