"""The evaluations of a run: how busy the accelerators were in them, and how long they kept training waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rayio.analyze.timeline import integers, texts

if TYPE_CHECKING:
    import pyarrow as pa

_NAMES = ("evaluate", "eval_compute", "eval_data_wait")


def evaluation(spans: pa.Table, training_epochs: int) -> dict[str, Any] | None:
    """Compute the numbers of all finished evaluations; None when there was none.

    AU per rank = Σ compute / Σ time from the first batch asked for to the end, over its evaluations; ``au`` is the mean
    over ranks, never divided by their number again as DLIO's is. ``rounds`` are the evaluations of the rank with the
    most, ``steps`` all ranks' together, ``mean_seconds`` is one rank's mean time for one evaluation.
    """
    name = texts(spans, "name", _NAMES)
    rank, duration = integers(spans, "rank"), integers(spans, "duration_ns")
    whole = name == 0
    if not whole.any():
        return None
    ranks = int(rank[whole].max()) + 1
    rounds = np.bincount(rank[whole], minlength=ranks)
    # What a run that broke off did in an evaluation that it did not finish has no time to be measured against.
    number = integers(spans, "epoch") - training_epochs
    inner = (name > 0) & (rank < ranks)
    inner[inner] = number[inner] < rounds[rank[inner]]
    time = [np.zeros(ranks, np.int64) for _ in _NAMES]
    for code, chosen in enumerate((whole, inner & (name == 1), inner & (name == 2))):
        np.add.at(time[code], rank[chosen], duration[chosen])
    total, busy, waited = time
    took = total > 0
    au = busy[took] / total[took]
    return {
        "au": float(au.mean()) if len(au) else None,
        "au_min": float(au.min()) if len(au) else None,
        "au_max": float(au.max()) if len(au) else None,
        "data_wait_share": int(waited.sum()) / int(total.sum()) if took.any() else None,
        "rounds": int(rounds.max()),
        "steps": int((inner & (name == 1)).sum()),
        "mean_seconds": int(total.sum()) / int(whole.sum()) / 1e9,
    }
