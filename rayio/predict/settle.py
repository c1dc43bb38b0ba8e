"""Costs that were read off a busy machine -> those of a free one: the run is simulated, and has to look as it did.

What a message took in a run holds the time for which it waited for a processor. On the virtual clock it waits again,
with ``cluster.cores``, and what is read off the simulated run is that much larger than what was put in. So costs are
moved by the difference, a few times, until the simulated run shows what the real one did (indirect inference).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from rayio.predict.processors import in_background
from rayio.scenario.model import Costs

#: How often costs are moved, each by itself and then together; and by which part of what they are off.
ROUNDS, BOLD = 8, 0.5
#: What a batch waits for on its way.
ON_THE_WAY = ("lease", "put", "take")
#: What may be moved: latencies that contain waiting for a processor.
MOVED = ("lease", "put", "take", "receive", "barrier", "step", "checkpoint")
#: Differences of this share of what was seen, or of so many seconds, are none.
NEAR, NEAR_SECONDS = 0.02, 20e-6
#: Shares of what processors do beside reading that may hold up no batch.
BESIDE = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Free:
    """What is moved: costs, and what storage takes of a read by itself, on average (s); None where that is known."""

    costs: Costs
    storage: float | None


@dataclass(frozen=True, slots=True)
class Apparent:
    """What a run shows: its costs, the mean time of a read, and that of a step (s)."""

    costs: Costs
    read: float
    step: float


#: Simulates a run with given times, and reads off it what it shows.
Live = Callable[[Free], Apparent]


def settle(free: Free, seen: Apparent, live: Live) -> tuple[Free, Apparent]:
    """Move costs, and the time of storage, until the simulated run shows what was ``seen``.

    The second answer is what the simulated run shows in the end: of all that were tried, the one whose steps take most
    nearly as long.
    """
    tried = [(free, live(free))]
    for _ in range(ROUNDS):
        moved = _moved(*tried[-1], seen)
        if moved is None:
            break
        tried.append((moved, live(moved)))
    # Costs hide each other: what is left is the length of a step, which messages on their way make longer or shorter.
    for _ in range(ROUNDS):
        free, shown = min(tried, key=lambda one: abs(one[1].step - seen.step))
        if abs(shown.step - seen.step) <= NEAR * seen.step / 4:
            break
        costs = free.costs
        factor = 1 + BOLD * (seen.step - shown.step) / max(_on_the_way(costs), NEAR_SECONDS)
        longer = {name: round(getattr(costs, name) * min(2.0, max(0.5, factor)), 9) for name in ON_THE_WAY}
        moved = replace(free, costs=costs.model_copy(update=longer))
        tried.append((moved, live(moved)))
    return min(tried, key=lambda one: abs(one[1].step - seen.step))


def beside_batches(free: Free, shown: Apparent, seen: Apparent, live: Live, per_second: float) -> tuple[Free, Apparent]:
    """Have part of what processors did go on all the time, where simulated steps take longer than those ``seen``.

    Then work that is said to come with each batch holds up others, and in the run it did not. ``per_second`` is how
    many batches a node had a second.
    """
    if shown.step <= (1 + NEAR / 4) * seen.step:
        return free, shown
    tried = [(free, shown)]
    for share in BESIDE:
        cpu = in_background(free.costs.cpu, share, per_second)
        moved = replace(free, costs=free.costs.model_copy(update={"cpu": cpu}))
        tried.append((moved, live(moved)))
    return min(tried, key=lambda one: abs(one[1].step - seen.step))


def _on_the_way(costs: Costs) -> float:
    return float(sum(getattr(costs, name) for name in ON_THE_WAY))


def _moved(free: Free, shown: Apparent, seen: Apparent) -> Free | None:
    """The same with each time moved half of what it is off; None where all are near."""
    costs, storage = free.costs, free.storage
    changed = {}
    for name in MOVED:
        off = BOLD * (getattr(seen.costs, name) - getattr(shown.costs, name))
        if abs(off) > max(NEAR_SECONDS, NEAR * getattr(seen.costs, name)):
            now = max(0.0, getattr(costs, name) + off)
            if now != getattr(costs, name):
                changed[name] = round(now, 9)
    off = BOLD * (seen.read - shown.read)
    if storage is not None and abs(off) > max(NEAR_SECONDS, NEAR * seen.read):
        storage = max(0.0, storage + off)
    if changed.get("step", costs.cpu.step) < costs.cpu.step:  # work is a part of it
        rank = round(costs.cpu.rank + costs.cpu.step - changed["step"], 9)
        costs = costs.model_copy(update={"cpu": costs.cpu.model_copy(update={"step": changed["step"], "rank": rank})})
    if not changed and storage == free.storage:
        return None
    return Free(costs.model_copy(update=changed), storage)
