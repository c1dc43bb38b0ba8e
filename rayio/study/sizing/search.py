"""Searching along a key of whole numbers with few questions: doubling, then bisection. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Bracket:
    """The largest number that holds, 0 where none does; and the smallest known that does not, None where all do."""

    holds: int
    fails: int | None


#: Guesses that are asked before the gap is halved blindly.
MOST_GUESSES = 4


def largest(
    holds: Callable[[int], bool],
    most: int,
    start: int = 1,
    guess: Callable[[int, int], int | None] = lambda known, failed: None,
) -> Bracket:
    """Find the largest whole number from 1 to ``most`` that holds, if whatever is below one that holds does too.

    ``start`` is asked first; from there it is doubled while it holds, then the gap is halved. ``guess`` may say, of a
    number that holds and a larger one that does not, where between them the answer is: that is asked first, then the
    number above it.

    >>> asked = []
    >>> largest(lambda n: asked.append(n) or n <= 11, most=1000), asked
    (Bracket(holds=11, fails=12), [1, 2, 4, 8, 16, 12, 10, 11])
    >>> asked = []
    >>> largest(lambda n: asked.append(n) or n <= 11, most=1000, guess=lambda known, failed: 11), asked
    (Bracket(holds=11, fails=12), [1, 2, 4, 8, 16, 11, 12])
    """
    known, failed = 0, most + 1
    at = min(start, most)
    while known < most and failed == most + 1:
        if holds(at):
            known, at = at, min(2 * at, most)
        else:
            failed = at
    guesses, is_next = 0, False
    while failed - known > 1 and failed <= most:
        at = (known + failed) // 2
        if is_next:
            at, is_next = known + 1, False
        elif guesses < MOST_GUESSES and (told := guess(known, failed)) is not None:
            at, guesses = min(max(told, known + 1), failed - 1), guesses + 1
            is_next = at == told
        if holds(at):
            known = at
        else:
            failed, is_next = at, False
    return Bracket(known, failed if failed <= most else None)


def smallest(reaches: Callable[[int], bool], count: int) -> int | None:
    """Find the first of ``count`` places, 0 to count - 1, that reaches, if whatever is behind one that does, does too.

    The first place is asked first, then the last: of few questions these are the ones that say most.

    >>> asked = []
    >>> smallest(lambda n: asked.append(n) or n >= 5, count=16), asked
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
    """Find neighbours of which the larger has the more, by more than both are unsure of: what should fall does not.

    ``values`` are (number, mean, half an interval).
    """
    return [(a[0], b[0]) for a, b in pairwise(sorted(values)) if b[1] - b[2] > a[1] + a[2]]
