"""The prefetch queue as it lives: a QueueState, and the calls and waits around it. The same on every engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

from rayio.model.env import Env
from rayio.model.kernel import Future
from rayio.model.queue import Delivery, Lease, QueueState, Take
from rayio.model.scaler import Scaler
from rayio.model.standing import Standing
from rayio.place import Where

#: Carries a lease to its worker and gives what was read, in the lease's order.
Submit = Callable[[Lease], Awaitable[Sequence[Delivery]]]


class PrefetchQueue:
    """The queue of one rank: it submits the workers' reads, owns what they return, and answers the rank's takes."""

    __slots__ = (
        "_bound_since",
        "_failure",
        "_news",
        "_patience_ends",
        "_readers",
        "_sweeping",
        "_ticket",
        "env",
        "lease_steps",
        "scaler",
        "state",
        "submit",
        "under_way",
    )

    def __init__(self, env: Env, state: QueueState, submit: Submit) -> None:
        self.env = env
        self.state = state
        self.submit = submit
        #: What has readers come and go; None where there are always as many.
        self.scaler: Scaler | None = None
        #: Steps that one lease may hold: more than one only where a read is faster than the call that asks for it.
        self.lease_steps = 1
        #: The attempt in which a read failed, and how.
        self._failure: tuple[int, Exception] | None = None
        #: The waiting take's future, and its number: a newer take or its expiry raises the number and ends the wait.
        self._news: Future | None = None
        self._ticket = 0
        self._patience_ends = 0
        self._sweeping = False
        self._bound_since: int | None = None
        #: The leases that are with workers, and since when they were granted: a worker that has none may go.
        self.under_way: dict[Lease, int] = {}
        self._readers = [f"reader-{state.spec.rank}-{worker}" for worker in range(state.spec.num_workers)]

    async def take(self, take: Take, patience_ns: int | None = None) -> list[Delivery]:
        """Learn what was consumed, then give batches as soon as there are any; none when ``patience_ns`` ran out.

        A newer take of the same rank ends the wait of the older one, which is then answered with nothing, whichever of
        them comes through first.

        Raises:
            DataError, StorageError: a worker could not read; every later take raises it too.
            StaleAttemptError: the message is of an older attempt.
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
            if found := self.state.deliverable(take):
                return found
            self._news = self.env.kernel.future(f"a batch of epoch {take.epoch} after {take.consumed} steps")
            await self._news
        return []

    def at_hand(self, take: Take) -> list[Delivery]:
        """The batches that are there for a rank that has said what it consumed; none where :meth:`take` has to wait."""
        return self.state.deliverable(take) if self._failure is None else []

    def rank_advanced(self, take: Take) -> None:
        """Learn what the rank consumed, and let workers start what the window now permits."""
        if self.scaler is not None:
            self.scaler.count()
        if self.state.rank_advanced(take):
            self.grant()
        if self.scaler is not None:
            self.scaler.rank_advanced(take)

    async def _sweep(self) -> None:
        """End the newest take's wait when its patience does; one task does it for all of them."""
        while self._patience_ends > self.env.kernel.now():
            await self.env.kernel.sleep_until(self._patience_ends)
        self._sweeping = False
        self.dismiss()

    def dismiss(self) -> None:
        """Answer the take that waits, if one does, with nothing."""
        self._ticket += 1
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def grant(self) -> None:
        """Have workers start what the window permits."""
        kernel = self.env.kernel
        for lease in self.state.grant() if self.lease_steps == 1 else self._joined():
            self.under_way[lease] = granted = kernel.now()
            kernel.spawn(self._carry_out(lease, granted), self._readers[lease.worker])
        if self.state.memory_bound != (self._bound_since is not None):
            self._note_memory_bound()

    async def _carry_out(self, lease: Lease, granted: int) -> None:
        env = self.env
        try:
            for delivery in await self.submit(lease):
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
        """The leases that are with workers: a step each."""
        for lease, granted in list(self.under_way.items()):
            by, name = self._readers[lease.worker], self.env.name
            for step in lease.steps:
                at = Where(lease.rank, lease.epoch, step, lease.attempt)
                yield Standing("queue", name, "lease", at, granted, granted, by=by)

    def _joined(self) -> list[Lease]:
        """Hand out leases of several steps; what only just fits the window is waited for, it would be single steps."""
        spec = self.state.spec
        lump = min(self.lease_steps, spec.prefetch_factor // 2) if spec.assignment == "static" else 1
        return _coalesce(self.state.grant(lump), self.lease_steps)

    def _note_memory_bound(self) -> None:
        """Note that the bound on bytes begins to keep the window closed, or record that it did."""
        now = self.env.kernel.now()
        if self._bound_since is None:
            self._bound_since = now
        else:
            at = self.env.where(self.state.spec.rank, self.state.epoch, attempt=self.state.attempt)
            self.env.span("memory_bound", self._bound_since, now, at)
            self._bound_since = None


def _coalesce(leases: list[Lease], most: int) -> list[Lease]:
    """Join leases of the same worker, up to ``most`` steps each, keeping every worker's order."""
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
