"""Slots on nodes that come and go (``cluster.reader_pool``), on Ray: what readers ask for, and which nodes there were.

A reader asks by a placement group of one bundle, which has one of the pool's resource: Ray's autoscaler sees it as long
as it is pending, the node is known before the reader starts, and what holds the node is one thing that can be removed.
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

#: Seconds that the autoscaler of a cluster which has just begun gets to say something, and between two looks.
SPEAK_SECONDS, LOOK_SECONDS = 15.0, 0.5
#: Is told of a node's life: its number, and when it was asked for, was there, and had gone (ns); None is never.
Lived = Callable[[int, int, "int | None", int], None]


class Granted(NamedTuple):
    """A reader that has a slot: by its name, the number of the node, and the group that it is to be started in."""

    name: str
    node: int
    group: PlacementGroup


class _Ask(NamedTuple):
    """A group that is pending, and since when (ns)."""

    group: PlacementGroup
    since: int


class _Up(NamedTuple):
    """A node that is there: its number, and when it was asked for, and was there (ns)."""

    number: int
    asked: int
    since: int


class Slots:
    """The driver's part: who asks for a slot and who has one, and the nodes that come and go with that.

    ``anchor`` is the run's clock in this process, ``lived`` is told of each node that has gone. No method waits for a
    node.
    """

    def __init__(self, plan: Plan, run: str, anchor: Anchor, lived: Lived) -> None:
        pool = plan.cluster.reader_pool
        assert pool is not None
        self.pool = pool
        #: The number of the first of these nodes.
        self.first = plan.cluster.all_nodes
        self.run = run
        self.anchor = anchor
        self.lived = lived
        #: Readers whose turn to ask has not come, in order, and those that ask; until when (monotonic) each may wait.
        self._queued: deque[str] = deque()
        self._asking: dict[str, _Ask] = {}
        self._until: dict[str, float] = {}
        self._held: dict[str, PlacementGroup] = {}
        #: The nodes that are there, by their id in Ray; the id that each number had last.
        self._nodes: dict[str, _Up] = {}
        self.homes: dict[str, str] = {}
        self._see()

    def want(self, name: str) -> None:
        """Ask for a slot for a reader; one that asks or has one already does not ask again."""
        if name not in self._until and name not in self._held:
            self._until[name] = time.monotonic() + self.pool.deadline
            self._queued.append(name)

    def missed(self, name: str) -> str:
        """Say that no node came for a reader in time."""
        pool = self.pool
        why = ""
        if is_out_of_reach(pool.resource, ray.get_runtime_context().gcs_address):
            why = "; Ray's autoscaler says that none of the kinds of node which it could start has any"
        return (
            f"no node with {pool.resource} came for {name} within {format_seconds(pool.deadline)} "
            f"(cluster.reader_pool.deadline){why}: its rank goes on with the readers that it has, and asks again later"
        )

    def now(self) -> int:
        """The time that the run goes by, in ns since the Unix epoch."""
        return self.anchor.ns + time.perf_counter_ns()

    @property
    def pending(self) -> int:
        """Readers that ask for a slot at the moment."""
        return len(self._asking)

    def look(self) -> tuple[list[Granted], list[str]]:
        """Find out who has got a slot by now, and who has waited too long and does not ask any more; ask on."""
        self._see()
        granted = []
        for name, ask in [*self._asking.items()]:
            told = placement_group_table(ask.group)  # its own `ready` would start a process to say the same
            if told["state"] == "CREATED":
                node = told["bundles_to_node_id"][0]
                if node not in self._nodes:  # it came since the nodes were looked at
                    self._see()
                del self._asking[name], self._until[name]
                self._held[name] = ask.group
                granted.append(Granted(name, self._number(node), ask.group))
        late = [name for name, until in self._until.items() if time.monotonic() > until]
        for name in late:
            self.free(name)
        most = self.pool.nodes * self.pool.slots
        while self._queued and self.pending < self.pool.pending and self.pending + len(self._held) < most:
            name = self._queued.popleft()
            group = placement_group([{self.pool.resource: 1}], name=f"{self.run}-{name}")
            self._asking[name] = _Ask(group, self.now())
        return granted, late

    def free(self, name: str) -> None:
        """Have a reader ask no more, or give back what it has: its node may go once nobody else has a slot of it."""
        self._until.pop(name, None)
        if name in self._queued:
            self._queued.remove(name)
        ask, held = self._asking.pop(name, None), self._held.pop(name, None)
        if (group := ask.group if ask is not None else held) is not None:
            remove_placement_group(group)

    def close(self) -> None:
        """Give everything back, and tell of the nodes that are still there."""
        for name in [*self._until, *self._held]:
            with contextlib.suppress(Exception):  # Ray may be gone
                self.free(name)
        for up in self._nodes.values():
            self.lived(up.number, up.asked, up.since, self.now())
        self._nodes.clear()

    def _number(self, node: str) -> int:
        up = self._nodes.get(node)
        return self.first if up is None else up.number

    def _see(self) -> None:
        """Look which nodes of the pool there are: who came was asked for by the reader that has waited longest."""
        now = self.now()
        there = nodes_with(self.pool.resource)
        for node in [*self._nodes.keys() - there]:
            up = self._nodes.pop(node)
            self.lived(up.number, up.asked, up.since, now)
        for node in sorted(there - self._nodes.keys()):
            taken = {up.number for up in self._nodes.values()}
            numbers = range(self.first, self.first + self.pool.nodes)
            number = next((one for one in numbers if one not in taken), numbers[-1])
            asked = min((ask.since for ask in self._asking.values()), default=now)
            self._nodes[node] = _Up(number, asked, now)
            self.homes[str(number)] = node


def nodes_with(resource: str) -> set[str]:
    """The ids of the Ray nodes that have some of a resource."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get(resource, 0) > 0}


def check_pool(plan: Plan, address: str) -> None:
    """Refuse a run whose readers ask for nodes where nobody could bring any.

    Raises:
        ClusterError: no node has what they ask for, and no autoscaler has said a word.
    """
    pool = plan.cluster.reader_pool
    if pool is None:
        return
    until = time.monotonic() + SPEAK_SECONDS
    while not nodes_with(pool.resource) and _said(address) is None:
        if time.monotonic() > until:
            break
        time.sleep(LOOK_SECONDS)
    else:
        return
    raise ClusterError(
        f"cluster.reader_pool.resource={pool.resource}: no Ray node has it, and this cluster has no autoscaler that "
        "could bring one; start nodes with it (`ray start --resources`), or leave cluster.reader_pool out"
    )


def _said(address: str) -> Any:
    """What Ray's autoscaler said last of itself; None where there is none."""
    said = GetClusterStatusReply()
    said.ParseFromString(ray._raylet.GcsClient(address).get_cluster_status())
    return said.autoscaling_state if said.HasField("autoscaling_state") else None


def is_out_of_reach(resource: str, address: str) -> bool:
    """Whether Ray's autoscaler says that no kind of node which it could start has a resource that is asked for."""
    said = _said(address)
    if said is None:
        return False
    return any(
        resource in request.resources_bundle
        for gang in said.infeasible_gang_resource_requests
        for request in gang.requests
    )
