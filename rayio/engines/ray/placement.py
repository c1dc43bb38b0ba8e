"""Plan -> actors: which roles share an actor, what it is called, and in which bundle of the group it lives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rayio.errors import ClusterError
from rayio.model.plan import Plan
from rayio.model.wiring import loader_of
from rayio.scenario.cluster import Cluster

Kind = Literal["storage", "layer", "reader", "queue", "checkpoint_writer", "rank"]
KINDS: tuple[Kind, ...] = ("storage", "layer", "reader", "queue", "checkpoint_writer", "rank")
#: Those that are no roles: they serve roles with what is modelled.
SERVERS: tuple[Kind, ...] = ("storage", "layer")

#: What one Ray actor costs (measured, Ray 2.60): memory of its process.
ACTOR_BYTES = 62 << 20
#: Name and value of the label of Ray nodes that are kept for readers: ``ray start --labels rayio-tier=readers``.
TIER, READERS = "rayio-tier", "readers"
#: What an emulated node claims of a Ray node's processors, so that it has a place there.
LITTLE = 0.001
#: Up to so many readers on a node get a process each, as PyTorch's workers do.
UNPACKED_READERS = 16
#: Where modelled roles are packed, so many actors of a kind share a node.
PACKED_ACTORS = 2


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """One actor: the roles of one kind on one node that live in it.

    ``members`` are (rank, worker) for readers, (rank,) for queues and ranks, (number,) for writers and devices, and for
    layers (place in the plan, number of the shared state).
    """

    kind: Kind
    node: int
    members: tuple[tuple[int, ...], ...]
    #: Its name, where that does not follow from the others.
    called: str = ""

    @property
    def name(self) -> str:
        """Name of the actor in Ray's dashboard: ``reader-3-1``, or its first and last role when it holds several."""
        if self.called:
            return self.called
        first, last = ("-".join(map(str, member)) for member in (self.members[0], self.members[-1]))
        return f"{self.kind}-{first}" if first == last else f"{self.kind}-{first}..{last}"


def roles_per_actor(plan: Plan, kind: Kind, number: int) -> int:
    """How many roles of a kind share an actor, of ``number`` on one node.

    ``auto`` is one up to 16 readers (and 16 of this kind) per node; above that, roles with real I/O are packed into 16
    actors, and roles that only sleep or pass messages into two. With ``loader.worker: thread`` the readers of a rank
    are one role to this rule.
    """
    chosen = plan.cluster.roles_per_actor
    if kind in SERVERS:
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
        case "layer":
            return ((n, (place, n)) for place, layer in enumerate(plan.layers) for n in plan.shared_by(layer))
        case "reader":
            return ((plan.node_of_reader(*who), who) for who in _readers(plan)) if _has_roles(plan) else ()
        case "queue":
            return ranks if plan.loader.num_workers and _has_roles(plan) and not plan.is_queued_in_rank else ()
        case "checkpoint_writer":
            return ((plan.node_of_writer(n), (n,)) for n in range(plan.num_writers))
        case "rank":
            return ranks


def _readers(plan: Plan) -> Iterable[tuple[int, int]]:
    """The readers; where they come and go, those that come together are beside each other, to share an actor."""
    return plan.readers() if plan.loader.scaling is None else sorted(plan.readers(), key=lambda who: (who[1], who[0]))


def _has_roles(plan: Plan) -> bool:
    """Whether readers and queues are actors, or belong to a loader in each rank's process."""
    return loader_of(plan).has_roles


def _packed(plan: Plan, kind: Kind, roles: Iterable[tuple[int, tuple[int, ...]]]) -> Iterator[ActorSpec]:
    by_node: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
    for node, member in roles:
        by_node[node].append(member)
    for node, members in by_node.items():
        # Readers that come to nodes of their own come alone: each asks for its slot.
        size = 1 if kind == "reader" and node >= plan.cluster.all_nodes else roles_per_actor(plan, kind, len(members))
        for start in range(0, len(members), size):
            some = tuple(members[start : start + size])
            called = plan.layers[some[0][0]].actor(some[0][1]) if kind == "layer" else ""
            yield ActorSpec(kind, node, some, called)


def num_processes(plan: Plan) -> int:
    """Number of processes that a run starts on the nodes there are: actors, barrier, collector, workers of loaders."""
    workers = 0 if _has_roles(plan) else plan.world_size * plan.loader.num_workers
    here = [spec for spec in actors(plan) if spec.kind != "reader" or spec.node < plan.cluster.all_nodes]
    return len(here) + 1 + plan.has_barrier + workers


@dataclass(frozen=True, slots=True)
class Place:
    """A Ray node, as far as it matters for what can live there."""

    cpus: float = 1.0
    #: Whether it bears the label that keeps it for readers (:data:`TIER`).
    is_for_readers: bool = False
    #: Names of its resources.
    resources: frozenset[str] = frozenset()

    @property
    def has_room(self) -> bool:
        """Whether an emulated node can lie there: not on a head that was started with no processors."""
        return self.cpus >= LITTLE


def is_tiered(cluster: Cluster, places: Iterable[Place]) -> bool:
    """Whether readers live on Ray nodes that are kept for them."""
    return cluster.has_reader_tier and any(place.is_for_readers for place in places)


@dataclass(frozen=True, slots=True)
class Grounds:
    """How the emulated nodes of a run lie on Ray's: a bundle each, and what keeps them apart."""

    bundles: list[dict[str, float]]
    strategy: Literal["STRICT_SPREAD", "SPREAD"]
    #: The label that each bundle's Ray node bears; empty where none is asked for.
    labels: list[dict[str, str]]

    @property
    def is_packed(self) -> bool:
        """Whether emulated nodes share Ray nodes, so that the network between them is a model."""
        return self.strategy == "SPREAD"


def grounds(plan: Plan, places: Sequence[Place]) -> Grounds:
    """Lay the emulated nodes of a plan out on a cluster: each has a Ray node of its own where there are enough.

    Where ``cluster.placement`` is dedicated_readers and some Ray nodes are labelled for readers, readers live there and
    nobody else does. Roles mostly wait, so a bundle claims a place and next to no CPU; but where ``cluster.cores`` says
    what each node has, it claims that of a Ray node of its own.

    Raises:
        ClusterError: all Ray nodes are kept for readers, or a node has more cores than any that is left.
    """
    cluster, places = plan.cluster, [place for place in places if place.has_room]
    has_tier = is_tiered(cluster, places)
    numbers = range(cluster.all_nodes)
    tiers: list[tuple[range, list[float]]] = [(numbers, [place.cpus for place in places])]
    labels: list[dict[str, str]] = []
    if has_tier:
        others = [place.cpus for place in places if not place.is_for_readers]
        if not others:
            raise ClusterError(
                f"cluster.placement=dedicated_readers: all {len(places)} Ray nodes with processors are labelled "
                f"{TIER}={READERS}, and ranks need others; take the label off some"
            )
        readers = [place.cpus for place in places if place.is_for_readers]
        tiers = [(numbers[: cluster.nodes], others), (numbers[cluster.nodes :], readers)]
        labels = [{TIER: READERS if number >= cluster.nodes else f"!{READERS}"} for number in numbers]
    if any(len(wanted) > len(there) for wanted, there in tiers):
        return Grounds([{"CPU": LITTLE}] * len(numbers), "SPREAD", labels)
    if not isinstance(cluster.cores, tuple):
        return Grounds([{"CPU": LITTLE}] * len(numbers), "STRICT_SPREAD", labels)
    for wanted, there in tiers:
        _check_fit(wanted, cluster.cores, there)
    return Grounds([{"CPU": float(cores)} for cores in cluster.cores], "STRICT_SPREAD", labels)


def _check_fit(nodes: range, cores: Sequence[int], there: Sequence[float]) -> None:
    """Refuse nodes that do not fit: the largest into the largest, and so on, for that fits if anything does."""
    largest = sorted(nodes, key=lambda node: -cores[node])
    for node, cpus in zip(largest, sorted(there, reverse=True), strict=False):
        if cores[node] > cpus:
            raise ClusterError(
                f"cluster.cores: node {node} has {cores[node]}, and the Ray node that is left for it has {cpus:g}; "
                f"processors there are {', '.join(f'{cpus:g}' for cpus in sorted(there, reverse=True)[:16])}"
            )
