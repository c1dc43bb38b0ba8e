"""``cluster.nic_bandwidth`` and ``nic_latency``: each node's network interface as a model, and who has it when.

A batch leaves through the interface of the node on which it was read, and enters through that of its rank's: each
direction is a queue without gaps, first come, first served, and both are taken from when the batch is sent. So a node
of readers gives all ranks together what its interface lets through, and a rank gets what its own does.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from rayio.scenario.change import Change, with_keys
from rayio.schema.fields import Section
from rayio.storage.layers.layer import Kernel, Layer
from rayio.storage.model import Device, DeviceSpec

if TYPE_CHECKING:
    from rayio.scenario.change import Run
    from rayio.scenario.model import Scenario


@dataclass(frozen=True)
class NetworkSpec(Layer):
    """The network interface of every node: bytes per second each way (None is no bound), and the latency in seconds."""

    bandwidth: float | None
    latency: float = 0.0

    name: ClassVar[str] = "network"
    example: ClassVar[Any] = {"cluster": {"nodes": 2, "placement": "spread", "nic_bandwidth": "10 MB/s"}}
    role: ClassVar[str] = "network"
    sharing: ClassVar[Literal["", "node", "all"]] = "all"
    is_foreseen: ClassVar[bool] = True
    is_of_nodes: ClassVar[bool] = True
    own: ClassVar[str] = "network interface (cluster.nic_bandwidth)"
    idle_if_real: ClassVar[str] = (
        "cluster.nic_bandwidth and nic_latency are not charged: each node is a separate Ray node, and batches cross "
        "the real network"
    )

    @classmethod
    def of(cls, scenario: Scenario, options: Section | None, *, modelled: bool) -> NetworkSpec | None:
        """Return the interfaces; None if no batch crosses them, or batches have no bytes."""
        cluster, loader = scenario.cluster, scenario.loader
        if not (cluster.has_network and cluster.is_crossed) or loader.payload == "none" or not loader.num_workers:
            return None
        return cls(cluster.nic_bandwidth, cluster.nic_latency)

    def changes(self, run: Run) -> Iterator[Change]:
        """Offer a network without limits, and twice the nodes for workers."""
        cluster = run.scenario.cluster
        yield Change(
            "network = ∞", kind="removal", to=with_keys("cluster", nic_bandwidth=None, nic_latency=0.0),
            removes=("transfer",), helps=("loader",),
        )  # fmt: skip
        if cluster.nic_bandwidth is not None:
            rate = 2 * cluster.nic_bandwidth
            yield Change(
                "twice the network", kind="machine", to=with_keys("cluster", nic_bandwidth=rate),
                key=f"cluster.nic_bandwidth={rate / 1e6:g} MB/s", effort=2, tried_by=("capacity",),
            )  # fmt: skip
        if cluster.has_reader_tier and not isinstance(cluster.cores, tuple):
            nodes = 2 * cluster.reader_nodes
            yield Change(
                "reader_nodes × 2", kind="machine", to=with_keys("cluster", reader_nodes=nodes),
                key=f"cluster.reader_nodes={nodes}", helps=("loader",),
            )  # fmt: skip

    def way(self, source: int, target: int, shared: Callable[[], NetworkPort]) -> Route:
        """Return the connection from a worker's node to its rank's."""
        return Route(shared(), source, target)

    def state(self, kernel: Kernel) -> Network:
        """Return the interfaces of all nodes."""
        return Network(self)


class Network:
    """The interfaces of all nodes, which order all batches."""

    def __init__(self, spec: NetworkSpec) -> None:
        rate = math.inf if spec.bandwidth is None else spec.bandwidth
        self.rate, self.latency = rate, spec.latency
        made = partial(Device, DeviceSpec(rate, rate))
        self._leaving: defaultdict[int, Device] = defaultdict(made)
        self._entering: defaultdict[int, Device] = defaultdict(made)

    def send(self, now: int, source: int, target: int, nbytes: int) -> int:
        """Return the time at which ``nbytes`` sent now arrive at another node, after those sent before (ns).

        >>> network = Network(NetworkSpec(bandwidth=1e9))
        >>> network.send(0, 0, 1, 1000), network.send(0, 0, 2, 1000), network.send(0, 3, 2, 1000)
        (1000, 2000, 2000)
        """
        alone = round((self.latency + nbytes / self.rate) * 1e9)
        left = self._leaving[source].reserve(now, 0, nbytes, alone)
        return max(left, self._entering[target].reserve(now, 0, nbytes, alone))

    def enter(self, now: int, target: int, nbytes: int) -> int:
        """Return the time at which ``nbytes`` that leave elsewhere in step arrive at a node (ns)."""
        return self._entering[target].reserve(now, 0, nbytes, round((self.latency + nbytes / self.rate) * 1e9))


class NetworkPort(Protocol):
    """A network, possibly in another process."""

    def send(self, now: int, source: int, target: int, nbytes: int) -> int | Awaitable[int]:
        """See :meth:`Network.send`; a network of this process replies at once."""


@dataclass(frozen=True, slots=True)
class Route:
    """A connection from a worker to its rank on another node."""

    network: NetworkPort
    source: int
    target: int

    def send(self, now: int, nbytes: int) -> int | Awaitable[int]:
        """Return the time at which ``nbytes`` sent now arrive (ns)."""
        return self.network.send(now, self.source, self.target, nbytes)
