"""Slots of readers on nodes that come and go (``cluster.reader_pool``) on Ray.

A reader requests a slot by a placement group of one bundle with one of the pool's resource. Ray's autoscaler sees it
while it is pending, the node is known before the reader starts, and removing the group frees the node.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import ray
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from rayio.errors import ClusterError
from rayio.model.plan import Plan
from rayio.trace.clocks import Anchor
from rayio.units import format_seconds

#: Seconds that a new cluster's autoscaler gets to report, and between two checks.
SPEAK_SECONDS, LOOK_SECONDS = 15.0, 0.5
#: Called with a node's life: its number, and the times (ns) of request, arrival (None: never) and end.
Lived = Callable[[int, int, "int | None", int], None]


class Granted(NamedTuple):
    """A reader that got a slot: its name, the number of the node, and its placement group."""

    name: str
    node: int
    group: PlacementGroup


class _Ask(NamedTuple):
    group: PlacementGroup
    since: int


class _Up(NamedTuple):
    number: int
    requested: int
    since: int


class Slots:
    """The driver's record of requested and granted slots, and of nodes that come and go.

    ``anchor`` is the run's clock in this process; ``lived`` is called for each node that has gone. No method waits for
    a node.
    """

    def __init__(self, plan: Plan, run: str, anchor: Anchor, lived: Lived) -> None:
        pool = plan.cluster.reader_pool
        assert pool is not None
        self.pool = pool
        #: Number of the first pool node.
        self.first = plan.cluster.all_nodes
        self.run = run
        self.anchor = anchor
        self.lived = lived
        #: Readers that will request a slot, in order; pending requests; and their deadlines (monotonic).
        self._queued: deque[str] = deque()
        self._asking: dict[str, _Ask] = {}
        self._until: dict[str, float] = {}
        self._granted: dict[str, PlacementGroup] = {}
        #: Present nodes by Ray's id; and the last id of each number.
        self._nodes: dict[str, _Up] = {}
        self.homes: dict[str, str] = {}
        self._see()

    def want(self, name: str) -> None:
        """Request a slot for a reader; no-op if it already has one or waits for one."""
        if name not in self._until and name not in self._granted:
            self._until[name] = time.monotonic() + self.pool.deadline
            self._queued.append(name)

    def missed(self, name: str) -> str:
        """Return the message that no node came for a reader in time."""
        pool = self.pool
        why = ""
        if is_out_of_reach(pool.resource, ray.get_runtime_context().gcs_address):
            why = "; Ray's autoscaler reports that none of its node types has any"
        return (
            f"no node with {pool.resource} came for {name} within {format_seconds(pool.deadline)} "
            f"(cluster.reader_pool.deadline){why}: its rank continues with its readers and asks again later"
        )

    def now(self) -> int:
        """Return the run's time in ns since the Unix epoch."""
        return self.anchor.ns + time.perf_counter_ns()

    @property
    def pending(self) -> int:
        """Number of pending requests."""
        return len(self._asking)

    def look(self) -> tuple[list[Granted], list[str]]:
        """Return newly granted slots and readers whose request timed out; send further requests."""
        self._see()
        granted = []
        for name, ask in [*self._asking.items()]:
            group = placement_group_table(ask.group)  # the group's `ready` would start a process for the same
            if group["state"] == "CREATED":
                node = group["bundles_to_node_id"][0]
                if node not in self._nodes:  # it came after the last check
                    self._see()
                del self._asking[name], self._until[name]
                self._granted[name] = ask.group
                granted.append(Granted(name, self._number(node), ask.group))
        late = [name for name, until in self._until.items() if time.monotonic() > until]
        for name in late:
            self.free(name)
        most = self.pool.nodes * self.pool.slots
        while self._queued and self.pending < self.pool.pending and self.pending + len(self._granted) < most:
            name = self._queued.popleft()
            group = placement_group([{self.pool.resource: 1}], name=f"{self.run}-{name}")
            self._asking[name] = _Ask(group, self.now())
        return granted, late

    def free(self, name: str) -> None:
        """Cancel a reader's request, or free its slot: its node may go when its last slot is free."""
        self._until.pop(name, None)
        if name in self._queued:
            self._queued.remove(name)
        ask, granted = self._asking.pop(name, None), self._granted.pop(name, None)
        if (group := ask.group if ask is not None else granted) is not None:
            remove_placement_group(group)

    def close(self) -> None:
        """Free everything, and report the nodes that are still present."""
        for name in [*self._until, *self._granted]:
            with contextlib.suppress(Exception):  # Ray may be gone
                self.free(name)
        for up in self._nodes.values():
            self.lived(up.number, up.requested, up.since, self.now())
        self._nodes.clear()

    def _number(self, node: str) -> int:
        up = self._nodes.get(node)
        return self.first if up is None else up.number

    def _see(self) -> None:
        """Update the pool's present nodes; a new node counts for the reader that waited longest."""
        now = self.now()
        there = nodes_with(self.pool.resource)
        for node in [*self._nodes.keys() - there]:
            up = self._nodes.pop(node)
            self.lived(up.number, up.requested, up.since, now)
        for node in sorted(there - self._nodes.keys()):
            taken = {up.number for up in self._nodes.values()}
            numbers = range(self.first, self.first + self.pool.nodes)
            number = next((n for n in numbers if n not in taken), numbers[-1])
            requested = min((ask.since for ask in self._asking.values()), default=now)
            self._nodes[node] = _Up(number, requested, now)
            self.homes[str(number)] = node


def nodes_with(resource: str) -> set[str]:
    """Return the ids of Ray nodes with a resource."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get(resource, 0) > 0}


def check_pool(plan: Plan, address: str) -> None:
    """Refuse a run whose readers need nodes that cannot come.

    Raises:
        ClusterError: no node has the resource, and no autoscaler reports.
    """
    pool = plan.cluster.reader_pool
    if pool is None:
        return
    until = time.monotonic() + SPEAK_SECONDS
    while not nodes_with(pool.resource) and _autoscaling_state(address) is None:
        if time.monotonic() > until:
            break
        time.sleep(LOOK_SECONDS)
    else:
        return
    raise ClusterError(
        f"cluster.reader_pool.resource={pool.resource}: no Ray node has it, and this cluster has no autoscaler that "
        "could bring one; start nodes with it (`ray start --resources`), or leave cluster.reader_pool out"
    )


def _autoscaling_state(address: str) -> Any:
    """Return the state that Ray's autoscaler reported last; None without an autoscaler."""
    reply = GetClusterStatusReply()
    reply.ParseFromString(ray._raylet.GcsClient(address).get_cluster_status())
    return reply.autoscaling_state if reply.HasField("autoscaling_state") else None


def is_out_of_reach(resource: str, address: str) -> bool:
    """Return True if Ray's autoscaler reports that none of its node types has the requested resource."""
    state = _autoscaling_state(address)
    if state is None:
        return False
    return any(
        resource in request.resources_bundle
        for gang in state.infeasible_gang_resource_requests
        for request in gang.requests
    )
