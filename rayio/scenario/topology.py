"""The ranks of a run, their nodes, and the parts of the model that they have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The ranks of a run, numbered node by node. A model is split by tensors and by stages, and each part has replicas.

    >>> four = Topology(nodes=2, ranks_per_node=2, tensor_parallel=2)
    >>> four.ranks, four.node_of(3), [*four.ranks_of(1)], four.data_parallel
    (4, 1, [2, 3], 2)
    """

    nodes: int
    ranks_per_node: int
    #: Ranks that share each layer, and stages that share the layers.
    tensor_parallel: int = 1
    pipeline_parallel: int = 1

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def data_parallel(self) -> int:
        """Ranks that have the same part of the model: all of them if it is not split."""
        return self.ranks // (self.tensor_parallel * self.pipeline_parallel)

    def node_of(self, rank: int) -> int:
        """Return the node of a rank."""
        return rank // self.ranks_per_node

    def ranks_of(self, node: int) -> range:
        """Return the ranks of a node."""
        return range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node)
