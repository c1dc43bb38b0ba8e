"""The scaler of a rank's readers: it measures for ``rayio.model.autoscale`` and carries out its decisions.

It is part of the prefetch queue and has no timer: it looks when the rank reports its consumption. A worker still reads
its leases before it leaves; it leaves once the rank has consumed all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from rayio.model.autoscale import Look, Memory, Wanted, decide, refused
from rayio.model.env import NOTHING, Env
from rayio.model.kernel import Kernel
from rayio.model.pool import NodePool
from rayio.model.queue import Lease, QueueState, Take
from rayio.scenario.workers import Autoscaled

#: Batches of a look at least: with fewer, chance has more effect than the number of readers.
LEAST_BATCHES = 16


class Queue(Protocol):
    """A queue as its scaler uses it."""

    env: Env
    state: QueueState

    @property
    def under_way(self) -> Iterable[Lease]:
        """The leases at workers."""

    def grant(self) -> None:
        """Let workers start the steps that the window permits."""


#: Called with a rank's number of readers, and the time (ns) that new ones waited for nodes.
Arrived = Callable[[int, int], None]


class Staff(Protocol):
    """An engine's means to scale the readers of one rank."""

    def hire(self, workers: int, arrived: Arrived) -> None:
        """Start readers up to ``workers`` in all; ``arrived`` is called with the final number."""

    def is_free(self, worker: int) -> bool:
        """Return True if no memory of a worker is in use."""

    def dismiss(self, workers: int) -> None:
        """End the idle readers beyond ``workers``."""


class InProcessStaff:
    """Readers that are roles of this process: they start ``seconds`` after the request."""

    def __init__(self, kernel: Kernel, seconds: float) -> None:
        self.kernel = kernel
        self.seconds = seconds

    def hire(self, workers: int, arrived: Arrived) -> None:
        """See :class:`Staff`."""
        self.start(workers, arrived, 0)

    def start(self, workers: int, arrived: Arrived, waited: int) -> None:
        """Start readers that have a node, for which they waited ``waited`` ns."""
        if self.seconds:
            self.kernel.spawn(self._start(workers, arrived, waited), "readers start")
        else:
            arrived(workers, waited)

    async def _start(self, workers: int, arrived: Arrived, waited: int) -> None:
        await self.kernel.sleep_until(self.kernel.now() + round(self.seconds * 1e9))
        arrived(workers, waited)

    def is_free(self, worker: int) -> bool:
        """See :class:`Staff`."""
        return True

    def dismiss(self, workers: int) -> None:
        """See :class:`Staff`."""


class PooledStaff(InProcessStaff):
    """Readers of this process on pool nodes; ``settle`` is called with the node of each."""

    def __init__(
        self, kernel: Kernel, seconds: float, pool: NodePool, rank: int, least: int, settle: Callable[[int, int], None]
    ) -> None:
        super().__init__(kernel, seconds)
        self.pool = pool
        self.rank = rank
        self.settle = settle
        self._workers = least

    def hire(self, workers: int, arrived: Arrived) -> None:
        """See :class:`Staff`; readers numbered after one without a node are cancelled too."""
        since, wanted = self.kernel.now(), range(self._workers, workers)
        nodes: dict[int, int | None] = {}

        def granted(worker: int, node: int | None) -> None:
            nodes[worker] = node
            if len(nodes) == len(wanted):
                self._move_in(wanted, nodes)
                self.start(self._workers, arrived, self.kernel.now() - since)

        for worker in wanted:
            self.pool.want((self.rank, worker), partial(granted, worker))

    def _move_in(self, wanted: range, nodes: dict[int, int | None]) -> None:
        for worker in wanted:
            node = nodes[worker]
            if node is not None and worker == self._workers:
                self.settle(worker, node)
                self._workers += 1
            elif node is not None:
                self.pool.free((self.rank, worker))

    def dismiss(self, workers: int) -> None:
        """See :class:`Staff`."""
        for worker in range(workers, self._workers):
            self.pool.free((self.rank, worker))
        self._workers = workers


class _Change(NamedTuple):
    since: int
    before: int
    after: int
    why: str


class Scaler:
    """Observes a queue and scales its readers."""

    def __init__(self, queue: Queue, scaling: Autoscaled, staff: Staff) -> None:
        self.queue = queue
        self.scaling = scaling
        self.staff = staff
        self.memory = Memory()
        #: Requested readers that have not arrived, or dismissed ones with work left.
        self._coming: _Change | None = None
        self._going: _Change | None = None
        #: True once the first readers are in the trace.
        self._has_begun = False
        #: The epoch and step to be consumed before the next look begins; None once it has begun.
        self._settles: tuple[int, int] | None = (-1, 0)
        #: Start of the look; the rank's waiting times (ns) and batches at that time.
        self._begun = self._waited = self._held = self._taken = 0
        #: Number of ready batches when the look began.
        self._stock = 0
        #: Batches × ns since the look began: ready ones and those being read; and the time until which they are
        #: counted.
        self._ready = self._reading = self._counted = 0
        #: Arrival times of workers on pool nodes that have read nothing yet.
        self._new: dict[int, int] = {}
        #: Batches consumed in earlier epochs, and in this one.
        self._epoch, self._earlier, self._current = -1, 0, 0
        #: Meetings of the rank at its last report.
        self._met = -1

    def count(self) -> None:
        """Count the batches that are ready and being read until now; called before their number changes."""
        now, state = self.queue.env.kernel.now(), self.queue.state
        since = now - self._counted
        self._ready += len(state.ready) * since
        self._reading += len(state.leased) * since
        self._counted = now

    def read_by(self, worker: int) -> None:
        """Record that a worker has read a batch."""
        if self._new and (since := self._new.pop(worker, None)) is not None:
            env, state = self.queue.env, self.queue.state
            at = env.where(state.spec.rank, state.epoch, attempt=state.attempt)
            env.span("first_batch", since, env.kernel.now(), at, 3)

    def rank_advanced(self, take: Take) -> None:
        """Record the rank's consumption and waiting time; look, when it is due."""
        if not self._has_begun:
            self._has_begun = True
            self._record(_Change(self.queue.env.born, 0, self.queue.state.workers, "at the start"), take.epoch)
        self._count_taken(take)
        self.leave()
        are_known, self._met = take.met < 0 or take.met != self._met, take.met
        if self._coming is not None or self._going is not None or not are_known:
            return
        if self._settles is not None:
            if take.epoch == self._settles[0] and take.consumed < self._settles[1]:
                return
            self._settles = None
            self._begin(take)
            return
        now, scaling = self.queue.env.kernel.now(), self.scaling
        seconds, taken = (now - self._begun) / 1e9, self._earlier + self._current - self._taken
        if seconds < scaling.every or taken < LEAST_BATCHES:
            return
        read = taken + len(self.queue.state.ready) - self._stock
        look = Look(
            now / 1e9, seconds, self.queue.state.workers, self._ready / (now - self._begun),
            self._reading / (now - self._begun), (take.waited - self._waited) / 1e9, read,
            (take.held - self._held) / 1e9,
        )  # fmt: skip
        wanted, self.memory = decide(scaling, self.memory, look)
        self._begin(take)
        self._change(wanted)

    def _count_taken(self, take: Take) -> None:
        if take.epoch != self._epoch:
            self._earlier += self._current
            self._epoch, self._current = take.epoch, 0
        self._current = max(self._current, take.consumed + len(take.extra))

    def _begin(self, take: Take) -> None:
        self._begun = self._counted = self.queue.env.kernel.now()
        self._waited, self._held, self._taken = take.waited, take.held, self._earlier + self._current
        self._ready = self._reading = 0
        self._stock = len(self.queue.state.ready)

    def _change(self, wanted: Wanted) -> None:
        now, before = self.queue.env.kernel.now(), self.queue.state.workers
        if wanted.workers > before:
            self._coming = _Change(now, before, wanted.workers, wanted.why)
            self.staff.hire(wanted.workers, self.arrived)
        elif wanted.workers < before:
            self._going = _Change(now, before, wanted.workers, wanted.why)
            self._employ(wanted.workers)
            self.leave()

    def arrived(self, workers: int, waited: int = 0) -> None:
        """Record the number of readers after a request, and the time that nodes took (ns)."""
        if (coming := self._coming) is None:
            return
        self._coming = None
        now = self.queue.env.kernel.now()
        if workers < coming.after:
            self.memory = refused(self.scaling, self.memory, now / 1e9)
        workers = max(coming.before, min(workers, coming.after))
        more: dict[str, float] = {}
        if self.queue.state.spec.has_pool:
            more = {"nodes": waited / 1e9} | ({"wanted": coming.after} if workers < coming.after else {})
            self._new = dict.fromkeys(range(coming.before, workers), now)
        self._record(coming._replace(after=workers), self.queue.state.epoch, more, now)
        self.count()
        self._employ(workers)
        self.queue.grant()

    def leave(self) -> None:
        """Dismiss readers without work left."""
        if (going := self._going) is None:
            return
        queue = self.queue
        if any(lease.worker >= going.after for lease in queue.under_way):
            return
        if any(delivery.worker >= going.after for delivery in queue.state.ready.values()):
            return
        if not all(self.staff.is_free(worker) for worker in range(going.after, going.before)):
            return
        self._going = None
        for worker in range(going.after, going.before):
            self._new.pop(worker, None)
        self.staff.dismiss(going.after)
        self._record(going, queue.state.epoch)

    def _employ(self, workers: int) -> None:
        state = self.queue.state
        state.employ(workers)
        self._settles = (state.epoch, state.next_step)

    def _record(
        self, change: _Change, epoch: int, more: Mapping[str, float] = NOTHING, until: int | None = None
    ) -> None:
        since, before, after, why = change
        env, state = self.queue.env, self.queue.state
        until = env.kernel.now() if until is None else until
        at = env.where(state.spec.rank, epoch, attempt=state.attempt)
        env.scaled(since, until, at, before, after, why, more)
