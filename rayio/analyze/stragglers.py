"""Stragglers: the ranks that compute longest, counted step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

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


def last_of_steps(steps: StepsInSlices, ranks: int) -> tuple[Ints, Ints]:
    """Return for each rank the steps that it shared with others, and those in which it computed longest."""
    shared, number = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    if not steps.number:
        return shared, number
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
        last = some.life[some.parts["compute"] >= limit[rounds.of(some)]]
        number += np.bincount(last, minlength=ranks)
    return shared, number


def slow_ranks(steps: StepsInSlices, ranks: int) -> NDArray[np.bool_]:
    """Return which ranks are last in most steps, and more often than by chance."""
    return _slow(*last_of_steps(steps, ranks))


def _slow(shared: Ints, number: Ints) -> NDArray[np.bool_]:
    ranks = len(shared)
    by_chance = shared / max(ranks, 1)
    deviation = np.sqrt(by_chance * (1 - 1 / max(ranks, 1)))
    slow: NDArray[np.bool_] = (2 * number > shared) & (number > by_chance + NO_CHANCE * deviation)
    return slow


def worst_ranks(lives: Lives, steps: StepsInSlices) -> list[WaitedFor]:
    """Return ranks by how long others waited for them, with their own wait and how much slower they compute.

    ``of_typical`` is a rank's mean compute over that of the (lower) median rank, among ranks that are not slow if there
    are any.
    """
    if len(lives.rank) < 2 or not steps.number:
        return []
    ranks = len(lives.rank)
    shared, number = last_of_steps(steps, ranks)
    computed, synced = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    for some in steps.by_slice():
        computed += sums_by(some.life, some.parts["compute"], ranks)
        synced += sums_by(some.life, some.parts["sync"], ranks)
    mean = computed / np.maximum(shared, 1)
    slow = _slow(shared, number)
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
