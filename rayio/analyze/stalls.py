"""Why the accelerators waited: every nanosecond of every step's loss, charged to the stage that caused it.

Each ``data_wait`` is split over the stages of its batch in proportion to the time that they took, from when its worker
last had nothing to do, through the batches that kept it busy, until the rank had it (see ``stages.py``). A rank's
``sync`` is charged to what the slowest rank of that step had more of than it: one rank's stall is everybody's.
Everything is whole nanoseconds, and for each step the charges and its compute sum to its length exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.delays import columns_of, meanings
from rayio.analyze.intervals import BEFORE, split_exactly
from rayio.analyze.part import COLUMNS, Part
from rayio.analyze.passes import Timelines
from rayio.analyze.rounds import BLOCKING, NOTHING, PREPARING, Late, Made, Meeting, Rounds, Slowest
from rayio.analyze.shape import RunShape
from rayio.analyze.stages import STAGES, UNSAID, cut
from rayio.analyze.timeline import Ints, Lives, Steps, StepsInSlices, integers, texts
from rayio.analyze.window import Window, settled
from rayio.scenario.meetings import ALL, Meetings
from rayio.trace.aside import Kept, Unnamed
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa

#: Causes of loss, with their meaning: the stages of a batch, then the others.
CAUSES: dict[str, str] = {
    **STAGES,
    "device_copy": "batches on their way to accelerators",
    "bubble": "pipeline stages without a microbatch",
    "straggler": "a slower rank's compute",
    "allreduce": "all ranks together, the all-reduce",
    **dict.fromkeys(BLOCKING, "blocked by it, or by a rank that was"),
    "startup": "a rank that began later",
    "outage": "the barrier had died, and was being started again",
    "other": "rayio's own overhead",
}


def causes_with(occurred: Iterable[str]) -> dict[str, str]:
    """Return all causes with their meaning, also the ``occurred`` ones of layers; stages come first."""
    more = meanings(sorted({*occurred} - CAUSES.keys() - {UNSAID}))
    return {**STAGES, **more, **CAUSES} if more else CAUSES


#: Causes that a round has as what is left of it.
_REST = ("allreduce", "other")

_NO_TIMES = np.zeros(0, np.int64)

#: Steps whose sync is charged at a time; the memory for that is a multiple of them.
CHARGED_TOGETHER = 1 << 15


@dataclass(frozen=True, slots=True)
class Attribution:
    """Every completed step's loss by cause, in ns; an entry for each of ``steps``, sorted by rank and time.

    ``lost`` has the loss to each cause, and sums to the step's duration without its compute; ``lost_by_sync`` has the
    part of it that was spent waiting for the other ranks, and sums to the step's sync. Causes without any loss are left
    out.
    """

    lives: Lives
    steps: Steps
    lost: Mapping[str, Ints]
    lost_by_sync: Mapping[str, Ints]

    def by_slice(self) -> Iterator[Attribution]:
        """Return all of it as one slice; see :class:`Losses`."""
        yield self

    @property
    def losses(self) -> NDArray[np.int64]:
        """Return the loss of each step, with a column for each of :data:`CAUSES`."""
        return _matrix(self.lost, CAUSES, self.steps.number)

    @property
    def by_sync(self) -> NDArray[np.int64]:
        """Return the part of the loss that was waiting for other ranks, with a column for each of :data:`CAUSES`."""
        return _matrix(self.lost_by_sync, CAUSES, self.steps.number)

    @property
    def waits(self) -> NDArray[np.int64]:
        """Return the data_wait of each step, with a column for each of :data:`STAGES`."""
        return (self.losses - self.by_sync)[:, : len(STAGES)]


def charged(spans: pa.Table | Slices, *, payload: bool = False, meetings: Meetings | None = None) -> Losses:
    """Return every loss of every completed step of a run, from its spans in any order; see :class:`Losses`."""
    timed = Timelines(spans)
    losses = Losses(timed, payload=payload, meetings=meetings)
    timed.go_through(losses)
    return losses


def attribute(spans: pa.Table | Slices, *, payload: bool = False, meetings: Meetings | None = None) -> Attribution:
    """Return all losses of a run together; see :func:`charged`."""
    return charged(spans, payload=payload, meetings=meetings).charged()


class Losses:
    """The loss of every completed step, by slice or all together, once all slices were added.

    ``payload``: batches carry their bytes, so that the way from a reader on another node is ``transfer``. ``meetings``:
    the steps after which ranks wait for each other, by default all.
    """

    def __init__(self, timed: Timelines, *, payload: bool = False, meetings: Meetings | None = None) -> None:
        self.timed = timed
        self.lives, self.steps = timed.lives, timed
        self.columns = (*COLUMNS, *columns_of(timed.slices.names))
        self.payload = payload
        self._file = Unnamed() if timed.slices.number > 1 else None
        meets = any(steps.parts["sync"].any() for steps in timed.by_slice())
        self._slowest = Slowest(Rounds(timed), meetings) if meets else None
        #: By slice: the wait of each step in each stage.
        self._waited: list[dict[str, Ints] | tuple[list[str], Kept]] = []
        self._outages: list[tuple[Ints, Ints]] = []

    def of(self, part: Part) -> tuple[dict[str, Ints], Late | None, tuple[Ints, Ints]]:
        """Return the waits of a slice by stage, the slowest of its steps, and its outages."""
        waited = {stage: ns for stage, ns in cut(part, payload=self.payload).items() if ns.any()}
        late = None if self._slowest is None else self._slowest.of(part.timed[1], waited, part.timed[0].rank)
        return waited, late, _outages(part.spans) if "lost" in self.timed.slices.names else (_NO_TIMES, _NO_TIMES)

    def add(self, sums: tuple[dict[str, Ints], Late | None, tuple[Ints, Ints]]) -> None:
        """Add those of a slice."""
        waited, late, outages = sums
        self._waited.append(waited if self._file is None else ([*waited], self._file.keep([*waited.values()])))
        self._outages.append(outages)
        if self._slowest is not None and late is not None:
            self._slowest.add(late)

    def by_slice(self) -> Iterator[Attribution]:
        """Yield the losses of each slice: waits for data, and waits for other ranks."""
        for steps, waits in self._slices():
            within = self._within(steps, waits)
            slowest = self._among_replicas if within else self._slowest
            by_sync = {} if slowest is None else _charge_sync(steps, waits, slowest, self.lives.rank, within)
            losses = {**by_sync}
            for stage, ns in waits.items():
                losses[stage] = losses[stage] + ns if stage in losses else ns
            for name in (*PREPARING, *BLOCKING):
                _add(losses, name, steps.parts[name])
            other = steps.duration - sum(steps.parts.values())
            outage = np.minimum(_outage(self._outages, steps), other)
            _add(losses, "outage", outage)
            _add(losses, "other", other - outage)
            yield Attribution(self.lives, steps, losses, by_sync)

    def _slices(self) -> Iterator[tuple[Steps, Mapping[str, Ints]]]:
        """Yield the steps of each slice, with their waits for data by stage."""
        for steps, waited in zip(self.timed.by_slice(), self._waited, strict=True):
            yield steps, waited if isinstance(waited, dict) else dict(zip(waited[0], waited[1].columns(), strict=True))

    def _within(self, steps: Steps, waits: Mapping[str, Ints]) -> Mapping[str, Ints]:
        """Return the waits inside replicas by cause, which are part of the round until all ranks meet."""
        slowest, rank = self._slowest, self.lives.rank
        if slowest is None or not slowest.has_replicas:
            return NOTHING
        meeting = Meeting.of(slowest.meetings, rank)
        is_within = np.zeros(0, np.bool_) if meeting is None else meeting.groups(steps) != ALL
        causes = _charge_sync(steps, waits, slowest, rank)
        # what no cause has is overhead, as all that is left of a round
        return {cause: np.where(is_within, ns, 0) for cause, ns in causes.items() if cause not in _REST}

    @cached_property
    def _among_replicas(self) -> Slowest:
        """The slowest steps, with the causes of waits inside replicas."""
        assert self._slowest is not None
        slowest = Slowest(self._slowest.rounds, self._slowest.meetings)
        for steps, waits in self._slices():
            slowest.add(slowest.of(steps, waits, self.lives.rank, self._within(steps, waits)))
        return slowest

    def charged(self) -> Attribution:
        """Return the losses of all slices together."""
        slices = [*self.by_slice()]
        if len(slices) == 1:
            return slices[0]
        lost, by_sync = (
            {
                name: np.concatenate([each.get(name, np.zeros(some.steps.number, np.int64)) for some, each in columns])
                for name in causes_with(name for _, each in columns for name in each)
                if any(name in each for _, each in columns)
            }
            for columns in ([(some, some.lost) for some in slices], [(some, some.lost_by_sync) for some in slices])
        )  # fmt: skip
        return Attribution(self.lives, self.timed.steps, lost, by_sync)


#: The losses of a run's steps, together or some ranks at a time.
Charged = Attribution | Losses


def _add(charges: dict[str, Ints], cause: str, ns: Ints) -> None:
    """Charge more to a cause, in a new array: other owners keep the old one."""
    if ns.any():
        charges[cause] = charges[cause] + ns if cause in charges else ns


def _matrix(columns: Mapping[str, Ints], names: Iterable[str], number: int) -> NDArray[np.int64]:
    none = np.zeros(number, np.int64)
    return np.stack([columns.get(name, none) for name in names], axis=1)


def slowest_pauses(steps: StepsInSlices) -> dict[str, int]:
    """Return the pauses after the last step of the rank that ended last, in ns by phase."""
    latest, pauses = BEFORE, dict.fromkeys(BLOCKING, 0)
    for some in steps.by_slice():
        last = np.flatnonzero(np.diff(some.life, append=-1))
        if len(last) and (end := int(some.end[last].max())) > latest:
            slowest = last[some.end[last].argmax()]
            latest, pauses = end, {name: int(some.parts[name][slowest]) for name in BLOCKING}
    return pauses


def to_the_end(charged: Attribution, window: Window | None, shape: RunShape, slowest: Mapping[str, int]) -> Attribution:
    """Return the losses with every rank's last step extended to the window's end, charged to the others' pauses.

    ``slowest`` are the pauses of the rank that ended last, see :func:`slowest_pauses`.
    """
    steps, longer = settled(charged.steps, window, shape)
    late = np.flatnonzero(longer)
    if not len(late):
        return charged
    more = {name: np.maximum(pause - charged.steps.parts[name][late], 0) for name, pause in slowest.items()}
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
    is_lost = (texts(spans, "name", ("lost",)) == 0) & (texts(spans, "role", ("barrier",)) == 0)
    begins = integers(spans, "start_ns")[is_lost]
    return begins, begins + integers(spans, "duration_ns")[is_lost]


def _outage(outages: Sequence[tuple[Ints, Ints]], steps: Steps) -> Ints:
    """Return how long each step waited, after its compute, for a barrier that was down."""
    waited = np.zeros(steps.number, np.int64)
    for begins, ends in outages:
        for begin, end in zip(begins, ends, strict=True):
            waited += np.maximum(np.minimum(steps.end, end) - np.maximum(steps.computed, begin), 0)
    return waited


def _charge_sync(
    steps: Steps, waits: Mapping[str, Ints], slowest: Slowest, rank: Ints, within: Mapping[str, Ints] = NOTHING
) -> dict[str, Ints]:
    """Return every step's sync by cause: until the slowest rank is there to its causes, then to the all-reduce.

    A round lasts from when a rank left the last barrier to when it computed. The slowest rank's round is longer by its
    extra time in each cause: waiting in a stage, compute, a checkpoint after the step before.
    """
    sync = steps.parts["sync"]
    if not sync.any():
        return {}
    meeting = Meeting.of(slowest.meetings, rank)
    place, own_rounds = slowest.place_of(steps, meeting), Made(steps, waits, meeting, within)
    # Causes in the order of the table: among equally large ones the first takes the rest of rounding.
    causes = causes_with(slowest.made)
    kinds = [cause for cause in causes if cause in slowest.made or cause == "startup"]
    charged = {cause: np.zeros(steps.number, np.int64) for cause in kinds}
    allreduce = np.zeros(steps.number, np.int64)
    for first in range(0, steps.number, CHARGED_TOGETHER):
        mine = np.arange(first, min(first + CHARGED_TOGETHER, steps.number))
        of, own, is_first = place[mine], own_rounds.of(mine), own_rounds.is_first[mine]
        late = np.clip(slowest.computed[of] - steps.computed[mine], 0, sync[mine])
        began_later = slowest.left[of] - own_rounds.left[mine]
        longer = {cause: ns[of] - own[cause] if cause in own else ns[of] for cause, ns in slowest.made.items()}
        longer["startup"] = longer.get("startup", 0) + np.where(is_first, began_later, 0)
        longer["other"] += np.where(is_first, 0, began_later)
        more = [np.maximum(longer[cause], 0) for cause in kinds]
        for cause, ns in zip(kinds, split_exactly(late, more), strict=True):
            charged[cause][mine] = ns
        allreduce[mine] = sync[mine] - late
    charged["allreduce"] = allreduce
    return {cause: charged[cause] for cause in causes if cause in charged and charged[cause].any()}
