"""DLIO's own metrics, formula by formula, for comparison with published MLPerf Storage results.

Source: ``compute_metrics_train``, ``end_train`` and ``end_run`` of ``dlio_benchmark/utils/statscounter.py``
(argonne-lcf/dlio_benchmark), with its defaults: the first step of a block is left out, no step at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


class StepsInSlices(Protocol):
    """The steps of a run, some ranks' at a time: those of a rank are together."""

    @property
    def number(self) -> int:
        """How many steps there are."""

    def by_slice(self) -> Iterator[Steps]:
        """Go through them, as often as it is called."""


@dataclass(frozen=True, slots=True)
class Dlio:
    """One number per epoch, as DLIO has them: AU in percent, throughput in samples per second."""

    au_percent: NDArray[np.float64]
    samples_per_second: NDArray[np.float64]


def dlio(steps: StepsInSlices, *, batch_size: int, steps_of: Ints, planned: int) -> Dlio:
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
    saves = np.zeros(0, np.int64)
    for some in steps.by_slice():
        saves = np.union1d(saves, _key(some)[some.saving < some.end])
    blocks = [_blocks(some, saves, steps_of, batch_size) for some in steps.by_slice()]
    epoch, number, weight, au, throughput = (np.concatenate(column) for column in zip(*blocks, strict=True))
    num_epochs = int(epoch.max()) + 1
    done = np.bincount(epoch, weights=number, minlength=num_epochs)
    complete = done == planned
    au_sum = np.bincount(epoch, weights=au * weight, minlength=num_epochs)
    throughput_sum = np.bincount(epoch, weights=throughput * weight, minlength=num_epochs)
    return Dlio(au_sum[complete] / len(steps_of), throughput_sum[complete])


def _blocks(
    steps: Steps, saves: Ints, steps_of: Ints, batch_size: int
) -> tuple[Ints, Ints, NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Of each block of some ranks: its epoch, its steps, their part of the rank's, its AU and its throughput."""
    first = np.flatnonzero(_begins_block(steps, saves))
    last = np.append(first[1:], steps.number)[: len(first)] - 1
    number = last - first + 1
    load, compute = steps.parts["data_wait"], steps.parts["compute"]
    # EXCLUDED is 1: the steps left out of a block are its first.
    total = steps.saving[last] - steps.start[first] - (load + compute)[first]
    summed = np.add.reduceat(compute, first) if len(first) else compute
    counted = summed - compute[first]
    is_long = total > 0
    seconds = np.where(is_long, total, 1) / 1e9
    au = np.where(is_long, 100 * counted / 1e9 / seconds, 0.0)
    throughput = np.where(is_long, np.maximum(number - 2, 0) / seconds * batch_size, 0.0)
    return steps.epoch[first], number, number / steps_of[steps.life[first]], au, throughput


def _key(steps: Steps) -> Ints:
    key: Ints = (steps.epoch << 31) | steps.step
    return key


def _begins_block(steps: Steps, saves: Ints) -> NDArray[np.bool_]:
    """Say which steps begin a block: the first of a rank, of an epoch and after any rank's pause."""
    is_paused = np.isin(_key(steps), saves) if len(saves) else np.zeros(steps.number, np.bool_)
    begins = np.ones(steps.number, np.bool_)
    begins[1:] = is_paused[:-1]
    for column in (steps.life, steps.epoch, steps.attempt):
        begins[1:] |= column[1:] != column[:-1]
    return begins
