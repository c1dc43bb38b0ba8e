"""Why the accelerators waited: every nanosecond of every step's loss, charged to the stage that caused it.

Each ``data_wait`` is split over the stages of its batch in proportion to the time that they took, from when its worker
last had nothing to do, through the batches that kept it busy, until the rank had it (see ``stages.py``). A rank's
``sync`` is charged to what the slowest rank of that step had more of than it: one rank's stall is everybody's.
Everything is whole nanoseconds, and for each step the charges and its compute sum to its length exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.intervals import BEFORE, split_exactly
from rayio.analyze.part import COLUMNS, Part
from rayio.analyze.passes import Timelines
from rayio.analyze.shape import RunShape
from rayio.analyze.stages import STAGES, cut
from rayio.analyze.timeline import PHASES, Ints, Lives, Steps, integers, texts
from rayio.analyze.window import Window, settled
from rayio.trace.order import groups_by
from rayio.trace.slices import Slices

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

#: Steps whose sync is charged at a time: what that takes of memory is a multiple of them.
CHARGED_TOGETHER = 1 << 15


@dataclass(frozen=True, slots=True)
class Attribution:
    """Every completed step's loss by cause, in ns; an entry for each of ``steps``, which is sorted by rank and time.

    ``lost`` has the loss to each cause, and sums to the step's duration without its compute; ``lost_by_sync`` has the
    part of it that was spent waiting for the other ranks, and sums to the step's sync. Where no step lost anything to a
    cause, that is not in them.
    """

    lives: Lives
    steps: Steps
    lost: Mapping[str, Ints]
    lost_by_sync: Mapping[str, Ints]

    @property
    def losses(self) -> NDArray[np.int64]:
        """What each step lost, with a column for each of :data:`CAUSES`."""
        return _matrix(self.lost, CAUSES, self.steps.number)

    @property
    def by_sync(self) -> NDArray[np.int64]:
        """What of it was spent waiting for the other ranks."""
        return _matrix(self.lost_by_sync, CAUSES, self.steps.number)

    @property
    def waits(self) -> NDArray[np.int64]:
        """The data_wait of each step, with a column for each of :data:`STAGES`."""
        return (self.losses - self.by_sync)[:, : len(STAGES)]


def attribute(spans: pa.Table | Slices, *, payload: bool = False) -> Attribution:
    """Charge every loss of every completed step of a run, from its spans in any order; see :class:`Losses`."""
    timed = Timelines(spans)
    losses = Losses(timed, payload=payload)
    timed.go_through(losses)
    return losses.charged()


class Losses:
    """The loss of every completed step.

    ``payload`` says that batches carry their bytes, so that the way from a reader on another node is ``transfer``.
    """

    columns = COLUMNS

    def __init__(self, timed: Timelines, *, payload: bool = False) -> None:
        self.timed = timed
        self.payload = payload
        self._waited: list[dict[str, Ints]] = []
        self._numbers: list[int] = []
        self._outages: list[tuple[Ints, Ints]] = []

    def of(self, part: Part) -> tuple[dict[str, Ints], int, tuple[Ints, Ints]]:
        """The waits of a slice by stage, how many they are, and its outages."""
        waited = {stage: ns for stage, ns in cut(part, payload=self.payload).items() if ns.any()}
        return waited, part.timed[1].number, _outages(part.spans)

    def add(self, found: tuple[dict[str, Ints], int, tuple[Ints, Ints]]) -> None:
        """Add those of a slice."""
        waited, number, outages = found
        self._waited.append(waited)
        self._numbers.append(number)
        self._outages.append(outages)

    def charged(self) -> Attribution:
        """Charge what was added up, and what ranks waited for each other."""
        lives, steps, waited = self.timed.lives, self.timed.steps, self._waited
        kinds = [stage for stage in STAGES if any(stage in each for each in waited)]
        waits = {stage: _column(waited, stage, self._numbers) for stage in kinds}
        by_sync = _charge_sync(steps, waits)
        losses = {**by_sync}
        for stage, ns in waits.items():
            losses[stage] = losses[stage] + ns if stage in losses else ns
        for name in _BLOCKING:
            _add(losses, name, steps.parts[name])
        other = steps.duration - sum(steps.parts.values())
        outage = np.minimum(_outage(self._outages, steps), other)
        _add(losses, "outage", outage)
        _add(losses, "other", other - outage)
        return Attribution(lives, steps, losses, by_sync)


def _add(charges: dict[str, Ints], cause: str, ns: Ints) -> None:
    """Charge more to a cause; what was charged stays as it is for whoever has it."""
    if ns.any():
        charges[cause] = charges[cause] + ns if cause in charges else ns


def _column(parts: Sequence[dict[str, Ints]], name: str, numbers: Sequence[int]) -> Ints:
    """Take a column out of slices, each of so many steps, and put it together; where it is missing it is zero."""
    return np.concatenate([part.pop(name, np.zeros(many, np.int64)) for part, many in zip(parts, numbers, strict=True)])


def _matrix(columns: Mapping[str, Ints], names: Iterable[str], number: int) -> NDArray[np.int64]:
    none = np.zeros(number, np.int64)
    return np.stack([columns.get(name, none) for name in names], axis=1)


def to_the_end(charged: Attribution, window: Window | None, shape: RunShape) -> Attribution:
    """Let every rank's last step last until the window ends, charged to what the others were doing after theirs."""
    steps, longer = settled(charged.steps, window, shape)
    late = np.flatnonzero(longer)
    if not len(late):
        return charged
    last = np.flatnonzero(np.diff(charged.steps.life, append=-1))
    slowest = last[charged.steps.end[last].argmax()]
    pauses = {name: charged.steps.parts[name] for name in _BLOCKING}
    more = {name: np.maximum(pause[slowest] - pause[late], 0) for name, pause in pauses.items()}
    more["other"] = np.maximum(longer[late] - sum(more.values()), 0)
    lost, by_sync = {**charged.lost}, {**charged.lost_by_sync}
    for cause, part in zip(more, split_exactly(longer[late], [*more.values()]), strict=True):
        if part.any():
            ns = np.zeros(steps.number, np.int64)
            ns[late] = part
            _add(lost, cause, ns)
            _add(by_sync, cause, ns)
    return replace(charged, steps=steps, lost=lost, lost_by_sync=by_sync)


def _outages(spans: pa.Table) -> tuple[Ints, Ints]:
    """When barriers were lost, and when they were there again."""
    is_lost = (texts(spans, "name", ("lost",)) == 0) & (texts(spans, "role", ("barrier",)) == 0)
    begins = integers(spans, "start_ns")[is_lost]
    return begins, begins + integers(spans, "duration_ns")[is_lost]


def _outage(outages: Sequence[tuple[Ints, Ints]], steps: Steps) -> Ints:
    """How long each step waited, after its compute, for a barrier that was not there to answer."""
    waited = np.zeros(steps.number, np.int64)
    for begins, ends in outages:
        for begin, end in zip(begins, ends, strict=True):
            waited += np.maximum(np.minimum(steps.end, end) - np.maximum(steps.computed, begin), 0)
    return waited


def _charge_sync(steps: Steps, waits: Mapping[str, Ints]) -> dict[str, Ints]:
    """Charge every step's sync: until the slowest rank is there to its causes, then to the all-reduce.

    A round lasts from when a rank left the last barrier to when it computed; the slowest rank's round is longer by what
    it has more of: waiting in a stage, compute, a checkpoint after the step before.
    """
    sync = steps.parts["sync"]
    if not sync.any():
        return {}
    place = groups_by(steps.attempt, steps.epoch, steps.step)
    latest = np.full(int(place.max()) + 1, BEFORE)
    np.maximum.at(latest, place, steps.computed)
    last = np.flatnonzero(steps.computed == latest[place])
    of_place = np.zeros(len(latest), np.int64)
    np.maximum.at(of_place, place[last], last)  # of those that were as late the last one
    slowest = of_place[place]
    del place, latest, last, of_place

    is_first = np.ones(steps.number, np.bool_)
    is_first[1:] = (steps.life[1:] != steps.life[:-1]) | (steps.attempt[1:] != steps.attempt[:-1])
    left = steps.start.copy()
    left[1:] = np.where(is_first[1:], left[1:], (steps.computed + sync)[:-1])
    # Causes that a round may be longer by, in the order of the table: of two that are as large the first has the rest.
    blocking = [name for name in _BLOCKING if steps.parts[name].any()]
    kinds = [cause for cause in CAUSES if cause in waits or cause in ("straggler", *blocking, "startup", "other")]

    def rounds(chosen: Ints) -> dict[str, Ints]:
        """What the rounds of some steps are made of, but for their beginning."""
        made = dict.fromkeys(kinds, np.zeros(len(chosen), np.int64))
        lasted = steps.computed[chosen] - left[chosen]
        for cause in kinds:
            if cause in blocking:
                made[cause] = np.where(is_first[chosen], 0, steps.parts[cause][chosen - 1])
            elif cause == "straggler":
                made[cause] = steps.parts["compute"][chosen]
            elif cause in waits:
                made[cause] = waits[cause][chosen]
            else:
                continue
            lasted -= made[cause]
        return made | {"other": lasted}

    charged = {cause: np.zeros(steps.number, np.int64) for cause in kinds}
    allreduce = np.zeros(steps.number, np.int64)
    for first in range(0, steps.number, CHARGED_TOGETHER):
        mine = np.arange(first, min(first + CHARGED_TOGETHER, steps.number))
        other = slowest[mine]
        late = np.clip(steps.computed[other] - steps.computed[mine], 0, sync[mine])
        of_slowest, own = rounds(other), rounds(mine)
        began_later = left[other] - left[mine]
        of_slowest["startup"] = of_slowest["startup"] + np.where(is_first[mine], began_later, 0)
        of_slowest["other"] += np.where(is_first[mine], 0, began_later)
        more = [np.maximum(of_slowest[cause] - own[cause], 0) for cause in kinds]
        for cause, ns in zip(kinds, split_exactly(late, more), strict=True):
            charged[cause][mine] = ns
        allreduce[mine] = sync[mine] - late
    charged["allreduce"] = allreduce
    return {cause: charged[cause] for cause in CAUSES if cause in charged and charged[cause].any()}
