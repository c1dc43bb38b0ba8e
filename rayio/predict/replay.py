"""A run's own times in place of the scenario's, for a replay on the virtual engine.

Times are replayed at their own address (rank, epoch, step), so that ranks keep their differences and a slow batch keeps
its place; times that the run did not record are drawn from all that it did.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.analyze.arrays import concatenated
from rayio.analyze.delays import columns_of, delayed
from rayio.analyze.intervals import Lookup, pick
from rayio.analyze.part import COLUMNS, KINDS, Part, Places, WorkDone
from rayio.analyze.shape import RunShape
from rayio.analyze.stalls import Attribution
from rayio.analyze.timeline import Ints, integers, is_text, texts
from rayio.analyze.window import find_window
from rayio.model.planning import Times
from rayio.predict import observe
from rayio.predict.costs import SAVING, is_full, typical
from rayio.predict.costs import costs as costs_of
from rayio.scenario import derive, evaluation
from rayio.scenario.decode import Work
from rayio.scenario.layers import without_layers
from rayio.scenario.meetings import meetings_of
from rayio.scenario.model import Costs, Scenario, StorageParameters, Trace
from rayio.scenario.schedule import Schedule
from rayio.schema.distribution import NO_TIME
from rayio.schema.every import Every
from rayio.storage.model import REQUESTS_PER_STEP_BITS
from rayio.trace.order import groups_by
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa

    from rayio.model.plan import Plan

Floats = NDArray[np.float64]

#: Most rank-steps of one simulation; of longer runs the beginning is simulated.
MOST_RANK_STEPS = 10_000
FEWEST_STEPS = 12
#: Difference of frequencies of events that does not matter.
ALIKE = 0.01

UNLIMITED = 1e18
#: Storage without any time except recorded ones.
UNLIMITED_STORAGE = StorageParameters(first_byte=NO_TIME, connection_bandwidth=UNLIMITED, bandwidth=UNLIMITED)

_READING = [KINDS.index(name) for name in ("open", "read", "retry")]
_DECODING = [KINDS.index("decode")]


class RecordedTimes:
    """Measured times, each at its own step's address; other steps draw from all measured ones.

    A step has ``places`` indices, and its whole time is at the first of them; ``own_places`` has that number by
    address: batches of evaluations have another size. At an address that is no step's (a file that is written) the draw
    is from ``otherwise``, and from ``increments`` for a file of an increment (see :meth:`of_plan`).
    """

    def __init__(
        self, rows: Mapping[int, Floats], places: int, otherwise: Floats,
        own_places: Mapping[int, int] | None = None, increments: Floats | None = None,
    ) -> None:  # fmt: skip
        self.rows = rows
        self.places = places
        self.own_places = own_places or {}
        measured = [row[~np.isnan(row)] for row in rows.values()]
        self.pool = np.concatenate(measured) if measured else np.empty(0)
        self.otherwise = otherwise if len(otherwise) else np.zeros(1)
        self.increments = self.otherwise if increments is None or not len(increments) else increments
        self._of_increments: frozenset[int] = frozenset()

    def of_plan(self, plan: Plan) -> RecordedTimes:
        """Return these times, with the addresses of the increments that a plan writes."""
        saved, times = plan.checkpointing, copy(self)
        if saved is not None and saved.incremental is not None:
            paths = (shard.path for shard in saved.increments())
            times._of_increments = frozenset(seeds.key(plan.seed, f"first_byte/{path}") for path in paths)
            if saved.seconds is not None:  # which are increments is not known before
                times.otherwise = np.concatenate([self.otherwise, self.increments])
        return times

    def draw(self, address_key: int, index: Ints) -> Floats:
        """Return the time of each index below an address, in seconds."""
        row = self.rows.get(address_key)
        if row is None:
            pool = self.increments if address_key in self._of_increments else self.otherwise
        else:
            pool = self.pool if len(self.pool) else np.zeros(1)
        drawn = pool[(seeds.uniform(address_key, index) * len(pool)).astype(np.int64)]
        places = self.own_places.get(address_key, self.places)
        if row is not None and len(row):
            step = np.minimum(index // places, len(row) - 1)
            known = row[step]
            drawn = np.where(np.isnan(known) | (index // places >= len(row)), drawn, known)
        times: Floats = np.where(index % places == 0, drawn, 0.0)
        return times


@dataclass(frozen=True, slots=True)
class Replay:
    """The input of a simulation: a scenario, and the times that replace the scenario's own."""

    scenario: Scenario
    times: Times


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured times of a run, in seconds: arrays (ranks, epochs, steps), NaN where nothing was recorded.

    ``read`` and ``decode`` have the evaluations as further epochs, as their numbers go on from training's.
    """

    compute: Floats
    read: Floats
    decode: Floats
    #: Of one checkpoint file, with its fsync and what its engine took; and of one of an increment; and of their drains.
    write: Floats
    increments: Floats
    drains: Floats
    increment_drains: Floats
    costs: Costs
    has_work: bool
    #: Delays of reads by layers, by cause; they are part of ``read``.
    delays: Mapping[str, Floats]
    #: Decoding as work on the cores of a node; None where its recorded times are replayed.
    work: Work | None = None

    @classmethod
    def of(cls, spans: pa.Table | Slices, charged: Attribution, scenario: Scenario, *, costs: Costs | None) -> Measured:
        """Return the times of a run's spans; ``costs`` are the messages', None to measure them too."""
        slices, steps = Slices.of(spans), charged.steps
        phase = evaluation.phase_of(scenario)
        shape = (derive.world_size(scenario), scenario.train.epochs, derive.steps_per_epoch(scenario))
        all_epochs = shape[1] + (0 if phase is None else phase.train.epochs)
        most_steps = max(shape[2], 0 if phase is None else derive.steps_per_epoch(phase))
        with_evaluations = (shape[0], all_epochs, most_steps)
        compute = np.full(shape, np.nan)
        rank = charged.lives.rank[steps.life]
        held = (rank < shape[0]) & (steps.epoch < shape[1]) & (steps.step < shape[2])
        compute[rank[held], steps.epoch[held], steps.step[held]] = steps.parts["compute"][held] / 1e9
        read, decode = np.full(with_evaluations, np.nan), np.full(with_evaluations, np.nan)
        held_up: dict[str, Floats] = {}
        for part in map(Part, slices.parts(*COLUMNS, *columns_of(slices.names))):
            for cause, seconds in delayed(part.spans, with_evaluations).items():
                held_up[cause] = held_up.get(cause, 0.0) + seconds
            _enter(read, part.work, part.places, _READING)
            _enter(decode, part.work, part.places, _DECODING)
        # A batch that was read and has no decode span took no time to decode.
        decode[np.isnan(decode) & ~np.isnan(read)] = 0.0
        has_work = bool((~np.isnan(read)).any())
        decoding, cores = scenario.loader.decode, scenario.cluster.cores
        saves = slices.named(*SAVING, "checkpoint", "snapshot", "drain")
        if costs is None:
            costs = _costs(slices, charged, scenario, saves)
        work = decoding if isinstance(decoding, Work) and cores is not None else None
        return cls(compute, read, decode, *_writes(saves, scenario), costs, has_work, held_up, work)

    def without_times(self) -> Measured:
        """Return the costs alone."""
        none: Floats = np.empty(0)
        return replace(
            self, compute=none, read=none, decode=none, write=none, increments=none, drains=none,
            increment_drains=none, delays={},
        )  # fmt: skip

    def first_byte(self, reads: Mapping[int, Floats]) -> RecordedTimes:
        """Return the time of each read by its address, and of files that are written; if they were drained, of that."""
        if len(self.drains):
            return RecordedTimes(reads, 1 << REQUESTS_PER_STEP_BITS, self.drains, increments=self.increment_drains)
        return RecordedTimes(reads, 1 << REQUESTS_PER_STEP_BITS, self.write, increments=self.increments)

    def replayed(self, scenario: Scenario, *, modelled: StorageParameters | None, most: int | None = None) -> Replay:
        """Return the scenario, cut to the size of one simulation (``most`` rank-steps), with these times.

        ``modelled`` is the storage that the run had, where it was a model: the replay then uses it too, also for more
        readers. For real storage the recorded times are replayed.
        """
        seed, train = scenario.seed, cut(scenario, most)
        epochs = train.get("epochs", scenario.train.epochs)
        keys = partial(addressed, seed, first_epochs=epochs, of_epochs=scenario.train.epochs)
        own_places: dict[int, int] = {}
        if (phase := evaluation.phase_of(scenario)) is not None:
            for rank, number in itertools.product(range(derive.world_size(scenario)), range(phase.train.epochs)):
                own_places[seeds.key(seed, "decode", rank, epochs + number)] = phase.loader.batch_size
        first_byte = self.first_byte(keys("first_byte", self.read))
        times = Times(
            compute=of_steps(seed, self.compute),
            decode=None
            if self.work is not None
            else RecordedTimes(keys("decode", self.decode), scenario.loader.batch_size, np.empty(0), own_places),
            first_byte=None if modelled else first_byte,
            burst=None
            if modelled
            else RecordedTimes({}, 1 << REQUESTS_PER_STEP_BITS, self.write, increments=self.increments),
        )
        kept = scenario.storage if modelled else without_layers(scenario).storage
        sections: dict[str, Any] = {
            "storage": kept.model_copy(update={"model": modelled or UNLIMITED_STORAGE}),
            "trace": Trace(),
        }
        saved = scenario.checkpoint
        by_clock = saved is not None and saved.every is not None and saved.every.seconds is not None
        cut_at, is_partial = train.get("steps"), _ends_within(scenario, train)
        by_epoch = saved is not None and saved.every is not None and saved.every.epochs is not None
        by_epoch &= isinstance(derive.epoch_steps(scenario).each, tuple) and not isinstance(cut_at, int)
        if saved is not None and saved.burst is not None and not modelled:
            tier = UNLIMITED_STORAGE.model_copy(update={"scope": saved.burst.scope})
            burst = saved.burst.model_copy(update={"model": tier})
            saved = sections["checkpoint"] = saved.model_copy(update={"burst": burst})
        if saved is not None and not by_clock and not by_epoch:  # in steps, which a cut epoch does not change
            every = Every(steps=1) if saved.every is None else Every(**derive.schedule(scenario, saved.every).in_steps)
            sections["checkpoint"] = saved.model_copy(update={"every": every})
        if scenario.train.evaluate is not None and is_partial:
            every = Every(**derive.schedule(scenario, scenario.train.evaluate.every).in_steps)
            train["evaluate"] = scenario.train.evaluate.model_copy(update={"every": every})
        sections["train"] = scenario.train.model_copy(update={"compute_cores": 0, **train})
        if self.work is not None:
            sections["loader"] = scenario.loader.model_copy(update={"decode": self.work})
        return Replay(scenario.model_copy(update={**sections, "costs": self.costs}), times)


def of_steps(seed: int, compute: Floats) -> RecordedTimes:
    """Return the compute time of each step of each rank, from an array (ranks, epochs, steps)."""
    return RecordedTimes(addressed(seed, "compute", compute), 1, np.empty(0))


def cut(scenario: Scenario, rank_steps: int | None = None) -> dict[str, Any]:
    """Return the epochs and steps of the first stretch of a run that one simulation can take; nothing for all of it.

    Checkpoints and evaluations are as frequent in it as in the run, if that is possible. A run without any has whole
    epochs.
    """
    ranks, steps, fewest = derive.world_size(scenario), derive.epoch_steps(scenario), FEWEST_STEPS
    fewest += scenario.train.warmup_steps
    most = max((rank_steps or MOST_RANK_STEPS) // ranks, fewest)
    if steps.total <= most:
        return {}
    epochs = max(1, steps.number_done(most))
    if isinstance(steps.each, tuple):
        return {"epochs": epochs, "steps": steps.each[:epochs] if epochs > 1 else min(steps.each[0], most)}
    if events := _events(scenario):
        epochs, left = divmod(_alike(events, max(most // 2, fewest), most), steps.each)
        return {
            "epochs": epochs + (left > 0),
            "steps": (*[steps.each] * epochs, left) if epochs and left else left or steps.each,
        }
    return {"epochs": epochs, "steps": min(steps.each, most)}


def _events(scenario: Scenario) -> list[Schedule]:
    """Return when checkpoints are saved and evaluations made, in steps; without those that the clock decides."""
    periods = [section.every for section in (scenario.checkpoint, scenario.train.evaluate) if section is not None]
    schedules = [derive.schedule(scenario, each) for each in periods if each is not None and each.seconds is None]
    return [each for each in schedules if each.number]


def _alike(events: Sequence[Schedule], fewest: int, most: int) -> int:
    """Return a number of first steps in which events are as frequent as in the run; the largest of equal ones."""
    errors = {
        steps: sum(abs(each.number_in(steps) * each.steps.total / (steps * each.number) - 1) for each in events)
        for steps in range(most, fewest - 1, -1)
    }
    least = min(errors.values())
    return next(steps for steps, error in errors.items() if error <= least + ALIKE)


def _ends_within(scenario: Scenario, train: Mapping[str, Any]) -> bool:
    """Return True if a run that was cut to these epochs and steps ends within an epoch."""
    if not train:
        return False
    last = train["steps"][-1] if isinstance(train["steps"], tuple) else train["steps"]
    return bool(last < derive.epoch_steps(scenario).of(train["epochs"] - 1))


def _enter(times: Floats, work: WorkDone, places: Places, kinds: list[int]) -> None:
    """Enter the time of some kinds of work by rank, epoch and step, of the last attempt that has any."""
    chosen = np.flatnonzero(np.isin(work.did.kind, kinds) & (work.place >= 0))
    where = groups_by(work.place[chosen])
    number = np.zeros(int(where.max(initial=-1)) + 1, np.int64)
    number[where] = work.place[chosen]
    seconds = np.zeros(len(number))
    np.add.at(seconds, where, (work.did.end - work.did.start)[chosen] / 1e9)
    _, rank, epoch, step = places.parts(number)
    shape = times.shape
    held = (rank < shape[0]) & (epoch < shape[1]) & (step < shape[2])
    times[rank[held], epoch[held], step[held]] = seconds[held]  # numbers ascend, so a later attempt overwrites


def addressed(
    seed: int, kind: str, times: Floats, *, first_epochs: int | None = None, of_epochs: int | None = None
) -> dict[int, Floats]:
    """Return the times of each rank and epoch by the key of the address at which they are drawn.

    Where a run of ``of_epochs`` training epochs is cut to its ``first_epochs``, evaluations are numbered on from those.
    """
    ranks, epochs, _ = times.shape
    kept = [*range(epochs)]
    if first_epochs is not None and of_epochs is not None:
        del kept[first_epochs:of_epochs]
    return {
        seeds.key(seed, kind, rank, number): times[rank, epoch]
        for rank in range(ranks)
        for number, epoch in enumerate(kept)
    }


def _writes(saves: pa.Table, scenario: Scenario) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the seconds of each file of full checkpoints, and of increments, and of each drain of both."""
    is_drain = is_text(saves, "name", "drain") & is_text(saves, "status", "ok")
    drains = integers(saves, "duration_ns")[is_drain] / 1e9
    name, length = texts(saves, "name", SAVING), integers(saves, "duration_ns")
    is_writer = (texts(saves, "role", ("checkpoint_writer",)) == 0) & (integers(saves, "lane") == 0)
    writes, others = length[is_writer & (name == 0)] / 1e9, length[is_writer & (name >= 1)] / 1e9
    each: Floats = writes + (others.sum() / len(writes) if len(writes) else 0.0)
    saved = scenario.checkpoint
    if saved is None or saved.incremental is None:
        return each, np.empty(0), drains, np.empty(0)
    is_whole = is_full(saves, saved.incremental.fraction)
    full, drained = is_whole[is_writer & (name == 0)], is_whole[is_drain]
    return each[full], each[~full], drains[drained], drains[~drained]


def _costs(slices: Slices, charged: Attribution, scenario: Scenario, saves: pa.Table) -> Costs:
    """Return the costs of the engine's messages and wake-ups, as ``rayio calibrate`` measures them."""
    loader = scenario.loader
    window, _ = find_window(charged.lives, charged.steps, RunShape.of(scenario))
    parts = []
    for part in slices.parts(*observe.OF_BATCHES):
        read = observe.reads(part)
        has_queue = np.full(len(read.batch), loader.max_workers > 0)
        parts.append(
            observe.batches(
                part, read.of(has_queue), derive.window_steps(scenario), network=scenario.cluster.has_network
            )
        )
    measured = costs_of(
        concatenated(parts),
        charged.steps,
        window.begin if window else 0,
        payload=False,
        backlog=loader.assignment != "dynamic" and loader.prefetch_factor > 1,
        meetings=meetings_of(scenario),
    )
    return measured.model_copy(update={"checkpoint": _message_of_checkpoints(saves)})


def _message_of_checkpoints(spans: pa.Table) -> float:
    """Return the seconds of checkpoints beyond their slowest writer; 0 for asynchronous ones."""
    name = texts(spans, "name", (*SAVING, "checkpoint", "snapshot"))
    if (name == 4).any():
        return 0.0
    role = texts(spans, "role", ("checkpoint_writer", "rank"))
    lane, batch, length = (integers(spans, column) for column in ("lane", "batch", "duration_ns"))
    works = np.flatnonzero((role == 0) & (lane == 0) & (name >= 0) & (name <= 2))
    saves = np.flatnonzero((role == 1) & (name == 3))
    shard, of = np.unique(np.stack([batch[works], observe.numbers(spans, "index")[works]]), axis=1, return_inverse=True)
    taken = np.zeros(shard.shape[1], np.int64)
    np.add.at(taken, of.reshape(-1), length[works])
    slowest = Lookup(shard[0], taken).find(batch[saves])
    known = slowest >= 0  # a rank with fewer steps saves some after another step than the files' own
    return round(typical((length[saves] - pick(taken, slowest, length[saves]))[known])) / 1e9
