"""The ranks of a run, their nodes, and the parts of the model that they have."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

#: The ranks of a node: one number for all nodes, or a number for each.
PerNode = int | tuple[int, ...]


@lru_cache(maxsize=64)
def _firsts(each: tuple[int, ...]) -> Sequence[int]:
    """Return the first rank of each node, and the number of all ranks."""
    return (*accumulate(each, initial=0),)


def node_of(rank: int, each: PerNode) -> int:
    """Return the node of a rank; ranks are numbered node by node.

    >>> [node_of(rank, (3, 1)) for rank in range(4)], node_of(3, 2)
    ([0, 0, 0, 1], 1)
    """
    return rank // each if isinstance(each, int) else bisect_right(_firsts(each), rank) - 1


def ranks_of(node: int, each: PerNode) -> range:
    """Return the ranks of a node.

    >>> ranks_of(1, (3, 1)), ranks_of(1, 2)
    (range(3, 4), range(2, 4))
    """
    if isinstance(each, int):
        return range(node * each, (node + 1) * each)
    return range(*_firsts(each)[node : node + 2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The ranks of a run, numbered node by node. A model is split by tensors and by stages, and each part has replicas.

    Ranks next to each other share a layer, then come the stages, then the replicas.

    >>> eight = Topology(nodes=2, ranks_per_node=4, tensor_parallel=2, pipeline_parallel=2)
    >>> eight.ranks, eight.node_of(5), [*eight.ranks_of(1)], eight.data_parallel
    (8, 1, [4, 5, 6, 7], 2)
    >>> eight.tensor_of(7), eight.stage_of(7), eight.replica_of(7), [*eight.model_of(7)]
    (1, 1, 1, [4, 5, 6, 7])
    """

    nodes: int
    #: A number for each node if they differ.
    ranks_per_node: PerNode
    #: Ranks that share each layer, and stages that share the layers.
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    #: What replicas divide instead of having a copy each: 1 optimizer, 2 gradients too, 3 parameters too; 0 nothing.
    zero_stage: int = 0

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        each = self.ranks_per_node
        return self.nodes * each if isinstance(each, int) else sum(each)

    @property
    def parts(self) -> int:
        """Ranks that have the whole model together."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def data_parallel(self) -> int:
        """Ranks that have the same part of the model: all of them if it is not split."""
        return self.ranks // self.parts

    def node_of(self, rank: int) -> int:
        """Return the node of a rank."""
        return node_of(rank, self.ranks_per_node)

    def ranks_of(self, node: int) -> range:
        """Return the ranks of a node."""
        return ranks_of(node, self.ranks_per_node)

    def tensor_of(self, rank: int) -> int:
        """Return which part of each layer a rank has, from 0."""
        return rank % self.tensor_parallel

    def stage_of(self, rank: int) -> int:
        """Return the pipeline stage of a rank, from 0."""
        return rank // self.tensor_parallel % self.pipeline_parallel

    def replica_of(self, rank: int) -> int:
        """Return the replica of the model that a rank belongs to, from 0."""
        return rank // self.parts

    def model_of(self, rank: int) -> range:
        """Return the ranks that have the whole model together with this one: one replica."""
        first = self.replica_of(rank) * self.parts
        return range(first, first + self.parts)

    def stages_of(self, rank: int) -> range:
        """Return the ranks that pass batches on to each other, by stage: its pipeline."""
        model = self.model_of(rank)
        return range(model.start + self.tensor_of(rank), model.stop, self.tensor_parallel)
