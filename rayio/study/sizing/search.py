"""A search along whole numbers with few trials: doubling, then bisection. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Bracket:
    """The largest number that holds (0 if none does), and the smallest known that does not (None if all hold)."""

    holds: int
    fails: int | None


#: Guesses to try before plain bisection.
MOST_GUESSES = 4


def largest(
    holds: Callable[[int], bool],
    most: int,
    start: int = 1,
    guess: Callable[[int, int], int | None] = lambda known, failed: None,
) -> Bracket:
    """Return the largest whole number from 1 to ``most`` that holds; assumes that all numbers below it hold.

    From ``start`` the number is doubled while it holds; then the gap is bisected. ``guess(known, failed)`` may return
    the answer's expected value between a number that holds and one that does not. It is tried first, then its
    successor. After a guess that does not hold, the gap is halved once: on a flat curve, guesses stay near its end.

    >>> tried = []
    >>> largest(lambda n: tried.append(n) or n <= 11, most=1000), tried
    (Bracket(holds=11, fails=12), [1, 2, 4, 8, 16, 12, 10, 11])
    >>> tried = []
    >>> largest(lambda n: tried.append(n) or n <= 11, most=1000, guess=lambda known, failed: 11), tried
    (Bracket(holds=11, fails=12), [1, 2, 4, 8, 16, 11, 12])
    >>> tried = []
    >>> largest(lambda n: tried.append(n) or n <= 33, most=64, guess=lambda known, failed: failed - 1), tried
    (Bracket(holds=33, fails=34), [1, 2, 4, 8, 16, 32, 64, 63, 47, 46, 39, 38, 35, 34, 33])
    """
    known, failed = 0, most + 1
    number = min(start, most)
    while known < most and failed == most + 1:
        if holds(number):
            known, number = number, min(2 * number, most)
        else:
            failed = number
    guesses, is_next, may_guess = 0, False, True
    while failed - known > 1 and failed <= most:
        number = (known + failed) // 2
        if is_next:
            number, is_next = known + 1, False
        elif may_guess and guesses < MOST_GUESSES and (expected := guess(known, failed)) is not None:
            number, guesses, may_guess = min(max(expected, known + 1), failed - 1), guesses + 1, False
            is_next = number == expected
        else:
            may_guess = True
        if holds(number):
            known, may_guess = number, True
        else:
            failed, is_next = number, False
    return Bracket(known, failed if failed <= most else None)


def smallest(reaches: Callable[[int], bool], count: int) -> int | None:
    """Return the first index from 0 to count - 1 that reaches, or None; assumes that all indices behind it reach.

    The first index is tried first, then the last, then by bisection.

    >>> tried = []
    >>> smallest(lambda n: tried.append(n) or n >= 5, count=16), tried
    (5, [0, 15, 7, 3, 5, 4])
    """
    if count == 0:
        return None
    if reaches(0):
        return 0
    if count == 1 or not reaches(count - 1):
        return None
    low, high = 0, count - 1
    while high - low > 1:
        middle = (low + high) // 2
        if reaches(middle):
            high = middle
        else:
            low = middle
    return high


def falls(values: Iterable[tuple[int, float, float]]) -> list[tuple[int, int]]:
    """Return neighbours whose mean rises although it should fall, with intervals that do not overlap.

    ``values`` are (number, mean, half an interval).
    """
    return [(a[0], b[0]) for a, b in pairwise(sorted(values)) if b[1] - b[2] > a[1] + a[2]]
