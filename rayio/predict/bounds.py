"""Busy runs and lone runs -> upper bounds of a loader's costs, and their times without waits for others.

In a calibrated run several ranks and workers wait for each other's processes, and ranks that rarely wait for batches
show only the slowest. A *busy run* makes ranks wait for most batches. A *lone run* has one rank and one worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rayio.analyze.shape import RunShape
from rayio.model.planning import plan_of
from rayio.predict.costs import FEW, waited
from rayio.predict.learnable import Learnable
from rayio.predict.processors import ALIKE, rate_of
from rayio.predict.replay import UNLIMITED_STORAGE
from rayio.predict.run_costs import costs_of_run, step_seconds, warm_since
from rayio.predict.shown import Shown
from rayio.scenario import derive
from rayio.scenario.costs import taken
from rayio.scenario.model import Costs


def longest_way(run: Shown, full: Sequence[Learnable], rate: float | None) -> float:
    """Return the bound of ``costs.put``, ``take`` and ``receive`` together (s) where ranks of ``run`` rarely waited.

    Where cores are full and ranks wait for most batches, they show that time, with waits for cores. Only the sum is
    bounded, because waits make each part longer at the cost of the others. Workers pass bytes on at ``rate``.
    Infinity where nothing is known.
    """
    if not run.plan.loader.num_workers or int(waited(run.batches).sum()) >= FEW:
        return float("inf")
    ways = []
    for each in full:
        view = Shown(each.spans, plan_of(each.scenario, modelled=False))
        if int(waited(view.batches).sum()) >= FEW:
            costs = _costs(each, view)
            ways.append(costs.put + costs.take + costs.receive - taken(derive.batch_bytes(each.scenario), rate))
    return max(ways, default=float("inf"))


#: How far the times that ranks wait for each other are apart where no two runs show it, and at least; shares.
UNEVEN, EVEN = 0.5, 0.2


@dataclass(frozen=True, slots=True)
class Lone:
    """Costs that lone runs show (s): of messages, and of taking a ready batch. ``rate`` is that of its bytes."""

    costs: Mapping[str, float]
    receive: float
    step: float
    rate: float | None


def lone(alone: Sequence[Learnable], received: float | None) -> Lone | None:
    """Return what lone runs show; None where they had too few ready batches. The first one's messages count.

    A rank maps a batch as it takes it, and frees it in the same step. Two sizes separate the time of bytes in both; it
    is no longer than the CPU time of ``received`` bytes/s, so that noise does not count as bytes.
    """
    each = []
    for run in alone:
        view = Shown(run.spans, plan_of(run.scenario, modelled=False))
        costs, batches = _costs(run, view), view.batches
        way = round((costs.put + costs.take + costs.receive) * 1e9)
        is_ready = batches.done + way <= batches.requested
        if int(is_ready.sum()) < FEW:
            return None
        receive = float((batches.had - batches.requested)[is_ready].mean()) / 1e9
        each.append((derive.batch_bytes(run.scenario), receive, costs))
    if not each:
        return None
    step = min(costs.step for _, _, costs in each)
    sizes, whole = [size for size, _, _ in each], [receive + costs.step for _, receive, costs in each]
    slope = float(np.polyfit(sizes, whole, 1)[0]) if max(sizes) >= ALIKE * min(sizes) else 0.0
    rate = rate_of(min(slope, 1 / received)) if received else None
    first = each[0][2]
    messages = {name: getattr(first, name) for name in ON_THE_WAY if getattr(first, name) > 0}
    return Lone(messages, round(max(0.0, whole[0] - step - taken(sizes[0], rate)), 9), step, rate)


#: Costs of messages that a lone run shows without waits for others. (Its rank waits for too few batches to tell take.)
ON_THE_WAY = ("lease", "put")


def freer(costs: Costs, seen: Lone | None, nbytes: float, others: int) -> Costs:
    """Return a run's apparent costs with those of lone runs where these are shorter; batches are of ``nbytes``.

    ``neighbour`` gets what is above them in receive and step, for each of the ``others`` on the node.
    """
    if seen is None:
        return costs
    shorter = {name: min(getattr(costs, name), seconds) for name, seconds in seen.costs.items()}
    rest = costs.receive + costs.step - seen.receive - seen.step - taken(nbytes, seen.rate)
    if others and rest > 0:
        shorter |= {"receive": seen.receive, "step": seen.step, "neighbour": round(rest / others, 9)}
    return costs.model_copy(update=shorter)


def evened(runs: Sequence[Learnable], seen: Lone) -> tuple[float, float]:
    """Return how long ranks of some runs waited for each other in a step, as a multiple of the first run's.

    The second number is how far single runs are from that, as a share. One run alone does not show it, nor do runs
    whose ranks waited for batches.
    """
    rest = []
    for run in runs:
        view, others = Shown(run.spans, plan_of(run.scenario, modelled=False)), run.scenario.cluster.most_ranks - 1
        if not others or int(waited(view.batches).sum()) >= FEW:
            return 1.0, UNEVEN
        steps, warm = view.steps, warm_since(view.steps, RunShape.of(run.scenario), run.name)
        own = float(steps.parts["compute"][steps.start >= warm].mean()) / 1e9 + seen.receive + seen.step
        whole = step_seconds(view, warm) - taken(derive.batch_bytes(run.scenario), seen.rate)
        rest.append((whole - own) / others)
    if min(rest) <= 0:
        return 1.0, 1.0
    usual = float(np.mean(rest))
    apart = max(abs(each / usual - 1) for each in rest) if len(rest) > 1 else UNEVEN
    return usual / rest[0], round(min(1.0, max(EVEN, apart)), 4)


def _costs(of: Learnable, view: Shown) -> Costs:
    return costs_of_run(view, warm_since(view.steps, RunShape.of(of.scenario), of.name), UNLIMITED_STORAGE, [])
