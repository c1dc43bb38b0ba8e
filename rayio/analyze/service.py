"""The capacity of each stage of the workers and the demand of the ranks: service times without queueing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayio.analyze.delays import columns_of, delays
from rayio.analyze.intervals import Occupied
from rayio.analyze.part import COLUMNS, KINDS, Part, groups, pinned
from rayio.analyze.rounds import PREPARING
from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import Ints, Lives, StepsInSlices, integers, is_text, texts
from rayio.analyze.window import Noted, Window, find_window
from rayio.records.explained import Capacity, Stage, StorageLimit
from rayio.trace.arrow import plain, taken
from rayio.trace.order import groups_by, sums_by

if TYPE_CHECKING:
    import pyarrow as pa


class Capacities:
    """The capacity of each stage of the workers, and the demand of the ranks, in batches per second.

    ``readers`` is how many the run had; without any, ranks read themselves and are the workers; ``window`` is the
    measured part of the run, where it is known; ``names`` are those of the run's spans. A stage's capacity is that of
    all workers if they did nothing else; the row ``worker`` is all stages one after the other. Utilisation is the busy
    time in the window, per worker.
    """

    def __init__(
        self,
        lives: Lives,
        steps: StepsInSlices,
        shape: RunShape,
        readers: int,
        window: Noted | None = None,
        names: Collection[str] = (),
    ) -> None:
        self.lives, self.steps, self.readers = lives, steps, readers
        self.columns = (*COLUMNS, *columns_of(names))
        self.workers = readers or shape.world_size
        self.window = (window or find_window(lives, steps, shape))[0] or _everything(steps)
        self._service, self._busy, self._number = Counter[str](), Counter[str](), 0
        self._writers, self._pins = _Writers(), _Pins()

    def of(self, part: Part) -> tuple[Counter[str], Counter[str], int, _Writers, _Pins]:
        """Return the work of a slice."""
        service, busy, writers, pins = Counter[str](), Counter[str](), _Writers(), _Pins()
        writers.count(part.spans, self.window)
        pins.count(part, self.window)
        return service, busy, _count(part, self.window, service, busy), writers, pins

    def add(self, sums: tuple[Counter[str], Counter[str], int, _Writers, _Pins]) -> None:
        """Add the work of a slice."""
        service, busy, number, writers, pins = sums
        self._pins.add(pins)
        self._service.update(service)
        self._busy.update(busy)
        self._number += number
        self._writers.add(writers)

    def result(self) -> Capacity:
        """Return the capacities over all slices."""
        steps, window = self.steps, self.window
        arrived, stretches = 0, max(1, min(MOST_STRETCHES, steps.number // LEAST_STEPS))
        computed, number, waited = np.zeros((3, stretches), np.int64)
        for some in steps.by_slice():
            whole = window.whole(some)
            stretch = (some.start[whole] - window.begin) * stretches // (window.end - window.begin)
            stretch = np.minimum(stretch, stretches - 1)  # a step of no time may begin where the window ends
            for name in ("compute", *PREPARING):
                computed += sums_by(stretch, some.parts[name][whole], stretches)
            waited += sums_by(stretch, some.parts["data_wait"][whole], stretches)
            number += np.bincount(stretch, minlength=stretches)
            arrived += int(window.holds(some.arrived).sum())
        demand, mean = _demand(len(self.lives.rank), computed, number, waited)
        delaying = [cause for cause in self._service if cause not in _ROWS]
        rows = [
            _stage(stage, self._service[stage] / self._number, self._busy[stage], self.workers, window)
            for stage in (*_ROWS[:-1], *delaying, "worker")
            if self._service[stage]
        ]  # fmt: skip
        rows += [row for row in (self._pins.row(window), self._writers.row(window)) if row is not None]
        delivered = arrived / window.seconds
        late = None if mean is not None else _late(number * stretches / window.seconds, waited)
        return Capacity(
            demand=demand, delivered=delivered, has_readers=self.readers > 0, stages=(*rows,), mean_demand=mean,
            delivered_late=late,
        )  # fmt: skip


#: The most stretches of time whose demands are compared, and the fewest steps of each on average.
MOST_STRETCHES, LEAST_STEPS = 20, 100
#: Share by which demand differs between stretches by chance.
UNEVEN = 0.1


def _demand(ranks: int, computed: Ints, number: Ints, waited: Ints) -> tuple[float | None, float | None]:
    """Return the demand of ranks where they waited, and that of all steps if it is clearly lower; in batches/s.

    ``computed`` (ns), ``number`` of steps and ``waited`` (ns) are those of each stretch of the run. The compute of a
    stretch weighs as much as the waits in it.
    """
    if not computed.any():
        return None, None
    mean, took = ranks * number.sum() / (computed.sum() / 1e9), computed / np.maximum(number, 1) / 1e9
    where_waited = ranks * waited.sum() / max((took * waited).sum(), 1e-9)
    return (float(where_waited), float(mean)) if where_waited > (1 + UNEVEN) * mean else (float(mean), None)


def _late(rates: NDArray[np.float64], waited: Ints) -> float | None:
    """Return the rate of steps while ranks wait, if it is clearly lower than the mean of all stretches; else None."""
    if not waited.any():
        return None
    where_waited = float((rates * waited).sum() / waited.sum())
    return where_waited if where_waited < (1 - UNEVEN) * rates.mean() else None


#: Stages with a row each, and all of them one after the other.
_ROWS = (*dict.fromkeys(KINDS), "worker")


def _count(part: Part, window: Window, service: Counter[str], busy: Counter[str]) -> int:
    """Add up by stage the ns of the window's batches and of all its work; return the number of those batches."""
    work = part.work
    did = work.did
    batch = groups_by(work.place)
    begun = np.full(int(batch.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begun, batch, did.start)
    inside = window.holds(begun)[batch] & (work.place >= 0)
    length = did.end - did.start
    at_work = np.maximum(np.minimum(did.end, window.end) - np.maximum(did.start, window.begin), 0)
    for code, stage in enumerate(KINDS):
        mine = did.kind == code
        served, worked = int(length[mine & inside].sum()), int(at_work[mine].sum())
        for row in (stage, "worker"):
            service[row] += served
            busy[row] += worked
    # Delays by layers are parts of the reads that they belong to.
    for cause, chosen in delays(part.spans, "reader", "rank").items():
        start = integers(part.spans, "start_ns", chosen)
        took = integers(part.spans, "duration_ns", chosen)
        served, within = int(took[window.holds(start)].sum()), np.minimum(start + took, window.end)
        service[cause] += served
        busy[cause] += int(np.maximum(within - np.maximum(start, window.begin), 0).sum())
        service["read"] -= served
        busy["read"] -= busy[cause]
    return int(np.bincount(batch[inside]).astype(np.bool_).sum())


def _everything(steps: StepsInSlices) -> Window:
    edges = [(int(some.start.min()), int(some.end.max())) for some in steps.by_slice() if some.number]
    begin = min((begin for begin, _ in edges), default=0)
    return Window(begin, max([0, begin + 1, *(end for _, end in edges)]))


def _stage(stage: str, service_ns: float, busy_ns: int, parallelism: int, window: Window) -> Stage:
    return Stage(
        stage=stage,
        service_seconds=service_ns / 1e9,
        parallelism=parallelism,
        capacity=parallelism / service_ns * 1e9,
        utilisation=busy_ns / 1e9 / (parallelism * window.seconds),
    )


class _Writers:
    def __init__(self) -> None:
        self.files = self.busy = 0
        self.who: set[str] = set()

    def count(self, spans: pa.Table, window: Window) -> None:
        is_write = is_text(spans, "name", "write", "fsync", "serialise") & is_text(spans, "role", "checkpoint_writer")
        chosen = np.flatnonzero(is_write & (plain(spans.column("lane")) == 0))
        if not len(chosen):
            return
        chosen = chosen[window.holds(integers(spans, "start_ns", chosen))]
        self.files += int((texts(spans, "name", ("write",), chosen) == 0).sum())
        self.busy += int(integers(spans, "duration_ns", chosen).sum())
        self.who.update(taken(spans.select(["index"]), chosen)["index"].to_pylist())

    def add(self, others: _Writers) -> None:
        self.files += others.files
        self.busy += others.busy
        self.who |= others.who

    def row(self, window: Window) -> Stage | None:
        if not self.files or not self.busy:
            return None
        return _stage("writer", self.busy / self.files, self.busy, len(self.who), window)


class _Pins:
    """The threads that copy batches into page-locked memory: one for each queue, busy while a batch waits for it."""

    def __init__(self) -> None:
        self.batches = self.busy = 0
        self.who: set[int] = set()

    def count(self, part: Part, window: Window) -> None:
        chosen = pinned(part.spans)
        if not len(chosen):
            return
        queue = groups(part.spans, np.zeros(len(chosen), np.int32), chosen)
        ends = part.over[chosen]
        self.batches += int(window.holds(ends).sum())
        self.who.update(np.unique(queue).tolist())
        busy = Occupied.union(queue, part.begin[chosen], ends)
        self.busy += int(np.maximum(np.minimum(busy.end, window.end) - np.maximum(busy.start, window.begin), 0).sum())

    def add(self, others: _Pins) -> None:
        self.batches += others.batches
        self.busy += others.busy
        self.who |= others.who

    def row(self, window: Window) -> Stage | None:
        if not self.batches or not self.busy:
            return None
        return _stage("pin", self.busy / self.batches, self.busy, len(self.who), window)


def without_queueing(capacity: Capacity, limit: StorageLimit, parsing: float = 0.0) -> Capacity:
    """Return the capacity of stages on storage whose limits are known, without queueing at the device.

    ``read`` is then the time on an idle device, with the ``parsing`` of a batch (s) on a free core; ``storage`` the
    limit that all share; and ``worker`` the lower of that and of a worker's stages.
    """
    rows, alone = [], limit.alone_seconds + parsing
    measured = next((row.service_seconds for row in capacity.stages if row.stage == "read"), 0.0)
    for row in capacity.stages:
        if row.stage not in ("read", "worker") or not measured:
            rows.append(row)
            continue
        service = row.service_seconds - measured + alone
        can_do = row.parallelism / service if service > 0 else row.capacity
        if row.stage == "worker" and limit.shared_gives is not None:
            can_do = min(can_do, limit.shared_gives)
        rows.append(replace(row, service_seconds=service, capacity=can_do))
        if row.stage == "read" and limit.shared_gives is not None:
            rows.append(
                Stage(
                    stage="storage",
                    service_seconds=limit.systems / limit.shared_gives,
                    parallelism=limit.systems,
                    capacity=limit.shared_gives,
                    utilisation=min(capacity.delivered / limit.shared_gives, 1.0),
                )
            )
    return replace(capacity, stages=(*rows,), storage=limit)
