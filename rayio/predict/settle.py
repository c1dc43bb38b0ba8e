"""Costs that were read off a busy machine -> those of a free one: the run is simulated, and has to look as it did.

What a message took in a run holds the time for which it waited for a processor. On the virtual clock it waits again,
with ``cluster.cores``, and what is read off the simulated run is that much larger than what was put in. So costs are
moved by the difference, a few times, until the simulated run shows what the real one did (indirect inference).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayio.pipeline import simulation
from rayio.pipeline.planning import plan_of
from rayio.predict.replay import cut
from rayio.scenario.distribution import Constant, Distribution, LogNormal
from rayio.scenario.model import Costs, Scenario, StorageParameters

if TYPE_CHECKING:
    import pyarrow as pa

#: How often costs are moved, each by itself and then together; and by which part of what they are off.
ROUNDS, BOLD = 8, 0.5
#: What a batch waits for on its way.
ON_THE_WAY = ("lease", "put", "take")
#: What may be moved: latencies that contain waiting for a processor.
MOVED = ("lease", "put", "take", "receive", "barrier", "step", "checkpoint")
#: Differences of this share of what was seen, or of so many seconds, are none.
NEAR, NEAR_SECONDS = 0.02, 20e-6


@dataclass(frozen=True, slots=True)
class Apparent:
    """What a run shows: its costs, the mean time and number of requests of a read, and the time of a step (s)."""

    costs: Costs
    read: float
    requests: float
    step: float


#: Reads what a run shows off its spans.
Look = Callable[["pa.Table"], Apparent]


def simulated(scenario: Scenario, bytes_in_flight: int | None) -> pa.Table:
    """The spans of a scenario on the virtual clock, of its beginning where it is long."""
    if changed := cut(scenario):
        scenario = scenario.model_copy(update={"train": scenario.train.model_copy(update=changed)})
    return simulation.spans_of(plan_of(scenario, True, bytes_in_flight))


def settle(scenario: Scenario, seen: Apparent, look: Look, bytes_in_flight: int | None) -> tuple[Scenario, Apparent]:
    """Move costs, and the latency of storage, until the simulated run shows what was ``seen``.

    The second answer is what the simulated run shows in the end: of all that were tried, the one whose steps take most
    nearly as long.
    """
    tried = [(scenario, look(simulated(scenario, bytes_in_flight)))]
    for _ in range(ROUNDS):
        moved = _moved(*tried[-1], seen)
        if moved is None:
            break
        tried.append((moved, look(simulated(moved, bytes_in_flight))))
    # Costs hide each other: what is left is the length of a step, which messages on their way make longer or shorter.
    for _ in range(ROUNDS):
        scenario, shown = min(tried, key=lambda one: abs(one[1].step - seen.step))
        if abs(shown.step - seen.step) <= NEAR * seen.step / 4:
            break
        factor = 1 + BOLD * (seen.step - shown.step) / max(_on_the_way(scenario.charges), NEAR_SECONDS)
        costs = scenario.charges
        longer = {name: round(getattr(costs, name) * min(2.0, max(0.5, factor)), 9) for name in ON_THE_WAY}
        moved = scenario.model_copy(update={"costs": costs.model_copy(update=longer)})
        tried.append((moved, look(simulated(moved, bytes_in_flight))))
    return min(tried, key=lambda one: abs(one[1].step - seen.step))


def _on_the_way(costs: Costs) -> float:
    return float(sum(getattr(costs, name) for name in ON_THE_WAY))


def _moved(scenario: Scenario, shown: Apparent, seen: Apparent) -> Scenario | None:
    """The scenario with each cost moved half of what it is off; None where all are near."""
    costs = scenario.charges
    changed = {}
    for name in MOVED:
        off = BOLD * (getattr(seen.costs, name) - getattr(shown.costs, name))
        if abs(off) > max(NEAR_SECONDS, NEAR * getattr(seen.costs, name)):
            now = max(0.0, getattr(costs, name) + off)
            if now != getattr(costs, name):
                changed[name] = round(now, 9)
    update: dict[str, object] = {"costs": costs.model_copy(update=changed)} if changed else {}
    model, off = scenario.storage.model, BOLD * (seen.read - shown.read)
    if isinstance(model, StorageParameters) and abs(off) > max(NEAR_SECONDS, NEAR * seen.read):
        mean = max(0.0, model.first_byte.expected + off / max(seen.requests, 1.0))
        if mean != model.first_byte.expected:
            update["storage"] = scenario.storage.model_copy(
                update={"model": model.model_copy(update={"first_byte": _of_mean(model.first_byte, mean)})}
            )
    return scenario.model_copy(update=update) if update else None


def _of_mean(times: Distribution, mean: float) -> Distribution:
    """Times of the same spread, in proportion, around another mean."""
    if isinstance(times, LogNormal) and times.expected > 0 and mean > 0:
        return times.model_copy(update={"median": times.median * mean / times.expected})
    return Constant(value=round(mean, 9))
