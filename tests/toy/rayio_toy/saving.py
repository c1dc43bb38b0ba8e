"""A checkpoint kind: one writer on every node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rayio.scenario.topology import Topology
from rayio.scenario.writers import Writers, shares


class PerNode(Writers):
    """A node's first rank saves the node's share of the state."""

    kind: Literal["each_node"] = "each_node"

    def sizes(self, num_bytes: int, topology: Topology) -> tuple[int, ...]:
        return shares(num_bytes, topology.nodes)

    def of_rank(self, rank: int, topology: Topology) -> Sequence[int]:
        node = topology.node_of(rank)
        return (node,) if rank == topology.ranks_of(node)[0] else ()

    def file_name(self, writer: int) -> str:
        return f"node-{writer:05d}.bin"
