"""Exact arithmetic on arrays of intervals in whole nanoseconds.

Time functions are cumulative: how much of something lay before a moment. A difference of two of them is exact, and
differences over adjoining intervals add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rayio.trace.order import DENSE, Ints, order_by, packed_of

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
        """Return sorted intervals; where two of a group overlap, the first one ends where the second begins."""
        order = order_by(group, start, end)
        group, start, end = group[order], start[order], end[order]
        end[:-1] = np.where(group[1:] == group[:-1], np.minimum(end[:-1], start[1:]), end[:-1])
        return cls(group, start, end, kind[order])

    def place(self, group: Ints, moment: Ints) -> Ints:
        """Return for each moment the position of the last interval that begins at or before it; -1 for none.

        The interval may belong to a group before ``group``.
        """
        number = len(self.start)
        keys = np.concatenate([self.group, group]), np.concatenate([self.start, moment])
        packed, held = packed_of(keys)
        if packed is not None and held == len(keys):
            place: Ints = np.searchsorted(packed[:number], packed[number:], side="right") - 1
            return place
        order = order_by(*keys)
        is_moment = order >= number
        places = np.empty(len(moment), np.int64)
        places[order[is_moment] - number] = np.cumsum(~is_moment)[is_moment] - 1
        return places

    @classmethod
    def union(cls, group: Ints, start: Ints, end: Ints) -> Occupied:
        """Return intervals with those of a group joined that overlap or touch; their kind is 0."""
        if not len(start):
            return cls(group, start, end, start)
        order = order_by(group, start)
        group, start, end = group[order], start[order], end[order]
        is_first = np.ones(len(start), np.bool_)
        is_first[1:] = group[1:] != group[:-1]
        # When all before it in its group are over; groups come one after the other on one axis where there is room.
        low, span = int(start.min()), int(end.max()) - int(start.min()) + 1
        number = np.cumsum(is_first) - 1
        if (int(number[-1]) + 1) * span < 1 << 62:
            begin = number * span - low
            over = np.maximum.accumulate(end + begin)
            is_first[1:] |= (start + begin)[1:] > over[:-1]
        else:
            edges = [*np.flatnonzero(is_first).tolist(), len(start)]
            for first, last in pairwise(edges):
                over = np.maximum.accumulate(end[first:last])
                is_first[first + 1 : last] = start[first + 1 : last] > over[:-1]
        first_ones = np.flatnonzero(is_first)
        ends = np.maximum.reduceat(end, first_ones)
        return cls(group[first_ones], start[first_ones], ends, np.zeros(len(ends), np.int64))

    def before(self, group: Ints, moment: Ints, kinds: int) -> NDArray[np.int64]:
        """Return for each moment how long each kind was on in its group until then, up to a constant of the group.

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
        """Return how much of each of these intervals those of kind 0 in ``other`` cover."""
        number = len(self.start)
        both = other.before(np.tile(self.group, 2), np.concatenate([self.start, self.end]), 1)[:, 0]
        covered: NDArray[np.int64] = both[number:] - both[:number]
        return covered


class Lookup:
    """Positions by a key; among equal keys the highest ``rank`` counts, among equal ranks the last one."""

    def __init__(self, key: Ints, rank: Ints) -> None:
        #: By key, from the lowest on: its position, or -1. None where keys lie too far apart, or not in their order.
        self._table: Ints | None = None
        if len(key):
            self._low = int(key.min())
            if int(key.max()) - self._low < DENSE * len(key):
                self._table = self._tabled(key, rank)
        if self._table is None:
            self._order = order_by(key, rank)
            self._key = key[self._order]

    def _tabled(self, key: Ints, rank: Ints) -> Ints | None:
        """Return the table; None where the last one of equal keys does not have the highest rank."""
        place = key - self._low
        table = np.full(int(place.max()) + 1, -1)
        table[place] = np.arange(len(key))
        return table if (rank[table[place]] >= rank).all() else None

    def find(self, wanted: Ints) -> Ints:
        """Return the position of each wanted key; -1 where there is none."""
        if self._table is not None:
            place = wanted - self._low
            is_inside = (place >= 0) & (place < len(self._table))
            return np.where(is_inside, self._table[np.where(is_inside, place, 0)], -1)
        if not len(self._key):
            return np.full(len(wanted), -1)
        at = np.maximum(np.searchsorted(self._key, wanted, side="right") - 1, 0)
        return np.where(self._key[at] == wanted, self._order[at], -1)


def pick(values: Ints, at: Ints, otherwise: Ints) -> Ints:
    """Return the value at each position, and ``otherwise`` where the position is -1."""
    return np.where(at >= 0, values[at], otherwise) if len(values) else otherwise


def split_exactly(amount: Ints, weight: Sequence[Ints]) -> list[Ints]:
    """Return each amount split over its weights (an array for each kind, not negative), in whole ns that sum to it.

    The heaviest part takes the rest of rounding; among equals the first. An amount without any weight must be 0.
    """
    total = np.zeros(len(amount), np.int64)
    for mine in weight:
        total += mine
    ratio = amount / np.maximum(total, 1)
    left, most, heaviest = amount.copy(), np.full(len(amount), -1), np.zeros(len(amount), np.int8)
    parts = []
    for kind, mine in enumerate(weight):
        part: Ints = np.floor(mine * ratio).astype(np.int64)
        parts.append(part)
        left -= part
        np.copyto(heaviest, kind, where=mine > most)
        np.maximum(most, mine, out=most)
    for kind, part in enumerate(parts):
        part += np.where(heaviest == kind, left, 0)
    return parts
