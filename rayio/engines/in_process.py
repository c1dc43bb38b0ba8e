"""All roles of a plan in one process: queues, readers, barrier and writers without messages.

The local and the virtual engine are this on two kernels. ``costs`` (a lease, a put, a take, a transfer, a barrier) are
the durations of the Ray engine's messages: on the virtual clock they pass here, so predictions include them. If the end
of each read is known as it begins, foreseen.py replaces a rank's queue and readers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from rayio.engines.virtual.clock import VirtualFuture, VirtualKernel
from rayio.engines.virtual.foreseen import ForeseenQueue, Readers
from rayio.model import roles
from rayio.model.attempts import DeadError, Death
from rayio.model.barrier import Barrier, BarrierState, Step, at_once
from rayio.model.checkpoint_ports import Marking
from rayio.model.completing import Completion
from rayio.model.env import COMPLETER, Env, QueuePort, Shard
from rayio.model.kernel import Future, Kernel
from rayio.model.ledger import Tally
from rayio.model.loading import Loading
from rayio.model.manifest import Link
from rayio.model.marks import Saved
from rayio.model.plan import Plan
from rayio.model.plan_parts import Doom
from rayio.model.pool import NodePool
from rayio.model.prefetch import LocalQueue
from rayio.model.processors import CoresOf, MessageCpu
from rayio.model.queue import Delivery, Lease, QueueSpec
from rayio.model.scaler import InProcessStaff, PooledStaff
from rayio.model.wiring import LoaderKind, Wiring
from rayio.model.workflow import Conductor, Progress
from rayio.place import Where
from rayio.scenario.costs import Costs, taken
from rayio.scenario.meetings import ALL
from rayio.scenario.workers import Autoscaled
from rayio.storage.base import Served
from rayio.storage.layers.layer import Layer
from rayio.storage.model import Device, LocalArbiter
from rayio.trace.recorder import Recorder

#: No costs of messages besides the engine's own.
FREE = Costs()


class Workers:
    """The readers of one rank: each reads one lease at a time, in order of arrival."""

    __slots__ = ("_names", "_waiting", "costs", "cpu", "envs", "is_free", "loading")

    def __init__(self, envs: list[Env], loading: Loading, costs: Costs, cpu: MessageCpu | None = None) -> None:
        self.envs = envs
        self.loading = loading
        self.costs = costs
        #: CPU work of messages; None with unlimited CPUs.
        self.cpu = cpu
        #: True if a lease costs only the read.
        self.is_free = cpu is None and not costs.of_loader and not any(env.route for env in envs)
        self._names = [f"{env.name} to be free" for env in envs]
        #: By worker: None if free, else its waiters in order.
        self._waiting: list[list[Future] | None] = [None] * len(envs)

    async def submit(self, lease: Lease) -> list[Delivery]:
        """Read a lease once its worker is free."""
        worker = lease.worker
        env = self.envs[worker]
        if not self.is_free:
            on_its_way = self.costs.lease if self.cpu is None else await self.cpu.leased(self.costs.lease)
            arrives = env.kernel.now() + round(on_its_way * 1e9)
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
            copied = self.costs.put_bandwidth
            nbytes = sum(b.nbytes for b in batches)
            put = self.costs.put + taken(nbytes, copied)
            if self.cpu is not None and env.cores is not None:
                work = self.costs.put_work(nbytes)
                await env.compute("put", env.cores, (work,), at, slept=put - work)
            elif put or self.costs.take:
                await env.sleep("put", put, at)
        finally:
            self._release(worker)
        rate = self.costs.transfer_bandwidth
        moved = taken(nbytes, rate) if self.loading.payload else 0.0
        moving = self.costs.transfer_latency + moved
        if env.route:
            since = env.kernel.now()
            await self._pass(env, moving)
            await env.send(batches, at, since)
        elif moving:
            await env.sleep("transfer", moving, at, lane=1)
        if self.cpu is not None:
            await self.cpu.delivered(self.costs.take, self.costs.receive)
        elif self.costs.take:
            await self._pass(env, self.costs.take)
        return batches

    def _release(self, worker: int) -> None:
        """Admit the next waiting lease of a worker that is not cancelled."""
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
    """A rank's end of a barrier in the same process; answers take ``delay_ns``."""

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
        latest: int = await answer
        await self.barrier.kernel.sleep_until(self.barrier.kernel.now() + self.delay_ns)
        return latest


class LocalWriter:
    """A rank's end of a checkpoint writer in the same process: one shard at a time, answered after a delay.

    ``delay_ns`` returns the delay for a share of the state.
    """

    def __init__(
        self,
        env: Env,
        delay_ns: Callable[[float], int],
        completion: Completion | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self.env = env
        #: Names of its files in a checkpoint.
        self.names = names
        self.delay_ns = delay_ns
        #: Only in the writer that completes checkpoints.
        self.completion = completion
        #: The last call of training's, and the last drain.
        self._last: dict[bool, Future] = {}

    async def write(self, shard: Shard, at: Where) -> Served[None]:
        """Write a shard after earlier ones."""
        return await self._do(roles.write_shard, shard, at)

    async def read(self, shard: Shard, at: Where) -> Served[None]:
        """Read a shard after earlier work."""
        return await self._do(roles.read_shard, shard, at)

    async def report(self, durable: Mapping[Link, Sequence[str]], at: Where, in_burst: bool = False) -> list[Link]:
        """See ``rayio.model.env.WriterPort``."""
        assert self.completion is not None
        return await self.completion.report(durable, at, in_burst)

    async def drain(self, shard: Shard, at: Where) -> Served[None]:
        """Drain a shard after earlier ones."""
        return await self._do(roles.drain_shard, shard, at, is_behind=True)

    async def clear(self, kept: Collection[str], at: Where) -> None:
        """See ``rayio.model.env.WriterPort``."""
        await roles.clear_tier(self.env, self.names, kept)

    async def _do(
        self, work: Callable[[Env, Shard, Where], Awaitable[Served[None]]], shard: Shard, at: Where, *,
        is_behind: bool = False,
    ) -> Served[None]:  # fmt: skip
        before = self._last.get(is_behind)
        mine = self._last[is_behind] = self.env.kernel.future(f"{self.env.name} to be free")
        if before is not None:
            await before
        try:
            served = await work(self.env, shard, at)
        finally:
            mine.set_result(None)
        if is_behind:
            return served
        if delay_ns := self.delay_ns(shard.link.fraction):
            await self.env.kernel.sleep_until(self.env.kernel.now() + delay_ns)
        return served


class InProcess:
    """All roles of a plan in this process, and the ports between them. Real storage is under ``root``.

    With ``cores`` of each node the work of ``costs.cpu`` runs on them. ``clock`` is the kernel if it is virtual: then
    fewer events serve roles that act alike. ``saved`` receives the checkpoints that ranks have passed, ``stages``
    what the processes of stages did.
    """

    def __init__(
        self,
        plan: Plan,
        kernel: Kernel,
        recorder: Recorder,
        tallies: list[Tally],
        root: str | Path = "",
        costs: Costs = FREE,
        loader: LoaderKind | None = None,
        cores: CoresOf | None = None,
        clock: VirtualKernel | None = None,
        saved: Saved | None = None,
        run_id: str = "",
        stages: Progress | None = None,
    ) -> None:
        self.plan = plan
        self.complete = saved
        self._stages = Progress(plan.workflow) if stages is None else stages
        self.cores = cores
        self.kernel = kernel
        self.costs = costs
        self.tallies = tallies
        late = costs.step if cores is None else max(0.0, costs.step - costs.cpu.step)
        self.wiring = Wiring(
            plan, kernel, recorder, root, self, num_ranks=plan.world_size, late_ns=round(late * 1e9),
            loader=loader, cores=cores, run_id=run_id,
        )  # fmt: skip
        self._devices = [Device(spec) for spec in plan.devices] if plan.modelled else []
        #: State shared by users of layers, by layer and node (-1: all nodes).
        self._shared: dict[tuple[str, int], Any] = {}
        delay_ns, late_ns = round(costs.barrier * 1e9), round(late * 1e9)
        after_ns = round(plan.meetings.seconds * 1e9) + late_ns
        answer = at_once
        if clock is not None and not delay_ns:  # ranks sleep from their answer to the end of the step at once

            def answer(future: Future, latest: int, meeting: Step) -> None:
                _, step, group = meeting
                after = 0 if step < 0 else after_ns if group == ALL else late_ns
                clock.answer_at(cast("VirtualFuture", future), latest, latest + after)

        self._barrier = LocalBarrier(Barrier(kernel, BarrierState.of(plan.meetings, plan.meets), answer), delay_ns)
        self._writers: dict[int, LocalWriter] = {}
        pool = plan.cluster.reader_pool
        self._pool = None if pool is None else NodePool(kernel, pool, plan.cluster.all_nodes, recorder, self._gone)
        #: Returns the environment of a reader on a pool node.
        self._worlds = cache(self.wiring.reader)
        #: The readers of each rank, shared by its two queues.
        self._workers: dict[int, Workers] = {}
        self._clock = clock
        #: Readers by rank whose reads have a known end; and their queues.
        self._readers: dict[int, Readers] = {}
        self._foreseen: list[ForeseenQueue] = []

    async def completed(self) -> None:
        """Wait for the manifests of checkpoints whose files are all durable."""
        writer = self._writers.get(COMPLETER)
        if writer is not None and writer.completion is not None:
            await writer.completion.begun()

    async def run(self) -> None:
        """Run every rank's life to its end."""
        saves = self.plan.checkpointing
        whole = 0 if saves is None else sum(saves.sizes)

        def delay_ns(fraction: float) -> int:
            return round(self.costs.of_checkpoint(whole * fraction) * 1e9)

        for number in range(self.plan.num_writers):
            env = self.wiring.writer(number)
            completion = self.wiring.completion(env) if number == COMPLETER else None
            names = () if saves is None else saves.names_of(number)
            self._writers[number] = LocalWriter(env, delay_ns, completion, names)
        try:
            lives = [self.wiring.rank(tally.rank, self, tally) for tally in self.tallies]
            if self.plan.workflow:
                start = self.wiring.stage_process
                stages = Conductor(self.plan.workflow, self.kernel, start, self._stages).run()
                if self.plan.workflow.is_background:
                    self.kernel.spawn(stages, "stages")
                else:
                    lives.append(stages)
            await self.kernel.gather(*lives)
        finally:
            for queue in self._foreseen:
                queue.settle()
            if self._pool is not None:
                self._pool.close()
            await self.wiring.close()

    def arbiter(self, device: int) -> LocalArbiter:
        """See ``rayio.model.wiring.Devices``."""
        return LocalArbiter(self._devices[device])

    def shared(self, layer: Layer, node: int) -> Any:
        """See ``rayio.model.wiring.Devices``."""
        of = layer.name, node if layer.sharing == "node" else -1
        if (state := self._shared.get(of)) is None:
            state = self._shared[of] = layer.state(self.kernel)
        return state

    async def book(self, number: int, is_needed: bool) -> Collection[int] | None:
        """See ``rayio.model.wiring.Devices``; without books every checkpoint counts as named."""
        book = None if self.complete is None else self.complete.book
        return (number,) if book is None else book(number, is_needed)

    def _gone(self, node: int) -> None:
        """Forget the shared state of a node; a new node of this number begins afresh."""
        for (_, number), state in self._shared.items():
            if number == node:
                state.clear()

    def queue(self, spec: QueueSpec, *, evaluating: bool) -> QueuePort:
        """See ``rayio.model.wiring.RankPorts``; a rank's readers are created with its first queue."""
        workers = self._workers.get(spec.rank)
        if workers is None:
            readers = [self.wiring.reader(spec.rank, worker) for worker in range(spec.num_workers)]
            cpu = (
                None
                if self.cores is None
                else MessageCpu(
                    self.costs.cpu,
                    self.wiring.process(spec.rank),
                    in_rank=self.plan.is_queued_in_rank,
                )
            )
            ranks = self.plan.cluster.ranks_of(self.plan.node_of_rank(spec.rank))
            costs = self.costs.next_to(len(ranks) - 1)
            workers = self._workers[spec.rank] = Workers(readers, self.wiring.loading, costs, cpu)
        if (clock := self._clock) is not None and workers.is_free and self._is_foreseen(spec):
            if (known := self._readers.get(spec.rank)) is None:
                known = self._readers[spec.rank] = Readers(workers.envs, workers.loading, clock)
            foreseen = ForeseenQueue(spec, self.wiring.queue_env(spec.rank, evaluating=evaluating), known)
            self._foreseen.append(foreseen)
            return foreseen
        staff = None if spec.scaling is None else self._staff(spec, spec.scaling, workers)
        queue = self.wiring.queue(spec, workers.submit, staff, evaluating=evaluating)
        process = None if workers.cpu is None else workers.cpu.rank
        costs = workers.costs
        return LocalQueue(queue, round(costs.receive * 1e9), process, costs.cpu.rank, costs.receive_bandwidth)

    def _is_foreseen(self, spec: QueueSpec) -> bool:
        """Return True if the ends of a queue's reads are known as they begin, and nobody observes them meanwhile."""
        is_plain = not self.plan.trace.is_itemised and all(layer.is_foreseen for layer in self.plan.layers)
        is_plain = is_plain and self.plan.loader.pin_bandwidth is None
        return is_plain and spec.is_in_turn and spec.in_order

    def _staff(self, spec: QueueSpec, scaling: Autoscaled, workers: Workers) -> InProcessStaff:
        if self._pool is None:
            return InProcessStaff(self.kernel, scaling.start)

        def settle(worker: int, node: int) -> None:
            workers.envs[worker] = self._worlds(spec.rank, worker, node)

        return PooledStaff(self.kernel, scaling.start, self._pool, spec.rank, scaling.min, settle)

    def barrier(self) -> LocalBarrier:
        """See ``rayio.model.wiring.RankPorts``."""
        return self._barrier

    def writers(self, rank: int) -> Mapping[int, LocalWriter]:
        """See ``rayio.model.wiring.RankPorts``."""
        return self._writers

    def saved(self) -> Marking | None:
        """See ``rayio.model.wiring.RankPorts``."""
        return None if self.complete is None else self.complete.add

    def doom(self, doom: Doom) -> None:
        """See ``rayio.model.wiring.RankPorts``; in one process all ranks end.

        Raises:
            DeadError: always.
        """
        assert self.plan.failures is not None
        event = self.plan.failures.events[doom.event]
        raise DeadError(Death(event.kind, event.number, self.kernel.now(), doom.event))
