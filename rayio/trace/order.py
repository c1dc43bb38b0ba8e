"""Sorts by several integer keys, for arrays of millions of spans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
T = TypeVar("T", bound=np.generic)

#: A table of all numbers between the lowest and highest key is faster than sorting up to this many numbers per row.
DENSE = 8

#: Bits of a number into which keys are packed.
_BITS = 63


def order_by(*keys: NDArray[np.signedinteger]) -> Ints:
    """Return the order of rows by these keys, the first key first; stable.

    It equals ``np.lexsort`` (whose keys are in reverse order) in a fraction of the time: as many keys as fit are packed
    into one number, and the others are compared only where that number is equal.

    >>> order_by(np.array([1, 0, 1]), np.array([5, 7, 4])).tolist()
    [1, 2, 0]
    """
    packed, number = packed_of(keys)
    if packed is None:
        return np.lexsort(keys[::-1])
    if (packed[1:] >= packed[:-1]).all():
        order: Ints = np.arange(len(packed))
    else:
        order = np.argsort(packed)  # not stable: processors sort by vectors in a third of the time
        packed = packed[order]
    same = packed[1:] == packed[:-1]
    if not same.any():
        return order
    alike = np.zeros(len(order), np.bool_)
    alike[1:] |= same
    alike[:-1] |= same
    ties = np.flatnonzero(alike)
    if 2 * len(ties) > len(order):
        return np.lexsort(keys[::-1])
    rows = order[ties]
    order[ties] = rows[np.lexsort((rows, *(key[rows] for key in keys[: number - 1 : -1]), packed[ties]))]
    return order


def dense_order(*keys: NDArray[np.signedinteger]) -> Ints | None:
    """Return the order of rows by these keys without sorting; None if rows are equal, or most keys do not occur.

    >>> dense_order(np.array([1, 0, 1]), np.array([5, 7, 4])).tolist()
    [1, 2, 0]
    """
    if not len(keys[0]):
        return np.zeros(0, np.int64)
    lows = [int(key.min()) for key in keys]
    sizes = [int(key.max()) - low + 1 for key, low in zip(keys, lows, strict=True)]
    if (size := math.prod(sizes)) > DENSE * len(keys[0]):
        return None
    place = np.zeros(len(keys[0]), np.int64)
    for key, low, span in zip(keys, lows, sizes, strict=True):
        place *= span
        place += key
        place -= low
    row_of = np.full(size, -1)
    row_of[place] = np.arange(len(place))
    order: Ints = row_of[row_of >= 0]
    return order if len(order) == len(place) else None


def groups_by(*keys: NDArray[np.signedinteger]) -> Ints:
    """Return the group number of each row by these keys, from 0 in key order; equal rows share a number.

    >>> groups_by(np.array([7, 3, 7]), np.array([1, 1, 1])).tolist()
    [1, 0, 1]
    """
    packed, packed_keys = packed_of(keys)
    if packed is not None and packed_keys == len(keys) and (numbered := _dense(packed)) is not None:
        return numbered
    order = order_by(*keys)
    number = np.zeros(len(order), np.int64)
    if len(order):
        is_new = np.zeros(len(order), np.bool_)
        for key in keys:
            ordered = key[order]
            is_new[1:] |= ordered[1:] != ordered[:-1]
        number[order] = np.cumsum(is_new)
    return number


def distinct(values: NDArray[T]) -> NDArray[T]:
    """Return the values that occur, sorted; :func:`np.unique` loads masked arrays, which takes commands time to start.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    ordered = np.sort(values)
    is_new = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    return ordered[is_new]


def is_among(values: Ints, wanted: Ints) -> NDArray[np.bool_]:
    """Return which values are among the wanted ones.

    >>> is_among(np.array([3, 1, 2]), np.array([3, 2])).tolist()
    [True, False, True]
    """
    if not len(wanted):
        return np.zeros(len(values), np.bool_)
    known = distinct(wanted)
    are: NDArray[np.bool_] = known[np.minimum(np.searchsorted(known, values), len(known) - 1)] == values
    return are


def sums_by(of: Ints, values: Ints, number: int) -> Ints:
    """Return sums of values by their group ``of``, from 0 to ``number``; fastest where equal groups are adjacent.

    >>> sums_by(np.array([0, 0, 2]), np.array([1, 2, 4]), 3).tolist()
    [3, 0, 4]
    """
    sums = np.zeros(number, np.int64)
    if len(of):
        is_first = np.ones(len(of), np.bool_)
        np.not_equal(of[1:], of[:-1], out=is_first[1:])
        first = np.flatnonzero(is_first)
        np.add.at(sums, of[first], np.add.reduceat(values, first))
    return sums


def _dense(key: NDArray[np.signedinteger]) -> Ints | None:
    """Return group numbers by one key without sorting; None if keys are sparse."""
    low = int(key.min(initial=0 if not len(key) else key[0]))
    size = int(key.max(initial=low)) - low + 1
    if size > DENSE * len(key):
        return None
    place = key.astype(np.int64) - low
    occurs = np.zeros(size, np.bool_)
    occurs[place] = True
    number: Ints = (np.cumsum(occurs) - 1)[place]
    return number


def packed_of(keys: Sequence[NDArray[np.signedinteger]]) -> tuple[Ints | None, int]:
    """Return the first keys packed into one number that sorts as they do, and the number of keys packed.

    The packed number is None if even the first key does not fit.
    """
    packed, left = None, _BITS
    if not len(keys[0]):
        return np.zeros(0, np.int64), len(keys)
    for number, key in enumerate(keys):
        low = int(key.min())
        bits = (int(key.max()) - low).bit_length()
        if bits > left:
            return packed, number
        left -= bits
        moved = key.astype(np.int64) - low
        packed = moved if packed is None else (packed << bits) | moved
    return packed, len(keys)
