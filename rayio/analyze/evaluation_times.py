"""The evaluations of a run: how busy the accelerators were in them, and how long they kept training waiting."""

from __future__ import annotations

import numpy as np

from rayio.analyze.arrays import RunInSlices, Timed
from rayio.analyze.timeline import Ints
from rayio.records.run_result import Evaluation
from rayio.trace.order import sums_by


def evaluation(run: RunInSlices, training_epochs: int) -> Evaluation | None:
    """Return the numbers of all finished evaluations; None when there was none.

    AU per rank = Σ compute / Σ time from the first request for a batch to the end, over its evaluations; ``au`` is the
    mean over ranks, never divided by their number again as DLIO's is. ``rounds`` are the evaluations of the rank with
    the most, ``steps`` the sum over ranks, ``mean_seconds`` the mean time of a rank for an evaluation. Where steps in
    evaluations were not recorded, as in a watched loop, shares are None.
    """
    whole = run.of("evaluate")
    if not len(whole.rank):
        return None
    ranks = int(whole.rank.max()) + 1
    rounds = np.bincount(whole.rank, minlength=ranks)

    def finished(work: Timed) -> tuple[Ints, Ints]:
        """Return the work of finished evaluations: in a run that broke off the last one is not."""
        inner = np.flatnonzero(work.rank < ranks)
        inner = inner[work.epoch[inner] - training_epochs < rounds[work.rank[inner]]]
        return work.rank[inner], work.duration[inner]

    computes, waits = finished(run.of("eval_compute")), finished(run.of("eval_data_wait"))
    total, busy, waited = (sums_by(*work, ranks) for work in ((whole.rank, whole.duration), computes, waits))
    took = (total > 0) & bool(len(computes[0]) or len(waits[0]))
    au = busy[took] / total[took]
    return Evaluation(
        au=float(au.mean()) if len(au) else None,
        au_min=float(au.min()) if len(au) else None,
        au_max=float(au.max()) if len(au) else None,
        data_wait_share=int(waited.sum()) / int(total.sum()) if took.any() else None,
        rounds=int(rounds.max()),
        steps=len(computes[0]),
        mean_seconds=int(total.sum()) / len(whole.rank) / 1e9,
    )
