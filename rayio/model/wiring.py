"""Wiring: builds the environments of roles from the plan and an engine's ports.

Every engine creates its roles here, so storage, tracing, queues and phases follow the plan in one place. An engine with
several processes makes one ``Wiring`` in each.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from rayio.errors import ScenarioError
from rayio.kinds import LOADERS
from rayio.model import roles
from rayio.model.burst import BurstTier, Copied, Tier
from rayio.model.checkpoint_ports import Marking, WriterPort
from rayio.model.completing import Completion
from rayio.model.cpu_account import ProcessCpu, StageCpu, Starts
from rayio.model.doomed import DoomedQueue
from rayio.model.draining import Drains
from rayio.model.env import BarrierPort, Env, QueuePort
from rayio.model.kernel import Coro, Kernel, WallKernel
from rayio.model.ledger import Tally
from rayio.model.loading import Loading
from rayio.model.pinning import pin_thread
from rayio.model.plan import Plan
from rayio.model.plan_parts import Doom
from rayio.model.prefetch import PrefetchQueue, Submit
from rayio.model.processors import CoresOf, ParsedStorage, Process
from rayio.model.queue import QueueSpec, QueueState
from rayio.model.scaler import Scaler, Staff
from rayio.model.standing import Standing
from rayio.model.workflow import ROLE, StageTally
from rayio.place import Taken, Where
from rayio.storage.base import Storage
from rayio.storage.layers.layer import Layer, Mount
from rayio.storage.model import Arbiter, Behind, Latencies, ModelStorage
from rayio.storage.real import Filling, RealStorage, fill_random
from rayio.storage.stores.opening import Store
from rayio.trace.recorder import Recorder


class Devices(Protocol):
    """An engine's access to models, for every role of a process."""

    def arbiter(self, device: int) -> Arbiter:
        """Return a modelled storage device."""

    def shared(self, layer: Layer, node: int) -> Any:
        """Return the shared state of a layer (``Layer.state``), of a node or of all."""

    async def book(self, number: int, is_needed: bool) -> Collection[int] | None:
        """Have the run's resume file name a checkpoint; see ``rayio.model.attempts.Book``."""


class RankPorts(Protocol):
    """An engine's ports for the ranks of a process."""

    def queue(self, spec: QueueSpec, *, evaluating: bool) -> QueuePort:
        """Return the prefetch queue of a rank, or the one for its evaluations."""

    def barrier(self) -> BarrierPort:
        """Return the barrier of all ranks."""

    def writers(self, rank: int) -> Mapping[int, WriterPort]:
        """Return the checkpoint writers of a rank's shards, by number."""

    def saved(self) -> Marking | None:
        """Return a function for ``Env.saved``; None if nobody asks which checkpoints are complete."""

    def doom(self, doom: Doom) -> None:
        """End the process of a rank, as a failure does."""


class LoaderKind(Protocol):
    """A kind of loader (``loader.kind``), as engines use it.

    >>> LOADERS["actors"].has_roles, LOADERS["torch"].has_roles
    (True, False)
    """

    #: True if its readers and queues are roles, which engines place and run.
    has_roles: bool

    def check(self, plan: Plan) -> None:
        """Refuse a plan that cannot run in real time here; the virtual clock models every kind.

        Raises:
            ScenarioError: the missing part, and the remedy.
        """

    def batches(self, wiring: Wiring, env: Env, rank: int, ports: RankPorts) -> QueuePort:
        """Return the queue of a rank's batches; functions to close it are added to ``wiring.closing``."""


def check_loader(plan: Plan) -> None:
    """Refuse a plan that its kind of loader cannot run for real here.

    Raises:
        ScenarioError: it cannot; or another package's kind raised an error.
    """
    with LOADERS.answerable(plan.loader.kind):
        loader_of(plan).check(plan)
        if not loader_of(plan).has_roles and (shared := [layer.name for layer in plan.layers if layer.sharing]):
            raise ScenarioError(
                f"storage.{shared[0]}: the workers of loader.kind={plan.loader.kind} cannot share its state; use "
                "loader.kind=actors, or simulate"
            )
    if not plan.modelled and plan.loader.io_depth > 1:
        planned = plan.loading().of(Where(0, 0, 0)).requests
        if len(planned.nbytes) and planned.places is None:
            raise ScenarioError(
                f"loader.io_depth={plan.loader.io_depth}: format {plan.format} plans no offsets, so its requests "
                "cannot be in flight together; use loader.io_depth=1, or simulate"
            )


def loader_of(plan: Plan) -> LoaderKind:
    """Return the kind of loader of a plan."""
    kind: LoaderKind = LOADERS[plan.loader.kind]
    return kind


def files_of(plan: Plan) -> Callable[[Where], Sequence[str]]:
    """Return a function from a step to its files' names in the dataset; none with modelled storage."""
    return lambda at: () if plan.modelled else plan.loading().of(at).samples().files


class Wiring:
    """A factory of the environments of the roles in a process.

    ``num_ranks`` is the number of their ranks. ``born`` is the start of the process (ns); None is now. ``late_ns``
    delays the ends of a rank's steps on a virtual clock. ``loader`` replaces the plan's. ``cores`` are the modelled
    cores by node.
    """

    def __init__(
        self,
        plan: Plan,
        kernel: Kernel,
        recorder: Recorder,
        root: str | Path,
        devices: Devices,
        *,
        num_ranks: int, born: int | None = None, late_ns: int = 0, loader: LoaderKind | None = None,
        cores: CoresOf | None = None, run_id: str = "",
    ) -> None:  # fmt: skip
        self.plan = plan
        #: The steps that ranks had taken before the run went on, if batches may come early.
        self.taken: dict[int, Taken] = {}
        #: The run's name in manifests.
        self.run_id = run_id
        self.cores = cores
        self.kernel = kernel
        self.ending = kernel.ending if isinstance(kernel, WallKernel) else Event()
        self.recorder = recorder
        self.root = root
        self.devices = devices
        self.num_ranks = num_ranks
        self.born = born
        self.late_ns = late_ns
        self.loader: LoaderKind = loader or loader_of(plan)
        #: Functions that end what loaders started; called after the roles end.
        self.closing: list[Callable[[], Awaitable[None]]] = []
        #: Functions that return activities of roles and loaders.
        self.watched: list[Callable[[], Iterable[Standing]]] = []
        self._readers: list[Env] = []
        self.queues: list[PrefetchQueue] = []
        self.read_cpu, self.decode_cpu, self.starts = StageCpu(), StageCpu(), Starts()
        #: Functions that return the CPU time of processes that a loader started.
        self.worked: list[Callable[[], Iterable[ProcessCpu]]] = []
        #: Processes of ranks on modelled cores.
        self._processes: dict[int, Process] = {}
        #: Modelled systems by device and way of writing; with layers, by node, folder and whether it is a dataset.
        self._modelled: dict[tuple[int, Behind | None], ModelStorage] = {}
        self._layered: dict[tuple[int, str, bool], Storage] = {}
        steps, depth = 1 if plan.is_divided else Latencies.STEPS, plan.loader.io_depth  # divided steps differ in size
        self._latencies = Latencies(plan.first_byte.draw, plan.seed, num_ranks, together=steps, depth=depth)

    @cached_property
    def loading(self) -> Loading:
        """The batches of this process's ranks."""
        loading = self.plan.loading(self.num_ranks, self.root)
        loading.read_cpu, loading.decode_cpu = self.read_cpu, self.decode_cpu
        return loading

    def reader(self, rank: int, worker: int, node: int | None = None) -> Env:
        """Return a reader's environment, on the plan's node or a pool node."""
        node = self.plan.node_of_reader(rank, worker) if node is None else node
        env = self._env("reader", f"{rank}-{worker}", node)
        self.connect(env, node)
        target = self.plan.node_of_rank(rank)
        if node != target:
            ways = (layer.way(node, target, partial(self.devices.shared, layer, node)) for layer in self.plan.layers)
            env.route = tuple(way for way in ways if way is not None)
        return env

    def queue(self, spec: QueueSpec, submit: Submit, staff: Staff | None = None, *, evaluating: bool) -> PrefetchQueue:
        """Return a rank's prefetch queue; ``submit`` carries its leases to readers, ``staff`` scales them."""
        samplers, rank = self.loading.samplers, spec.rank

        def step_bytes(epoch: int, step: int) -> int:
            return samplers.of(epoch).step_bytes(epoch, rank, step)

        env = self.queue_env(rank, evaluating=evaluating)
        pinning = pin_thread(env, rank, self.plan.loader.pin_bandwidth)
        queue = PrefetchQueue(env, QueueState(spec, step_bytes), submit, pinning)
        if spec.scaling is not None:
            assert staff is not None
            queue.scaler = Scaler(queue, spec.scaling, staff)
        self.watched.append(queue.standing)
        self.queues.append(queue)
        return queue

    def queue_env(self, rank: int, *, evaluating: bool) -> Env:
        """Return the environment of a rank's prefetch queue."""
        return self._env("queue", f"{rank}-eval" if evaluating else str(rank), self.plan.node_of_rank(rank))

    def writer(self, number: int) -> Env:
        """Return a checkpoint writer's environment."""
        checkpointing = self.plan.checkpointing
        assert checkpointing is not None
        node = self.plan.node_of_writer(number)
        env = self._env("checkpoint_writer", str(number), node)
        env.storage = self._through_layers(node, checkpointing.path, is_dataset=False, note=env.moved)
        if not self.plan.modelled:
            env.store, env.is_replacing = self.plan.store(self.root, checkpointing.path), checkpointing.is_replacing
            env.saver, env.index = checkpointing.saver, checkpointing.index
            checkpointing.prepare(number)
            self.closing.append(env.saver.close)
        if (tier := checkpointing.burst) is not None:
            env.burst = self._tier(tier, node, checkpointing.fill, env.moved)
        return env

    def _tier(self, tier: BurstTier, node: int, fill: Filling, note: Callable[[], None]) -> Tier:
        """Return a writer's burst tier."""
        plan = self.plan
        if plan.modelled:
            device = plan.num_devices + (node if tier.scope == "node" else 0)
            return tier.modelled(self.devices.arbiter(device), self.kernel, plan.seed, itemised=plan.trace.is_itemised)
        store = plan.store(self.root, tier.path)
        return Tier(tier, self._real(store, fill, note), store)

    def completion(self, env: Env) -> Completion:
        """Return the counter of durable files of a run's checkpoints, for the writer that completes them."""
        assert self.plan.checkpointing is not None
        return Completion(env, self.plan.checkpointing, self.run_id, roles.complete, self.devices.book)

    def rank(self, rank: int, ports: RankPorts, tally: Tally) -> Coro[None]:
        """Return a rank's life in a new environment, as a coroutine; consumption is added to ``tally``."""
        env = self._env("rank", str(rank), self.plan.node_of_rank(rank))
        env.writers = ports.writers(rank)
        env.late_ns = self.late_ns
        env.computes_on_core = self.plan.computes_on_core
        if self.cores is not None and self.plan.costs.cpu.step:
            env.process, env.late_work = self.process(rank), self.plan.costs.cpu.step
        if isinstance(self.kernel, WallKernel):  # the virtual clock adds costs instead
            env.held_ns = round(self.plan.held_seconds * 1e9)
        if self.plan.has_barrier:
            env.barrier = ports.barrier()
        env.saved = ports.saved()
        if (saves := self.plan.checkpointing) is not None and saves.burst is not None:
            env.drains = Drains(env, saves.tier_share(rank), saves.writers.of_rank(rank, saves.topology))
        if tally.taken is not None:
            self.taken[rank] = tally.taken
        with self.starts.timed() if env.is_watched else nullcontext():
            env.queue = self.loader.batches(self, env, rank, ports)
        for doom in self.plan.doomed:
            if doom.rank == rank:
                env.queue = DoomedQueue(env.queue, self.plan, doom, ports.doom)
        return roles.train(env, self.plan.training(rank), tally, self.plan.start)

    def stage_process(self, stage: int, number: int) -> Coro[StageTally]:
        """Return the life of a process of a stage in a new environment, as a coroutine."""
        plan = self.plan
        work, node = plan.workflow.process(stage, number), plan.workflow.node(number)
        env = self._env(ROLE, f"{plan.workflow.stages[stage].name}-{number}", node)
        env.storage = self._through_layers(node, work.folder, is_dataset=False)
        source = self._through_layers(node, work.source, is_dataset=False) if work.reads else None
        return self._watched(env, roles.run_process(env, work, source))

    async def _watched(self, env: Env, life: Coro[StageTally]) -> StageTally:
        """Forget a process once it has ended: thousands come and go."""
        try:
            return await life
        finally:
            if env.is_watched:
                self.watched.remove(env.standing)

    def process(self, rank: int) -> Process:
        """Return the process of a rank on modelled cores."""
        if (process := self._processes.get(rank)) is None:
            assert self.cores is not None
            process = self._processes[rank] = Process(self.cores(self.plan.node_of_rank(rank)))
        return process

    def fetching_rank(self, rank: int) -> Env:
        """Return the environment of a rank's part that fetches batches from other nodes."""
        return self._env("rank", str(rank), self.plan.node_of_rank(rank))

    def reading_rank(self, rank: int) -> Env:
        """Return the environment of a rank's part that reads its batches."""
        node = self.plan.node_of_rank(rank)
        env = self._env("rank", str(rank), node)
        self.connect(env, node)
        return env

    def aside(self) -> float:
        """Return the CPU seconds of this process that no batch takes: burnt compute, and the start of loaders."""
        return self.starts.seconds + (self.kernel.burnt_seconds if isinstance(self.kernel, WallKernel) else 0.0)

    def standing(self) -> list[Standing]:
        """Return the current activities of this process's roles."""
        return [standing for activities in self.watched for standing in activities()]

    async def close(self) -> None:
        """End what loaders started in this process, and close the files kept by readers."""
        closing, self.closing = self.closing, []
        for close in closing:
            await close()
        for env in self._readers:
            for kept in env.kept.values():
                self.loading.access.close(kept)
            env.kept.clear()

    def connect(self, env: Env, node: int) -> None:
        """Connect a reader to the dataset, and to the evaluation's."""
        env.storage = self.datasets(node)
        self._readers.append(env)

    def datasets(self, node: int) -> Storage:
        """Return a node's storage of the dataset, and of the evaluation's."""
        storage = self.plan.data_storage(partial(self._through_layers, node, is_dataset=True))
        cpu, depth = self.plan.costs.cpu, self.plan.loader.io_depth
        return storage if self.cores is None else ParsedStorage(storage, self.cores(node), cpu, depth)

    def _through_layers(
        self, node: int, path: str, *, is_dataset: bool, note: Callable[[], None] | None = None
    ) -> Storage:
        """Return a node's storage with layers. Modelled storage is stateless: roles of a node share it."""
        plan, of = self.plan, (node, path, is_dataset)
        if (known := self._layered.get(of)) is not None:
            return known
        storage = self._storage(node, path, note, is_dataset=is_dataset)
        for layer in plan.layers:
            mount = Mount(
                self.kernel, node, path, is_dataset, plan.loader.io_depth, plan.trace.is_itemised,
                partial(self.devices.shared, layer, node),
            )  # fmt: skip
            storage = layer.wrap(storage, mount)
        if plan.modelled:
            self._layered[of] = storage
        return storage

    def _real(self, store: Store, fill: Filling, note: Callable[[], None] | None, depth: int = 1) -> RealStorage:
        anchor = self.kernel.anchor if isinstance(self.kernel, WallKernel) else None
        return RealStorage(
            store, self.kernel.threaded, anchor, is_itemised=self.plan.trace.is_itemised, ending=self.ending,
            depth=depth, fill=fill, note=note,
        )  # fmt: skip

    def _storage(self, node: int, path: str, note: Callable[[], None] | None, *, is_dataset: bool) -> Storage:
        plan, trace = self.plan, self.plan.trace
        if not plan.modelled:
            depth = plan.loader.io_depth if self.loader.has_roles else 1  # another library's worker makes one request
            saves = None if is_dataset else plan.checkpointing
            fill: Filling = fill_random if saves is None or saves.path != path else saves.fill
            if saves is not None and saves.path == path and (tier := saves.burst) is not None:
                fill = Copied(plan.store(self.root, tier.path), tier.drain_rate, self.ending)
            return self._real(plan.store(self.root, path), fill, note, depth)
        saved, device = plan.checkpointing, plan.device_of_node(node)
        behind = None if is_dataset or saved is None or saved.path != path else saved.behind
        if (modelled := self._modelled.get((device, behind))) is None:
            modelled = self._modelled[device, behind] = ModelStorage(
                self.devices.arbiter(device), plan.device, self._latencies, self.kernel,
                io_depth=plan.loader.io_depth, is_itemised=trace.is_itemised,
                behind=behind,
            )  # fmt: skip
        return modelled

    def _env(self, role: str, index: str, node: int) -> Env:
        env = Env(
            self.kernel, self.recorder, role=role, index=index, node=node, born=self.born,
            level=self.plan.trace.level, is_capturing=not self.plan.modelled,
            is_watched=isinstance(self.kernel, WallKernel),
        )  # fmt: skip
        if self.cores is not None:
            env.cores = self.cores(node)
        if env.is_watched:
            self.watched.append(env.standing)
        return env


def stalls_of(plan: Plan) -> list[str]:
    """Return the stalls that a plan's layers add on purpose, in words."""
    return [layer.stalls for layer in plan.layers if layer.stalls]
