"""What bound a run: the stall table that sums to its whole loss, and the largest cause in it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.metrics import shares
from rayio.analyze.shape import RunShape
from rayio.analyze.stages import OF_LOADER, STAGES
from rayio.analyze.stalls import CAUSES, Attribution, to_the_end
from rayio.analyze.timeline import Ints
from rayio.analyze.window import FEWEST_STEPS, MOST, filling, find_window, first_step_share

#: Share of step time above which waiting for data makes a run input-bound, and any loss binds.
BINDS = 0.05

#: What binds a run that waits for batches: reading and decoding them, or what the loader itself takes.
OF_DATA = ("input", "loader")

#: What a cause makes a run; the stages of a batch make it input-bound.
_BOUNDS = {
    "straggler": "straggler",
    "allreduce": "all-reduce",
    "checkpoint": "checkpoint",
    "evaluate": "evaluation",
    "startup": "start-up",
}


def bound_of(cause: str) -> str:
    """Name what a run is bound by when this cause costs it most."""
    return "input" if cause in STAGES else _BOUNDS.get(cause, "overhead" if cause == "other" else cause)


def judge(charged: Attribution, shape: RunShape, target_au: float | None = None) -> dict[str, Any]:
    """Sum up the losses of the whole steps in the window: the table, the AU that it leaves, and what binds.

    Shares are means over ranks, as AU is, so that AU and the shares sum to 1. Without a window every completed step
    counts, and a note says so. All numbers are None when no step was completed. Losses of :data:`BINDS` at most bind
    nothing, unless they keep a run from the ``target_au`` that is asked for.
    """
    window, notes = find_window(charged.lives, charged.steps, shape)
    charged = to_the_end(charged, window, shape)
    steps, lives = charged.steps, charged.lives
    inside = window.whole(steps) if window else np.zeros(steps.number, np.bool_)
    if not inside.any() and steps.number:
        notes.append(f"all {steps.number} completed steps are counted, warm-up too")
        inside = np.ones(steps.number, np.bool_)
    life, parts = steps.life[inside], steps.parts
    ranks = len(lives.rank)
    none = np.zeros(len(life), np.int64)
    lost_to = {name: ns[inside] for name, ns in charged.lost.items()}
    share = shares(steps, inside, ranks)
    if steps.number and len(np.unique(life)) < ranks:
        notes.append("a rank has no step that counts: shares are of all ranks' time together, not means over ranks")

    table: list[dict[str, Any]] = [
        {
            "cause": name,
            "seconds": (nanoseconds := int(lost_to.get(name, none).sum())) / 1e9,
            "share": share(lost_to.get(name, none)),
            "waiting_seconds": (nanoseconds - (by_sync := _sum(charged.lost_by_sync.get(name), inside))) / 1e9,
            "by_sync_seconds": by_sync / 1e9,
            "meaning": meaning,
        }
        for name, meaning in CAUSES.items()
    ]
    lost = [row for row in table if row["share"]]
    waited = share(parts["data_wait"][inside])
    bounds: dict[str, float] = {}
    for row in lost:
        bounds[bound_of(row["cause"])] = bounds.get(bound_of(row["cause"]), 0.0) + row["share"]
    top = max(bounds, key=lambda name: bounds[name], default="compute")
    causes = [row for row in lost if bound_of(row["cause"]) == top]
    au = share(parts["compute"][inside])
    is_short = target_au is not None and au is not None and au < target_au
    tolerated = 0.0 if is_short else BINDS
    is_bound = bounds.get(top, 0.0) > tolerated
    fewest = int(np.bincount(life, minlength=ranks).min(initial=steps.number))
    bound = (top if is_bound else "compute") if len(life) else None
    of_loader = [row for row in causes if row["cause"] in OF_LOADER]
    if bound == "input" and sum(row["share"] for row in of_loader) > MOST * bounds[top]:
        bound, causes = "loader", of_loader
    notes += filling(steps, inside) if bound not in OF_DATA else []  # there the sentence says it
    cause = max(causes, key=lambda row: row["share"])["cause"] if is_bound else None
    is_enough = window is not None and fewest >= FEWEST_STEPS
    arrived = window.holds(steps.arrived) if window else inside
    samples = int(shape.samples(lives.rank[steps.life[arrived]], steps.step[arrived]).sum())
    return {
        "samples_per_second": samples / window.seconds if window else None,
        "steps": int(inside.sum()),
        "steps_per_rank": fewest,
        "seconds": int(steps.duration[inside].sum()) / 1e9,
        "compute_seconds": int(parts["compute"][inside].sum()) / 1e9,
        "au": au,
        "loss": sum(row["share"] for row in lost) if len(life) else None,
        "data_wait_share": waited,
        "first_step_share": first_step_share(steps, inside),
        "is_input_bound": None if waited is None else waited > BINDS,
        "bound": bound if is_enough else None,
        "bound_share": bounds.get(top) if is_bound and is_enough else None,
        "cause": cause if is_enough else None,
        "next": cause or "compute",
        "bounds": bounds,
        "target_au": target_au,
        "tolerated": tolerated,
        "is_worth_removing": (is_short or (target_au is None and is_bound)) if bound and is_enough else None,
        "table": table,
        "notes": notes,
    }


def _sum(ns: Ints | None, inside: NDArray[np.bool_]) -> int:
    return 0 if ns is None else int(ns[inside].sum())


def loader_share(charged: Attribution, shape: RunShape) -> float | None:
    """The part of step time that ranks waited for messages and copies of the loader, directly or for other ranks."""
    found = judge(charged, shape)
    shares = [row["share"] for row in found["table"] if row["cause"] in OF_LOADER]
    return None if found["au"] is None else sum(shares)
