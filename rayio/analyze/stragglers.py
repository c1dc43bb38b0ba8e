"""Stragglers: the ranks that compute longest, counted step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.rounds import Rounds
from rayio.analyze.timeline import Ints, Lives, StepsInSlices
from rayio.records.explained import WaitedFor
from rayio.trace.order import sums_by

#: Ranks whose compute is within this share of a step's longest are last together.
TOGETHER = 0.01

#: Standard deviations beyond chance from which on a rank counts as slow.
NO_CHANCE = 3.0


class Pace(NamedTuple):
    """How long ranks compute: the steps of each, those in which it computed longest, and the sum of its compute."""

    shared: Ints
    last: Ints
    computed: Ints
    #: Ranks that are last in most steps, and more often than by chance: each alone, or several in turn.
    slow: NDArray[np.bool_]

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean compute of each rank."""
        mean: NDArray[np.float64] = self.computed / np.maximum(self.shared, 1)
        return mean


def pace_of(steps: StepsInSlices, ranks: int) -> Pace:
    """Return how long each of so many ranks computes."""
    shared, number, computed = (np.zeros(ranks, np.int64) for _ in range(3))
    if not steps.number:
        return Pace(shared, number, computed, np.zeros(ranks, np.bool_))
    rounds = Rounds(steps)
    longest, shortest = np.zeros(rounds.number, np.int64), np.full(rounds.number, np.iinfo(np.int64).max)
    for some in steps.by_slice():
        place, compute = rounds.of(some), some.parts["compute"]
        np.maximum.at(longest, place, compute)
        np.minimum.at(shortest, place, compute)
    limit = longest * (1 - TOGETHER)
    limit[shortest >= limit] = np.inf  # where all compute as long, nobody is last
    for some in steps.by_slice():
        shared += np.bincount(some.life, minlength=ranks)
        computed += sums_by(some.life, some.parts["compute"], ranks)
        last = some.life[some.parts["compute"] >= limit[rounds.of(some)]]
        number += np.bincount(last, minlength=ranks)
    pace = Pace(shared, number, computed, _mostly(number, shared, 1 / max(ranks, 1)))
    group = np.zeros(0, np.bool_) if pace.slow.any() else _apart(pace.mean)
    if not group.any():
        return pace
    is_last = np.zeros(rounds.number, np.bool_)
    for some in steps.by_slice():
        place = rounds.of(some)
        is_last[place[group[some.life] & (some.parts["compute"] >= limit[place])]] = True
    are_slow = _mostly(np.array([is_last.sum()]), shared.max(keepdims=True), group.mean())
    return pace._replace(slow=group & are_slow)


def slow_ranks(steps: StepsInSlices, ranks: int) -> NDArray[np.bool_]:
    """Return which ranks are last in most steps, and more often than by chance: each alone, or several in turn."""
    return pace_of(steps, ranks).slow


def _mostly(number: Ints, shared: Ints, chance: float) -> NDArray[np.bool_]:
    """Return which numbers of steps are most of all, and more than by chance."""
    by_chance = shared * chance
    deviation = np.sqrt(by_chance * (1 - chance))
    most: NDArray[np.bool_] = (2 * number > shared) & (number > by_chance + NO_CHANCE * deviation)
    return most


def _apart(mean: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the slower ranks where there are two sorts, which differ by far more than the ranks of one sort do.

    >>> _apart(np.array([1.0, 1.5, 1.01, 1.48])).tolist(), _apart(np.array([1.0, 1.1, 1.2])).tolist()
    ([False, True, False, True], [False, False, False])
    """
    order = np.sort(mean)
    split = int(np.argmax(np.diff(order))) if len(order) > 1 else 0
    below, above = order[: split + 1], order[split + 1 :]
    if not len(above) or above[0] - below[-1] <= 1.5 * max(np.ptp(below), np.ptp(above)):
        return np.zeros(len(mean), np.bool_)
    slower: NDArray[np.bool_] = mean >= above[0]
    return slower


def worst_ranks(lives: Lives, steps: StepsInSlices) -> list[WaitedFor]:
    """Return ranks by how long others waited for them, with their own wait and how much slower they compute.

    ``of_typical`` is a rank's mean compute over that of the (lower) median rank, among ranks that are not slow if there
    are any.
    """
    if len(lives.rank) < 2 or not steps.number:
        return []
    ranks = len(lives.rank)
    pace, synced = pace_of(steps, ranks), np.zeros(ranks, np.int64)
    for some in steps.by_slice():
        synced += sums_by(some.life, some.parts["sync"], ranks)
    shared, number, mean, slow = pace.shared, pace.last, pace.mean, pace.slow
    typical = typical_of(mean, slow)
    waited = synced.astype(np.float64)
    order = np.lexsort((-mean, waited, ~slow))
    return [
        WaitedFor(
            rank=int(lives.rank[life]),
            compute_seconds=mean[life] / 1e9,
            of_typical=mean[life] / typical if typical else None,
            sync_seconds=waited[life] / 1e9,
            last_share=number[life] / shared[life] if shared[life] else None,
            is_slow=bool(slow[life]),
        )
        for life in order
    ]


def on_slow_nodes(ranks: Sequence[WaitedFor], node_of: Callable[[int], int]) -> tuple[WaitedFor, ...]:
    """Return all ranks of a run, slow ones with the slow node that they are on (``WaitedFor.slow_node``)."""
    slow = Counter(node_of(row.rank) for row in ranks if row.is_slow)
    number = Counter(node_of(row.rank) for row in ranks)
    is_node_slow = slow.total() < len(ranks) and all(1 < number[node] == slow[node] for node in slow)
    return tuple(replace(row, slow_node=node_of(row.rank)) if is_node_slow and row.is_slow else row for row in ranks)


def typical_of(mean: NDArray[np.float64], slow: NDArray[np.bool_]) -> float:
    """Return the mean compute of the (lower) median rank, among ranks that are not slow if there are any."""
    others = np.sort(mean[~slow] if (~slow).any() else mean)
    return float(others[(len(others) - 1) // 2])
