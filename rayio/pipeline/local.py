"""The local engine: every role in this process, on the wall clock or on a virtual one.

Both engines wire the same roles to the same brains; they differ in the kernel, and in whether storage is real. The
plan's ``costs`` (a lease, a put, a take, a transfer, a barrier) are what the Ray engine's messages cost: on the virtual
clock they pass here, so that a prediction includes them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rayio.pipeline import roles
from rayio.pipeline.barrier import Barrier
from rayio.pipeline.env import Env, QueuePort, Shard, Where
from rayio.pipeline.kernel import Future, Kernel, WallKernel, Work
from rayio.pipeline.ledger import Tally
from rayio.pipeline.loading import Loading
from rayio.pipeline.phases import PhasedQueue
from rayio.pipeline.plan import Plan
from rayio.pipeline.prefetch import PrefetchQueue
from rayio.pipeline.queue import Consumed, Delivery, Lease, QueueSpec, QueueState, Take
from rayio.pipeline.virtual import VirtualKernel
from rayio.scenario.model import Costs
from rayio.storage.base import Served, Storage
from rayio.storage.model import Device, Latencies, LocalArbiter, ModelStorage
from rayio.storage.posix import PosixStorage
from rayio.trace.recorder import Recorder


class LocalQueue:
    """A rank's end of a queue in the same process."""

    __slots__ = ("_told", "consumed", "queue")

    def __init__(self, queue: PrefetchQueue) -> None:
        self.queue = queue
        self.consumed = Consumed()
        #: What the queue was told last: it is the next request as well, as long as the epoch lasts.
        self._told: Take | None = None

    async def get(self, at: Where) -> Delivery:
        """Take the next batch; the window moves at once."""
        if self.consumed.open(at.epoch) or self._told is None:
            self._told = self.consumed.take(1, at.attempt)
        (delivery,) = self.queue.at_hand(self._told) or await self.queue.take(self._told)
        self.consumed.add(delivery.step)
        self._told = self.consumed.take(1, at.attempt)
        self.queue.heard(self._told)
        return delivery


class InlineQueue:
    """No queue: with ``num_workers: 0`` the rank reads its own batches, inside its wait for them."""

    def __init__(self, env: Env, loading: Loading) -> None:
        self.env = env
        self.loading = loading

    async def get(self, at: Where) -> Delivery:
        """Read the batch now."""
        return await roles.load_batch(self.env, self.loading, at, worker=0, lane=1)


class Workers:
    """The readers of one rank: each reads one lease at a time, in the order in which it got them."""

    __slots__ = ("_names", "_waiting", "costs", "envs", "is_free", "loading")

    def __init__(self, envs: list[Env], loading: Loading, costs: Costs) -> None:
        self.envs = envs
        self.loading = loading
        self.costs = costs
        #: Whether a lease costs nothing but the read.
        self.is_free = not any((costs.lease, costs.put, costs.take, costs.transfer_latency, costs.transfer_bandwidth))
        self._names = [f"{env.name} to be free" for env in envs]
        #: By worker: None when it is free, else who waits for it, in order.
        self._waiting: list[list[Future] | None] = [None] * len(envs)

    async def submit(self, lease: Lease) -> list[Delivery]:
        """Have a lease read once its worker has read those before."""
        worker = lease.worker
        env = self.envs[worker]
        arrives = 0 if self.is_free else env.kernel.now() + round(self.costs.lease * 1e9)
        waiting = self._waiting[worker]
        if waiting is None:
            self._waiting[worker] = []
        else:
            turn = env.kernel.future(self._names[worker])
            waiting.append(turn)
            await turn
        try:
            if self.is_free:
                return await roles.read_lease(env, self.loading, lease)
            if self.costs.lease:
                await env.kernel.sleep_until(arrives)
            batches = await roles.read_lease(env, self.loading, lease)
            at = Where(lease.rank, lease.epoch, lease.steps[-1], lease.attempt)
            if self.costs.put or self.costs.take:
                await env.sleep("put", self.costs.put, at)
        finally:
            self._release(worker)
        rate = self.costs.transfer_bandwidth
        moved = sum(b.nbytes for b in batches) / rate if rate and self.loading.payload else 0.0
        if moving := self.costs.transfer_latency + moved:
            await env.sleep("transfer", moving, at, lane=1)
        if self.costs.take:
            await self._pass(env, self.costs.take)
        return batches

    def _release(self, worker: int) -> None:
        """Let a worker take the next lease that waits for it and was not given up."""
        waiting = self._waiting[worker]
        while waiting:
            turn = waiting.pop(0)
            if not turn.done():
                turn.set_result(None)
                return
        self._waiting[worker] = None

    @staticmethod
    def _pass(env: Env, seconds: float) -> Awaitable[None]:
        return env.kernel.sleep_until(env.kernel.now() + round(seconds * 1e9))


class LocalBarrier:
    """A rank's end of a barrier in the same process; its answer takes ``delay_ns``."""

    __slots__ = ("barrier", "delay_ns")

    def __init__(self, barrier: Barrier, delay_ns: int) -> None:
        self.barrier = barrier
        self.delay_ns = delay_ns

    def announce(self, at: Where, deadline: int) -> Awaitable[int]:
        """Announce this rank's deadline."""
        rank, epoch, step, attempt = at
        answer = self.barrier.announce(rank, epoch, step, attempt, deadline)
        if not self.delay_ns:
            return answer
        return self.barrier.kernel.spawn(self._delayed(answer), f"barrier answers rank-{rank}")

    async def _delayed(self, answer: Future) -> int:
        latest = int(await answer)
        await self.barrier.kernel.sleep_until(self.barrier.kernel.now() + self.delay_ns)
        return latest


class LocalWriter:
    """A rank's end of a checkpoint writer in the same process: one shard at a time, answered ``delay_ns`` later."""

    def __init__(self, env: Env, delay_ns: int) -> None:
        self.env = env
        self.delay_ns = delay_ns
        self._last: Future | None = None

    async def write(self, shard: Shard, at: Where) -> Served[None]:
        """Have a shard written after those before it."""
        before = self._last
        mine = self._last = self.env.kernel.future(f"{self.env.name} to be free")
        if before is not None:
            await before
        try:
            served = await roles.write_shard(self.env, shard, at)
        finally:
            mine.set_result(None)
        if self.delay_ns:
            await self.env.kernel.sleep_until(self.env.kernel.now() + self.delay_ns)
        return served


class House:
    """All roles of a plan, wired together in this process."""

    def __init__(self, plan: Plan, kernel: Kernel, recorder: Recorder, root: Path, tallies: list[Tally]) -> None:
        self.plan = plan
        self.kernel = kernel
        self.recorder = recorder
        self.root = root
        self.devices = [Device(plan.device) for _ in range(plan.num_devices)] if plan.modelled else []
        #: What each rank has consumed so far.
        self.tallies = tallies
        self.barrier = Barrier(kernel, plan.parties, plan.meets)
        self.loading = plan.loading(plan.world_size)
        self.latencies = Latencies(plan.first_byte.draw, plan.scenario.seed, plan.world_size)
        #: Connections hold no state: all roles that use one modelled device share them.
        self._modelled = [self._connections(device) for device in self.devices]

    def storage(self, node: int, path: str) -> Storage:
        """Give a role's connections to storage."""
        if not self.plan.modelled:
            kernel, is_itemised = self.kernel, self.plan.scenario.trace.is_itemised
            anchor = kernel.anchor if is_itemised and isinstance(kernel, WallKernel) else None
            return PosixStorage(self.root / path, self.kernel.threaded, anchor)
        return self._modelled[self.plan.device_of_node(node)]

    def _connections(self, device: Device) -> ModelStorage:
        return ModelStorage(
            LocalArbiter(device),
            self.plan.device,
            self.latencies,
            self.kernel,
            io_depth=self.plan.scenario.loader.io_depth,
            is_itemised=self.plan.scenario.trace.is_itemised,
        )

    async def run(self) -> None:
        """Live every rank's life to its end."""
        writers = {number: self._writer(number) for number in range(self.plan.num_writers)}
        await self.kernel.gather(*(self._train(rank, writers) for rank in range(self.plan.world_size)))

    def _train(self, rank: int, writers: dict[int, LocalWriter]) -> Work[None]:
        """Give a rank its world, and its life as a coroutine."""
        plan, node = self.plan, self.plan.node_of_rank(rank)
        env = self._env("rank", str(rank), node)
        env.writers = writers
        env.late_ns = round(plan.scenario.costs.step * 1e9)
        if plan.has_barrier:
            env.barrier = LocalBarrier(self.barrier, round(plan.scenario.costs.barrier * 1e9))
        if plan.scenario.loader.num_workers == 0:
            env.storage = plan.data_storage(lambda path: self.storage(node, path))
            env.queue = InlineQueue(env, self.loading)
        else:
            env.queue = self._queue(rank)
        return roles.train(env, plan.training(rank), self.tallies[rank])

    def _queue(self, rank: int) -> QueuePort:
        """Make a rank's readers and its queue, or two queues that share the readers when it evaluates."""
        plan = self.plan
        readers = []
        for worker in range(plan.scenario.loader.num_workers):
            node = plan.node_of_reader(rank, worker)
            env = self._env("reader", f"{rank}-{worker}", node)
            env.storage = plan.data_storage(partial(self.storage, node))
            readers.append(env)
        workers = Workers(readers, self.loading, plan.scenario.costs)
        training = self._prefetching(str(rank), plan.queue(rank), workers)
        if plan.evaluation is None:
            return training
        evaluation = self._prefetching(f"{rank}-eval", plan.queue(rank, evaluating=True), workers)
        return PhasedQueue(training, evaluation, len(plan.steps))

    def _prefetching(self, index: str, spec: QueueSpec, workers: Workers) -> LocalQueue:
        samplers = self.loading.samplers
        state = QueueState(spec, lambda epoch, step: samplers.of(epoch).step_bytes(epoch, spec.rank, step))
        env = self._env("queue", index, self.plan.node_of_rank(spec.rank))
        return LocalQueue(PrefetchQueue(env, state, workers.submit))

    def _writer(self, number: int) -> LocalWriter:
        checkpointing = self.plan.checkpointing
        assert checkpointing is not None
        node = self.plan.node_of_writer(number)
        env = self._env("checkpoint_writer", str(number), node)
        env.storage = self.storage(node, checkpointing.path)
        return LocalWriter(env, round(self.plan.scenario.costs.checkpoint * 1e9))

    def _env(self, role: str, index: str, node: int) -> Env:
        level = self.plan.scenario.trace.level
        return Env(
            self.kernel,
            self.recorder,
            role=role,
            index=index,
            node=node,
            level=level,
            is_capturing=not self.plan.modelled,
        )


#: Called about once a second of wall time while an engine runs, for the live view and to empty the recorder.
Watch = Callable[[], None]


def simulate(plan: Plan, recorder: Recorder, tallies: list[Tally], watch: Watch) -> None:
    """Run a plan on the virtual clock, booking into ``tallies`` (one per rank). Storage is always the model."""
    kernel = VirtualKernel(watch)
    recorder.pid = 0
    kernel.run(House(plan, kernel, recorder, Path(), tallies).run())


def _unless_interrupted(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report a task's error that nobody asked for, but not the interrupt that ended the run and was raised as such."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


def run(plan: Plan, recorder: Recorder, root: Path, tallies: list[Tally], watch: Watch, run_id: str = "local") -> None:
    """Run a plan in this process on the wall clock; ``root`` is what relative paths of the scenario start from.

    The scenario's ``costs`` are not spent: this process has its own.
    """
    from rayio.otel import children  # here, for a simulation has no other libraries
    from rayio.otel.provider import Target, capture

    plan = replace(plan, scenario=plan.scenario.model_copy(update={"costs": Costs()}))

    async def main() -> None:
        loader = plan.scenario.loader
        wanted = max(1, loader.num_workers) * plan.world_size * loader.io_depth + plan.num_writers
        kernel = WallKernel(threads=min(wanted, 4 * (os.cpu_count() or 1) + 32))
        provider = offspring = None

        async def watching() -> None:
            while True:
                await asyncio.sleep(1.0)
                if offspring is not None:
                    offspring.collect()
                watch()

        asyncio.get_running_loop().set_exception_handler(_unless_interrupted)
        kernel.spawn(watching(), "watch")
        if plan.scenario.trace.captures:
            writer = recorder.register("process", str(os.getpid()), 0)
            provider = capture(Target(recorder, writer, kernel.now, run_id, f"process-{os.getpid()}"))
            offspring = children.follow(provider, recorder, 0, kernel.anchor)
        try:
            await House(plan, kernel, recorder, root, tallies).run()
        finally:
            if offspring is not None:
                offspring.close()
            if provider is not None:
                provider.target = None
            await kernel.cancel()

    asyncio.run(main())
