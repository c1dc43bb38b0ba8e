"""Plan -> pods: how many there are, and the processors and memory of each, from the actors that will live there."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rayio.engines.ray.placement import ACTOR_BYTES, actors, num_processes
from rayio.model.plan import IN_FLIGHT_SHARE, Plan

#: Memory of a pod beside its actors: Ray's own processes on the head with its dashboard (700 MiB were measured with Ray
#: 2.60) and on a worker (270 MiB: those of them that every node has), and the driver, which also writes the report.
WORKER_BYTES, HEAD_BYTES, DRIVER_BYTES = 512 << 20, 1 << 30, 1 << 30
#: Processes that mostly wait, for each processor of a pod.
WAITING_PER_CPU = 40
#: The least that Ray takes for an object store, and the step in which memory is asked for.
LEAST_STORE_BYTES, STEP_BYTES = 128 << 20, 256 << 20
#: Processors of the head: the driver's and those of Ray's control processes.
HEAD_CPUS = 2


@dataclass(frozen=True, slots=True)
class Pod:
    """What one pod asks for, and is held to."""

    cpus: int
    memory_bytes: int
    #: Share of the memory that is Ray's object store.
    store_bytes: int


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods of a run: a head with the driver, and workers, each with so many emulated nodes of ranks."""

    head: Pod
    worker: Pod
    num_workers: int
    #: A node that only reads (``cluster.placement: dedicated_readers``), and how many there are; None without.
    dedicated: Pod | None = None
    num_dedicated: int = 0
    #: A node that comes for readers (``cluster.reader_pool``); None without.
    reader: Pod | None = None


def pods_of(plan: Plan, num_workers: int | None = None) -> Pods:
    """Size the pods of a plan: a worker for each node of ranks unless there shall be fewer, and one for each reading.

    A worker's memory holds the processes of its emulated nodes, an object store in which the windows of their ranks fit
    (of which batches in flight may take 30 %), and a batch in the hands of each reader. It has a processor for each
    reader and writer that does real I/O, and one for every 40 processes that wait. Where readers have nodes of their
    own, those have what readers need, and the stores of ranks what these have fetched.
    """
    cluster = plan.cluster
    nodes = range(cluster.nodes)
    workers = cluster.nodes if num_workers is None else num_workers
    together = -(-cluster.nodes // workers)
    per_node = Counter(spec.node for spec in actors(plan) if spec.node < cluster.all_nodes)
    beside = num_processes(plan) - per_node.total()  # barrier, collector, network, a loader's own processes
    own = -(-(beside - 1 - plan.has_barrier) // cluster.nodes)
    processes = together * (max(per_node[node] for node in nodes) + own) + plan.has_barrier
    batches_in_hand = cluster.ranks_per_node * (1 if cluster.has_reader_tier else max(1, _workers(plan)) + 1)
    least = _least_cores(plan, nodes) if together == 1 else 0
    head_bytes = HEAD_BYTES + DRIVER_BYTES + ACTOR_BYTES + LEAST_STORE_BYTES
    return Pods(
        head=Pod(HEAD_CPUS, _stepped(head_bytes), LEAST_STORE_BYTES),
        worker=_pod(
            processes,
            together * _busy(plan, nodes),
            window=together * _window_bytes(plan),
            hands=together * batches_in_hand * _batch_bytes(plan),
            least=least,
        ),
        num_workers=workers,
        dedicated=_dedicated(plan, per_node, is_apart=together == 1),
        num_dedicated=cluster.all_nodes - cluster.nodes,
        reader=_reader(plan),
    )


def _pod(processes: int, busy: int, *, window: float, hands: float, least: int = 0) -> Pod:
    """A pod for so many processes, ``busy`` of which keep a processor busy; ``least`` are its fewest processors.

    Bytes of the ``window`` lie in its object store, those in ``hands`` do not.
    """
    store = max(LEAST_STORE_BYTES, _stepped(window / IN_FLIGHT_SHARE)) if window else LEAST_STORE_BYTES
    memory = WORKER_BYTES + processes * ACTOR_BYTES + store + hands
    return Pod(max(least, 1 + busy + processes // WAITING_PER_CPU), _stepped(memory), store)


def _dedicated(plan: Plan, per_node: Counter[int], *, is_apart: bool) -> Pod | None:
    """The pod of a node that only reads, as large as the one with most readers needs; all are alike.

    ``is_apart`` says that each emulated node has a pod of its own, and claims the cores that it is said to have.
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
        window=_window_bytes(plan) * cluster.nodes * most / readers.total(),
        hands=most * _batch_bytes(plan),
        least=_least_cores(plan, nodes) if is_apart else 0,
    )


def _least_cores(plan: Plan, nodes: range) -> int:
    """The processors that some emulated nodes claim of Ray nodes of their own."""
    cores = plan.cluster.cores
    return max(cores[nodes.start : nodes.stop]) if isinstance(cores, tuple) else 0


def _reader(plan: Plan) -> Pod | None:
    """The pod of a node that comes for readers: processes, a window's share and a batch in hand for each of its slots.

    Its readers' batches lie in its object store until their ranks have fetched them.
    """
    pool = plan.cluster.reader_pool
    if pool is None:
        return None
    batches = pool.slots * _batch_bytes(plan)
    busy = 0 if plan.modelled else pool.slots
    return _pod(pool.slots, busy, window=batches * plan.loader.prefetch_factor, hands=batches)


def _busy(plan: Plan, nodes: range) -> int:
    """The most roles of one of these emulated nodes that keep a processor busy: readers, and writers of checkpoints."""
    if plan.modelled:
        return 0
    cluster = plan.cluster
    writers = Counter(plan.node_of_writer(number) for number in range(plan.num_writers))
    readers = Counter(plan.node_of_reader(*who) for who in plan.readers())
    if not plan.loader.num_workers:  # ranks read
        readers = Counter(dict.fromkeys(nodes, cluster.ranks_per_node))
    return max(readers[node] for node in nodes) + max(writers[node] for node in nodes)


def _workers(plan: Plan) -> int:
    """The most readers that a rank has on the nodes that are there from the start."""
    scaling = plan.loader.scaling
    return scaling.min if plan.cluster.has_pool and scaling is not None else plan.loader.num_workers


def _window_bytes(plan: Plan) -> float:
    """Bytes that batches on their way may hold for one emulated node of ranks."""
    loader = plan.loader
    if not loader.payload:
        return 0.0
    bound = loader.max_bytes_in_flight
    return loader.node_window_bytes if bound == "auto" else min(loader.node_window_bytes, bound)


def _batch_bytes(plan: Plan) -> float:
    """Bytes of one batch, where batches are bytes."""
    loader = plan.loader
    if not loader.payload:
        return 0.0
    window = max(1, loader.num_workers * loader.prefetch_factor)
    return loader.node_window_bytes / plan.cluster.ranks_per_node / window


def _stepped(nbytes: float) -> int:
    return -(-int(nbytes) // STEP_BYTES) * STEP_BYTES
