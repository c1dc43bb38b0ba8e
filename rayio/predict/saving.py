"""Costs of checkpoints, and how much they vary, from the checkpoints of runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rayio.predict.costs import typical
from rayio.predict.shown import Shown
from rayio.records.calibrated import Checkpoints, NoCheckpoint, Note, OneCheckpoint, TierGiven
from rayio.scenario.model import Costs, StorageParameters
from rayio.storage.uploads import upload_of

#: How much shorter and longer than a single measured checkpoint others may be, as factors:
#: 40 MB written to memory take 21 to 48 ms, and now and then 134 to 190 (`benchmarks/predict.py`).
ALONE_LESS, ALONE_MORE = 0.8, 4.0


def learned(
    costs: Costs, runs: Sequence[Shown], model: StorageParameters, notes: list[Note], *, is_varied: bool
) -> Costs:
    """Return the costs with those of checkpoints, from the first of some runs that saved any.

    If ``is_varied`` they include how much shorter and longer than usual a checkpoint may be.
    """
    run = next((run for run in runs if len(run.checkpoints)), None)
    if run is None or run.plan.checkpointing is None:
        notes.append(NoCheckpoint())
        return costs.model_copy(update={"checkpoint_bytes": 0.0})
    if run.plan.checkpointing.burst is not None:
        notes.append(TierGiven())
    taken, size = run.checkpoints / 1e9, sum(run.plan.checkpointing.sizes)
    changed = {"checkpoint_bytes": float(size)}
    if run is not runs[0]:
        changed["checkpoint"] = beyond_model(run, model)
    least, most, usual = float(taken.min()), float(taken.max()), typical(taken)
    if len(taken) == 1:
        notes.append(OneCheckpoint(size, usual))
        least, most = (1 - ALONE_LESS) * usual, (1 + ALONE_MORE) * usual
    else:
        notes.append(Checkpoints(len(taken), size, least, most, usual))
    if is_varied:
        changed |= {"checkpoint_less": round(usual - least, 9), "checkpoint_more": round(most - usual, 9)}
    return costs.model_copy(update=changed)


def beyond_model(run: Shown, model: StorageParameters) -> float:
    """Return the seconds of a checkpoint beyond modelled storage's time for its slowest writer."""
    taken, saved = run.checkpoints, run.plan.checkpointing
    if not len(taken) or saved is None:
        return 0.0
    if saved.burst is not None:
        model = saved.burst.storage
    alone = 0.0
    for nbytes in saved.largest:
        upload = upload_of(nbytes, saved.request_bytes, model.upload_parts)
        latencies = np.full(len(upload.sizes), model.first_byte.expected)
        alone += model.open.expected + upload.alone(latencies, model.connection_bandwidth)
    shared = sum(saved.sizes) / (len(saved.tier_devices) or run.plan.num_devices) / model.bandwidth
    return round(max(0.0, typical(taken) / 1e9 - max(alone, shared)), 9)
