"""Placement: the roles of each actor, its name, and its bundle of the placement group."""

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
#: Kinds that are no roles: they serve modelled storage and layers to roles.
SERVERS: tuple[Kind, ...] = ("storage", "layer")

#: Memory of an actor's process (measured, Ray 2.60).
ACTOR_BYTES = 62 << 20
#: The label of Ray nodes reserved for readers: ``ray start --labels rayio-tier=readers``.
TIER, READERS = "rayio-tier", "readers"
#: CPU claim of an emulated node, enough to be placed.
LITTLE = 0.001
#: Up to this many readers on a node get a process each, as PyTorch's workers do.
UNPACKED_READERS = 16
#: Actors per kind and node for modelled roles that are packed.
PACKED_ACTORS = 2
#: Ranks or queues that share an actor even if they are few, and writers.
FEW_RANKS, FEW_WRITERS = 4, 2


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """An actor: its roles, of one kind on one node.

    ``members`` are (rank, worker) for readers, (rank,) for queues and ranks, (number,) for writers and devices, and for
    layers (place in the plan, number of the shared state).
    """

    kind: Kind
    node: int
    members: tuple[tuple[int, ...], ...]
    #: Its name, if it does not follow from the other fields.
    called: str = ""

    @property
    def name(self) -> str:
        """The actor's name in Ray's dashboard: ``reader-3-1``, or its first and last role if it has several."""
        if self.called:
            return self.called
        first, last = ("-".join(map(str, member)) for member in (self.members[0], self.members[-1]))
        return f"{self.kind}-{first}" if first == last else f"{self.kind}-{first}..{last}"


def roles_per_actor(plan: Plan, kind: Kind, number: int) -> int:
    """Return the number of roles of a kind in one actor, of ``number`` on one node.

    ``auto`` is one up to 16 readers (and 16 of this kind) on the node with the most. Above that, roles with real I/O
    share 16 actors, and roles that only sleep or pass messages share two. Up to four ranks without I/O share one, four
    queues, and two writers: each process takes 100 MiB, a time to start, and time from those that work. With
    ``failures``, which kill processes, they do not. With ``loader.worker: thread`` the readers of a rank count as one.
    """
    chosen = plan.cluster.roles_per_actor
    if kind in SERVERS:
        return 1
    loader, per_node = plan.loader, plan.cluster.most_ranks
    workers = max(1, loader.num_workers)
    if loader.worker == "thread":
        together = workers if kind == "reader" else 1
        return together * _packed_together(plan, kind, chosen, -(-number // together), per_node)
    return _packed_together(plan, kind, chosen, number, per_node * workers)


def _packed_together(plan: Plan, kind: Kind, chosen: int | Literal["auto"], number: int, readers: int) -> int:
    if chosen != "auto":
        return chosen
    loader = plan.loader
    does_io = kind in ("reader", "checkpoint_writer") or (
        kind == "rank" and (loader.num_workers == 0 or not _has_roles(plan)) and bool(plan.steps)
    )
    if max(readers, number) > UNPACKED_READERS:
        return -(-number // (UNPACKED_READERS if does_io and not plan.modelled else PACKED_ACTORS))
    if plan.failures is not None:
        return 1
    return FEW_WRITERS if kind == "checkpoint_writer" else FEW_RANKS if kind in ("rank", "queue") and not does_io else 1


def actors(plan: Plan, kind: Kind | None = None) -> list[ActorSpec]:
    """Return the actors of a plan, or those of one kind; readers come before queues, queues before ranks."""
    kinds = KINDS if kind is None else (kind,)
    return [spec for each in kinds for spec in _packed(plan, each, _roles(plan, each))]


def _roles(plan: Plan, kind: Kind) -> Iterable[tuple[int, tuple[int, ...]]]:
    ranks = ((plan.node_of_rank(r), (r,)) for r in range(plan.world_size))
    match kind:
        case "storage":
            first = plan.num_devices  # those of a burst tier come after them, from node 0 on too
            return ((n - first * (n >= first), (n,)) for n in range(len(plan.devices) if plan.modelled else 0))
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
    """Return the readers; if they scale, those that start together are adjacent, to share an actor."""
    return plan.readers() if plan.loader.scaling is None else sorted(plan.readers(), key=lambda who: (who[1], who[0]))


def _has_roles(plan: Plan) -> bool:
    return loader_of(plan).has_roles


def _packed(plan: Plan, kind: Kind, roles: Iterable[tuple[int, tuple[int, ...]]]) -> Iterator[ActorSpec]:
    by_node: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
    for node, member in roles:
        by_node[node].append(member)
    for node, members in by_node.items():
        # Readers on pool nodes are in separate actors: each requests a slot.
        size = 1 if kind == "reader" and node >= plan.cluster.all_nodes else roles_per_actor(plan, kind, len(members))
        for start in range(0, len(members), size):
            some = tuple(members[start : start + size])
            called = plan.layers[some[0][0]].actor(some[0][1]) if kind == "layer" else ""
            yield ActorSpec(kind, node, some, called)


def num_processes(plan: Plan) -> int:
    """Return the number of processes on present nodes: actors, barrier, collector, workers of loaders, stages."""
    workers = 0 if _has_roles(plan) else plan.world_size * plan.loader.num_workers
    here = [spec for spec in actors(plan) if spec.kind != "reader" or spec.node < plan.cluster.all_nodes]
    return len(here) + 1 + plan.has_barrier + workers + (plan.workflow.most_at_once + 1 if plan.workflow else 0)


@dataclass(frozen=True, slots=True)
class Place:
    """A Ray node's resources for placement."""

    cpus: float = 1.0
    #: True if its label reserves it for readers (:data:`TIER`).
    is_for_readers: bool = False
    #: Names of its resources.
    resources: frozenset[str] = frozenset()

    @property
    def has_room(self) -> bool:
        """True if an emulated node can be placed there; False for a head without CPUs."""
        return self.cpus >= LITTLE


def is_tiered(cluster: Cluster, places: Iterable[Place]) -> bool:
    """Return True if readers run on Ray nodes reserved for them."""
    return cluster.has_reader_tier and any(place.is_for_readers for place in places)


@dataclass(frozen=True, slots=True)
class Grounds:
    """The placement of emulated nodes on Ray nodes: a bundle each, with labels."""

    bundles: list[dict[str, float]]
    strategy: Literal["STRICT_SPREAD", "SPREAD"]
    #: The label required of each bundle's Ray node, or empty.
    labels: list[dict[str, str]]

    @property
    def is_packed(self) -> bool:
        """True if emulated nodes share Ray nodes, so that the network between them is modelled."""
        return self.strategy == "SPREAD"


def grounds(plan: Plan, places: Sequence[Place]) -> Grounds:
    """Return the placement of a plan's emulated nodes: each on a separate Ray node if there are enough.

    With ``cluster.placement: dedicated_readers`` and Ray nodes labelled for readers, only readers run there. Roles
    mostly wait, so a bundle claims almost no CPU; with ``cluster.cores`` it claims these cores of a separate Ray node.

    Raises:
        ClusterError: all Ray nodes are reserved for readers, or a node has more cores than any remaining one.
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
                f"cluster.placement=dedicated_readers: all {len(places)} Ray nodes with processors have the label "
                f"{TIER}={READERS}, and ranks need others; remove the label from some"
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
    """Refuse nodes that do not fit: the largest on the largest, and so on; that fits if anything does."""
    largest = sorted(nodes, key=lambda node: -cores[node])
    for node, cpus in zip(largest, sorted(there, reverse=True), strict=False):
        if cores[node] > cpus:
            raise ClusterError(
                f"cluster.cores: node {node} has {cores[node]}, and the Ray node left for it has {cpus:g}; "
                f"processors there are {', '.join(f'{cpus:g}' for cpus in sorted(there, reverse=True)[:16])}"
            )
