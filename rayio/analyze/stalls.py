"""Why the accelerators waited: every nanosecond of every step's loss, charged to the stage that caused it.

Each ``data_wait`` is split over the stages of its batch in proportion to the time that they took, from when its worker
last had nothing to do, through the batches that kept it busy, until the rank had it (see ``stages.py``). A rank's
``sync`` is charged to what the slowest rank of that step had more of than it: one rank's stall is everybody's.
Everything is whole nanoseconds, and for each step the charges and its compute sum to its length exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.intervals import split_exactly
from rayio.analyze.shape import RunShape
from rayio.analyze.stages import STAGES, cut
from rayio.analyze.timeline import PHASES, Ints, Lives, Steps, integers, texts, timeline
from rayio.analyze.window import Window, settled

if TYPE_CHECKING:
    import pyarrow as pa

#: Phases of a step that are neither work nor waiting for data or for each other.
_BLOCKING = tuple(name for name in PHASES[1:] if name not in ("data_wait", "compute", "sync"))

#: What a step may lose time to: the stages of its batch, and what else there is, with what that means.
CAUSES: dict[str, str] = {
    **STAGES,
    "straggler": "a slower rank's compute",
    "allreduce": "all ranks together, the all-reduce",
    **dict.fromkeys(_BLOCKING, "blocked by it, or by a rank that was"),
    "startup": "a rank that began later",
    "outage": "the barrier had died, and was being started again",
    "other": "rayio's own overhead",
}
_CAUSE = {name: number for number, name in enumerate(CAUSES)}


@dataclass(frozen=True, slots=True)
class Attribution:
    """Every completed step's loss by cause, in ns; rows are steps as in ``steps``, which is sorted by rank and time.

    ``waits`` has a column for each of :data:`STAGES` and sums to the step's data_wait; ``losses`` and ``by_sync`` have
    one for each of :data:`CAUSES`. ``losses`` sums to the step's duration without its compute; ``by_sync`` is the part
    of it that was spent waiting for the other ranks, and sums to the step's sync.
    """

    lives: Lives
    steps: Steps
    waits: NDArray[np.int64]
    losses: NDArray[np.int64]
    by_sync: NDArray[np.int64]


def attribute(spans: pa.Table, *, payload: bool = False) -> Attribution:
    """Charge every loss of every completed step of a run, from its spans in any order.

    ``payload`` says that batches carry their bytes, so that the way from a reader on another node is ``transfer``.
    """
    spans = spans.unify_dictionaries()
    lives, steps = timeline(spans)
    waits = cut(spans, lives, steps, payload=payload)
    by_sync = _charge_sync(steps, waits)
    losses = by_sync.copy()
    losses[:, : len(STAGES)] += waits
    for name in _BLOCKING:
        losses[:, _CAUSE[name]] += steps.parts[name]
    other = _other(steps)
    outage = np.minimum(_outage(spans, steps), other)
    losses[:, _CAUSE["outage"]] += outage
    losses[:, _CAUSE["other"]] += other - outage
    return Attribution(lives, steps, waits, losses, by_sync)


def to_the_end(charged: Attribution, window: Window | None, shape: RunShape) -> Attribution:
    """Let every rank's last step last until the window ends, charged to what the others were doing after theirs."""
    steps, longer = settled(charged.steps, window, shape)
    late = np.flatnonzero(longer)
    if not len(late):
        return charged
    last = np.flatnonzero(np.diff(charged.steps.life, append=-1))
    slowest = last[charged.steps.end[last].argmax()]
    more = np.zeros((len(late), len(CAUSES)), np.int64)
    for name in _BLOCKING:
        pause = charged.steps.parts[name]
        more[:, _CAUSE[name]] = np.maximum(pause[slowest] - pause[late], 0)
    more[:, _CAUSE["other"]] = np.maximum(longer[late] - more.sum(axis=1), 0)
    charges = split_exactly(longer[late], more)
    losses, by_sync = charged.losses.copy(), charged.by_sync.copy()
    losses[late] += charges
    by_sync[late] += charges
    return replace(charged, steps=steps, losses=losses, by_sync=by_sync)


def _other(steps: Steps) -> Ints:
    return steps.duration - sum(steps.parts.values())


def _outage(spans: pa.Table, steps: Steps) -> Ints:
    """How long each step waited, after its compute, for a barrier that was not there to answer."""
    is_lost = (texts(spans, "name", ("lost",)) == 0) & (texts(spans, "role", ("barrier",)) == 0)
    begins = integers(spans, "start_ns")[is_lost]
    waited = np.zeros(steps.number, np.int64)
    for begin, end in zip(begins, begins + integers(spans, "duration_ns")[is_lost], strict=True):
        waited += np.maximum(np.minimum(steps.end, end) - np.maximum(steps.computed, begin), 0)
    return waited


def _charge_sync(steps: Steps, waits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Charge every step's sync: until the slowest rank is there to its causes, then to the all-reduce.

    A round lasts from when a rank left the last barrier to when it computed; the slowest rank's round is longer by what
    it has more of: waiting in a stage, compute, a checkpoint after the step before.
    """
    charged = np.zeros((steps.number, len(CAUSES)), np.int64)
    sync = steps.parts["sync"]
    if not sync.any():
        return charged
    key = np.stack([steps.attempt, steps.epoch, steps.step])
    order = np.lexsort((steps.computed, *key[::-1]))
    is_last = np.ones(steps.number, np.bool_)
    is_last[:-1] = (key[:, order[1:]] != key[:, order[:-1]]).any(axis=0)
    slowest = np.empty(steps.number, np.int64)
    slowest[order] = order[is_last][np.cumsum(is_last) - is_last]

    is_first = np.ones(steps.number, np.bool_)
    is_first[1:] = (steps.life[1:] != steps.life[:-1]) | (steps.attempt[1:] != steps.attempt[:-1])
    left = steps.start.copy()
    left[1:] = np.where(is_first[1:], left[1:], (steps.computed + sync)[:-1])
    made = np.zeros_like(charged)
    made[:, : len(STAGES)] = waits
    made[:, _CAUSE["straggler"]] = steps.parts["compute"]
    for name in _BLOCKING:
        made[1:, _CAUSE[name]] = np.where(is_first[1:], 0, steps.parts[name][:-1])
    made[:, _CAUSE["other"]] = steps.computed - left - made.sum(axis=1)

    late = np.clip(steps.computed[slowest] - steps.computed, 0, sync)
    more = made[slowest] - made
    began_later = left[slowest] - left
    more[:, _CAUSE["startup"]] += np.where(is_first, began_later, 0)
    more[:, _CAUSE["other"]] += np.where(is_first, 0, began_later)
    charged = split_exactly(late, np.maximum(more, 0))
    charged[:, _CAUSE["allreduce"]] += sync - late
    return charged
