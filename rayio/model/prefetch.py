"""The prefetch queue: a QueueState with its calls and waits, the same on every engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

from rayio.model.consumed import Consumed
from rayio.model.env import Env
from rayio.model.kernel import Future
from rayio.model.pinning import PinThread
from rayio.model.processors import Process
from rayio.model.queue import Delivery, Lease, QueueState, Take
from rayio.model.scaler import Scaler
from rayio.model.standing import Standing
from rayio.place import Where

#: Carries a lease to its worker and returns its batches in order.
Submit = Callable[[Lease], Awaitable[Sequence[Delivery]]]


class PrefetchQueue:
    """The queue of one rank: it submits reads to workers, owns the batches, and answers the rank's takes."""

    def __init__(self, env: Env, state: QueueState, submit: Submit, pinning: PinThread | None = None) -> None:
        self.env = env
        #: Copies batches before they are ready; None without ``loader.pin_memory``.
        self.pinning = pinning
        self.state = state
        self.submit = submit
        #: Scales the readers; None for a constant number.
        self.scaler: Scaler | None = None
        #: Steps per lease; more than one only if a read is faster than its call.
        self.lease_steps = 1
        #: The attempt and the error of a failed read.
        self._failure: tuple[int, Exception] | None = None
        #: The waiting take's future, and its number: a newer take or its expiry raises the number and ends the wait.
        self._news: Future | None = None
        self._ticket = 0
        self._patience_ends = 0
        self._sweeping = False
        self._bound_since: int | None = None
        #: Leases at workers, with the times of their grants: a worker without one may leave.
        self.under_way: dict[Lease, int] = {}
        self._readers = [f"reader-{state.spec.rank}-{worker}" for worker in range(state.spec.num_workers)]

    async def take(self, take: Take, patience_ns: int | None = None) -> list[Delivery]:
        """Record the consumption, then return batches as soon as there are any; none after ``patience_ns``.

        A newer take of the same rank ends the wait of the older one, which returns nothing, in any order of arrival.

        Raises:
            DataError, StorageError: a worker could not read; every later take raises it too.
            StaleAttemptError: the message belongs to an older attempt.
        """
        if self.state.is_overtaken(take):
            return []
        self.rank_advanced(take)
        self._ticket += 1
        ticket = self._ticket
        self._wake()
        if patience_ns is not None:
            self._patience_ends = self.env.kernel.now() + patience_ns
            if not self._sweeping:
                self._sweeping = True
                self.env.kernel.spawn(self._sweep(), "takes expire")
        while take.want > 0 and ticket == self._ticket:
            if self._failure is not None and self._failure[0] == take.attempt:
                raise self._failure[1]
            if ready := self.state.deliverable(take):
                return ready
            self._news = self.env.kernel.future(f"a batch of epoch {take.epoch} after {take.consumed} steps")
            await self._news
        return []

    def at_hand(self, take: Take) -> list[Delivery]:
        """Return the ready batches for a rank whose consumption is recorded; none if :meth:`take` has to wait."""
        return self.state.deliverable(take) if self._failure is None else []

    def rank_advanced(self, take: Take) -> None:
        """Record the rank's consumption, and let workers start the steps that the window now permits."""
        if self.scaler is not None:
            self.scaler.count()
        if self.state.rank_advanced(take):
            self.grant()
        if self.scaler is not None:
            self.scaler.rank_advanced(take)

    async def _sweep(self) -> None:
        """End the newest take's wait when its patience ends; one task serves all takes."""
        while self._patience_ends > self.env.kernel.now():
            await self.env.kernel.sleep_until(self._patience_ends)
        self._sweeping = False
        self.dismiss()

    def dismiss(self) -> None:
        """Answer a waiting take with nothing."""
        self._ticket += 1
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def grant(self) -> None:
        """Let workers start the steps that the window permits."""
        kernel = self.env.kernel
        for lease in self.state.grant() if self.lease_steps == 1 else self._joined():
            self.under_way[lease] = granted = kernel.now()
            kernel.spawn(self._carry_out(lease, granted), self._readers[lease.worker])
        if self.state.memory_bound != (self._bound_since is not None):
            self._note_memory_bound()

    async def _carry_out(self, lease: Lease, granted: int) -> None:
        env = self.env
        try:
            batches = await self.submit(lease)
            if self.pinning is not None:
                landed = env.kernel.now()
                for delivery in batches:
                    self.state.worker_done(delivery)
                if self.state.spec.assignment == "dynamic":
                    self.grant()
            for delivery in batches:
                if self.pinning is not None:
                    await self.pinning.pin(delivery, landed)
                if self.scaler is not None:
                    self.scaler.count()
                    self.scaler.read_by(delivery.worker)
                self.state.batch_read(delivery)
                at = (lease.rank, delivery.epoch, delivery.step, delivery.attempt)
                env.span("lease", granted, env.kernel.now(), at, 1, delivery.nbytes)
            if self.state.spec.assignment == "dynamic":
                self.grant()
        except Exception as error:
            self._failure = (lease.attempt, error)
        del self.under_way[lease]
        if self.scaler is not None:
            self.scaler.leave()
        self._wake()

    def standing(self) -> Iterator[Standing]:
        """Yield the leases at workers, step by step."""
        for lease, granted in list(self.under_way.items()):
            by, name = self._readers[lease.worker], self.env.name
            for step in lease.steps:
                at = Where(lease.rank, lease.epoch, step, lease.attempt)
                yield Standing("queue", name, "lease", at, granted, granted, by=by)

    def _joined(self) -> list[Lease]:
        """Return leases of several steps; smaller ones wait, because they would become single steps."""
        spec = self.state.spec
        lump = min(self.lease_steps, spec.prefetch_factor // 2) if spec.assignment == "static" else 1
        return _coalesce(self.state.grant(lump), self.lease_steps)

    def _note_memory_bound(self) -> None:
        now = self.env.kernel.now()
        if self._bound_since is None:
            self._bound_since = now
        else:
            at = self.env.where(self.state.spec.rank, self.state.epoch, attempt=self.state.attempt)
            self.env.span("memory_bound", self._bound_since, now, at)
            self._bound_since = None


def _coalesce(leases: list[Lease], most: int) -> list[Lease]:
    """Return leases with those of the same worker joined, up to ``most`` steps each, in every worker's order."""
    if most == 1 or len(leases) < 2:
        return leases
    joined: list[Lease] = []
    open_: dict[int, int] = {}
    for lease in leases:
        place = open_.get(lease.worker)
        if place is not None and len(joined[place].steps) < most:
            before = joined[place]
            joined[place] = Lease(before.rank, before.worker, before.epoch, before.steps + lease.steps, before.attempt)
        else:
            open_[lease.worker] = len(joined)
            joined.append(lease)
    return joined


class LocalQueue:
    """A rank's end of a queue in the same process. Taking a batch, ready or not, takes ``receive_ns``, and its bytes.

    Up to ``work`` seconds of it are work of the rank's ``process``, if given; the rest waits for other processes. All
    of the time of bytes, at ``rate`` bytes/s, is work.
    """

    __slots__ = ("_request", "consumed", "process", "queue", "rate", "receive_ns", "work")

    def __init__(
        self, queue: PrefetchQueue, receive_ns: int = 0, process: Process | None = None, work: float = 0.0,
        rate: float | None = None,
    ) -> None:  # fmt: skip
        self.queue = queue
        self.process = process
        self.rate = rate
        self.work = 0.0 if process is None else min(receive_ns / 1e9, work)
        self.receive_ns = receive_ns - round(self.work * 1e9)
        self.consumed = Consumed(taken=queue.state.spec.taken)
        #: The last request; it is also the next one until the epoch ends.
        self._request: Take | None = None

    async def get(self, at: Where) -> Delivery:
        """Return the next batch; the window moves at once."""
        if self.consumed.open(at) or self._request is None:
            self._request = self.consumed.take(1, at.attempt)
            self.queue.rank_advanced(self._request)
        since = 0 if self.queue.scaler is None else self.queue.env.kernel.now()
        (delivery,) = self.queue.at_hand(self._request) or await self.queue.take(self._request)
        if since and self.consumed.has_any:
            self.consumed.waited += self.queue.env.kernel.now() - since
        of_bytes = delivery.nbytes / self.rate if self.rate else 0.0
        waits = self.receive_ns + (round(of_bytes * 1e9) if self.process is None else 0)
        if waits:
            kernel = self.queue.env.kernel
            await kernel.sleep_until(kernel.now() + waits)
        if self.process is not None:
            await self.process.work(self.work + of_bytes)
        self.consumed.add(delivery.step)
        self._request = self.consumed.take(1, at.attempt)
        self.queue.rank_advanced(self._request)
        return delivery
