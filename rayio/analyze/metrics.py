"""Arrays -> numbers: the split of a run's time, AU, throughput.

Counts and sums are whole nanoseconds until the last division. An unknown number (a run that broke off, too few steps)
is None, and a remark gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.arrays import RunInSlices
from rayio.analyze.beginnings import FirstSteps
from rayio.analyze.evaluation_times import evaluation
from rayio.analyze.filled import of_filling, supplied
from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import STEP_PHASES, Ints, Lives, Steps, StepsInSlices, nearest_rank
from rayio.analyze.window import FEWEST_STEPS, Window, filling, find_window, interval, settled, throughput_period
from rayio.imports.dlio_formulas import dlio
from rayio.records.doubts import Remark, remark
from rayio.records.metric_names import SPLIT
from rayio.records.run_result import Number, Percentiles, Rank, RunResult, Seconds, Shares, Statistics
from rayio.trace.order import distinct, is_among, sums_by

#: Ranks listed one by one in a result: the first ones.
LISTED_RANKS = 64

#: Times that have percentiles: those of whole steps in the window, and of readers' and writers' work.
STEP_TIMES = ("step_time", "data_wait", "compute", "sync")
WORK_TIMES = ("read", "decode", "write", "fsync")

PAUSES = ("checkpoint", "evaluate")

#: Rare work: its percentiles cover the whole run.
WHOLE_RUN = (*PAUSES, "write", "fsync")


def measure(run: RunInSlices, shape: RunShape) -> RunResult:
    """Return every number of a result from a run's arrays; seconds, fractions, MiB = 2**20 bytes.

    ``au`` is a fraction, ``au_dlio`` in percent as DLIO prints it; ``au_interval_low`` and ``…_high`` enclose the AU of
    other steps of such a run in 95 of 100 cases. ``time`` and ``share`` split the wall time of all ranks together.
    ``au``, the ``…_share`` numbers (means over ranks too) and percentiles of steps cover the whole steps in the window;
    percentiles of ``read`` and ``decode`` the work for training that ends in it; those of ``checkpoint``, ``evaluate``
    and ``write`` the whole run. ``window_steps`` counts the steps of the rank with the fewest; ``steps`` sums all
    completed ones. ``evaluation`` is None when there was none.
    """
    lives, ranks = run.lives, len(run.lives.rank)
    window, remarks = find_window(lives, run.steps, shape)
    au_dlio, au_dlio_stdev, rate_dlio, rate_dlio_stdev = _dlio(lives, run.steps, shape, remarks)
    sums = _Sums(run, window, shape)
    by_rank_au = sums.au
    au, lowest, highest, fewest = _utilisation(by_rank_au, sums, window, remarks)
    samples_per_second, mib_per_second = _rates(run, throughput_period(lives, window), shape)
    wall, whole = lives.wall, lives.whole
    begins = sums.first_start[sums.number > 0]
    share = shares(sums.lasted)
    part = {name: share(spent) for name, spent in sums.spent.items()}
    likely = interval(run.steps, window, shape, au)
    waits = int(sums.spent["data_wait"].sum())
    remarks += filling(waits, sums.first.waited, int(sums.lasted.sum()))
    of_epochs = sums.first.doubt(
        sums.spent["compute"], sums.lasted, int(sums.inside.sum()), shape, lambda: supplied(run, shape)
    )
    doubts = [doubt for doubt in (of_filling(run, window, shape, fewest or 0, au), of_epochs) if doubt is not None]
    if ranks > LISTED_RANKS:
        remarks.append(remark("ranks_listed", listed=LISTED_RANKS, ranks=ranks))
    for rank in lives.rank[lives.split["other"] < 0][:1]:
        remarks.append(remark("spans_overlap", rank=int(rank)))
    return RunResult(
        au=au,
        au_min=lowest,
        au_max=highest,
        window_seconds=window.seconds if window else None,
        window_steps=fewest,
        window_epochs=len(sums.epochs) if window else None,
        au_interval_low=likely.low if likely else None,
        au_interval_high=likely.high if likely else None,
        samples_per_second=samples_per_second,
        mib_per_second=mib_per_second,
        data_wait_share=part["data_wait"],
        sync_share=part["sync"],
        checkpoint_share=part["checkpoint"],
        evaluate_share=part["evaluate"],
        device_copy_share=part["device_copy"] or None,
        bubble_share=part["bubble"] or None,
        drain_wait_share=part["drain_wait"] or None,
        other_share=part["other"],
        # Compute of steps that count by wall time, mean over planned ranks; failures and checkpoints included.
        goodput=sums.computed / (wall * shape.world_size) if wall else None,
        wall_seconds=wall / 1e9,
        world_size=shape.world_size,
        ranks_of_sample=shape.shared_by,
        steps=run.steps.number,
        startup_skew_seconds=int(begins.max() - begins.min()) / 1e9 if len(begins) else None,
        au_dlio=au_dlio,
        au_dlio_stdev=au_dlio_stdev,
        samples_per_second_dlio=rate_dlio,
        samples_per_second_dlio_stdev=rate_dlio_stdev,
        time=Seconds(**{name: int(whole[name].sum()) / 1e9 for name in SPLIT}),
        share=Shares(**{name: int(whole[name].sum()) / (wall * ranks) if wall else None for name in SPLIT}),
        evaluation=evaluation(run, shape.epochs),
        percentiles=_percentiles(run, window, shape),
        ranks=_ranks(lives, by_rank_au, sums.number),
        notes=(),
        remarks=tuple(remarks),
        doubts=tuple(doubts),
    )


def _counted(steps: StepsInSlices, window: Window | None, shape: RunShape) -> Iterator[tuple[Steps, NDArray[np.bool_]]]:
    """Return the steps of each slice as they count, see :func:`settled`, and which lie whole in the window."""
    for recorded in steps.by_slice():
        some, _ = settled(recorded, window, shape)
        yield some, window.whole(some) if window else np.zeros(some.number, np.bool_)


class _Sums:
    """Sums by rank over the whole steps in the window, in ns: their length, and their phases."""

    def __init__(self, run: RunInSlices, window: Window | None, shape: RunShape) -> None:
        ranks = len(run.lives.rank)
        self.lasted, self.inside, self.number, self.first_start = (np.zeros(ranks, np.int64) for _ in range(4))
        self.spent = {name: np.zeros(ranks, np.int64) for name in STEP_PHASES}
        #: The first steps of epochs; the epochs in the window; the compute of all steps, in it or not.
        self.first, self.epochs, self.computed = FirstSteps(), np.zeros(0, np.int64), 0
        for steps, inside in _counted(run.steps, window, shape):
            life = steps.life[inside]
            self.lasted += sums_by(life, steps.duration[inside], ranks)
            for name, spent in self.spent.items():
                spent += sums_by(life, steps.parts[name][inside], ranks)
            self.inside += np.bincount(life, minlength=ranks)
            first = np.flatnonzero(np.diff(steps.life, prepend=-1))
            self.first_start[steps.life[first]] = steps.start[first]
            self.number += np.bincount(steps.life, minlength=ranks)
            self.first.add(steps, inside)
            self.epochs = distinct(np.concatenate([self.epochs, steps.epoch[inside]]))
            self.computed += int(steps.parts["compute"].sum())
        self.spent["other"] = self.lasted - sum(self.spent.values())

    @property
    def au(self) -> NDArray[np.float64]:
        return np.where(self.lasted > 0, self.spent["compute"] / np.maximum(self.lasted, 1), np.nan)


def _utilisation(
    au: NDArray[np.float64], sums: _Sums, window: Window | None, remarks: list[Remark]
) -> tuple[Number, Number, Number, int | None]:
    """Return AU (mean, min and max over ranks) and the steps in the window of the rank with the fewest."""
    known = au[~np.isnan(au)]
    fewest = int(sums.inside.min(initial=int(sums.number.sum())))
    if window is not None:
        if len(known) < len(au):
            remarks.append(remark("ranks_without_au", missing=len(au) - len(known), ranks=len(au)))
        if fewest < FEWEST_STEPS:
            remarks.append(remark("few_steps", steps=fewest, enough=FEWEST_STEPS))
    if len(known) < len(au) or not len(au):  # a mean over some ranks would look like one over all
        return None, None, None, fewest if window else None
    return float(known.mean()), float(known.min()), float(known.max()), fewest if window else None


def _rates(run: RunInSlices, window: Window | None, shape: RunShape) -> tuple[Number, Number]:
    """Return samples and MiB per second of the batches that arrived in the window, by its length.

    Samples are counted exactly, in the last batch of an epoch too. Bytes follow the batch, whenever it was read: a
    batch that was prefetched before the window and consumed in it counts. A sample that all ranks of a replica read
    counts once, its bytes as often as they are read. See :func:`throughput_period` for a run with failures.
    """
    if window is None:
        return None, None
    # Reads without a batch may be in any slice; batches are in that of their rank.
    none = [np.zeros(0, np.int64)]
    consumed = nbytes = number = 0
    for some in run.by_slice():
        wanted = some.steps.batch[window.holds(some.steps.arrived)]
        none.append(distinct(wanted[wanted <= 0]))
    others = distinct(np.concatenate(none))
    for some in run.by_slice():
        steps, reads = some.steps, some.reads
        inside = window.holds(steps.arrived)
        consumed += int(shape.samples(run.lives.rank[steps.life[inside]], steps.step[inside]).sum())
        is_wanted = is_among(reads.batch, np.concatenate([others, steps.batch[inside]]))
        nbytes, number = nbytes + int(reads.nbytes[is_wanted].sum()), number + len(reads.batch)
    return consumed / shape.ranks_of_sample / window.seconds, nbytes / 2**20 / window.seconds if number else None


def shares(total: Ints) -> Callable[[Ints], float | None]:
    """Return a function that turns the ns of each rank into a share of the ``total`` of each.

    The share is the mean of the ranks' own shares, as AU is, so that AU and all shares sum to 1. Where a rank has no
    time it is the share of all ranks' time together; None where no rank has any.
    """
    ranks = len(total)
    is_whole = ranks > 0 and bool((total > 0).all())
    weight = 1 / (np.maximum(total, 1) * ranks) if is_whole else np.full(ranks, 1 / max(int(total.sum()), 1))
    return lambda spent: float(spent @ weight) if total.any() else None


def _dlio(
    lives: Lives, steps: StepsInSlices, shape: RunShape, remarks: list[Remark]
) -> tuple[Number, Number, Number, Number]:
    """Return DLIO's AU in percent and samples/s: each the mean and (population) deviation over epochs."""
    of_ranks = shape.steps(np.arange(shape.world_size))
    by_epoch = dlio(steps, batch_size=shape.batch_size, steps_of=of_ranks[lives.rank], planned=of_ranks.sum(axis=0))
    au, rate = by_epoch.au_percent, by_epoch.samples_per_second / shape.ranks_of_sample
    if not len(au):
        remarks.append(remark("no_au_dlio"))
        return None, None, None, None
    if not rate.any():
        remarks.append(remark("no_samples_as_dlio"))
    return float(au.mean()), float(au.std()), float(rate.mean()), float(rate.std())


def _percentiles(run: RunInSlices, window: Window | None, shape: RunShape) -> Percentiles:
    table = {}
    for name in STEP_TIMES:  # one after the other, as those of a long run need much memory
        durations = [
            (steps.duration if name == "step_time" else steps.parts[name])[inside]
            for steps, inside in _counted(run.steps, window, shape)
        ]
        table[name] = _statistics(durations)
    for name in (*PAUSES, *WORK_TIMES):
        durations = []
        for some in run.by_slice():
            work = some.of(name)
            chosen = np.ones(len(work.duration), np.bool_)
            if name not in WHOLE_RUN:
                chosen = work.epoch < shape.epochs
                chosen &= window.holds(work.end) if window else True
            durations.append(work.duration[chosen])
        table[name] = _statistics(durations)
    return Percentiles(**table)


def _statistics(parts: list[Ints]) -> Statistics | None:
    """Return mean, nearest-rank percentiles and maximum, in s; None without durations. The list is empty afterwards."""
    durations = np.concatenate(parts)
    parts.clear()
    number = len(durations)
    if number == 0:
        return None
    places = {f"p{percent}": nearest_rank(number, percent) for percent in (50, 90, 99)}
    durations.partition([*places.values(), number - 1])
    return Statistics(
        count=number,
        mean=int(durations.sum()) / number / 1e9,
        **{name: int(durations[place]) / 1e9 for name, place in places.items()},
        max=int(durations[-1]) / 1e9,
    )


def _ranks(lives: Lives, au: NDArray[np.float64], number: Ints) -> tuple[Rank, ...]:
    whole = lives.whole
    return tuple(
        Rank(
            rank=int(lives.rank[i]),
            au=None if np.isnan(au[i]) else float(au[i]),
            steps=int(number[i]),
            wall=int(lives.end[i] - lives.first) / 1e9,
            **{name: int(whole[name][i]) / 1e9 for name in SPLIT},
        )
        for i in range(min(len(lives.rank), LISTED_RANKS))
    )
