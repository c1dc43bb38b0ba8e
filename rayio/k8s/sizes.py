"""Plan -> pods: how many there are, and the processors and memory of each, from the actors that will live there."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from rayio.cluster.placement import ACTOR_BYTES, actors, num_processes
from rayio.pipeline.plan import IN_FLIGHT_SHARE, Plan

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
    """The pods of a run: a head with the driver, and workers, each with so many emulated nodes."""

    head: Pod
    worker: Pod
    num_workers: int
    #: A node that comes for readers (``cluster.reader_pool``); None without.
    reader: Pod | None = None


def pods_of(plan: Plan, num_workers: int | None = None) -> Pods:
    """Size the pods of a plan; a worker for each emulated node unless there shall be fewer.

    A worker's memory holds the processes of its emulated nodes, an object store in which the windows of their ranks fit
    (of which batches in flight may take 30 %), and a batch in the hands of each reader. It has a processor for each
    reader and writer that does real I/O, and one for every 40 processes that wait.
    """
    nodes = plan.cluster.all_nodes
    workers = nodes if num_workers is None else num_workers
    together = -(-nodes // workers)
    per_node = Counter(spec.node for spec in actors(plan) if spec.node < nodes)
    loading = 0 if plan.modelled else _busy(plan)
    beside = num_processes(plan) - per_node.total()  # barrier, collector, a loader's own processes
    own = -(-(beside - 1 - plan.has_barrier) // nodes)
    processes = together * (max(per_node.values()) + own) + plan.has_barrier
    held = together * _window_bytes(plan) * _ranks_per_reading_node(plan)
    store = max(LEAST_STORE_BYTES, _stepped(held / IN_FLIGHT_SHARE)) if held else LEAST_STORE_BYTES
    hands = together * plan.cluster.ranks_per_node * _in_hands(plan) * _ranks_per_reading_node(plan)
    memory = WORKER_BYTES + processes * ACTOR_BYTES + store + hands
    return Pods(
        head=Pod(HEAD_CPUS, _stepped(HEAD_BYTES + DRIVER_BYTES + ACTOR_BYTES + LEAST_STORE_BYTES), LEAST_STORE_BYTES),
        worker=Pod(1 + together * loading + processes // WAITING_PER_CPU, _stepped(memory), store),
        num_workers=workers,
        reader=_reader(plan),
    )


def _reader(plan: Plan) -> Pod | None:
    """The pod of a node that comes for readers: processes, a window's share and a batch in hand for each of its slots.

    Its readers' batches lie in its object store until their ranks have fetched them.
    """
    pool = plan.cluster.reader_pool
    if pool is None:
        return None
    batches = pool.slots * _batch_bytes(plan)
    store = max(LEAST_STORE_BYTES, _stepped(batches * plan.loader.prefetch_factor / IN_FLIGHT_SHARE))
    memory = WORKER_BYTES + pool.slots * ACTOR_BYTES + store + batches
    loading = 0 if plan.modelled else pool.slots
    return Pod(1 + loading + pool.slots // WAITING_PER_CPU, _stepped(memory), store)


def _busy(plan: Plan) -> int:
    """Roles of one emulated node that keep a processor busy: readers, and writers of checkpoints."""
    writers = Counter(plan.node_of_writer(number) for number in range(plan.num_writers))
    readers = math.ceil(plan.cluster.ranks_per_node * max(1, _workers(plan)) * _ranks_per_reading_node(plan))
    return readers + max(writers.values(), default=0)


def _workers(plan: Plan) -> int:
    """The most readers that a rank has on the nodes that are there from the start."""
    scaling = plan.loader.scaling
    return scaling.min if plan.cluster.has_pool and scaling is not None else plan.loader.num_workers


def _ranks_per_reading_node(plan: Plan) -> float:
    """How many nodes of ranks the readers of a node read for: one, unless they have nodes of their own."""
    return plan.cluster.nodes / len(plan.cluster.reading_nodes) if plan.cluster.has_reader_tier else 1.0


def _window_bytes(plan: Plan) -> float:
    """Bytes that batches on their way may hold on one emulated node."""
    loader = plan.loader
    if not loader.payload:
        return 0.0
    bound = loader.max_bytes_in_flight
    return loader.node_window_bytes if bound == "auto" else min(loader.node_window_bytes, bound)


def _in_hands(plan: Plan) -> float:
    """Bytes of the batches that a rank's readers beside it are making and that the rank has."""
    return _batch_bytes(plan) * (max(1, _workers(plan)) + 1)


def _batch_bytes(plan: Plan) -> float:
    """Bytes of one batch, where batches are bytes."""
    loader = plan.loader
    if not loader.payload:
        return 0.0
    window = max(1, loader.num_workers * loader.prefetch_factor)
    return loader.node_window_bytes / plan.cluster.ranks_per_node / window


def _stepped(nbytes: float) -> int:
    return -(-int(nbytes) // STEP_BYTES) * STEP_BYTES
