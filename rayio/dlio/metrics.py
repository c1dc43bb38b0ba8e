"""DLIO's own metrics, formula by formula, for comparison with published MLPerf Storage results.

Source: ``compute_metrics_train``, ``end_train`` and ``end_run`` of ``dlio_benchmark/utils/statscounter.py``
(argonne-lcf/dlio_benchmark), with its defaults: the first step of a block is left out, no step at its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

#: ``metric_exclude_start_steps``.
EXCLUDED = 1


class Steps(Protocol):
    """What the formulas take of every completed step, sorted by rank and then by time (``rayio.analyze.timeline``)."""

    @property
    def number(self) -> int:
        """How many steps there are."""

    @property
    def life(self) -> Ints:
        """The place of each step's rank among those that recorded any."""

    @property
    def epoch(self) -> Ints:
        """The epoch of each."""

    @property
    def step(self) -> Ints:
        """The number of each within its epoch."""

    @property
    def attempt(self) -> Ints:
        """The attempt in which each was made."""

    @property
    def start(self) -> Ints:
        """When its rank asked for its batch, in ns."""

    @property
    def end(self) -> Ints:
        """When its rank asked for the next batch, in ns."""

    @property
    def saving(self) -> Ints:
        """When its checkpoint or evaluation began, or its end."""

    @property
    def parts(self) -> Mapping[str, Ints]:
        """Among others ``data_wait`` and ``compute``, in ns."""


@dataclass(frozen=True, slots=True)
class Dlio:
    """One number per epoch, as DLIO has them: AU in percent, throughput in samples per second."""

    au_percent: NDArray[np.float64]
    samples_per_second: NDArray[np.float64]


def dlio(steps: Steps, *, batch_size: int, steps_of: Ints, planned: int) -> Dlio:
    """Compute DLIO's metrics of every epoch that all ranks went through, when it has at least three steps.

    ``steps_of`` are the steps in an epoch of each rank that recorded any, ``planned`` those of all ranks together.

    A block ends where a checkpoint or an evaluation begins. For a rank and a block, with ``proc = load + compute`` and
    a = 1: ``T = (end - start) - Σ proc[:a]``, ``AU = 100 · Σ compute[a:] / T`` and
    ``throughput = (len(compute) - 2) / T · batch_size``, the literal 2 being DLIO's (below zero it is nothing). An
    epoch's number is the mean of its blocks, weighted by their steps; then AU is the mean over ranks and throughput
    the sum.

    DLIO knows whole batches and equal ranks only (its ``drop_last`` is hard-wired). With ``drop_last: false`` its
    formula is kept: a smaller last batch counts as a whole one, in AU by its compute and in throughput as
    ``batch_size`` samples, and every rank is weighed by its own number of steps.
    """
    nothing = Dlio(np.empty(0), np.empty(0))
    if steps.number == 0 or steps_of.min() < 3:
        return nothing
    first = np.flatnonzero(_begins_block(steps))
    last = np.append(first[1:], steps.number) - 1
    number = last - first + 1
    load, compute = steps.parts["data_wait"], steps.parts["compute"]
    # EXCLUDED is 1: the steps left out of a block are its first.
    total = steps.saving[last] - steps.start[first] - (load + compute)[first]
    counted = np.add.reduceat(compute, first) - compute[first]
    is_long = total > 0
    seconds = np.where(is_long, total, 1) / 1e9
    au = np.where(is_long, 100 * counted / 1e9 / seconds, 0.0)
    throughput = np.where(is_long, np.maximum(number - 2, 0) / seconds * batch_size, 0.0)

    epoch = steps.epoch[first]
    num_epochs = int(epoch.max()) + 1
    done = np.bincount(epoch, weights=number, minlength=num_epochs)
    complete = done == planned
    weight = number / steps_of[steps.life[first]]
    au_sum = np.bincount(epoch, weights=au * weight, minlength=num_epochs)
    throughput_sum = np.bincount(epoch, weights=throughput * weight, minlength=num_epochs)
    return Dlio(au_sum[complete] / len(steps_of), throughput_sum[complete])


def _begins_block(steps: Steps) -> NDArray[np.bool_]:
    """Say which steps begin a block: the first of a rank, of an epoch and after any rank's pause."""
    key: Ints = (steps.epoch << 31) | steps.step
    saves = np.isin(key, np.unique(key[steps.saving < steps.end]))
    begins = np.ones(steps.number, np.bool_)
    begins[1:] = saves[:-1]
    for column in (steps.life, steps.epoch, steps.attempt):
        begins[1:] |= column[1:] != column[:-1]
    return begins
