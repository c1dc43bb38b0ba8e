"""The actors: a thin shell each around a role and its brain. What they do is in ``rayio.pipeline``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray

from rayio.cluster.lent import LentBatches
from rayio.cluster.placement import Kind, actors
from rayio.cluster.remote import RemoteArbiter, RemoteBarrier, RemoteQueue, RemoteTimekeeper, RemoteWriter, plain
from rayio.cluster.tasks import tell
from rayio.cluster.turns import Turns
from rayio.otel import children, hosts, provider
from rayio.pipeline import roles
from rayio.pipeline.cpu_account import ProcessCpu, Stopwatch
from rayio.pipeline.env import Shard
from rayio.pipeline.kernel import WallKernel
from rayio.pipeline.ledger import Tally
from rayio.pipeline.plan import Plan
from rayio.pipeline.queue import Delivery, Lease, QueueSpec, Take
from rayio.pipeline.sighting import Sighting, look
from rayio.pipeline.standing import Standing
from rayio.pipeline.wiring import Wiring
from rayio.place import Where
from rayio.storage.base import Served
from rayio.trace.clocks import Anchor, agree, tell_drift
from rayio.trace.recorder import Recorder
from rayio.trace.span import schema
from rayio.trace.store import to_ipc

#: The concurrency group of calls that are answered whatever a role is doing.
WATCH = "watch"
#: Seconds between two deliveries of an actor's spans to the collector.
FLUSH_SECONDS = 0.7
#: Work and bytes that one call to a reader may hold when a step is less than that.
LEASE_SECONDS = 5e-3
LEASE_BYTES = 8 << 20
#: How fast what a step usually takes may rise, from one call to the next: a late wake-up is not slow storage.
RISE = 1.1
#: Calls that an async actor takes at a time; beyond its limit Ray queues them without a word.
MAX_CONCURRENCY = 100_000


@dataclass(frozen=True)
class Birth:
    """What every actor is built from; with it alone Ray can start it again."""

    name: str
    node: int
    members: tuple[tuple[int, ...], ...]
    plan: Plan
    #: Address from which the scenario's relative paths start, on the actor's node.
    root: str
    anchor: Anchor
    #: Ray namespace in which the actors of this run have their names.
    namespace: str

    def find(self, name: str) -> Any:
        """The handle of another actor of this run."""
        return ray.get_actor(name, namespace=self.namespace)

    def holders(self, kind: Kind, among: Container[tuple[int, ...]]) -> dict[tuple[int, ...], Any]:
        """The handle of the actor that holds each of some roles of a kind, by role."""
        found: dict[tuple[int, ...], Any] = {}
        for spec in actors(self.plan, kind):
            if wanted := [member for member in spec.members if member in among]:
                found |= dict.fromkeys(wanted, self.find(spec.name))
        return found


class Host:
    """What all actors have in common: a clock, a recorder that empties itself into the collector, and storage."""

    #: Whether a role that is alone in its actor sleeps exactly, which stops the actor for up to 2 ms.
    is_exact = True
    #: Whether a role that is alone in its actor and makes one request at a time makes it in the loop's own thread.
    reads_in_place = False
    #: Whether it reads or writes files, so that what its host mounts matters.
    reaches_storage = True
    #: Whether it is one of the first to take in the spans of tasks on its host; a rank has steps to keep.
    is_eager = True

    def __init__(self, birth: Birth) -> None:
        self.birth = birth
        self.plan = birth.plan
        self.collector = birth.find("collector")
        self.recorder = Recorder(resolution_ns=birth.plan.trace.resolution_ns)
        to_ipc(schema().empty_table())  # loads Arrow now: later it would stop the clock of a step for half a second
        alone = len(birth.members) == 1
        threads = len(birth.members) * birth.plan.loader.io_depth
        self.kernel = WallKernel(
            agree(birth.anchor, birth.node, RemoteTimekeeper(self.collector)),
            alone=self.is_exact and alone,
            threads=0 if self.reads_in_place and alone and threads == 1 else threads,
        )
        self.born = self.kernel.now()
        #: What takes in the spans of other processes: this one's children, and tasks of the run on this host.
        self._others: list[children.Children | hosts.HostSpool] = self._capture()
        self._flushing: asyncio.Task[None] | None = None
        self.wiring = Wiring(
            birth.plan, self.kernel, self.recorder, birth.root, self,
            num_ranks=len({member[0] for member in birth.members}), born=self.born,
        )  # fmt: skip
        context = ray.get_runtime_context()
        restarted = context.was_current_actor_reconstructed
        kind, _, _ = birth.name.partition("-")
        self._cpu = Stopwatch(kind, context.get_node_id(), self.wiring.read_cpu)
        self.collector.born.remote(birth.name, birth.node, os.getpid(), self.born, restarted)

    def _capture(self) -> list[children.Children | hosts.HostSpool]:
        """Record the spans of OpenTelemetry-instrumented libraries too, for the first role of this actor."""
        if not self.plan.trace.captures:
            return []
        kind, _, index = self.birth.name.partition("-")
        writer = self.recorder.register(kind, index, self.birth.node)
        actor = f"{self.birth.name}/{os.getpid()}"
        run = self.birth.namespace
        here = self.recorder, self.birth.node, self.kernel.anchor
        offspring = children.follow(
            provider.capture(provider.Target(here[0], writer, self.kernel.now, run, actor)), *here
        )
        if offspring is None:
            return []
        if not self.plan.trace.captures_tasks or not offspring.is_told:
            return [offspring]
        if (shared := hosts.share(run, *here, self.is_eager)) is None:
            return [offspring]
        tell(children.variables(run))
        return [offspring, shared]

    def wake(self) -> None:
        """Begin to empty the recorder regularly; every call of an actor says this first, a restarted one too."""
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush_regularly())

    def begin(self) -> None:
        """Begin with a call of work; a restarted actor's first call may be one."""
        self.wake()
        self._cpu.begin()

    async def ready(self) -> dict[str, Any]:
        """Answer when the actor has started, with what run.json says of it."""
        self.wake()
        context = ray.get_runtime_context()
        where = {"node": self.birth.node, "ray_node": context.get_node_id()}
        return {"name": self.birth.name, "pid": os.getpid(), **where}

    @ray.method(concurrency_group=WATCH)  # type: ignore[untyped-decorator]
    async def standing(self) -> list[Standing]:
        """What the roles of this actor are doing at the moment; answered while they block."""
        return self.wiring.standing()

    async def sighting(self) -> Sighting | None:
        """Describe the host, for actors that read and write."""
        is_told = self.reaches_storage and not self.plan.modelled
        return await asyncio.to_thread(look, self.plan, self.birth.root) if is_told else None

    async def flush(self) -> tuple[int, ProcessCpu | None]:
        """Send the last of what is recorded to the collector.

        The answer is how many spans this process has sent in all, and what its work took of processors.
        """
        for other in self._others:
            other.close()
        if (table := self.recorder.drain()) is not None:
            await self.collector.push.remote(self.birth.name, to_ipc(table), self.recorder.drained)
        await asyncio.to_thread(tell_drift, self.birth.anchor, RemoteTimekeeper(self.collector))
        return self.recorder.drained, self._cpu.read()

    async def _flush_regularly(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            for other in self._others:
                other.collect()
            if (table := self.recorder.drain()) is not None:
                self.collector.push.remote(self.birth.name, to_ipc(table), self.recorder.drained)

    def arbiter(self, device: int) -> RemoteArbiter:
        """See ``rayio.pipeline.wiring.Devices``."""
        return RemoteArbiter(self.birth.find(f"storage-{device}"))


class Reader(Host):
    """Reader workers. A call reads one lease; repeating it, after this process was killed, gives the same batches."""

    reads_in_place = True

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        self._envs = {(rank, worker): self.wiring.reader(rank, worker) for rank, worker in birth.members}
        self._turns = {who: Turns() for who in birth.members}
        self._lent = {who: LentBatches() for who in birth.members}

    async def read(self, lease: Lease, turn: int, stored: tuple[int, ...] = ()) -> Any:
        """Read a lease: the seconds of work and the headers and, where bytes travel, a second object with every batch.

        Only the rank fetches bytes: the queue waits for the first object alone. A worker's calls count their turns;
        ``stored`` are those whose answers the queue has.
        """
        self.begin()
        who = (lease.rank, lease.worker)
        self._lent[who].stored(turn, stored)
        async with self._turns[who].of(turn):
            began = self.kernel.now()
            batches = await roles.read_lease(self._envs[who], self.wiring.loading, lease)
            seconds = (self.kernel.now() - began) / 1e9
        if not self.plan.payload:
            return seconds, batches
        self._lent[who].keep(turn, batches)
        return (seconds, [replace(b, payload=None) for b in batches]), [b.payload for b in batches]


class PrefetchQueue(Host):
    """The queues of some ranks: each submits its readers' calls and owns what they return."""

    is_exact = False
    reaches_storage = False

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        workers = range(self.plan.loader.num_workers)
        readers = birth.holders("reader", {(rank, worker) for (rank,) in birth.members for worker in workers})
        #: What to call for a lease of each worker.
        self._read = {who: handle.read.options(num_returns=1 + self.plan.payload) for who, handle in readers.items()}
        #: The turn of each worker's next call.
        self._turn = dict.fromkeys(readers, 0)
        #: The turns of each worker whose answers are here, until the next call says so.
        self._stored: dict[tuple[int, ...], list[int]] = {who: [] for who in readers}
        #: What a step takes a reader of late, by rank, and whether for evaluation.
        self._step_seconds: dict[tuple[int, bool], float] = {}
        #: By rank, and whether it is the one for evaluation.
        self._queues = {
            (rank, evaluating): self.wiring.queue(
                self.plan.queue(rank, evaluating=evaluating), self._submit, evaluating=evaluating
            )
            for (rank,) in birth.members
            for evaluating in ((False,) if self.plan.evaluation is None else (False, True))
        }

    async def flush(self) -> tuple[int, ProcessCpu | None]:
        """Leave no take unanswered either: Ray would report it as failed when this actor is ended."""
        for queue in self._queues.values():
            queue.dismiss()
        return await super().flush()

    async def take(self, rank: int, take: Take, patience_ns: int) -> list[Delivery]:
        """Answer a rank; the payload of each delivery is a reference that the rank fetches by itself."""
        self.begin()
        return await self._queues[rank, self.plan.is_evaluation(take.epoch)].take(take, patience_ns)

    async def _submit(self, lease: Lease) -> list[Delivery]:
        who = (lease.rank, lease.worker)
        turn = self._turn[who]
        self._turn[who] = turn + 1
        stored = self._stored[who]
        returned = self._read[who].remote(lease, turn, tuple(stored))
        stored.clear()
        headers, parcel = returned if self.plan.payload else (returned, None)
        try:
            seconds, batches = await headers
        except Exception as error:
            raise plain(error) from None
        if parcel is not None:  # Ray answers a call once everything that it returned is stored
            stored.append(turn)
        which = lease.rank, self.plan.is_evaluation(lease.epoch)
        queue = self._queues[which]
        step_seconds = seconds / len(batches)
        usual = min(step_seconds, RISE * self._step_seconds.get(which, step_seconds))
        self._step_seconds[which] = usual
        queue.lease_steps = lease_steps(usual, max(batch.nbytes for batch in batches), queue.state.spec)
        if parcel is None:
            return list(batches)
        return [replace(batch, payload=(parcel, place)) for place, batch in enumerate(batches)]


def lease_steps(seconds: float, nbytes: int, spec: QueueSpec) -> int:
    """How many steps to put into one call when a step takes a reader so many seconds and has so many bytes.

    A call costs a millisecond or two on its way; leases of some milliseconds of work hide that. A worker is given half
    of its window at most, so that it reads the one half while the rank consumes the other.
    """
    return max(
        1, min(spec.prefetch_factor // 2, int(LEASE_SECONDS / max(seconds, 1e-6)), LEASE_BYTES // max(nbytes, 1))
    )


class TrainerRank(Host):
    """Some ranks' lives. Never repeated by Ray: what was consumed cannot be consumed again without saying so."""

    is_eager = False

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        self.tallies = {rank: Tally(rank) for (rank,) in birth.members}
        self._queues = birth.holders("queue", set(birth.members))
        self._barrier = RemoteBarrier(birth.find("barrier"), self.kernel) if self.plan.has_barrier else None
        ranks = [rank for (rank,) in birth.members]
        writers = birth.holders("checkpoint_writer", {(number,) for number in self.plan.writers_of(ranks)})
        self._writers = {number: RemoteWriter(handle, number) for (number,), handle in writers.items()}

    def queue(self, spec: QueueSpec, *, evaluating: bool) -> RemoteQueue:
        """See ``rayio.pipeline.wiring.RankPorts``."""
        return RemoteQueue(self._queues[spec.rank,], self.kernel, spec)

    def barrier(self) -> RemoteBarrier:
        """See ``rayio.pipeline.wiring.RankPorts``."""
        assert self._barrier is not None
        return self._barrier

    def writers(self, rank: int) -> Mapping[int, RemoteWriter]:
        """See ``rayio.pipeline.wiring.RankPorts``."""
        return self._writers

    async def run(self, attempt: int) -> list[Tally]:
        """Live every rank's life to its end; give what each consumed."""
        self.begin()
        try:
            await self.kernel.gather(*(self._train(rank, attempt) for rank in self.tallies))
        finally:
            await self.wiring.close()
        return list(self.tallies.values())

    async def flush(self) -> tuple[int, ProcessCpu | None]:
        """End what loaders have started too: this process is about to be killed."""
        await self.wiring.close()
        return await super().flush()

    async def consumed(self) -> list[Tally]:
        """What each rank has consumed so far."""
        return list(self.tallies.values())

    async def _train(self, rank: int, attempt: int) -> None:
        await self.wiring.rank(rank, self, self.tallies[rank], attempt)
        if self._barrier is not None:  # past the last step: frees whoever asks a barrier that was started again
            self._barrier.handle.announce.remote([(Where(rank, len(self.plan.steps), 0, attempt), 0)])


class CheckpointWriter(Host):
    """Checkpoint writers. They make the bytes themselves, so that no state crosses processes."""

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        self._envs = {number: self.wiring.writer(number) for (number,) in birth.members}
        self._busy = {number: asyncio.Lock() for number in self._envs}

    async def write(self, number: int, shard: Shard, at: Where) -> Served[None]:
        """Write one shard; repeating it writes the same file again."""
        self.begin()
        async with self._busy[number]:
            return await roles.write_shard(self._envs[number], shard, at)
