"""DLIO's metrics by its formulas, for comparison with published MLPerf Storage results.

Source: ``compute_metrics_train``, ``end_train`` and ``end_run`` of ``dlio_benchmark/utils/statscounter.py``
(argonne-lcf/dlio_benchmark), with its defaults: the first step of a block is excluded, none at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rayio.trace.order import distinct, is_among

Ints = NDArray[np.int64]

#: ``metric_exclude_start_steps``.
EXCLUDED = 1


class Steps(Protocol):
    """Completed steps, sorted by rank, then by time (``rayio.analyze.timeline``); times in ns."""

    @property
    def number(self) -> int:
        """The number of steps."""

    @property
    def life(self) -> Ints:
        """The index of each step's rank among ranks with steps."""

    @property
    def epoch(self) -> Ints:
        """The epoch of each step."""

    @property
    def step(self) -> Ints:
        """The number of each step in its epoch."""

    @property
    def attempt(self) -> Ints:
        """The attempt of each step."""

    @property
    def start(self) -> Ints:
        """When the rank requested the step's batch."""

    @property
    def end(self) -> Ints:
        """When the rank requested the next batch."""

    @property
    def saving(self) -> Ints:
        """When the step's checkpoint or evaluation started, else the step's end."""

    @property
    def parts(self) -> Mapping[str, Ints]:
        """Durations by phase, with at least ``data_wait`` and ``compute``."""


class StepsInSlices(Protocol):
    """The steps of a run in slices of ranks."""

    @property
    def number(self) -> int:
        """The number of steps."""

    def by_slice(self) -> Iterator[Steps]:
        """Iterate over the slices; can be called repeatedly."""


@dataclass(frozen=True, slots=True)
class Dlio:
    """DLIO's metrics by epoch: AU in percent, throughput in samples per second."""

    au_percent: NDArray[np.float64]
    samples_per_second: NDArray[np.float64]


def dlio(steps: StepsInSlices, *, batch_size: int, steps_of: Ints, planned: int | np.int64 | Ints) -> Dlio:
    """Return DLIO's metrics of every complete epoch with at least three steps.

    A block ends where a checkpoint or an evaluation starts. For a rank and a block, with ``proc = load + compute`` and
    a = 1: ``T = (end - start) - Σ proc[:a]``, ``AU = 100 · Σ compute[a:] / T`` and
    ``throughput = max(len(compute) - 2, 0) / T · batch_size`` (the 2 is DLIO's). An epoch's value is the mean of its
    blocks, weighted by their steps; then AU is the mean over ranks and throughput the sum.

    DLIO only has whole batches and equal ranks. With ``drop_last: false``, a smaller last batch counts as a whole one,
    and each rank is weighted by its number of steps.

    Args:
        steps: the completed steps.
        batch_size: samples per batch.
        steps_of: steps per epoch of each rank with steps; a column for each epoch if epochs differ.
        planned: steps per epoch of all ranks; of each epoch if they differ.
    """
    nothing = Dlio(np.empty(0), np.empty(0))
    if steps.number == 0:
        return nothing
    whole = np.where(steps_of.min(axis=0) >= 3, planned, -1)  # of shorter epochs, nothing counts
    if whole.max() < 0:
        return nothing
    saves = np.zeros(0, np.int64)
    for some in steps.by_slice():
        saves = distinct(np.concatenate([saves, _key(some)[some.saving < some.end]]))
    blocks = [_blocks(some, saves, steps_of, batch_size) for some in steps.by_slice()]
    epoch, number, weight, au, throughput = (np.concatenate(column) for column in zip(*blocks, strict=True))
    num_epochs = int(epoch.max()) + 1
    done = np.bincount(epoch, weights=number, minlength=num_epochs)
    complete = done == (whole[:num_epochs] if whole.ndim else whole)
    au_sum = np.bincount(epoch, weights=au * weight, minlength=num_epochs)
    throughput_sum = np.bincount(epoch, weights=throughput * weight, minlength=num_epochs)
    return Dlio(au_sum[complete] / len(steps_of), throughput_sum[complete])


def _blocks(
    steps: Steps, saves: Ints, steps_of: Ints, batch_size: int
) -> tuple[Ints, Ints, NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return for each block of some ranks: epoch, steps, their share of the rank's steps, AU and throughput."""
    first = np.flatnonzero(_begins_block(steps, saves))
    last = np.append(first[1:], steps.number)[: len(first)] - 1
    number = last - first + 1
    load, compute = steps.parts["data_wait"], steps.parts["compute"]
    # EXCLUDED is 1: a block's first step is left out
    total = steps.saving[last] - steps.start[first] - (load + compute)[first]
    summed = np.add.reduceat(compute, first) if len(first) else compute
    counted = summed - compute[first]
    is_long = total > 0
    seconds = np.where(is_long, total, 1) / 1e9
    au = np.where(is_long, 100 * counted / 1e9 / seconds, 0.0)
    throughput = np.where(is_long, np.maximum(number - 2, 0) / seconds * batch_size, 0.0)
    life, epoch = steps.life[first], steps.epoch[first]
    of_rank = steps_of[life] if steps_of.ndim == 1 else steps_of[life, epoch]
    return epoch, number, number / of_rank, au, throughput


def _key(steps: Steps) -> Ints:
    key: Ints = (steps.epoch << 31) | steps.step
    return key


def _begins_block(steps: Steps, saves: Ints) -> NDArray[np.bool_]:
    """Return a mask of the first steps of blocks: of a rank, of an epoch, and after any rank's pause."""
    is_paused = is_among(_key(steps), saves)
    begins = np.ones(steps.number, np.bool_)
    begins[1:] = is_paused[:-1]
    for column in (steps.life, steps.epoch, steps.attempt):
        begins[1:] |= column[1:] != column[:-1]
    return begins
