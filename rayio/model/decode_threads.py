"""Samples of a batch among the threads that decode them."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


def shares(seconds: Sequence[float], threads: int) -> list[float]:
    """Return the time of each thread: samples are taken in their order, each by the first free thread.

    >>> shares([3.0, 1.0, 1.0, 2.0], 2)
    [4.0, 3.0]
    """
    busy = [0.0] * min(threads, len(seconds))
    heapify(busy)
    for each in seconds:
        heapreplace(busy, busy[0] + each)
    return sorted(busy, reverse=True)


def runs(nbytes: NDArray[np.int64], threads: int) -> list[tuple[int, int]]:
    """Return the first and the last sample + 1 of each thread: runs of about equal bytes.

    >>> runs(np.array([4, 4, 4, 12]), 2)
    [(0, 3), (3, 4)]
    """
    total = np.cumsum(nbytes)
    wanted = total[-1] * np.arange(1, threads) / threads
    edges = [0, *(np.searchsorted(total, wanted) + 1).tolist(), len(nbytes)]
    return [(first, last) for first, last in pairwise(edges) if first < last]
