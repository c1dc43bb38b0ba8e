"""The pods of a plan: their number, processors and memory, from the actors that they hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rayio.engines.ray.placement import ACTOR_BYTES, actors, num_processes
from rayio.model.plan import IN_FLIGHT_SHARE, Plan

#: Memory of a pod without its actors: Ray's processes on a worker (with Ray 2.60: 270 MiB) and on the head with
#: its dashboard (700 MiB), and the driver, which also writes the report.
WORKER_BYTES, HEAD_BYTES, DRIVER_BYTES = 512 << 20, 1 << 30, 1 << 30
#: Waiting processes per processor of a pod.
WAITING_PER_CPU = 40
#: Ray's smallest object store, and the granularity of memory requests.
LEAST_STORE_BYTES, STEP_BYTES = 128 << 20, 256 << 20
#: Processors of the head, for the driver and Ray's control processes.
HEAD_CPUS = 2


@dataclass(frozen=True, slots=True)
class Pod:
    """The resources of a pod."""

    cpus: int
    memory_bytes: int
    store_bytes: int


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods of a run: a head with the driver, and workers with one or more emulated nodes of ranks each."""

    head: Pod
    worker: Pod
    num_workers: int
    #: A dedicated reader node (``cluster.placement: dedicated_readers``), or None, and their number.
    dedicated: Pod | None = None
    num_dedicated: int = 0
    #: A node of the reader pool (``cluster.reader_pool``), or None.
    reader: Pod | None = None


def pods_of(plan: Plan, num_workers: int | None = None) -> Pods:
    """Return the pods of a plan: a worker per node of ranks (or ``num_workers``), and one per dedicated reader node.

    A worker's memory holds its processes, an object store for its ranks' windows (batches in flight use at most 30 % of
    it), and a batch per reader. It has a processor for each reader and writer with real I/O, and one for every 40
    waiting processes.
    """
    cluster = plan.cluster
    nodes = range(cluster.nodes)
    workers = cluster.nodes if num_workers is None else num_workers
    together = -(-cluster.nodes // workers)
    per_node = Counter(spec.node for spec in actors(plan) if spec.node < cluster.all_nodes)
    others = num_processes(plan) - per_node.total()  # barrier, collector, network, processes of a loader
    own = -(-(others - 1 - plan.has_barrier) // cluster.nodes)
    processes = together * (max(per_node[node] for node in nodes) + own) + plan.has_barrier
    batches_in_hand = cluster.most_ranks * (1 if cluster.has_reader_tier else max(1, _workers(plan)) + 1)
    least = _least_cores(plan, nodes) if together == 1 else 0
    head_bytes = HEAD_BYTES + DRIVER_BYTES + ACTOR_BYTES + LEAST_STORE_BYTES
    return Pods(
        head=Pod(HEAD_CPUS, _stepped(head_bytes), LEAST_STORE_BYTES),
        worker=_pod(
            processes,
            together * _busy(plan, nodes),
            window=together * max(_window_bytes(plan, node) for node in nodes),
            hands=together * batches_in_hand * _batch_bytes(plan),
            least=least,
        ),
        num_workers=workers,
        dedicated=_dedicated(plan, per_node, is_apart=together == 1),
        num_dedicated=cluster.all_nodes - cluster.nodes,
        reader=_reader(plan),
    )


def _pod(processes: int, busy: int, *, window: float, hands: float, least: int = 0) -> Pod:
    """Return a pod for some processes, ``busy`` of which need a processor each; it has at least ``least`` processors.

    ``window`` bytes are in its object store, ``hands`` bytes in processes.
    """
    store = max(LEAST_STORE_BYTES, _stepped(window / IN_FLIGHT_SHARE)) if window else LEAST_STORE_BYTES
    memory = WORKER_BYTES + processes * ACTOR_BYTES + store + hands
    return Pod(max(least, 1 + busy + processes // WAITING_PER_CPU), _stepped(memory), store)


def _dedicated(plan: Plan, per_node: Counter[int], *, is_apart: bool) -> Pod | None:
    """Return the pod of a dedicated reader node, sized for the one with most readers.

    If ``is_apart``, each emulated node has its own pod and claims its ``cluster.cores``.
    """
    cluster = plan.cluster
    if not cluster.has_reader_tier:
        return None
    nodes = range(cluster.nodes, cluster.all_nodes)
    readers = Counter(node for who in plan.readers() if (node := plan.node_of_reader(*who)) in nodes)
    most = max(readers.values())
    return _pod(
        max(per_node[node] for node in nodes),
        _busy(plan, nodes),
        window=sum(_window_bytes(plan, node) for node in range(cluster.nodes)) * most / readers.total(),
        hands=most * _batch_bytes(plan),
        least=_least_cores(plan, nodes) if is_apart else 0,
    )


def _least_cores(plan: Plan, nodes: range) -> int:
    """Return the most processors (``cluster.cores``) that one of these emulated nodes claims."""
    cores = plan.cluster.cores
    return max(cores[nodes.start : nodes.stop]) if isinstance(cores, tuple) else 0


def _reader(plan: Plan) -> Pod | None:
    """Return the pod of a reader pool's node, with a process, a share of the window and a batch for each slot."""
    pool = plan.cluster.reader_pool
    if pool is None:
        return None
    batches = pool.slots * _batch_bytes(plan)
    busy = 0 if plan.modelled else pool.slots
    return _pod(pool.slots, busy, window=batches * plan.loader.prefetch_factor, hands=batches)


def _busy(plan: Plan, nodes: range) -> int:
    """Return the most busy roles (readers and checkpoint writers) of one of these emulated nodes."""
    if plan.modelled:
        return 0
    cluster = plan.cluster
    writers = Counter(plan.node_of_writer(number) for number in range(plan.num_writers))
    readers = Counter(plan.node_of_reader(*who) for who in plan.readers())
    if not plan.loader.num_workers:  # ranks read
        readers = Counter({node: len(cluster.ranks_of(node)) for node in nodes})
    return max(readers[node] for node in nodes) + max(writers[node] for node in nodes)


def _workers(plan: Plan) -> int:
    scaling = plan.loader.scaling
    return scaling.min if plan.cluster.has_pool and scaling is not None else plan.loader.num_workers


def _window_bytes(plan: Plan, node: int) -> float:
    """Return the bytes of the windows of a node's ranks."""
    loader, cluster = plan.loader, plan.cluster
    if not loader.payload:
        return 0.0
    window = loader.node_window_bytes * len(cluster.ranks_of(node)) / cluster.most_ranks
    return window if (bound := loader.max_bytes_in_flight) == "auto" else min(window, bound)


def _batch_bytes(plan: Plan) -> float:
    loader = plan.loader
    if not loader.payload:
        return 0.0
    window = max(1, loader.num_workers * loader.prefetch_factor)
    return loader.node_window_bytes / plan.cluster.most_ranks / window


def _stepped(nbytes: float) -> int:
    return -(-int(nbytes) // STEP_BYTES) * STEP_BYTES
