"""Arrays -> numbers: where a run's time went, how busy the accelerators were, how fast samples arrived.

Counts and sums are whole nanoseconds until the last division. A number that cannot be known (a run that broke off, too
few steps) is None, and a note says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.arrays import Reads, RunArrays
from rayio.analyze.evaluation_times import evaluation
from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import PHASES, Ints, Lives, Steps, nearest_rank
from rayio.analyze.window import FEWEST_STEPS, Window, filling, find_window, interval, settled
from rayio.dlio.metrics import dlio
from rayio.results.metrics import SPLIT
from rayio.results.run_result import Number, Percentiles, Rank, RunResult, Seconds, Shares, Statistics
from rayio.trace.order import sums_by

#: Ranks listed one by one in a result; of more, the first ones.
LISTED_RANKS = 64

#: Times that have percentiles: of whole steps in the window, of readers' and writers' work.
STEP_TIMES = ("step_time", "data_wait", "compute", "sync")
WORK_TIMES = ("read", "decode", "write", "fsync")

#: What may follow a step.
PAUSES = ("checkpoint", "evaluate")

#: What is rare, so that its percentiles are of the whole run.
WHOLE_RUN = (*PAUSES, "write", "fsync")


def measure(run: RunArrays, shape: RunShape) -> RunResult:
    """Compute every number of a result from a run's arrays; seconds, fractions, MiB = 2**20 bytes.

    ``au`` is a fraction, ``au_dlio`` in percent as DLIO prints it; ``au_interval_low`` and ``…_high`` enclose the AU of
    other steps of such a run in 95 of 100 cases. ``time`` and ``share`` split the wall time of all
    ranks together; ``au``, the ``…_share`` numbers (means over ranks too) and percentiles of steps are of the whole
    steps in the window, percentiles of ``read`` and ``decode`` of the work for training that ends in it,
    those of ``checkpoint``, ``evaluate`` and ``write`` of the whole run. ``window_steps`` is of the rank with the
    fewest; ``steps`` sums all completed ones. ``evaluation`` is None when there was none.
    """
    lives, steps = run.lives, run.steps
    window, notes = find_window(lives, steps, shape)
    dlio_numbers = _dlio(lives, steps, shape, notes)
    recorded, (steps, _) = steps, settled(steps, window, shape)
    run = replace(run, steps=steps)
    inside = window.whole(steps) if window else np.zeros(steps.number, np.bool_)
    au, lowest, highest, fewest = _utilisation(steps, inside, lives, window, notes)
    samples_per_second, mib_per_second = _rates(run.reads, lives, steps, window, shape)
    wall = int(lives.end.max() - lives.begin.min()) if len(lives.rank) else 0
    asked = steps.start[np.unique(steps.life, return_index=True)[1]]
    part = _shares(steps, inside, len(lives.rank))
    au_dlio, au_dlio_stdev, rate_dlio, rate_dlio_stdev = dlio_numbers
    likely = interval(recorded, inside, au)
    ranks = _ranks(lives, steps, inside)
    waits = steps.parts["data_wait"][inside]
    at_first = int(waits[steps.step[inside] == 0].sum())
    notes += filling(int(waits.sum()), at_first, int(steps.duration[inside].sum()))
    if len(lives.rank) > LISTED_RANKS:
        notes.append(f"{LISTED_RANKS} of {len(lives.rank)} ranks are listed one by one in result.json")
    for rank in lives.rank[lives.split["other"] < 0][:1]:
        notes.append(f"spans of rank {rank} overlap on lane 0: its split is wrong, which is a defect of rayio")
    return RunResult(
        au=au,
        au_min=lowest,
        au_max=highest,
        window_seconds=window.seconds if window else None,
        window_steps=fewest,
        window_epochs=len(np.unique(steps.epoch[inside])) if window else None,
        au_interval_low=likely.low if likely else None,
        au_interval_high=likely.high if likely else None,
        samples_per_second=samples_per_second,
        mib_per_second=mib_per_second,
        data_wait_share=part["data_wait"],
        sync_share=part["sync"],
        checkpoint_share=part["checkpoint"],
        evaluate_share=part["evaluate"],
        other_share=part["other"],
        # Compute of steps that count by wall time, mean over planned ranks; failures and checkpoints included.
        goodput=int(steps.parts["compute"].sum()) / (wall * shape.world_size) if wall else None,
        wall_seconds=wall / 1e9,
        world_size=shape.world_size,
        steps=steps.number,
        startup_skew_seconds=int(asked.max() - asked.min()) / 1e9 if len(asked) else None,
        au_dlio=au_dlio,
        au_dlio_stdev=au_dlio_stdev,
        samples_per_second_dlio=rate_dlio,
        samples_per_second_dlio_stdev=rate_dlio_stdev,
        time=Seconds(**{name: int(lives.split[name].sum()) / 1e9 for name in SPLIT}),
        share=_fractions(lives),
        evaluation=evaluation(run, shape.epochs),
        percentiles=_percentiles(run, inside, window, shape),
        ranks=ranks,
        notes=tuple(notes),
    )


def _utilisation(
    steps: Steps, inside: NDArray[np.bool_], lives: Lives, window: Window | None, notes: list[str]
) -> tuple[Number, Number, Number, int | None]:
    """Compute AU (mean, min and max over ranks) and the steps in the window of the rank with the fewest.

    AU per rank = Σ compute / Σ step time over whole steps in the window.
    """
    au = _au_by_rank(steps, inside, len(lives.rank))
    known = au[~np.isnan(au)]
    fewest = int(np.bincount(steps.life[inside], minlength=len(lives.rank)).min(initial=steps.number))
    if window is not None:
        if len(known) < len(au):
            notes.append(f"{len(au) - len(known)} of {len(au)} ranks have no whole step in the window, so no AU")
        if fewest < FEWEST_STEPS:
            enough = f"a verdict takes {FEWEST_STEPS}"
            notes.append(f"only {fewest} whole steps per rank in the window: the numbers are rough, {enough}")
    if len(known) < len(au) or not len(au):  # a mean over some of the ranks would pass for one over all
        return None, None, None, fewest if window else None
    return float(known.mean()), float(known.min()), float(known.max()), fewest if window else None


def _au_by_rank(steps: Steps, inside: NDArray[np.bool_], ranks: int) -> NDArray[np.float64]:
    """The AU of each rank; NaN for a rank without time in the window."""
    life = steps.life[inside]
    busy, total = (by_rank(ns[inside], life, ranks) for ns in (steps.parts["compute"], steps.duration))
    return np.where(total > 0, busy / np.maximum(total, 1), np.nan)


def _rates(reads: Reads, lives: Lives, steps: Steps, window: Window | None, shape: RunShape) -> tuple[Number, Number]:
    """Compute samples and MiB per second: of the batches that arrived in the window, by its length.

    Samples are those that a batch really holds, the last one of an epoch too. Bytes follow the batch, whenever it was
    read: what was prefetched before the window and consumed in it counts.
    """
    if window is None:
        return None, None
    inside = window.holds(steps.arrived)
    consumed = int(shape.samples(lives.rank[steps.life[inside]], steps.step[inside]).sum())
    nbytes = int(reads.nbytes[np.isin(reads.batch, steps.batch[inside])].sum())
    return consumed / window.seconds, nbytes / 2**20 / window.seconds if len(reads.batch) else None


def shares(total: Ints) -> Callable[[Ints], float | None]:
    """Make a function that turns the ns which each rank spent on something into a share of the ``total`` of each.

    That is the mean of the ranks' own shares, as AU is, so that AU and all shares sum to 1. Where a rank has no time it
    is the share of all ranks' time together; None where nobody has any.
    """
    ranks = len(total)
    is_whole = ranks > 0 and bool((total > 0).all())
    weight = 1 / (np.maximum(total, 1) * ranks) if is_whole else np.full(ranks, 1 / max(int(total.sum()), 1))
    return lambda spent: float(spent @ weight) if total.any() else None


def by_rank(spent: Ints, life: Ints, ranks: int) -> Ints:
    """Sum what steps spent over the steps of each rank; ``life`` is each step's rank, by its place."""
    return sums_by(life, spent, ranks)


def _shares(steps: Steps, inside: NDArray[np.bool_], ranks: int) -> dict[str, Number]:
    """What the step time in the window went to; with AU the shares sum to 1."""
    life = steps.life[inside]
    total = by_rank(steps.duration[inside], life, ranks)
    share, spent = shares(total), {name: by_rank(steps.parts[name][inside], life, ranks) for name in PHASES[1:]}
    return {name: share(ns) for name, ns in {**spent, "other": total - sum(spent.values())}.items()}


def _dlio(lives: Lives, steps: Steps, shape: RunShape, notes: list[str]) -> tuple[Number, Number, Number, Number]:
    """DLIO's AU in percent, as it prints it, and samples/s: each the mean and (population) deviation over epochs."""
    of_ranks = shape.steps(np.arange(shape.world_size))
    by_epoch = dlio(steps, batch_size=shape.batch_size, steps_of=of_ranks[lives.rank], planned=int(of_ranks.sum()))
    au, rate = by_epoch.au_percent, by_epoch.samples_per_second
    if not len(au):
        notes.append("no au_dlio: it needs a whole epoch of at least 3 steps")
        return None, None, None, None
    if not rate.any():
        what = "its formula leaves out 2 steps of each block between checkpoints or evaluations"
        notes.append(f"0 samples/s as DLIO: {what}, and no block has more")
    return float(au.mean()), float(au.std()), float(rate.mean()), float(rate.std())


def _fractions(lives: Lives) -> Shares:
    total = int((lives.end - lives.begin).sum())
    return Shares(**{name: int(lives.split[name].sum()) / total if total else None for name in SPLIT})


def _percentiles(run: RunArrays, inside: NDArray[np.bool_], window: Window | None, shape: RunShape) -> Percentiles:
    times = {"step_time": run.steps.duration, **run.steps.parts}
    table = {name: _statistics(times[name][inside]) for name in STEP_TIMES}
    for name in (*PAUSES, *WORK_TIMES):
        work = run.of(name)
        duration = work.duration
        if name not in WHOLE_RUN:
            is_measured = work.epoch < shape.epochs
            duration = duration[is_measured & window.holds(work.end) if window else is_measured]
        table[name] = _statistics(duration)
    return Percentiles(**table)


def _statistics(durations: Ints) -> Statistics | None:
    """Mean, nearest-rank percentiles (each a time that occurred) and maximum, in seconds; None of no durations."""
    number = len(durations)
    if number == 0:
        return None
    places = {f"p{percent}": nearest_rank(number, percent) for percent in (50, 90, 99)}
    ordered = np.partition(durations, [*places.values(), number - 1])
    return Statistics(
        count=number,
        mean=int(durations.sum()) / number / 1e9,
        **{name: int(ordered[place]) / 1e9 for name, place in places.items()},
        max=int(ordered[-1]) / 1e9,
    )


def _ranks(lives: Lives, steps: Steps, inside: NDArray[np.bool_]) -> tuple[Rank, ...]:
    """One entry per rank: its AU, its completed steps, and its split in seconds."""
    au = _au_by_rank(steps, inside, len(lives.rank))
    number = np.bincount(steps.life, minlength=len(lives.rank))
    return tuple(
        Rank(
            rank=int(lives.rank[i]),
            au=None if np.isnan(au[i]) else float(au[i]),
            steps=int(number[i]),
            wall=int(lives.end[i] - lives.begin[i]) / 1e9,
            **{name: int(lives.split[name][i]) / 1e9 for name in SPLIT},
        )
        for i in range(min(len(lives.rank), LISTED_RANKS))
    )
