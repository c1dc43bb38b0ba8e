"""Costs on a busy machine -> costs on a free one: simulated until the run shows its measured times.

The measured time of a message contains its wait for a processor. On the virtual clock it waits again, with
``cluster.cores``, so that the simulated run shows longer times than its costs. So costs are moved by the difference, a
few times, until the simulated run shows the real one's times (indirect inference).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rayio.predict.processors import in_background
from rayio.scenario.model import Costs

#: Rounds of adjustments, of each cost and then of all together; and the part of the error that each corrects.
ROUNDS, BOLD = 8, 0.5
ON_THE_WAY = ("lease", "put", "take")
#: Costs that contain waiting for a processor.
MOVED = ("lease", "put", "take", "receive", "neighbour", "barrier", "step", "checkpoint")
#: Errors below this share, or below so many seconds, are ignored.
NEAR, NEAR_SECONDS = 0.02, 20e-6
#: A change of costs that corrects a smaller share of the error of a step's length says nothing about them.
HIDDEN = 0.1
#: A cost of neighbours has to correct this share of it: it is hidden where ranks wait for batches.
MOSTLY = 0.5
#: Shares of CPU time other than reading that may not delay batches.
BESIDE = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Free:
    """Values to adjust: costs, and the mean time of storage in a read (s); None where that is known."""

    costs: Costs
    storage: float | None


@dataclass(frozen=True, slots=True)
class Apparent:
    """Values that a run shows: its costs, the mean time of a read, and that of a step (s)."""

    costs: Costs
    read: float
    step: float


#: Simulates a run with given values, and returns those that it shows.
Live = Callable[[Free], Apparent]


@dataclass(frozen=True, slots=True)
class Most:
    """Upper bounds (s): of single costs, and of put, take and receive together, with ``others`` on a rank's node."""

    each: Mapping[str, float] = field(default_factory=dict)
    way: float = math.inf
    others: int = 0

    def of(self, costs: Costs) -> Costs:
        """Return the costs, none above its bound."""
        costs = costs.model_copy(update={name: min(getattr(costs, name), bound) for name, bound in self.each.items()})
        over = costs.put + costs.take + costs.next_to(self.others).receive - self.way
        if over <= 0:
            return costs
        work = costs.put if costs.cpu.put is None else min(costs.put, costs.cpu.put)
        put = max(work, costs.put - over)  # beyond its work, it waited
        take = max(0.0, costs.take - over + costs.put - put)
        return costs.model_copy(update={"put": round(put, 9), "take": round(take, 9)})


def settle(free: Free, seen: Apparent, live: Live, known: Collection[str], most: Most) -> tuple[Free, Apparent]:
    """Return costs and the time of storage with which the simulated run shows the values ``seen``, and its own values.

    Among all tried costs, those whose steps have the closest length are returned, and of about equal ones the last:
    hidden costs show in the times of their messages alone. Costs that are ``known`` stay, and
    others stay below their bounds.
    """
    tried = [(free, live(free))]
    for _ in range(ROUNDS):
        moved = _moved(*tried[-1], seen, [name for name in MOVED if name not in known])
        if moved is None:
            break
        moved = replace(moved, costs=most.of(moved.costs))
        tried.append((moved, live(moved)))
    if seen.costs.neighbour and "neighbour" not in known:  # ranks wait for the slowest too: the length of a step has it
        for _ in range(ROUNDS):
            free, shown = _close(tried, seen)[-1]
            off = seen.step - shown.step
            if abs(off) <= NEAR * seen.step / 4:
                break
            more = round(max(0.0, free.costs.neighbour + off / max(1, most.others)), 9)
            moved = replace(free, costs=most.of(free.costs.model_copy(update={"neighbour": more})))
            now = live(moved)
            if abs(now.step - shown.step) < MOSTLY * abs(off):
                break
            tried.append((moved, now))
    # Costs hide each other: then the length of a step decides, which messages on their way change.
    for _ in range(ROUNDS):
        free, shown = _close(tried, seen)[-1]
        if abs(shown.step - seen.step) <= NEAR * seen.step / 4:
            break
        costs = free.costs
        way = {name: getattr(costs, name) for name in ON_THE_WAY if name not in known}
        factor = 1 + BOLD * (seen.step - shown.step) / max(sum(way.values()), NEAR_SECONDS)
        longer = {name: round(value * min(2.0, max(0.5, factor)), 9) for name, value in way.items()}
        moved = replace(free, costs=most.of(costs.model_copy(update=longer)))
        now = live(moved)
        if abs(now.step - shown.step) < HIDDEN * abs(seen.step - shown.step):
            break  # they are hidden, so that the length of a step does not tell them
        tried.append((moved, now))
    return _close(tried, seen)[-1]


def beside_batches(free: Free, shown: Apparent, seen: Apparent, live: Live, per_second: float) -> tuple[Free, Apparent]:
    """Return costs with part of the CPU time as permanent work, where simulated steps take longer than those ``seen``.

    Then work that is charged to batches delays others, and in the run it did not. ``per_second`` is how many batches a
    node had a second.
    """
    if shown.step <= (1 + NEAR / 4) * seen.step:
        return free, shown
    tried = [(free, shown)]
    for share in BESIDE:
        cpu = in_background(free.costs.cpu, share, per_second)
        moved = replace(free, costs=free.costs.model_copy(update={"cpu": cpu}))
        tried.append((moved, live(moved)))
    return min(tried, key=lambda trial: abs(trial[1].step - seen.step))


def _close(tried: Sequence[tuple[Free, Apparent]], seen: Apparent) -> list[tuple[Free, Apparent]]:
    """Return the trials whose steps are closest to those ``seen``, within a share that does not matter."""
    least = min(abs(shown.step - seen.step) for _, shown in tried)
    return [trial for trial in tried if abs(trial[1].step - seen.step) <= least + NEAR / 4 * seen.step]


def _moved(free: Free, shown: Apparent, seen: Apparent, names: Iterable[str]) -> Free | None:
    costs, storage = free.costs, free.storage
    changed = {}
    for name in names:
        off = BOLD * (getattr(seen.costs, name) - getattr(shown.costs, name))
        near = 0.0 if name == "neighbour" else NEAR * getattr(seen.costs, name)  # it is a small part of what is seen
        if abs(off) > max(NEAR_SECONDS, near):
            now = max(0.0, getattr(costs, name) + off)
            if now != getattr(costs, name):
                changed[name] = round(now, 9)
    off = BOLD * (seen.read - shown.read)
    if storage is not None and abs(off) > max(NEAR_SECONDS, NEAR * seen.read):
        storage = max(0.0, storage + off)
    if changed.get("step", costs.cpu.step) < costs.cpu.step:  # work is part of the step's cost
        rank = round(costs.cpu.rank + costs.cpu.step - changed["step"], 9)
        costs = costs.model_copy(update={"cpu": costs.cpu.model_copy(update={"step": changed["step"], "rank": rank})})
    if not changed and storage == free.storage:
        return None
    return Free(costs.model_copy(update=changed), storage)
