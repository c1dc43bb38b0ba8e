"""A run as a scenario whose every time is what the run measured: the virtual engine then lives the run again.

Times are replayed at their own address (rank, epoch, step), so that ranks keep their differences and a slow batch stays
where it was; what the run did not record is drawn from all that it did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.analyze.intervals import Lookup
from rayio.analyze.stages import KINDS, WORK, Places, Work
from rayio.analyze.stalls import Attribution
from rayio.analyze.timeline import Ints, integers, texts
from rayio.scenario import derive
from rayio.scenario.model import Costs, Scenario, StorageParameters, Trace
from rayio.scenario.phases import Every
from rayio.storage.model import REQUESTS_PER_STEP_BITS

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]

#: Rank-steps that one simulation may have; of longer runs the beginning is simulated.
MOST_RANK_STEPS = 10_000
#: Steps that are simulated at least.
FEWEST_STEPS = 12

#: Bytes per second that are no limit.
UNLIMITED = 1e18

_READING = [KINDS.index(name) for name in ("open", "read", "retry")]
_DECODING = [KINDS.index(name) for name in ("decode", "collate")]


class Recorded:  # not a Distribution: it is never part of a scenario that anybody writes or reads
    """Times in place of a distribution: of each step as it was measured, else drawn from all that were.

    A step has ``places`` indices, and its whole time lies on the first of them. At an address that is no step's (a file
    that is written) ``otherwise`` is drawn from.
    """

    def __init__(self, rows: Mapping[int, Floats], places: int, otherwise: Floats) -> None:
        self.rows = rows
        self.places = places
        measured = [row[~np.isnan(row)] for row in rows.values()]
        self.pool = np.concatenate(measured) if measured else np.empty(0)
        self.otherwise = otherwise if len(otherwise) else np.zeros(1)

    @property
    def expected(self) -> float:
        """Mean of what was measured."""
        return float(self.pool.mean()) if len(self.pool) else 0.0

    def draw(self, address_key: int, index: Ints) -> Floats:
        """Give the time of each index below an address, in seconds."""
        row = self.rows.get(address_key)
        pool = self.otherwise if row is None else self.pool if len(self.pool) else np.zeros(1)
        drawn = pool[(seeds.uniform(address_key, index) * len(pool)).astype(np.int64)]
        if row is not None and len(row):
            step = np.minimum(index // self.places, len(row) - 1)
            known = row[step]
            drawn = np.where(np.isnan(known) | (index // self.places >= len(row)), drawn, known)
        times: Floats = np.where(index % self.places == 0, drawn, 0.0)
        return times


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run measured, in seconds: arrays of the shape (ranks, epochs, steps), NaN where nothing was recorded."""

    compute: Floats
    read: Floats
    decode: Floats
    #: Of one checkpoint file, with its fsync.
    write: Floats
    costs: Costs
    has_work: bool

    @classmethod
    def of(cls, spans: pa.Table, charged: Attribution, scenario: Scenario, *, costs: Costs | None) -> Measured:
        """Take the times out of a run's spans; ``costs`` are the messages', None to measure them too."""
        spans = spans.unify_dictionaries()
        steps = charged.steps
        shape = (derive.world_size(scenario), scenario.train.epochs, derive.steps_per_epoch(scenario))
        compute = np.full(shape, np.nan)
        rank = charged.lives.rank[steps.life]
        held = (rank < shape[0]) & (steps.epoch < shape[1]) & (steps.step < shape[2])
        compute[rank[held], steps.epoch[held], steps.step[held]] = steps.parts["compute"][held] / 1e9
        leases = np.flatnonzero(texts(spans, "name", ("lease",)) == 0)
        begin, length = integers(spans, "start_ns"), integers(spans, "duration_ns")
        places = Places(spans)
        ready = Lookup(places.of(leases), (begin + length)[leases])
        work = Work.of(spans, places, ready, (begin + length)[leases])
        read, decode = (_of_batches(work, places, numbers, shape) for numbers in (_READING, _DECODING))
        # A batch that was read and has no decode span took no time to decode.
        decode = np.where(np.isnan(decode) & ~np.isnan(read), 0.0, decode)
        has_work = bool((~np.isnan(read)).any())
        if costs is None:
            granted = Lookup(places.of(leases), begin[leases])
            costs = _costs(charged, places, work, ready, granted, begin[leases], (begin + length)[leases])
        return cls(compute, read, decode, _writes(spans, length), costs, has_work)

    def replayed(self, scenario: Scenario, *, modelled: StorageParameters | None) -> Scenario:
        """Give the scenario with these times in it, cut to what one simulation may take.

        ``modelled`` is the storage that the run had, where it was a model: it then serves here too, and knows what more
        readers would get. Real storage is replayed as it was.
        """
        seed = scenario.seed
        batch_size = scenario.loader.batch_size
        compute = Recorded(addressed(seed, "compute", self.compute), 1, np.empty(0))
        decode = Recorded(addressed(seed, "decode", self.decode), batch_size, np.empty(0))
        first_byte = Recorded(addressed(seed, "first_byte", self.read), 1 << REQUESTS_PER_STEP_BITS, self.write)
        real: dict[str, Any] = {"first_byte": first_byte, "connection_bandwidth": UNLIMITED, "bandwidth": UNLIMITED}
        storage = modelled or StorageParameters.model_construct(**real)
        train: dict[str, Any] = {"compute": compute, "stragglers": None}
        sections: dict[str, Any] = {
            "storage": scenario.storage.model_copy(update={"model": storage}),
            "loader": scenario.loader.model_copy(update={"decode": decode}),
            "trace": Trace(),
        }
        if scenario.checkpoint is not None:  # in steps, which a cut epoch does not change
            every = Every(steps=derive.checkpoint_period(scenario))
            sections["checkpoint"] = scenario.checkpoint.model_copy(update={"every": every})
        train |= _cut(scenario)
        sections["train"] = scenario.train.model_copy(update=train)
        return scenario.model_copy(update={**sections, "costs": self.costs})


def _cut(scenario: Scenario) -> dict[str, int]:
    """Cut epochs, and if one is too long its steps, to what one simulation may take."""
    ranks, steps = derive.world_size(scenario), derive.steps_per_epoch(scenario)
    most = max(MOST_RANK_STEPS // ranks, FEWEST_STEPS + scenario.train.warmup_steps)
    if steps * scenario.train.epochs <= most:
        return {}
    return {"epochs": max(1, most // steps), "steps": min(steps, most)}


def _of_batches(work: Work, places: Places, kinds: list[int], shape: tuple[int, ...]) -> Floats:
    """Sum the work of some kinds by batch, of the last attempt that has any."""
    chosen = np.flatnonzero(np.isin(work.did.kind, kinds) & (work.place >= 0))
    number, where = np.unique(work.place[chosen], return_inverse=True)
    seconds = np.zeros(len(number))
    np.add.at(seconds, where, (work.did.end - work.did.start)[chosen] / 1e9)
    times = np.full(shape, np.nan)
    _, rank, epoch, step = places.parts(number)
    held = (rank < shape[0]) & (epoch < shape[1]) & (step < shape[2])
    times[rank[held], epoch[held], step[held]] = seconds[held]  # numbers ascend, so a later attempt overwrites
    return times


def addressed(seed: int, kind: str, times: Floats) -> dict[int, Floats]:
    """Give the times of each rank and epoch by the key of the address at which they are drawn."""
    ranks, epochs, _ = times.shape
    nothing = np.empty(0)  # what is read beyond the epochs of training is drawn from all that was read
    return {
        seeds.key(seed, kind, rank, epoch): times[rank, epoch] if epoch < epochs else nothing
        for rank in range(ranks)
        for epoch in range(2 * epochs)
    }


def _writes(spans: pa.Table, length: Ints) -> Floats:
    """Give the seconds of checkpoint files, each with a mean fsync."""
    name = texts(spans, "name", ("write", "fsync"))
    is_writer = (texts(spans, "role", ("checkpoint_writer",)) == 0) & (integers(spans, "lane") == 0)
    writes, syncs = length[is_writer & (name == 0)] / 1e9, length[is_writer & (name == 1)] / 1e9
    each: Floats = writes + (syncs.sum() / len(writes) if len(writes) else 0.0)
    return each


def _costs(
    charged: Attribution, places: Places, work: Work, ready: Lookup, granted: Lookup, begin: Ints, end: Ints
) -> Costs:
    """Measure what messages cost (medians): a lease on its way, what keeps a worker busy after, the way to the rank."""
    did = work.did
    is_work = did.kind < len(WORK)
    group, place, start, over = did.group[is_work], work.place[is_work], did.start[is_work], did.end[is_work]
    if len(start) < 2 or not len(begin):
        return Costs()
    first = np.flatnonzero((np.diff(place, prepend=-2) != 0) | (np.diff(group, prepend=-1) != 0))
    last = np.append(first[1:], len(start)) - 1
    at, of_lease = granted.find(place[first]), ready.find(place[first])
    free = np.append(np.iinfo(np.int64).min, over[last][:-1])
    free[np.diff(group[first], prepend=-1) != 0] = np.iinfo(np.int64).min
    known = (at >= 0) & (of_lease >= 0)
    grant, done = np.where(known, begin[at], 0), np.where(known, end[of_lease], 0)
    was_busy = known & (grant < free)
    put = _median((start[first] - free)[was_busy])
    lease = _median((start[first] - grant)[known & ~was_busy])
    way = _median((done - over[last])[known])
    steps = charged.steps
    waited = ready.find(places.of_batches(charged.lives, steps))
    at_rank = (steps.arrived - np.where(waited >= 0, end[waited], 0))[
        (waited >= 0) & (end[waited] > steps.start) & (end[waited] <= steps.arrived)
    ]
    take = max(way - put, 0.0) + _median(at_rank)
    return Costs(lease=max(lease, 0.0), put=max(put, 0.0), take=max(take, 0.0))


def _median(times: Ints) -> float:
    return float(np.median(times)) / 1e9 if len(times) else 0.0
