"""The verdict on a run: the stall table that sums to its whole loss, and the bottleneck."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rayio.analyze.metrics import shares
from rayio.analyze.shape import RunShape
from rayio.analyze.stages import OF_LOADER, STAGES, UNSAID
from rayio.analyze.stalls import CAUSES, Attribution, Charged, causes_with, slowest_pauses, to_the_end
from rayio.analyze.timeline import Ints
from rayio.analyze.window import FEWEST_STEPS, MOST, Noted, Window, filling, find_window, first_step_share
from rayio.records.doubts import Remark, remark
from rayio.records.explained import LossRow, Verdict
from rayio.trace.order import sums_by

#: Share of step time above which waiting for data makes a run input-bound, and any loss is a bottleneck.
BINDS = 0.05

#: Share of the wall time above which waiting for the first batches is worth a sentence.
BEGINS = 0.1

#: Bottlenecks of a run that waits for batches: reading and decoding them, or loader overhead.
OF_DATA = ("input", "loader")

OF_STORAGE = ("open", "read", "retry")

#: Bottlenecks by cause; the stages of a batch make a run input-bound.
_BOUNDS = {
    "device_copy": "device-copy",
    "bubble": "pipeline",
    "straggler": "straggler",
    "allreduce": "all-reduce",
    "drain_wait": "checkpoint",
    "checkpoint": "checkpoint",
    "evaluate": "evaluation",
    "startup": "start-up",
}


def bound_of(cause: str) -> str:
    """Return the bottleneck of a run that loses most to this cause."""
    if cause in STAGES or cause not in (*CAUSES, UNSAID):  # an unknown cause is a layer's: it delayed reads
        return "input"
    return _BOUNDS.get(cause, "overhead" if cause == "other" else cause)


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on a run, with remarks and numbers that a replay needs."""

    verdict: Verdict
    remarks: tuple[Remark, ...]
    samples_per_second: float | None
    #: The largest cause of the bottleneck, however few steps there are; compute where there is no bottleneck.
    largest: str
    #: Losses up to this share of step time are no bottleneck.
    tolerated: float


def judge(charged: Charged, shape: RunShape, target_au: float | None = None, measured: Noted | None = None) -> Judged:
    """Return the verdict on the whole steps in the window: the table of losses, the AU that it leaves, the bottleneck.

    Shares are means over ranks, as AU is, so that AU and the shares sum to 1. Without a window every completed step
    counts, and a remark says that. All numbers are None when no step was completed. Losses of :data:`BINDS` at most are
    no bottleneck, unless they keep a run from its ``target_au``. ``measured`` is the window, where known.
    """
    window, noted = measured or find_window(charged.lives, charged.steps, shape)
    total = _Sums(charged, window, shape)
    if not total.steps and charged.steps.number:
        noted = [*noted, remark("all_steps_count", steps=charged.steps.number)]
        total = _Sums(charged, window, shape, all_count=True)
    remarks = [*noted]
    if charged.steps.number and not total.counted.all():
        remarks.append(remark("rank_without_steps"))
    table = _table(total)
    share = shares(total.lasted)
    lost = [(row.cause, row.share) for row in table if row.share]
    bounds: dict[str, float] = {}
    for name, part in lost:
        bounds[bound_of(name)] = bounds.get(bound_of(name), 0.0) + part
    top = max(bounds, key=lambda name: bounds[name], default="compute")
    causes = [(name, part) for name, part in lost if bound_of(name) == top]
    au, waited = share(total.computed), share(total.waited)
    is_short = target_au is not None and au is not None and au < target_au
    tolerated = 0.0 if is_short else BINDS
    is_bound = bounds.get(top, 0.0) > tolerated
    fewest = int(total.counted.min(initial=charged.steps.number))
    bound = (top if is_bound else "compute") if total.steps else None
    of_loader = [(name, part) for name, part in causes if name in OF_LOADER]
    if bound == "input" and sum(part for _, part in of_loader) > MOST * bounds[top]:
        bound, causes = "loader", of_loader
    waits, lasted = int(total.waited.sum()), int(total.lasted.sum())
    remarks += filling(waits, total.at_first, lasted) if bound not in OF_DATA else []
    cause = max(causes, key=lambda each: each[1])[0] if is_bound else None
    is_enough = window is not None and fewest >= FEWEST_STEPS
    verdict = Verdict(
        steps=total.steps,
        steps_per_rank=fewest,
        seconds=lasted / 1e9,
        compute_seconds=int(total.computed.sum()) / 1e9,
        au=au,
        loss=sum(part for _, part in lost) if total.steps else None,
        first_batches_seconds=total.before / 1e9 / max(len(charged.lives.rank), 1),
        first_batches_share=_of_wall(total.before, charged) if total.steps else None,
        data_wait_share=waited,
        first_step_share=first_step_share(waits, total.at_first),
        is_input_bound=None if waited is None else waited > BINDS,
        bound=bound if is_enough else None,
        bound_share=bounds.get(top) if is_bound and is_enough else None,
        cause=cause if is_enough else None,
        bounds=bounds,
        target_au=target_au,
        is_worth_removing=(is_short or (target_au is None and is_bound)) if bound and is_enough else None,
        table=table,
    )
    rate = total.samples / window.seconds if window else None
    return Judged(verdict, (*remarks,), rate, cause or "compute", tolerated)


def _table(total: _Sums) -> tuple[LossRow, ...]:
    share, none, rows = shares(total.lasted), np.zeros(len(total.lasted), np.int64), []
    for name, meaning in causes_with(total.lost).items():
        lost, by_sync = total.lost.get(name, none), total.by_sync.get(name, 0)
        rows.append(
            LossRow(
                cause=name,
                seconds=int(lost.sum()) / 1e9,
                share=share(lost),
                waiting_seconds=(int(lost.sum()) - by_sync) / 1e9,
                by_sync_seconds=by_sync / 1e9,
                meaning=meaning,
            )
        )
    return (*rows,)


def _of_wall(waited: int, charged: Charged) -> float | None:
    """Return a time of all ranks, in ns, as a share of their wall time."""
    wall = charged.lives.wall * len(charged.lives.rank)
    return waited / wall if wall else None


def begins_slowly(verdict: Verdict) -> bool:
    """Return True if waiting for the first batches, which AU does not count, took more time than the bottleneck."""
    before = verdict.first_batches_share or 0.0
    return verdict.bound is not None and before > max(BEGINS, of_wall_time(verdict, verdict.bound_share))


def of_wall_time(verdict: Verdict, share: float | None, failed: float | None = None) -> float:
    """Return a share of step time as one of the wall time; ``failed`` is the share of it that failures took."""
    return max(1 - (verdict.first_batches_share or 0.0) - (failed or 0.0), 0.0) * (share or 0.0)


def waits_for_storage(verdict: Verdict) -> bool:
    """Return True if ranks wait for reads most, and not because readers wait for processors."""
    is_read = bool({verdict.cause, *verdict.ties} & {*OF_STORAGE})
    return is_read and verdict.bound in OF_DATA and not verdict.is_processor_bound


class _Sums:
    """Sums by rank over the steps that count: their length, compute, waits and losses (ns), and their samples."""

    def __init__(self, charged: Charged, window: Window | None, shape: RunShape, *, all_count: bool = False) -> None:
        ranks, slowest = len(charged.lives.rank), slowest_pauses(charged.steps)
        self.lasted, self.computed, self.waited, self.counted = (np.zeros(ranks, np.int64) for _ in range(4))
        self.lost: dict[str, Ints] = {}
        self.by_sync: dict[str, int] = {}
        #: The number of steps that count, the waits of epochs' first ones, the samples that arrived in the window.
        self.steps = self.at_first = self.samples = 0
        #: The waits for batches that came before the steps that count.
        self.before = 0
        for part in charged.by_slice():
            self._add(to_the_end(part, window, shape, slowest), window, shape, all_count=all_count)

    def _add(self, charged: Attribution, window: Window | None, shape: RunShape, *, all_count: bool) -> None:
        steps, lives, ranks = charged.steps, charged.lives, len(charged.lives.rank)
        inside = np.full(steps.number, all_count)
        if window is not None and not all_count:
            inside = window.whole(steps)
        life, waits = steps.life[inside], steps.parts["data_wait"][inside]
        self.lasted += sums_by(life, steps.duration[inside], ranks)
        self.computed += sums_by(life, steps.parts["compute"][inside], ranks)
        self.waited += sums_by(life, waits, ranks)
        self.counted += np.bincount(life, minlength=ranks)
        self.steps += len(life)
        self.at_first += int(waits[steps.step[inside] == 0].sum())
        if window is not None and not all_count:
            self.before += int(steps.parts["data_wait"][steps.start < window.begin].sum())
        for name, ns in charged.lost.items():
            lost = sums_by(life, ns[inside], ranks)
            self.lost[name] = self.lost[name] + lost if name in self.lost else lost
        for name, ns in charged.lost_by_sync.items():
            self.by_sync[name] = self.by_sync.get(name, 0) + int(ns[inside].sum())
        if window is not None:
            arrived = window.holds(steps.arrived)
            self.samples += int(shape.samples(lives.rank[steps.life[arrived]], steps.step[arrived]).sum())


def loader_share(charged: Charged, shape: RunShape) -> float | None:
    """Return the share of step time that ranks waited for messages and copies of the loader, also through sync."""
    verdict = judge(charged, shape).verdict
    return None if verdict.au is None else sum(row.share or 0.0 for row in verdict.table if row.cause in OF_LOADER)
