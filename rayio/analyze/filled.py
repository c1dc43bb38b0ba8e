"""A check that the initial prefetch does not inflate AU.

A prefetch window is full when counting begins, and empty when a run ends. Where storage or workers deliver less than
ranks consume, the counted steps use up what was prefetched: N steps, of which B were prefetched, take the workers the
time of N - B steps. AU is too high by the factor N / (N - B), about 1 + B / N.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rayio.analyze.arrays import RunInSlices, Timed
from rayio.analyze.gate import short_run
from rayio.analyze.intervals import BEFORE, Occupied
from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import Ints
from rayio.analyze.window import Window
from rayio.records.doubts import Doubt

#: Least steps per rank and epoch of a simulated point of a search, also as a multiple of the prefetch window, whose
#: filling and draining would show; and the most that a long window asks for.
SIMULATED_STEPS, WINDOWS, MOST_STEPS = 100, 25, 1000

#: The initial prefetch shows from this share of the counted steps on, and where ranks took batches faster than workers
#: made them by as much. :data:`WINDOWS` of it stay below.
SHOWS = 0.05


def enough(window: int) -> int:
    """Return the steps per rank and epoch from which on a prefetch window of so many batches does not show."""
    return max(SIMULATED_STEPS, min(WINDOWS * window, MOST_STEPS))


def of_filling(
    run: RunInSlices,
    window: Window | None,
    shape: RunShape,
    counted: int,
    au: float | None,
    change: str | None = None,
) -> Doubt | None:
    """Return the doubt if the initial prefetch inflates AU; ``counted`` are the steps of the rank with the fewest.

    ``change`` is that of a replayed run.
    A long prefetch window alone is not enough: storage that keeps up refills it. So the rate at which a rank took
    batches is compared with the rate at which its workers read them, see :func:`supplied`.
    """
    prefetched = min(shape.prefetched, shape.steps_per_epoch)
    if window is None or not window.is_whole or au is None or prefetched <= SHOWS * counted:
        return None
    took, given = counted / window.seconds, supplied(run, shape)
    if given is None or took <= (1 + SHOWS) * given:
        return None
    of_epochs, steps = -(-WINDOWS * prefetched // shape.steps_per_epoch), WINDOWS * shape.prefetched
    return short_run(
        given=given,
        took=took,
        au=au * given / took,
        epochs=of_epochs,
        steps=steps,
        prefetched=prefetched,
        change=change,
    )


def supplied(run: RunInSlices, shape: RunShape) -> float | None:
    """Return the batches per second that a rank's workers made while any was at work; None where no reads are recorded.

    Ranks are summed, as they may share a storage that serves one after the other. The time is from an epoch's first
    read to the begin of its last one, while workers have something to do; or all reading where that gives a higher
    rate, as in epochs with few more batches than workers; or what began after every rank's first read, which may
    contain a listing of all files. Time in which no worker is at work (windows are full) does not count.
    """
    reads, decodes = ([_of_training(some.of(kind), shape) for some in run.by_slice()] for kind in ("read", "decode"))
    work = [each for each in (*reads, *decodes) if len(each.end)]
    if not work:
        return None
    last = np.full(shape.epochs, BEFORE)
    for each in reads:
        np.maximum.at(last, each.epoch, each.end - each.duration)
    epoch, start, end = (
        np.concatenate(columns)
        for columns in zip(*((each.epoch, each.end - each.duration, each.end) for each in work), strict=True)
    )
    number_read, number_decoded = (sum(len(each.end) for each in some) for some in (reads, decodes))
    done = decodes if 2 * number_decoded > number_read else reads  # of a trace, some batches have no decoding
    begun = _begun(reads, shape.world_size)
    later = start >= begun
    made = (
        sum(int((each.end <= last[each.epoch]).sum()) for each in done),
        sum(len(each.end) for each in done),
        sum(int((each.end - each.duration >= begun).sum()) for each in done),
    )
    busy = _union(start, np.clip(last[epoch], start, end)), _union(start, end), _union(start[later], end[later])
    rates = [number / time * 1e9 for number, time in zip(made, busy, strict=True) if time]
    return max(rates) / len(run.lives.rank) if rates else None


def _begun(reads: Sequence[Timed], ranks: int) -> int:
    """Return when every rank's first read had ended (ns)."""
    first = np.full(ranks, np.iinfo(np.int64).max)
    for each in reads:
        np.minimum.at(first, each.rank, each.end)
    return int(first.max())


def _of_training(work: Timed, shape: RunShape) -> Timed:
    chosen = (work.epoch >= 0) & (work.epoch < shape.epochs)
    return Timed(work.rank[chosen], work.epoch[chosen], work.end[chosen], work.duration[chosen])


def _union(start: Ints, end: Ints) -> int:
    joined = Occupied.union(np.zeros(len(start), np.int64), start, end)
    return int((joined.end - joined.start).sum())
