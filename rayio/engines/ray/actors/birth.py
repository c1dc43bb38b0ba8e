"""The parameters of an actor, and its address for calls."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import ray

from rayio.engines.ray.placement import Kind, actors
from rayio.engines.ray.transport.lines import Address, Exchange
from rayio.engines.ray.transport.shared import is_possible
from rayio.model.ledger import Tally
from rayio.model.plan import Plan
from rayio.trace.clocks import Anchor


@dataclass(frozen=True)
class Birth:
    """The parameters of every actor, enough for Ray to restart it."""

    name: str
    node: int
    members: tuple[tuple[int, ...], ...]
    plan: Plan
    #: Base address of the scenario's relative paths on the actor's node.
    root: str
    anchor: Anchor
    #: Ray namespace of the names of this run's actors.
    namespace: str
    #: The consumption with which its ranks begin; empty for others.
    tallies: tuple[Tally, ...] = ()

    def find(self, name: str) -> Any:
        """Return the handle of another actor of this run."""
        return ray.get_actor(name, namespace=self.namespace)

    def holders(self, kind: Kind, among: Container[tuple[int, ...]]) -> dict[tuple[int, ...], Any]:
        """Return the handles of the actors with these roles of a kind, by role."""
        handles: dict[tuple[int, ...], Any] = {}
        for spec in actors(self.plan, kind):
            if wanted := [member for member in spec.members if member in among]:
                handles |= dict.fromkeys(wanted, self.find(spec.name))
        return handles

    def readers(self) -> dict[tuple[int, ...], Any]:
        """Return the handles of the readers of this actor's ranks, by (rank, worker)."""
        loader = self.plan.loader
        workers = range(loader.num_workers if loader.scaling is None else loader.scaling.min)
        return self.holders("reader", {(rank, worker) for (rank,) in self.members for worker in workers})


def has_lines(plan: Plan) -> bool:
    """Return True if actors of one host may call each other over lines."""
    return plan.cluster.transport == "auto" and is_possible()


def address(plan: Plan, exchange: Exchange | None) -> Address:
    """Return this actor's address for calls, for its ``listen``."""
    node = ray.get_runtime_context().get_node_id()
    return Address(node, exchange.open() if exchange is not None and has_lines(plan) else None)
