"""What the points of a sweep say for a decision: where more brings little, and which points nothing beats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rayio.study.sweeps.points import number_of
from rayio.study.sweeps.sweep_rows import Point

#: Height above the diagonal, in parts of the whole rise, below which a curve has no knee.
LEAST_BEND = 0.05


@dataclass(frozen=True)
class Knee:
    """Where a curve of one key bends: the point, and by how much it lies above the diagonal (0 to 1)."""

    place: int
    bend: float


def knee(x: Sequence[float], y: Sequence[float]) -> Knee | None:
    """Find where a rising curve stops to rise quickly.

    Both axes are scaled to 0 to 1, so that units do not matter: x from the first value to the last, y from the first
    value to the greatest. Then y - x is the difference curve of Kneedle (Satopää, Albrecht, Irwin, Raghavan: "Finding a
    'Kneedle' in a Haystack", ICDCS workshops 2011), the height above the diagonal, and its largest value is the knee.
    ``x`` ascends. None of fewer than three points, of a curve that never rises above its first point, or lies above the
    diagonal by less than :data:`LEAST_BEND`.
    """
    if len(y) < 3 or max(y) <= y[0]:
        return None
    wide, high = x[-1] - x[0], max(y) - y[0]
    bends = [(b - y[0]) / high - (a - x[0]) / wide for a, b in zip(x, y, strict=True)]
    place = max(range(len(y)), key=lambda n: (bends[n], -n))
    return Knee(place, bends[place]) if bends[place] >= LEAST_BEND else None


def knee_of(points: Sequence[Point], metric: str = "au") -> Knee | None:
    """Find the knee of a sweep over one key; ``place`` counts in ``points``. None where its values are no numbers."""
    if not points or len(points[0].values) != 1:
        return None
    known = [
        (place, x, y)
        for place, point in enumerate(points)
        if (x := number_of(point.values[0])) is not None and (y := point.mean(metric)) is not None
    ]
    if any(number_of(point.values[0]) is None for point in points):
        return None
    found = knee([x for _, x, _ in known], [y for _, _, y in known])
    return None if found is None else Knee(known[found.place][0], found.bend)


def front(points: Sequence[Point], *costs: Callable[[Point], float | None], metric: str = "au") -> set[int]:
    """Find the points that no other beats: none has at least their metric at no more of each cost, and one of it less.

    Of points that are equal in all of it the first is taken.
    """
    known: list[tuple[int, float, tuple[float, ...]]] = []
    for place, point in enumerate(points):
        gain, spent = point.mean(metric), [cost(point) for cost in costs]
        paid = tuple(value for value in spent if value is not None)
        if gain is not None and len(paid) == len(costs):
            known.append((place, gain, paid))
    # By falling gain, then by cost: whoever beats a point comes before it, and is on the front or beaten by one there.
    kept: list[tuple[int, float, tuple[float, ...]]] = []
    for one in sorted(known, key=lambda entry: (-entry[1], entry[2], entry[0])):
        if not any(all(a <= b for a, b in zip(other[2], one[2], strict=True)) for other in kept):
            kept.append(one)
    return {place for place, _, _ in kept}


def readers(point: Point) -> float | None:
    """Count the reader workers of all ranks: what a point costs in processes."""
    return point.first.readers


def memory(point: Point) -> float | None:
    """Sum the bytes of the full windows of all ranks: what a point costs in memory."""
    return point.first.window_bytes
