"""The actors: thin shells around the roles of ``rayio.model``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from rayio.engines.ray.actors.birth import Birth, address, has_lines
from rayio.engines.ray.actors.modelled import ReachesModelled
from rayio.engines.ray.actors.unawaited import Unawaited
from rayio.engines.ray.transport.calls import Loan, ReaderCalls
from rayio.engines.ray.transport.lent import LentBatches
from rayio.engines.ray.transport.lines import Address, Exchange, Line, Pieces
from rayio.engines.ray.transport.remote import (
    Fetches,
    OwnQueue,
    RemoteBarrier,
    RemoteQueue,
    RemoteTimekeeper,
    RemoteWriter,
)
from rayio.engines.ray.transport.shared import Arenas, SharedBuffers
from rayio.engines.ray.transport.turns import Turns
from rayio.model import roles
from rayio.model.checkpoint_ports import Marking
from rayio.model.cpu_account import ProcessCpu, Stopwatch
from rayio.model.env import QueuePort
from rayio.model.kernel import WallKernel
from rayio.model.ledger import Tally
from rayio.model.plan_parts import Doom
from rayio.model.queue import Delivery, Lease, QueueSpec, Take
from rayio.model.queue_levels import Levels, levels_of
from rayio.model.sighting import Sighting, look
from rayio.model.standing import Standing
from rayio.model.wiring import Wiring
from rayio.place import Where
from rayio.trace.arrow import empty_table, to_ipc
from rayio.trace.clocks import agree, boot_id, measure_drift
from rayio.trace.otel import provider
from rayio.trace.recorder import Recorder

if TYPE_CHECKING:
    from rayio.engines.ray.actors.collector import Push

#: The concurrency group of calls that are answered while a role is busy.
WATCH = "watch"
#: Seconds between two transfers of an actor's spans to the collector.
FLUSH_SECONDS = 0.7
#: Concurrent calls of an async actor; Ray queues further ones silently.
MAX_CONCURRENCY = 100_000


class Host(ReachesModelled):
    """The common part of all actors: a clock, a recorder whose spans go to the collector, and storage."""

    #: True if a role that is alone in its actor sleeps exactly, which blocks the actor for up to 2 ms.
    is_exact = True
    #: True if a role that is alone in its actor, with one request at a time, makes it in the loop's thread.
    reads_in_place = False
    #: True if it reads or writes files, so that its host's mounts matter.
    reaches_storage = True
    #: True if it times steps: it spins at the end of a sleep.
    keeps_steps = False
    #: True if each role also works behind training, in a thread more.
    drains = False

    def __init__(self, birth: Birth) -> None:
        self.birth = birth
        self.plan = birth.plan
        self.collector = birth.find("collector")
        self.recorder = Recorder(resolution_ns=birth.plan.trace.resolution_ns)
        to_ipc(empty_table())  # imports Arrow now: later that would stop a step's clock for half a second
        threads, alone = len(birth.members) * birth.plan.loader.working_threads, len(birth.members) == 1
        if self.drains and birth.plan.checkpointing is not None and birth.plan.checkpointing.burst is not None:
            threads += len(birth.members)
        self.kernel = WallKernel(
            agree(birth.anchor, birth.node, RemoteTimekeeper(self.collector)),
            alone=self.is_exact and alone,
            punctual=self.keeps_steps,
            threads=0 if self.reads_in_place and alone and threads == 1 else threads,
        )
        self.born = self.kernel.now()
        #: Consumption of its ranks.
        self.tallies: dict[int, Tally] = {}
        self._capture()
        self._flushing: asyncio.Task[None] | None = None
        self._unawaited = Unawaited(self.collector, birth.name)
        self._calls: ReaderCalls  # in an actor with queues
        #: The listener for calls from this host; None without callers.
        self.exchange: Exchange | None = None
        #: Memory of this host's readers, mapped by this process.
        ranks = len({member[0] for member in birth.members})
        self.arenas = Arenas(ranks * birth.plan.loader.num_workers)
        self.wiring = Wiring(
            birth.plan, self.kernel, self.recorder, birth.root, self, num_ranks=ranks, born=self.born,
            run_id=birth.namespace,
        )  # fmt: skip
        context = ray.get_runtime_context()
        role, of = birth.name.partition("-")[0], self.wiring
        self._cpu = Stopwatch(
            role, context.get_node_id(), of.read_cpu, of.decode_cpu, self.kernel.punctual, of.aside,
            lambda: [cpu for each in of.worked for cpu in each()],
        )  # fmt: skip
        restarted = context.was_current_actor_reconstructed
        self.collector.born.remote(birth.name, birth.node, os.getpid(), self.born, restarted)

    def _capture(self) -> None:
        """Record the spans of OpenTelemetry-instrumented libraries too, for the first role of this actor."""
        if not self.plan.trace.captures:
            return
        kind, _, index = self.birth.name.partition("-")
        writer = self.recorder.register(kind, index, self.birth.node)
        actor = f"{self.birth.name}/{os.getpid()}"
        provider.capture(provider.Target(self.recorder, writer, self.kernel.now, self.birth.namespace, actor))

    def wake(self) -> None:
        """Start to send spans and errors; every call does this first, because Ray may restart the actor."""
        if self._flushing is None:
            self._unawaited.listen()
            self._flushing = asyncio.get_running_loop().create_task(self._flush_regularly())

    def begin(self) -> None:
        """Start a call of work; it may be a restarted actor's first call."""
        self.wake()
        self._cpu.begin()

    async def listen(self) -> Address:
        """Return this actor's address for calls from its host."""
        self.wake()
        return address(self.plan, self.exchange)

    def line(self, handle: Any) -> Line:
        """Return a connection to another actor."""
        return Line(handle, ray.get_runtime_context().get_node_id(), self.arenas)

    def lines(self, handles: Mapping[tuple[int, ...], Any]) -> dict[tuple[int, ...], Line]:
        """Return connections to other actors by role; roles of one actor share one."""
        of_actor = {id(handle): self.line(handle) for handle in handles.values()}
        return {member: of_actor[id(handle)] for member, handle in handles.items()}

    async def employ(self, rank: int, workers: int, handles: Mapping[int, Any], waited: int) -> None:
        """Record a rank's number of readers, the handles of new ones, and their wait for nodes (ns)."""
        self._calls.employ(rank, workers, self.lines({(rank, new): handle for new, handle in handles.items()}), waited)

    async def ready(self) -> dict[str, Any]:
        """Return the actor's entry of run.json, once it has started."""
        self.wake()
        context = ray.get_runtime_context()
        where = {"node": self.birth.node, "ray_node": context.get_node_id()}
        return {"name": self.birth.name, "pid": os.getpid(), **where}

    @ray.method(concurrency_group=WATCH)  # type: ignore[untyped-decorator]
    async def standing(self) -> list[Standing]:
        """Return the current activities of this actor's roles, even while they block."""
        return self.wiring.standing()

    @ray.method(concurrency_group=WATCH)  # type: ignore[untyped-decorator]
    async def die(self, pid: int) -> None:
        """End this process as a failure does, if it is ``pid``: a repeated call may reach its successor."""
        if pid == os.getpid():
            os.kill(pid, signal.SIGKILL)

    async def sighting(self) -> Sighting | None:
        """Return a description of the host, for actors that read or write."""
        is_told = self.reaches_storage and not self.plan.modelled
        return await asyncio.to_thread(look, self.plan, self.birth.root) if is_told else None

    async def flush(self) -> tuple[int, ProcessCpu | None]:
        """Send the remaining spans to the collector.

        Returns the number of spans that this process has sent in all, and the CPU time of its work.
        """
        if boot_id() != self.birth.anchor.boot_id:
            with contextlib.suppress(RayError):  # without an answer, nothing is known of drift
                await asyncio.to_thread(measure_drift, RemoteTimekeeper(self.collector))
        if (push := self._unsent()) is not None:
            await self.collector.push.remote(*push)
        await self._unawaited.sent()
        return self.recorder.drained, self._cpu.read()

    def _unsent(self) -> Push | None:
        table = self.recorder.drain()
        return None if table is None else (self.birth.name, to_ipc(table), self.recorder.drained)

    def _send(self) -> None:
        if (push := self._unsent()) is not None:
            self.collector.push.remote(*push)

    async def _flush_regularly(self) -> None:
        sent = Levels()
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            self._send()
            if self.plan.trace.live and (levels := levels_of(self.wiring.queues, self.tallies.values())) != sent:
                self.collector.level.remote(self.birth.name, levels)
                sent = levels


class Reader(Host):
    """Reader workers. A call reads one lease; a repeated call after a restart returns the same batches."""

    reads_in_place = True

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        self._envs = {(rank, worker): self.wiring.reader(rank, worker, birth.node) for rank, worker in birth.members}
        self._turns = {who: Turns() for who in birth.members}
        self._lent = {who: LentBatches() for who in birth.members}
        #: Shared memory of batches, for processes of this host.
        self._shared = SharedBuffers() if self.plan.payload and has_lines(self.plan) else None
        if self._shared is not None:
            self.wiring.loading.buffers = self._shared
        self.exchange = Exchange({"read": self._read_over_line}, None if self._shared is None else self._shared.fd)

    async def leave(self) -> tuple[int, ProcessCpu | None]:
        """Send the remaining spans and free memory: this reader is done."""
        if self._shared is not None:
            self._shared.end()
        return await self.flush()

    async def read(self, lease: Lease, caller: int, turn: int, stored: tuple[int, ...] = ()) -> Any:
        """Read a lease; return seconds of work and headers and, with payload, a second object with the batches.

        Only the rank fetches bytes; the queue waits for the first object alone. ``turn`` numbers a worker's calls,
        ``stored`` are calls whose batches are done, ``caller`` is the number of the calling process.
        """
        seconds, batches = await self._read(lease, caller, turn, stored)
        if not self.plan.payload:
            return seconds, batches
        return (seconds, [replace(b, payload=None) for b in batches]), [b.payload for b in batches]

    async def _read_over_line(self, lease: Lease, caller: int, turn: int, stored: tuple[int, ...]) -> Any:
        """Read a lease as :meth:`read` does; the headers have the places of bytes in shared memory."""
        seconds, batches = await self._read(lease, caller, turn, stored)
        if not self.plan.payload or self._shared is None:
            return seconds, batches
        batches = [replace(batch, payload=self._shared.piece(batch.payload)) for batch in batches]
        return Pieces((seconds, batches), {batch.payload.arena for batch in batches})

    async def _read(
        self, lease: Lease, caller: int, turn: int, stored: tuple[int, ...]
    ) -> tuple[float, list[Delivery]]:
        self.begin()
        who = (lease.rank, lease.worker)
        forgotten = self._lent[who].stored(caller, stored)
        if forgotten and self._shared is not None:
            self._shared.forget([batch.payload for batch in forgotten])
        async with self._turns[who].of(turn):
            began = self.kernel.now()
            batches = await roles.read_lease(self._envs[who], self.wiring.loading, lease)
            ended = self.kernel.now()
        await self._envs[who].send(batches, Where(lease.rank, attempt=lease.attempt), ended)
        seconds = (ended - began) / 1e9
        if self.plan.payload and not self._lent[who].keep(caller, turn, batches):  # the caller is gone
            if self._shared is not None:
                self._shared.leave([batch.payload for batch in batches])
            return seconds, []
        return seconds, batches


class PrefetchQueue(Host):
    """The prefetch queues of some ranks: each submits its readers' calls and owns their results."""

    is_exact = False
    reaches_storage = False

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        calls = self._calls = ReaderCalls(
            self.plan, self.lines(birth.readers()), self.collector.wish.remote, in_rank=False
        )
        self.exchange = Exchange({"take": self._take_over_line}, self.arenas.fd)
        #: By rank, and whether for evaluation.
        self._queues = {
            (rank, evaluating): calls.queue(
                self.wiring, self.plan.queue(rank, evaluating=evaluating), evaluating=evaluating
            )
            for (rank,) in birth.members
            for evaluating in ((False,) if self.plan.evaluation is None else (False, True))
        }

    async def listen(self) -> Address:
        """Return this actor's address for calls; no name if its batches are Ray's, which no line carries."""
        address = await super().listen()
        return address if not self.plan.payload or await self._calls.are_near() else address._replace(name=None)

    async def flush(self) -> tuple[int, ProcessCpu | None]:
        """Answer open takes too: Ray would report them as failed when this actor ends."""
        for queue in self._queues.values():
            queue.dismiss()
        return await super().flush()

    async def take(self, rank: int, take: Take, patience_ns: int) -> list[Delivery]:
        """Answer a rank; each payload is a reference that the rank fetches itself."""
        self.begin()
        return await self._queues[rank, self.plan.is_evaluation(take.epoch)].take(take, patience_ns)

    async def _take_over_line(self, rank: int, take: Take, patience_ns: int, released: tuple[Loan, ...]) -> Pieces:
        """Answer a rank as :meth:`take` does; ``released`` are the loans of its finished batches."""
        for loan in released:
            self._calls.released(loan)
        deliveries = await self.take(rank, take, patience_ns)
        return Pieces(deliveries, {d.payload.piece.arena for d in deliveries if d.payload is not None})


class TrainerRank(Host):
    """The lives of some ranks. Ray never restarts them: batches cannot be consumed twice silently."""

    keeps_steps = True

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        self.tallies = {tally.rank: tally for tally in birth.tallies}
        #: Connections to the queues; or the readers' calls, for queues in this process.
        self._queues: dict[tuple[int, ...], Line] = {}
        if self.plan.is_queued_in_rank:
            self._calls = ReaderCalls(self.plan, self.lines(birth.readers()), self.collector.wish.remote, in_rank=True)
        else:
            self._queues = self.lines(birth.holders("queue", set(birth.members)))
        line = self.line(birth.find("barrier")) if self.plan.has_barrier else None
        self._barrier = None if line is None else RemoteBarrier(line, self.kernel, self.plan.meetings.group)
        ranks = [rank for (rank,) in birth.members]
        writers = birth.holders("checkpoint_writer", {(number,) for number in self.plan.writers_of(ranks)})
        self._writers = {number: RemoteWriter(line, number) for (number,), line in self.lines(writers).items()}

    def queue(self, spec: QueueSpec, *, evaluating: bool) -> QueuePort:
        """See ``rayio.model.wiring.RankPorts``."""
        if self.plan.is_queued_in_rank:
            return OwnQueue(self._calls.queue(self.wiring, spec, evaluating=evaluating))
        return RemoteQueue(self._queues[spec.rank,], self.kernel, spec, Fetches(self.wiring, spec.rank))

    def barrier(self) -> RemoteBarrier:
        """See ``rayio.model.wiring.RankPorts``."""
        assert self._barrier is not None
        return self._barrier

    def writers(self, rank: int) -> Mapping[int, RemoteWriter]:
        """See ``rayio.model.wiring.RankPorts``."""
        return self._writers

    def saved(self) -> Marking | None:
        """See ``rayio.model.wiring.RankPorts``; the collector gets the spans until then first."""

        def saved(number: int, tally: Tally | None, in_burst: bool = False) -> None:
            self.collector.saved.remote(number, tally, in_burst, self._unsent())

        return saved

    def doom(self, doom: Doom) -> None:
        """See ``rayio.model.wiring.RankPorts``."""
        os.kill(os.getpid(), signal.SIGKILL)

    async def run(self) -> list[Tally]:
        """Run every rank's life to its end; return each rank's consumption."""
        self.begin()
        try:
            await self.kernel.gather(*(line.reach() for line in {writer.line for writer in self._writers.values()}))
            await self.kernel.gather(*(self._train(rank) for rank in self.tallies))
        finally:
            await self.wiring.close()
        return list(self.tallies.values())

    async def flush(self) -> tuple[int, ProcessCpu | None]:
        """End the processes of loaders too: this process is about to be killed."""
        await self.wiring.close()
        return await super().flush()

    async def consumed(self) -> list[Tally]:
        """Return each rank's consumption so far."""
        return list(self.tallies.values())

    async def _train(self, rank: int) -> None:
        await self.wiring.rank(rank, self, self.tallies[rank])
        if self._barrier is not None:  # past the last step: releases callers of a restarted barrier
            self._barrier.line.handle.announce.remote(
                [(Where(rank, len(self.plan.steps) + 1, 0, self.plan.start.attempt), 0)]
            )
