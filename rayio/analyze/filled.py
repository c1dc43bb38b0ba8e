"""Whether steps would go on as those that count did: what was read before them may have carried them.

A prefetch window is full when counting begins, and empty when a run ends. Of a storage, or readers, that give less than
the ranks take, the counted steps then used up what was there: of N steps of which B were there, in N - B steps' time of
the readers. AU is too high by the factor N / (N - B), which is about 1 + B / N.
"""

from __future__ import annotations

import numpy as np

from rayio.analyze.arrays import RunInSlices, Timed
from rayio.analyze.intervals import BEFORE, Occupied
from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import Ints
from rayio.analyze.window import Window

#: Steps per rank and epoch that a simulated point of a search has at least: so many, and so many times what is
#: prefetched, whose filling and draining would show. Of a scenario with more, as many as it has; of a long window, at
#: most so many.
SIMULATED_STEPS, WINDOWS, MOST_STEPS = 100, 25, 1000

#: What is prefetched shows beside the steps that count from this share of them on, and where ranks took batches faster
#: than readers made them by as much. :data:`WINDOWS` of it stay below.
SHOWS = 0.05

#: How the note begins; a badge of the report repeats it.
TOO_SHORT = "Run too short"


def enough(window: int) -> int:
    """Steps per rank and epoch from which on filling and draining a window of so many batches does not show."""
    return max(SIMULATED_STEPS, min(WINDOWS * window, MOST_STEPS))


def short_of(steps: int, wanted: int) -> list[str]:
    """Say so where ``train.steps`` leaves fewer steps than a number of a steady state takes."""
    if steps >= wanted:
        return []
    return [f"train.steps={steps} is short beside what is prefetched: filling and draining show; {wanted} would do"]


def of_filling(run: RunInSlices, window: Window | None, shape: RunShape, counted: int, au: float | None) -> list[str]:
    """Say so where the steps that count cannot go on as they were; ``counted`` is of the rank with the fewest.

    That what is prefetched is long beside them is not enough: storage that keeps up refills it. So the rate at which a
    rank took batches is held against the one at which its readers read them, see :func:`_supplied`.
    """
    prefetched = min(shape.prefetched, shape.steps_per_epoch)
    if window is None or not window.is_whole or au is None or prefetched <= SHOWS * counted:
        return []
    took, given = counted / window.seconds, _supplied(run, shape)
    if given is None or took <= (1 + SHOWS) * given:
        return []
    of_epochs, steps = -(-WINDOWS * prefetched // shape.steps_per_epoch), WINDOWS * shape.prefetched
    return [
        f"{TOO_SHORT}: the initial prefetch inflates AU. Readers sustain {given:.3g} of {took:.3g} batches/s, "
        f"AU {au * given / took:.2f}; use train.epochs={of_epochs}, or epochs of {steps} steps (dataset.num_files, "
        "train.steps)"
    ]


def _supplied(run: RunInSlices, shape: RunShape) -> float | None:
    """Batches per second that the readers of a rank made while any were at work; None where no reads are recorded.

    All ranks' together, as they may share a storage that serves one after the other. Of the time from an epoch's first
    read to when its last one begins, as readers have something to do until then; where that says more, of all its
    reading, as hardly any is over by then where an epoch has few more batches than there are readers. Time in which no
    reader is at work (windows are full) does not count.
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
    done = decodes if any(len(each.end) for each in decodes) else reads
    made = sum(int((each.end <= last[each.epoch]).sum()) for each in done), sum(len(each.end) for each in done)
    busy = _union(start, np.clip(last[epoch], start, end)), _union(start, end)
    rates = [number / time * 1e9 for number, time in zip(made, busy, strict=True) if time]
    return max(rates) / len(run.lives.rank) if rates else None


def _of_training(work: Timed, shape: RunShape) -> Timed:
    chosen = (work.epoch >= 0) & (work.epoch < shape.epochs)
    return Timed(work.rank[chosen], work.epoch[chosen], work.end[chosen], work.duration[chosen])


def _union(start: Ints, end: Ints) -> int:
    """How long at least one of some intervals lasted."""
    joined = Occupied.union(np.zeros(len(start), np.int64), start, end)
    return int((joined.end - joined.start).sum())


def note_of(notes: tuple[str, ...]) -> str | None:
    """The note that a result has of it, if any."""
    return next((note for note in notes if note.startswith(TOO_SHORT)), None)
