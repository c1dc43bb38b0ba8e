"""Exact arithmetic on intervals in whole nanoseconds, over arrays: nothing here loops over intervals.

Time functions are cumulative: how much of something lay before a moment. A difference of two of them is exact, and
differences over adjoining intervals add up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayio.trace.order import Ints, order_by, packed_of

#: Before every time that can be.
BEFORE = np.iinfo(np.int64).min // 4


@dataclass(frozen=True, slots=True)
class Occupied:
    """Disjoint intervals of several groups, each of one kind, sorted by group and start; times in ns."""

    group: Ints
    start: Ints
    end: Ints
    kind: Ints

    @classmethod
    def of(cls, group: Ints, start: Ints, end: Ints, kind: Ints) -> Occupied:
        """Sort intervals; of two of a group that overlap, the one that began first ends where the other begins."""
        order = order_by(group, start, end)
        group, start, end = group[order], start[order], end[order]
        end[:-1] = np.where(group[1:] == group[:-1], np.minimum(end[:-1], start[1:]), end[:-1])
        return cls(group, start, end, kind[order])

    def place(self, group: Ints, moment: Ints) -> Ints:
        """Find for each moment the position of the last interval that sorts before it or begins with it; -1 for none.

        It may be an interval of a group before ``group``.
        """
        number = len(self.start)
        keys = np.concatenate([self.group, group]), np.concatenate([self.start, moment])
        packed, held = packed_of(keys)
        if packed is not None and held == len(keys):
            place: Ints = np.searchsorted(packed[:number], packed[number:], side="right") - 1
            return place
        order = order_by(*keys)
        is_moment = order >= number
        found = np.empty(len(moment), np.int64)
        found[order[is_moment] - number] = np.cumsum(~is_moment)[is_moment] - 1
        return found

    @classmethod
    def union(cls, group: Ints, start: Ints, end: Ints) -> Occupied:
        """Join intervals of a group that overlap or touch; their kind is 0."""
        number = len(start)
        who, when = np.concatenate([group, group]), np.concatenate([start, end])
        change = np.repeat(np.array([1, -1]), number)
        order = order_by(who, when, -change)
        depth = np.cumsum(change[order])
        opens, closes = order[(change[order] == 1) & (depth == 1)], order[depth == 0]
        return cls(who[opens], when[opens], when[closes], np.zeros(len(opens), np.int64))

    def before(self, group: Ints, moment: Ints, kinds: int) -> NDArray[np.int64]:
        """Sum for each moment how long each kind was on in its group until then, up to a constant of the group.

        The answer has the shape (moments, kinds); only differences within a group mean something.
        """
        answer = np.zeros((len(moment), kinds), np.int64)
        if not len(self.start) or not len(moment):
            return answer
        at = self.place(group, moment)
        is_any = at >= 0
        at = np.maximum(at, 0)
        length = self.end - self.start
        left = np.where(self.group[at] == group, np.maximum(self.end[at] - moment, 0), 0)
        for kind in range(kinds):
            mine = self.kind == kind
            answer[:, kind] = np.where(is_any, np.cumsum(np.where(mine, length, 0))[at] - left * mine[at], 0)
        return answer

    def within(self, other: Occupied) -> NDArray[np.int64]:
        """Measure how much of each of these intervals those of kind 0 in ``other`` cover."""
        number = len(self.start)
        both = other.before(np.tile(self.group, 2), np.concatenate([self.start, self.end]), 1)[:, 0]
        covered: NDArray[np.int64] = both[number:] - both[:number]
        return covered


class Lookup:
    """Positions by a key that may occur more than once: of equal keys the one with the highest ``rank`` counts."""

    def __init__(self, key: Ints, rank: Ints) -> None:
        self._order = order_by(key, rank)
        self._key = key[self._order]

    def find(self, wanted: Ints) -> Ints:
        """Find the position of each wanted key; -1 where there is none."""
        if not len(self._key):
            return np.full(len(wanted), -1)
        at = np.maximum(np.searchsorted(self._key, wanted, side="right") - 1, 0)
        return np.where(self._key[at] == wanted, self._order[at], -1)


def pick(values: Ints, at: Ints, otherwise: Ints) -> Ints:
    """The value at each position, and ``otherwise`` where the position is -1."""
    return np.where(at >= 0, values[at], otherwise) if len(values) else otherwise


def split_exactly(amount: Ints, weight: NDArray[np.int64]) -> NDArray[np.int64]:
    """Split each amount over its row of ``weight`` (not negative) in proportion, in whole ns that sum to it exactly.

    What rounding leaves goes to the heaviest. A row without weight gives nothing: its amount must be 0.
    """
    total = weight.sum(axis=1)
    ratio = amount / np.maximum(total, 1)
    parts: NDArray[np.int64] = np.floor(weight * ratio[:, None]).astype(np.int64)
    parts[np.arange(len(amount)), weight.argmax(axis=1)] += amount - parts.sum(axis=1)
    return parts
