"""The scenario: sections of plain values. Text and units are parsed here; inside are bytes and seconds."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Annotated

from pydantic import Field
from pydantic.functional_validators import BeforeValidator

from rayio.scenario.checkpoint import Checkpoint
from rayio.scenario.cluster import Cluster
from rayio.scenario.costs import ChosenCosts, Costs, charged
from rayio.scenario.dataset import Dataset, EvaluationDataset
from rayio.scenario.expect import Expect, Expectations
from rayio.scenario.failures import Failures
from rayio.scenario.loader import Loader
from rayio.scenario.pace import Stragglers
from rayio.scenario.parallelism import Division
from rayio.scenario.published import Published
from rayio.scenario.stages import Stages
from rayio.scenario.storage import Storage, StorageParameters
from rayio.scenario.sync import AllReduce, BarrierSync, NoSync
from rayio.scenario.topology import PerNode, Topology
from rayio.scenario.trace import Trace
from rayio.scenario.train import Evaluate, Train
from rayio.scenario.writers import AllRanks, Dedicated, RankZero
from rayio.schema.distribution import NO_TIME
from rayio.schema.fields import Name, Natural, Section, Text, none_is_null
from rayio.storage.address import is_path, join
from rayio.storage.stores.opening import Settings

__all__ = [
    "NO_TIME", "AllRanks", "AllReduce", "BarrierSync", "Checkpoint", "Cluster", "Costs", "Dataset", "Dedicated",
    "Evaluate", "EvaluationDataset", "Loader", "NoSync", "RankZero", "Scenario", "Storage",
    "StorageParameters", "Stragglers", "Trace", "Train",
]  # fmt: skip


class Scenario(Section):
    """A workload on a cluster: everything that a run depends on."""

    name: Name = Field(description="Name of the scenario and of its run directories.")
    source: Text = Field("", description="Where the numbers come from.")
    seed: Natural = Field(10, description="Seed of every draw: equal seeds give equal runs.")
    cluster: Cluster = Field(default_factory=Cluster, description="Nodes and ranks, and where roles live.")
    dataset: Dataset = Field(description="The files to read.")
    storage: Storage = Field(default_factory=Storage, description="The storage model, and how real storage is used.")
    loader: Loader = Field(default_factory=Loader, description="How batches are made.")
    train: Train = Field(description="The work of a rank on a batch.")
    checkpoint: Annotated[Checkpoint | None, BeforeValidator(none_is_null)] = Field(
        None, description="The state that is saved, when, and by which writers; none is never."
    )
    failures: Annotated[Failures | None, BeforeValidator(none_is_null)] = Field(
        None, description="What dies during the run, and how it goes on; none is a run that a dead rank ends."
    )
    stages: Stages = Field(
        (),
        description="Processes that come and go during training: a list of stages, each with name, count, and what its "
        "processes read, compute and write.",
    )
    trace: Trace = Field(default_factory=Trace, description="How finely spans are recorded.")
    expect: Expect = Field(
        default_factory=Expectations,
        description='Conditions on metrics of result.json, such as {au: ">= 0.90"}; exit code 3 when one is not met.',
    )
    costs: ChosenCosts = Field(
        "none",
        description="Loader overhead model, which simulate charges: a name, or numbers. With a name, a run on a wall "
        "clock also holds its rank for costs.receive of each batch.",
    )
    published: Published = Field(
        (),
        description="Numbers that were published of this workload, which rayio check-published compares with simulated "
        "ones. A scenario that extends this one has none of them.",
    )

    @property
    def charges(self) -> Costs:
        """Return the numbers of ``costs``, which the virtual engine charges."""
        return charged(self.costs)

    @property
    def topology(self) -> Topology:
        """The ranks, their nodes, and their parts of the model. An impossible division counts as none."""
        nodes, each, saved = self.cluster.nodes, self.cluster.on_nodes, self.checkpoint
        has_part = saved is not None and saved.subset_of is not None and saved.phases is not None
        return Topology(nodes=nodes, ranks_per_node=each) if has_part else self._divided(nodes, each)

    @property
    def saving_topology(self) -> Topology:
        """The ranks that save a checkpoint: these, or ``checkpoint.subset_of`` ranks, of which these are the first."""
        divided = None if self.checkpoint is None else self.checkpoint.parallelism
        of = None if self.checkpoint is None else self.checkpoint.subset_of
        nodes, each, most = self.cluster.nodes, self.cluster.on_nodes, self.cluster.most_ranks
        if of is None and divided is None:
            return self.topology
        if of is None:
            return self._divided(nodes, each, divided)
        if isinstance(each, int):
            return self._divided(max(nodes, of // most), most, divided)
        full, rest = divmod(max(0, of - sum(each)), most)  # nodes that the run does not have are as its largest
        each = (*each, *(most,) * full, *(rest,) * bool(rest))
        return self._divided(len(each), each, divided)

    def _divided(self, nodes: int, each: PerNode, divided: Division | None = None) -> Topology:
        """Return ranks with the parts of the model that they have."""
        divided = divided or self.train.parallelism
        return _divided(nodes, each, divided.tensor, divided.pipeline, divided.zero_stage)

    @property
    def stores(self) -> Settings:
        """The settings of real storage."""
        return self.storage.settings(self.seed)


@lru_cache(maxsize=64)
def _divided(nodes: int, each: PerNode, tensor: int, pipeline: int, zero_stage: int) -> Topology:
    """Return ranks that have parts of a model, if these divide them; cached, for checks need it many times."""
    ranks = Topology(nodes=nodes, ranks_per_node=each)
    if ranks.ranks % (tensor * pipeline):
        return ranks
    return replace(ranks, tensor_parallel=tensor, pipeline_parallel=pipeline, zero_stage=zero_stage)


def placed(scenario: Scenario, root: str) -> Scenario:
    """Return a scenario whose relative paths are addresses below ``root``; unchanged if that is a folder.

    The requests of a sample depend on the scheme of its path.
    """
    if is_path(root):
        return scenario
    dataset, saved = scenario.dataset, scenario.checkpoint
    update: dict[str, Section] = {"dataset": dataset.model_copy(update={"path": join(root, dataset.path)})}
    if saved is not None:
        update["checkpoint"] = saved.model_copy(update={"path": join(root, saved.path)})
    return scenario.model_copy(update=update)
