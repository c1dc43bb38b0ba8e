"""The section ``cluster``: where the roles live."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field
from pydantic.functional_validators import BeforeValidator

from rayio.place import MAX_RANKS
from rayio.scenario.reader_pool import ReaderPool
from rayio.scenario.topology import PerNode, node_of, ranks_of
from rayio.schema.fields import Seconds, Section, choice, none_is_null, quantity, show, whole
from rayio.schema.for_each import for_each
from rayio.units import BYTES, RATE, SECONDS, format_seconds

#: Bounds of ``stall_deadline``, in seconds: a run is checked a few times within it.
MIN_STALL_SECONDS, MAX_STALL_SECONDS = 1.0, 720 * 3600.0
MAX_CORES = 1 << 20


def in_proportion(weights: Mapping[int, int]) -> list[int]:
    """Return each key as often as its weight, in lowest terms, evenly mixed.

    >>> in_proportion({0: 2, 1: 4, 2: 2})
    [1, 0, 2, 1]
    """
    least = math.gcd(*weights.values())
    times = {key: weight // least for key, weight in weights.items()}
    return [key for _, key in sorted(((n + 0.5) / many, key) for key, many in times.items() for n in range(many))]


class Cluster(Section):
    """Where the roles live."""

    nodes: Annotated[int, whole(1, MAX_RANKS)] = Field(
        1, description="Machines of the run. On one machine more nodes are only pretended."
    )
    ranks_per_node: Annotated[int | tuple[int, ...], for_each("node", MAX_RANKS)] = Field(
        1,
        description="Trainer ranks (accelerators) on each node. A list has a number for each node, for nodes that "
        "differ: ranks are numbered node by node.",
    )
    cores: Annotated[int | tuple[int, ...] | None, for_each("node", MAX_CORES, or_none=True)] = Field(
        None,
        description="Processor cores of each node on the virtual clock, which all roles of the node share for the work "
        "that costs.cpu says; none is as many as there is work. A list has a number for each node, those of workers "
        "last: workers in turn on nodes are spread in that proportion. A real run has the cores of its machines: "
        "on Ray a list says which Ray nodes are large enough.",
    )
    memory: Annotated[int | None, quantity(BYTES, positive=True, integer=True, or_none=True)] = Field(
        None,
        description="Memory of a node, in which what workers keep of files (loader.file_access) must fit. none: a "
        "simulation has no bound, a real run that of its machine.",
    )
    roles_per_actor: Annotated[int | Literal["auto"], whole(1, MAX_RANKS, or_word="auto")] = Field(
        "auto",
        description="Roles of one kind on one node that share an actor; the worker threads of a rank count as one. "
        "With auto four ranks, four queues or two checkpoint writers share one, and of more than 16 workers several.",
    )
    placement: Annotated[
        Literal["colocated", "spread", "dedicated_readers"], choice("colocated", "spread", "dedicated_readers")
    ] = Field(
        "colocated",
        description="Where workers live: on the node of their rank, in turn on all nodes, or on dedicated nodes.",
    )
    reader_nodes: Annotated[int, whole(1, MAX_RANKS)] = Field(
        1,
        description="Dedicated nodes for workers, in addition to those of the ranks; with placement dedicated_readers.",
    )
    reader_pool: Annotated[ReaderPool | None, BeforeValidator(none_is_null)] = Field(
        None,
        description="Nodes that come and go with the workers beyond loader.num_workers.min; none keeps these workers "
        "on the fixed nodes.",
    )
    nic_bandwidth: Annotated[float | None, quantity(RATE, positive=True, or_none=True)] = Field(
        None,
        description="Bytes per second of each node's network interface, each way, for batches read on another node; "
        "none is free. On Ray it is a model where nodes are only pretended.",
    )
    nic_latency: Seconds = Field(
        0.0, description="Latency of a batch on its way to another node, in addition to the time of its bytes."
    )
    transport: Annotated[Literal["auto", "ray"], choice("auto", "ray")] = Field(
        "auto",
        description="How batches and messages travel between actors on Ray. auto: over sockets and shared memory where "
        "both are on one Ray node, else as Ray's calls and objects. ray: always as Ray's.",
    )
    start_deadline: Annotated[float, quantity(SECONDS, positive=True)] = Field(
        120.0, description="Time within which every actor must have started."
    )
    stall_deadline: Annotated[float, quantity(SECONDS, positive=True, maximum=MAX_STALL_SECONDS)] = Field(
        600.0,
        description="Longest time that a rank waits without a sign of life from the role it waits for; then the run "
        "ends and names who waits for whom. From 1 s to 720 h.",
    )

    def contradictions(self) -> Iterator[str]:
        """Refuse a stall deadline below 1 s, and a list whose length is not the number of nodes."""
        if isinstance(self.ranks_per_node, tuple) and len(self.ranks_per_node) != self.nodes:
            yield (
                f"cluster.ranks_per_node={show([*self.ranks_per_node])}: its length is {len(self.ranks_per_node)}; "
                f"give one number for each node (cluster.nodes={self.nodes})"
            )
        if isinstance(self.cores, tuple) and len(self.cores) != self.all_nodes:
            nodes = f"cluster.nodes={self.nodes}"
            nodes += f" and cluster.reader_nodes={self.reader_nodes}" * self.has_reader_tier
            yield (
                f"cluster.cores={show([*self.cores])}: its length is {len(self.cores)}; give one number for "
                f"each node ({nodes})"
            )
        if self.reader_pool is not None and isinstance(self.cores, tuple):
            yield (
                f"not yet: cluster.cores={show([*self.cores])} with cluster.reader_pool, whose nodes are not in the "
                "list; give one number for all"
            )
        if self.stall_deadline < MIN_STALL_SECONDS:
            yield f"cluster.stall_deadline={format_seconds(self.stall_deadline)}: must be at least 1 s"

    def idle(self) -> Iterator[str]:
        """Name reader nodes without readers, and a network that no batch crosses."""
        if not self.has_reader_tier and self.reader_nodes != type(self).model_fields["reader_nodes"].default:
            yield f"cluster.reader_nodes={self.reader_nodes}: nothing lives there with placement {self.placement}"
        if self.has_network and not self.is_crossed:
            key = "nic_latency" if self.nic_bandwidth is None else "nic_bandwidth"
            yield f"cluster.{key}: every batch is read on its rank's node with cluster.placement={self.placement}" + (
                "" if self.placement == "colocated" else " on one node"
            )

    @property
    def has_reader_tier(self) -> bool:
        """Return True if workers have dedicated nodes."""
        return self.placement == "dedicated_readers"

    @property
    def has_network(self) -> bool:
        """Return True if a batch's way between nodes takes time in the model."""
        return self.nic_bandwidth is not None or self.nic_latency > 0

    @property
    def is_crossed(self) -> bool:
        """Return True if batches are read on other nodes than they are trained on."""
        return self.has_reader_tier or self.has_pool or (self.placement == "spread" and self.nodes > 1)

    @property
    def has_pool(self) -> bool:
        """Return True if nodes come and go with workers."""
        return self.reader_pool is not None

    @property
    def all_nodes(self) -> int:
        """Nodes of ranks and, after them, dedicated nodes of workers; those of a pool are numbered from here."""
        return self.nodes + (self.reader_nodes if self.has_reader_tier else 0)

    def cores_of(self, node: int) -> int | None:
        """Return the cores of one node; None is unlimited."""
        return self.cores[node] if isinstance(self.cores, tuple) else self.cores

    @property
    def reading_nodes(self) -> range:
        """The nodes on which datasets are read."""
        return range(self.nodes, self.all_nodes) if self.has_reader_tier else range(self.nodes)

    def turns(self) -> Sequence[int]:
        """Return the nodes of workers in turn; a node with more cores has more of the turns."""
        if not isinstance(self.cores, tuple):
            return self.reading_nodes
        return in_proportion({node: self.cores[node] for node in self.reading_nodes})

    @property
    def on_nodes(self) -> PerNode:
        """The ranks of every node; a number for each only if they differ."""
        each = self.ranks_per_node
        return each[0] if isinstance(each, tuple) and len({*each}) == 1 and len(each) == self.nodes else each

    @property
    def most_ranks(self) -> int:
        """Ranks of the node with the most."""
        each = self.ranks_per_node
        return max(each) if isinstance(each, tuple) else each

    @property
    def load(self) -> float:
        """Ranks of the node with the most, of which dedicated nodes of workers take their share of the work."""
        return self.most_ranks * self.nodes / self.all_nodes

    def node_of(self, rank: int) -> int:
        """Return the node of a rank."""
        return node_of(rank, self.ranks_per_node)

    def ranks_of(self, node: int) -> range:
        """Return the ranks of a node."""
        return ranks_of(node, self.ranks_per_node)

    @property
    def world_size(self) -> int:
        """Ranks of the whole run."""
        each = self.ranks_per_node
        return sum(each) if isinstance(each, tuple) else self.nodes * each
