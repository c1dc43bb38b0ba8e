"""Plan -> actors: which roles share an actor, what it is called, and in which bundle of the group it lives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from rayio.pipeline.plan import Plan
from rayio.pipeline.wiring import loader_of

Kind = Literal["storage", "reader", "queue", "checkpoint_writer", "rank"]
KINDS: tuple[Kind, ...] = ("storage", "reader", "queue", "checkpoint_writer", "rank")

#: What one Ray actor costs (measured, Ray 2.60): memory of its process.
ACTOR_BYTES = 62 << 20
#: Up to so many readers on a node get a process each, as PyTorch's workers do.
UNPACKED_READERS = 16
#: Where modelled roles are packed, so many actors of a kind share a node.
PACKED_ACTORS = 2


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """One actor: the roles of one kind on one node that live in it.

    ``members`` are (rank, worker) for readers, (rank,) for queues and ranks, (number,) for writers and devices.
    """

    kind: Kind
    node: int
    members: tuple[tuple[int, ...], ...]

    @property
    def name(self) -> str:
        """Name of the actor in Ray's dashboard: ``reader-3-1``, or its first and last role when it holds several."""
        first, last = ("-".join(map(str, member)) for member in (self.members[0], self.members[-1]))
        return f"{self.kind}-{first}" if first == last else f"{self.kind}-{first}..{last}"


def roles_per_actor(plan: Plan, kind: Kind, number: int) -> int:
    """How many roles of a kind share an actor, of ``number`` on one node.

    ``auto`` is one up to 16 readers (and 16 of this kind) per node; above that, roles with real I/O are packed into 16
    actors, and roles that only sleep or pass messages into two. With ``loader.worker: thread`` the readers of a rank
    are one role to this rule.
    """
    chosen = plan.cluster.roles_per_actor
    if kind == "storage":
        return 1
    loader, per_node = plan.loader, plan.cluster.ranks_per_node
    workers = max(1, loader.num_workers)
    if loader.worker == "thread":
        together = workers if kind == "reader" else 1
        return together * _packed_together(plan, kind, chosen, -(-number // together), per_node)
    return _packed_together(plan, kind, chosen, number, per_node * workers)


def _packed_together(plan: Plan, kind: Kind, chosen: int | Literal["auto"], number: int, readers: int) -> int:
    if chosen != "auto":
        return chosen
    if max(readers, number) <= UNPACKED_READERS:
        return 1
    loader = plan.loader
    does_io = kind in ("reader", "checkpoint_writer") or (
        kind == "rank" and (loader.num_workers == 0 or not _has_roles(plan))
    )
    return -(-number // (UNPACKED_READERS if does_io and not plan.modelled else PACKED_ACTORS))


def actors(plan: Plan, kind: Kind | None = None) -> list[ActorSpec]:
    """List the actors of a plan, or those of one kind; readers come before queues, queues before ranks."""
    kinds = KINDS if kind is None else (kind,)
    return [spec for each in kinds for spec in _packed(plan, each, _roles(plan, each))]


def _roles(plan: Plan, kind: Kind) -> Iterable[tuple[int, tuple[int, ...]]]:
    """The (node, member) of every role of a kind."""
    ranks = ((plan.node_of_rank(r), (r,)) for r in range(plan.world_size))
    match kind:
        case "storage":
            return ((n, (n,)) for n in range(plan.num_devices if plan.modelled else 0))
        case "reader":
            return ((plan.node_of_reader(*who), who) for who in plan.readers()) if _has_roles(plan) else ()
        case "queue":
            return ranks if plan.loader.num_workers and _has_roles(plan) and not plan.is_queued_in_rank else ()
        case "checkpoint_writer":
            return ((plan.node_of_writer(n), (n,)) for n in range(plan.num_writers))
        case "rank":
            return ranks


def _has_roles(plan: Plan) -> bool:
    """Whether readers and queues are actors, or belong to a loader in each rank's process."""
    return loader_of(plan).has_roles


def _packed(plan: Plan, kind: Kind, roles: Iterable[tuple[int, tuple[int, ...]]]) -> Iterator[ActorSpec]:
    by_node: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
    for node, member in roles:
        by_node[node].append(member)
    for node, members in by_node.items():
        size = roles_per_actor(plan, kind, len(members))
        for start in range(0, len(members), size):
            yield ActorSpec(kind, node, tuple(members[start : start + size]))


def num_processes(plan: Plan) -> int:
    """Number of processes that a run starts on all nodes: actors, barrier, collector, and workers of loaders."""
    workers = 0 if _has_roles(plan) else plan.world_size * plan.loader.num_workers
    return len(actors(plan)) + 1 + plan.has_barrier + workers


def bundles(plan: Plan) -> list[dict[str, float]]:
    """Make one bundle per emulated node. Roles mostly wait, so a bundle claims a place and next to no CPU."""
    return [{"CPU": 0.001}] * plan.cluster.nodes


def strategy(nodes: int, ray_nodes: int) -> Literal["STRICT_SPREAD", "PACK"]:
    """Whether each bundle has a Ray node to itself: where there are enough of them."""
    return "STRICT_SPREAD" if nodes <= ray_nodes else "PACK"
