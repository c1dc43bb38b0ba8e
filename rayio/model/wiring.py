"""How a role's world is made: from the plan, and from ports that its engine supplies.

Every engine makes its roles here, so what a plan says about storage, tracing, queues and phases is put into
practice once. An engine with processes of its own makes one ``Wiring`` in each of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

from rayio.kinds import LOADERS
from rayio.model import roles
from rayio.model.cpu_account import ReadCpu
from rayio.model.env import BarrierPort, Env, QueuePort, WriterPort
from rayio.model.kernel import Coro, Kernel, WallKernel
from rayio.model.ledger import Tally
from rayio.model.loading import Loading
from rayio.model.network import NetworkPort, Route
from rayio.model.plan import Plan
from rayio.model.prefetch import PrefetchQueue, Submit
from rayio.model.processors import CoresOf, ParsedStorage, Process
from rayio.model.queue import Delivery, QueueSpec, QueueState
from rayio.model.scaler import Scaler, Staff
from rayio.model.standing import Standing
from rayio.place import Where
from rayio.storage.base import Storage
from rayio.storage.layers.cached import Cache, CachedStorage
from rayio.storage.layers.throttle import Admits
from rayio.storage.layers.throttled import ThrottledStorage
from rayio.storage.model import Arbiter, Latencies, ModelStorage
from rayio.storage.real import RealStorage
from rayio.trace.recorder import Recorder


class Devices(Protocol):
    """What an engine supplies to every role of a process that uses what is modelled."""

    def arbiter(self, device: int) -> Arbiter:
        """Reach a modelled storage device."""

    def network(self) -> NetworkPort:
        """Reach the modelled network between nodes."""

    def gate(self) -> Admits:
        """Reach what admits the requests of all roles to a modelled storage that refuses some."""

    def cache(self, node: int) -> Cache:
        """Reach the modelled cache of a node."""


class RankPorts(Protocol):
    """What an engine supplies to the ranks of a process."""

    def queue(self, spec: QueueSpec, *, evaluating: bool) -> QueuePort:
        """Reach the prefetch queue of a rank, or the one for its evaluations."""

    def barrier(self) -> BarrierPort:
        """Reach the barrier of all ranks."""

    def writers(self, rank: int) -> Mapping[int, WriterPort]:
        """Reach the checkpoint writers that a rank sends shards to, by number."""


class LoaderKind(Protocol):
    """A kind of loader (``loader.kind``), as engines need it.

    >>> LOADERS["actors"].has_roles, LOADERS["torch"].has_roles
    (True, False)
    """

    #: Whether its readers and queues are roles, which engines place and run.
    has_roles: bool

    def check(self, plan: Plan) -> None:
        """Refuse a plan that cannot run in real time here; the virtual clock has its model of every kind.

        Raises:
            ScenarioError: what is missing, and what to do about it.
        """

    def batches(self, wiring: Wiring, env: Env, rank: int, ports: RankPorts) -> QueuePort:
        """Make the queue that delivers a rank its batches; what must be ended later goes into ``wiring.closing``."""


def check_loader(plan: Plan) -> None:
    """Let the kind of loader refuse a plan that cannot run for real here.

    Raises:
        ScenarioError: it cannot; or the kind, which another package brought, raised something.
    """
    with LOADERS.answerable(plan.loader.kind):
        loader_of(plan).check(plan)


def loader_of(plan: Plan) -> LoaderKind:
    """The kind of loader that a plan asks for."""
    kind: LoaderKind = LOADERS[plan.loader.kind]
    return kind


def files_of(plan: Plan) -> Callable[[Where], Sequence[str]]:
    """Say which files a step is read from, by their names in the dataset; none where storage is a model."""
    return lambda at: () if plan.modelled else plan.loading().of(at).samples().files


class InlineQueue:
    """No queue: with ``num_workers: 0`` the rank reads its own batches, inside its wait for them."""

    def __init__(self, env: Env, loading: Loading) -> None:
        self.env = env
        self.loading = loading

    async def get(self, at: Where) -> Delivery:
        """Read the batch now."""
        return await roles.load_batch(self.env, self.loading, at, worker=0, lane=1)


class Wiring:
    """Makes the worlds of the roles that share a process.

    ``num_ranks`` is how many ranks they belong to. ``born`` is when the process began (ns); None is now. ``late_ns`` is
    how late a rank's steps end on a clock that is not late by itself. ``loader`` takes the place of the plan's own.
    ``cores`` are what work is done on, by node, where that is modelled.
    """

    def __init__(
        self,
        plan: Plan,
        kernel: Kernel,
        recorder: Recorder,
        root: str | Path,
        devices: Devices,
        *,
        num_ranks: int,
        born: int | None = None,
        late_ns: int = 0,
        loader: LoaderKind | None = None,
        cores: CoresOf | None = None,
    ) -> None:
        self.plan = plan
        self.cores = cores
        self.kernel = kernel
        self.recorder = recorder
        self.root = root
        self.devices = devices
        self.num_ranks = num_ranks
        self.born = born
        self.late_ns = late_ns
        self.loader: LoaderKind = loader or loader_of(plan)
        #: What ends what loaders have started; called once the roles are over.
        self.closing: list[Callable[[], Awaitable[None]]] = []
        #: What says what roles are doing, and what loaders have them do.
        self.watched: list[Callable[[], Iterable[Standing]]] = []
        #: Those who read here.
        self._readers: list[Env] = []
        #: The prefetch queues of this process.
        self.queues: list[PrefetchQueue] = []
        #: What reading takes of processors here.
        self.read_cpu = ReadCpu()
        #: Those of ranks, where cores are modelled.
        self._processes: dict[int, Process] = {}
        #: By device, and by folder where errors name it.
        self._modelled: dict[tuple[int, str], ModelStorage | ThrottledStorage] = {}
        #: By node.
        self._cached: dict[int, CachedStorage] = {}
        together = Latencies.STEPS if plan.cache_bytes is None else 1  # what a cache has differs from step to step
        self._latencies = Latencies(plan.first_byte.draw, plan.seed, num_ranks, together=together)

    @cached_property
    def loading(self) -> Loading:
        """The batches of this process's ranks."""
        loading = self.plan.loading(self.num_ranks)
        loading.read_cpu = self.read_cpu
        return loading

    def reader(self, rank: int, worker: int, node: int | None = None) -> Env:
        """Make a reader's world, on the node that the plan says unless another one came for it."""
        node = self.plan.node_of_reader(rank, worker) if node is None else node
        env = self._env("reader", f"{rank}-{worker}", node)
        self.connect(env, node)
        target = self.plan.node_of_rank(rank)
        if self.plan.network is not None and node != target:
            env.route = Route(self.devices.network(), node, target)
        return env

    def queue(self, spec: QueueSpec, submit: Submit, staff: Staff | None = None, *, evaluating: bool) -> PrefetchQueue:
        """Make a rank's prefetch queue, whose leases ``submit`` carries to the readers, which ``staff`` can change."""
        samplers, rank = self.loading.samplers, spec.rank

        def step_bytes(epoch: int, step: int) -> int:
            return samplers.of(epoch).step_bytes(epoch, rank, step)

        queue = PrefetchQueue(self.queue_env(rank, evaluating=evaluating), QueueState(spec, step_bytes), submit)
        if spec.scaling is not None:
            assert staff is not None
            queue.scaler = Scaler(queue, spec.scaling, staff)
        self.watched.append(queue.standing)
        self.queues.append(queue)
        return queue

    def queue_env(self, rank: int, *, evaluating: bool) -> Env:
        """Make the world of a rank's prefetch queue."""
        return self._env("queue", f"{rank}-eval" if evaluating else str(rank), self.plan.node_of_rank(rank))

    def writer(self, number: int) -> Env:
        """Make a checkpoint writer's world."""
        checkpointing = self.plan.checkpointing
        assert checkpointing is not None
        node = self.plan.node_of_writer(number)
        env = self._env("checkpoint_writer", str(number), node)
        env.storage = self._storage(node, checkpointing.path)
        return env

    def rank(self, rank: int, ports: RankPorts, tally: Tally) -> Coro[None]:
        """Make a rank's world and return its life in it as a coroutine; what it consumes is booked into ``tally``."""
        env = self._env("rank", str(rank), self.plan.node_of_rank(rank))
        env.writers = ports.writers(rank)
        env.late_ns = self.late_ns
        if self.cores is not None and self.plan.costs.cpu.step:
            env.process, env.late_work = self.process(rank), self.plan.costs.cpu.step
        if isinstance(self.kernel, WallKernel):  # the virtual clock charges what costs say
            env.held_ns = round(self.plan.held_seconds * 1e9)
        if self.plan.has_barrier:
            env.barrier = ports.barrier()
        env.queue = self.loader.batches(self, env, rank, ports)
        return roles.train(env, self.plan.training(rank), tally, self.plan.start)

    def process(self, rank: int) -> Process:
        """The process of a rank, whose work is done on modelled cores."""
        if (process := self._processes.get(rank)) is None:
            assert self.cores is not None
            process = self._processes[rank] = Process(self.cores(self.plan.node_of_rank(rank)))
        return process

    def fetching_rank(self, rank: int) -> Env:
        """Make the world of a rank for the part of it that fetches batches from other nodes."""
        return self._env("rank", str(rank), self.plan.node_of_rank(rank))

    def reading_rank(self, rank: int) -> Env:
        """Make the world of a rank that reads its own batches, for the part of it that reads."""
        node = self.plan.node_of_rank(rank)
        env = self._env("rank", str(rank), node)
        self.connect(env, node)
        return env

    def standing(self) -> list[Standing]:
        """What the roles of this process are doing at the moment."""
        return [one for standing in self.watched for one in standing()]

    async def close(self) -> None:
        """End what loaders have started in this process, and close the files that readers keep."""
        closing, self.closing = self.closing, []
        for close in closing:
            await close()
        for env in self._readers:
            for kept in env.kept.values():
                self.loading.access.close(kept)
            env.kept.clear()

    def connect(self, env: Env, node: int) -> None:
        """Have a role of a node read the dataset, and the evaluation's."""
        env.storage = self.datasets(node)
        self._readers.append(env)

    def datasets(self, node: int) -> Storage:
        """Connect a role of a node to the dataset, and to the evaluation's."""
        storage = self.plan.data_storage(partial(self._storage, node))
        storage = storage if self.plan.cache_bytes is None else self._through_cache(node, storage)
        return storage if self.cores is None else ParsedStorage(storage, self.cores(node), self.plan.costs.cpu)

    def _through_cache(self, node: int, storage: Storage) -> Storage:
        """Put the modelled cache of a node in front of the dataset's storage; roles of the node share that."""
        if (cached := self._cached.get(node)) is None:
            depth, is_itemised = self.plan.loader.io_depth, self.plan.trace.is_itemised
            cached = CachedStorage(
                storage, self.devices.cache(node), self.kernel, io_depth=depth, is_itemised=is_itemised
            )
            self._cached[node] = cached
        return cached

    def _storage(self, node: int, path: str) -> Storage:
        """Connect a role of a node to storage. Connections to a modelled device hold no state: roles share them."""
        plan, trace = self.plan, self.plan.trace
        if not plan.modelled:
            store, kernel = plan.store(self.root, path), self.kernel
            anchor, ending = (kernel.anchor, kernel.ending) if isinstance(kernel, WallKernel) else (None, None)
            return RealStorage(store, kernel.threaded, anchor, is_itemised=trace.is_itemised, ending=ending)
        device = plan.device_of_node(node)
        throttle = plan.device.throttle
        of = device, "" if throttle is None else path
        if of not in self._modelled:
            arbiter, made = self.devices.arbiter(device), self._latencies
            depth, is_itemised = plan.loader.io_depth, trace.is_itemised
            self._modelled[of] = (
                ModelStorage(arbiter, plan.device, made, self.kernel, io_depth=depth, is_itemised=is_itemised)
                if throttle is None
                else ThrottledStorage(
                    arbiter,
                    self.devices.gate(),
                    plan.device,
                    throttle,
                    made,
                    self.kernel,
                    path,
                    io_depth=depth,
                    is_itemised=is_itemised,
                )
            )
        return self._modelled[of]

    def _env(self, role: str, index: str, node: int) -> Env:
        env = Env(
            self.kernel,
            self.recorder,
            role=role,
            index=index,
            node=node,
            born=self.born,
            level=self.plan.trace.level,
            is_capturing=not self.plan.modelled,
            is_watched=isinstance(self.kernel, WallKernel),
        )
        if self.cores is not None:
            env.cores = self.cores(node)
        if env.is_watched:
            self.watched.append(env.standing)
        return env
