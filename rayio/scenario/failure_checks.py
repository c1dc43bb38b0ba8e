"""Checks of ``failures`` against the rest of a scenario."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rayio.kinds import LOADERS
from rayio.scenario import derive

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario


def refusals(scenario: Scenario) -> Iterator[str]:
    """Yield a line for each failure that is impossible in a scenario."""
    failures, cluster, loader = scenario.failures, scenario.cluster, scenario.loader
    if failures is None:
        return
    steps = derive.total_steps(scenario)
    number = {
        "rank": cluster.world_size,
        "node": cluster.nodes,
        "reader": derive.num_readers(scenario),
        "queue": derive.num_queues(scenario),
        "checkpoint_writer": derive.num_writers(scenario),
        "barrier": int(scenario.train.sync.meets),
        "driver": 1,
        "collector": 1,
    }
    of_workers = f"loader.num_workers={loader.num_workers}"
    if not LOADERS[loader.kind].has_roles:
        number["reader"] = number["queue"] = 0
        of_workers = f"loader.kind={loader.kind}"
    elif loader.queue == "in_rank":
        number["queue"] = 0
    why_none = {
        "reader": of_workers,
        "queue": "loader.queue=in_rank" if loader.queue == "in_rank" and loader.num_workers else of_workers,
        "checkpoint_writer": "no checkpoint",
        "barrier": "train.sync=none",
    }
    is_saved = failures.policy == "from_checkpoint" and scenario.checkpoint is not None
    if is_saved and not loader.in_order and not LOADERS[loader.kind].has_roles:
        yield (
            f"not yet: loader.in_order=false with loader.kind={loader.kind} and failures.policy=from_checkpoint, which "
            "would lose the batches that came early; use loader.in_order=true or policy from_start"
        )
    for place, event in enumerate(failures.events):
        key, many = f"failures.events[{place}]", number[event.kind]
        if not many:
            yield f"{key}.kind={event.kind}: the run has none ({why_none[event.kind]})"
        elif event.number >= many:
            last = f"0 to {many - 1}" if many > 1 else "only number 0"
            yield f"{key}.number={event.number}: no {event.name}; the run has {last}"
        if event.at_step is not None and scenario.checkpoint is not None and scenario.checkpoint.phases is not None:
            yield f"{key}.at_step={event.at_step}: checkpoint.phases has no steps; give at, a time of the run"
        elif event.at_step is not None and event.at_step >= steps > 0:  # without steps something else is wrong
            yield f"{key}.at_step={event.at_step}: the run has {steps} steps; use at most {steps - 1}"


def idle(scenario: Scenario) -> Iterator[str]:
    """Yield a line for each key of ``failures`` without effect."""
    if scenario.failures is not None and scenario.failures.policy == "from_checkpoint" and scenario.checkpoint is None:
        yield "failures.policy=from_checkpoint: without the section checkpoint, runs begin again from the start"
