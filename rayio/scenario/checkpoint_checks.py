"""Checks of ``checkpoint`` against the rest of a scenario."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rayio.scenario import derive
from rayio.scenario.address import MODELLED
from rayio.scenario.meetings import meeting_period

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario


def refusals(scenario: Scenario) -> Iterator[str]:
    """Yield a line for each checkpoint that is impossible in a scenario."""
    saved, dataset = scenario.checkpoint, scenario.dataset
    if saved is None:
        return
    if saved.path.startswith(MODELLED) and not dataset.is_modelled:
        yield f"checkpoint.path={saved.path}: has no bytes, and dataset.path={dataset.path} has; give a folder"
    if saved.burst is not None and saved.burst.path.startswith(MODELLED) and not dataset.is_modelled:
        yield f"checkpoint.burst.path={saved.burst.path}: has no bytes, and dataset.path={dataset.path} has"
    refused = [*saved.refusals(scenario.saving_topology, derive.world_size(scenario))]
    yield from refused
    if saved.burst is not None and not refused and not [*saved.contradictions()]:
        yield from saved.burst.refusals(derive.checkpoint_shards(scenario), saved.writers, scenario.saving_topology)
    yield from _by_clock(scenario)
    if saved.phases is not None and scenario.train.evaluate is not None:
        yield "train.evaluate: checkpoint.phases is a run without training; leave one of the two out"


def divisions(scenario: Scenario) -> Iterator[str]:
    """Refuse a model that the ranks cannot divide: those of the run, and those that it has a subset of."""
    saved, division = scenario.checkpoint, scenario.train.parallelism
    of = None if saved is None else saved.subset_of
    alone = "; checkpoint.parallelism divides the model that is saved alone" if of is not None else ""
    if of is None or derive.phases(scenario) is None:
        yield from (line + alone for line in division.refusals(derive.world_size(scenario)))
    if of is not None and saved is not None and saved.parallelism is None:
        for line in division.refusals(of):
            yield line.replace("cluster.nodes × cluster.ranks_per_node", "checkpoint.subset_of")


def idle(scenario: Scenario) -> Iterator[str]:
    """Yield a line for increments that are never written, and for a shift by all ranks."""
    saved = scenario.checkpoint
    if saved is None:
        return
    if saved.phases is not None and (shift := saved.phases.shifted(scenario.cluster.ranks_per_node)):
        ranks = derive.world_size(scenario)
        if not shift % ranks:
            of = saved.phases.shift
            yield f"checkpoint.phases.shift={of}: no effect with {ranks} ranks, each reads back what it saved"
    if saved.incremental is not None:
        number = derive.num_checkpoints(scenario)
        if number < 2:
            what = "checkpoint is" if number else "checkpoint would be"
            yield f"checkpoint.incremental: the run has {number} checkpoints, and the first {what} full"


def _by_clock(scenario: Scenario) -> Iterator[str]:
    """Refuse checkpoints by the clock where ranks cannot agree on a step."""
    saved = scenario.checkpoint
    if saved is None or saved.phases is not None or saved.every is None or saved.every.seconds is None:
        return
    setting = f"checkpoint.every={saved.every.by_clock}"
    if derive.world_size(scenario) > 1 and not meeting_period(scenario):
        yield (
            f"{setting}: ranks agree on a step where all of them meet, and train.sync=none never lets them; use "
            "train.sync=barrier, or checkpoint.every={steps: n}"
        )
    fewest, most = derive.rank_steps(scenario)
    if fewest < most:
        yield f"not yet: {setting} with loader.drop_last=false, where ranks have {fewest} or {most} steps; use true"
