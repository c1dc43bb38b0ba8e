"""The ports of a role whose queue, barrier, writer or storage is in another actor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import ray
from ray.exceptions import ObjectLostError, RayTaskError

from rayio.engines.ray.transport.lines import Line
from rayio.errors import RunError
from rayio.model.consumed import Consumed
from rayio.model.env import Shard
from rayio.model.kernel import Future, WallKernel
from rayio.model.manifest import Link
from rayio.model.prefetch import LocalQueue
from rayio.model.queue import Delivery, QueueSpec, Take
from rayio.model.wiring import Wiring
from rayio.place import Where
from rayio.storage.base import Served
from rayio.trace.clocks import Offset
from rayio.trace.span import SPANS

#: An unanswered take is answered empty after this time and repeated, so no call is lost for good.
PATIENCE_NS = 10_000_000_000
#: Lane of a rank's spans of transfers.
FETCH_LANE = SPANS["transfer"].lanes["rank"]
#: A rank with batches in hand reports its consumption after half a window, or this late.
TELL_NS = 5_000_000


def plain(error: BaseException) -> BaseException:
    """Return the error that a remote call raised, without Ray's wrapper."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error


class RemoteTimekeeper:
    """The collector's clock, called when an actor starts and when it ends; calls block."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def now(self) -> int:
        """See ``rayio.trace.clocks.Timekeeper``."""
        return int(ray.get(self.handle.now.remote()))

    def met(self, boot_id: str, node: int, estimate: Offset | None, own_ns: int) -> int | None:
        """See ``rayio.trace.clocks.Timekeeper``."""
        known: int | None = ray.get(self.handle.met.remote(boot_id, node, estimate, own_ns))
        return known

    def wants_drift(self, boot_id: str) -> bool:
        """See ``rayio.trace.clocks.Timekeeper``."""
        return bool(ray.get(self.handle.wants_drift.remote(boot_id)))

    def drifted(self, boot_id: str, estimate: Offset) -> None:
        """See ``rayio.trace.clocks.Timekeeper``."""
        ray.get(self.handle.drifted.remote(boot_id, estimate))


class Fetches:
    """A recorder of transfer times of a rank's batches from other nodes."""

    def __init__(self, wiring: Wiring, rank: int) -> None:
        plan = wiring.plan
        here, workers = plan.node_of_rank(rank), range(plan.loader.num_workers)
        self.rank = rank
        #: Workers on other nodes.
        self.far = {worker for worker in workers if plan.node_of_reader(rank, worker) != here}
        self.env = wiring.fetching_rank(rank) if self.far else None

    def note(self, batches: Sequence[Delivery], since: int) -> None:
        """Record the arrival of batches requested at ``since`` (ns)."""
        for batch in batches:
            if self.env is not None and batch.worker in self.far:
                at = Where(self.rank, batch.epoch, batch.step, batch.attempt)
                self.env.span("transfer", since, self.env.kernel.now(), at, lane=FETCH_LANE, nbytes=batch.nbytes)


class RemoteQueue:
    """A rank's end of its queue: one take is always in flight while the rank computes.

    Batches in ``hand`` have arrived and do not count as consumed.
    """

    def __init__(self, line: Line, kernel: WallKernel, spec: QueueSpec, fetches: Fetches | None = None) -> None:
        self.line = line
        #: Recorder of transfers from other nodes.
        self.fetches = fetches
        self.kernel = kernel
        self.spec = spec
        self.consumed = Consumed(taken=spec.taken)
        self.hand: dict[int, Delivery] = {}
        #: Steps whose bytes are in transfer from the object store.
        self._coming: set[int] = set()
        self._asked_at = 0
        self._asking = 0
        self._telling = False
        self._reported = (-1, -1, -1)
        #: A take to be sent, and the answers due to takes without a waiter, oldest first.
        self._unsent: Callable[[], Any] | None = None
        self._answers: list[Any] = []
        self._news: Future | None = None
        self._failure: BaseException | None = None
        #: Loans of finished batches, reported by the next take.
        self._released: list[Any] = []

    async def get(self, at: Where) -> Delivery:
        """Return the next batch; the request for the one after it starts at once."""
        if self.line.is_near is None:
            await self.line.reach()
        self._send()  # a rank with every batch in hand does not let this loop run
        if self.consumed.open(at):
            self.hand.clear()
            self._coming.clear()
        since = self.kernel.now()
        while (step := self._next()) is None:
            if self._failure is not None:
                raise self._failure
            self._ask(at.attempt, waiting=True)
            self._news = self.kernel.future("an answer of the queue")
            await self._news
        if self.consumed.has_any:
            self.consumed.waited += self.kernel.now() - since
        delivery = self.hand.pop(step)
        self.consumed.add(step)
        self._ask(at.attempt)
        return delivery

    def _next(self) -> int | None:
        if not self.spec.in_order:
            return next(iter(self.hand), None)
        return self.consumed.low if self.consumed.low in self.hand else None

    def _ask(self, attempt: int, *, waiting: bool = False) -> None:
        epoch = self.consumed.epoch
        if self.consumed.number >= self.spec.steps[epoch]:
            return
        report = (attempt, epoch, self.consumed.number)
        if self._asking and report == self._reported:
            return
        now = self.kernel.now()
        is_much = self._reported[:2] != report[:2] or report[2] - self._reported[2] >= self.spec.least_window // 2
        has_time = self._asking or self._next() is not None
        if has_time and not waiting and not is_much and now - self._asked_at < TELL_NS:
            if not self._telling:
                self._telling = True
                self.kernel.spawn(self._tell_soon(attempt), "tell")
            return
        self._reported, self._asked_at = report, now
        self._asking += 1
        holding = (*self.hand, *self._coming)
        message = self.consumed.take(self.spec.window, attempt, tuple(sorted(holding)))
        # Sent when the rank next waits, so that sending does not delay its compute.
        self._send()
        self._unsent = partial(self._take, message)
        self.kernel.spawn(self._receive(attempt, epoch), "take")

    def _take(self, message: Take) -> Any:
        if not self.line.is_near:
            return self.line.handle.take.remote(self.spec.rank, message, PATIENCE_NS)
        released, self._released = tuple(self._released), []
        return self.line.call("take", self.spec.rank, message, PATIENCE_NS, released)

    async def _tell_soon(self, attempt: int) -> None:
        await asyncio.sleep(TELL_NS / 1e9)
        self._telling = False
        self._ask(attempt)

    def _send(self) -> None:
        if self._unsent is not None:
            self._answers.append(self._unsent())
            self._unsent = None

    async def _receive(self, attempt: int, epoch: int) -> None:
        self._send()
        answer = self._answers.pop(0)
        try:
            deliveries = await answer
        except Exception as error:
            if epoch == self.consumed.epoch:  # a take of a finished epoch may be refused
                self._failure = plain(error)
            deliveries = []
        self._asking -= 1
        fetching = [d for d in deliveries if epoch == self.consumed.epoch and self._is_new(d.step)]
        for parcel in _parcels(fetching):
            if parcel[0].payload is None:
                self.hand.update((d.step, d) for d in parcel)
            elif self.line.is_near:
                try:
                    self.hand.update((d.step, self._mapped(d)) for d in parcel)
                except Exception as error:
                    self._failure = error
            else:
                self._coming.update(d.step for d in parcel)
                self.kernel.spawn(self._fetch(parcel), "fetch")
        # Report newer consumption, and repeat after an empty answer; otherwise the next batch in hand asks again.
        if not self._failure and epoch == self.consumed.epoch and not self._asking:
            behind = self._reported[2] != self.consumed.number
            if behind or not (self.hand or self._coming):
                self._reported = (-1, -1, -1)
                self._ask(attempt)
        self._wake()

    def _mapped(self, delivery: Delivery) -> Delivery:
        piece, loan = delivery.payload
        delivery.payload = self.line.arenas.look(piece)
        delivery.give_back = partial(self._release, loan)
        return delivery

    def _release(self, loan: Any) -> None:
        self._released.append(loan)

    def _is_new(self, step: int) -> bool:
        return step not in self.hand and step not in self._coming and not self.consumed.has(step)

    async def _fetch(self, parcel: list[Delivery]) -> None:
        epoch, payloads = parcel[0].epoch, []
        lost = False
        since = self.kernel.now()
        try:
            payloads = await parcel[0].payload[0]
            if self.fetches is not None:
                self.fetches.note(parcel, since)
            for delivery in parcel:
                if (arrived := payloads[delivery.payload[1]].nbytes) != delivery.nbytes:
                    raise RunError(
                        f"rank {self.spec.rank}, epoch {epoch}, step {delivery.step}: "
                        f"{arrived} bytes arrived of {delivery.nbytes}"
                    )
        except ObjectLostError:  # its owner, the queue, died: request these steps from the new one
            lost = True
        except Exception as error:
            self._failure = plain(error)
        if epoch != self.consumed.epoch:
            return
        self._coming.difference_update(delivery.step for delivery in parcel)
        if lost:
            self._reported = (-1, -1, -1)
        elif self._failure is None:
            self.hand.update((d.step, replace(d, payload=payloads[d.payload[1]])) for d in parcel)
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


def _parcels(deliveries: list[Delivery]) -> list[list[Delivery]]:
    together: dict[Any, list[Delivery]] = {}
    for delivery in deliveries:
        together.setdefault(delivery.payload and delivery.payload[0], []).append(delivery)
    return list(together.values())


class OwnQueue(LocalQueue):
    """A rank's end of a queue in its process. Each take lets the loop run: ranks with short steps never wait."""

    __slots__ = ()

    async def get(self, at: Where) -> Delivery:
        """Return the next batch, after other tasks have run."""
        await asyncio.sleep(0)
        return await super().get(at)


class RemoteBarrier:
    """The end of the barrier actor shared by the ranks of an actor: simultaneous arrivals are one message.

    ``group(rank, epoch, step)`` is the group that a rank meets.
    """

    def __init__(self, line: Line, kernel: WallKernel, group: Callable[[int, int, int], int]) -> None:
        self.line = line
        self.kernel = kernel
        self._group = group
        #: Unsent arrivals by attempt, epoch, step and group: ranks, their deadlines and their waiters.
        self._due: dict[tuple[int, int, int, int], list[tuple[Where, int, Future]]] = {}

    def announce(self, at: Where, deadline: int) -> Awaitable[int]:
        """Send this rank's deadline when the loop is free; the answer arrives while it computes."""
        answer = self.kernel.future("the barrier")
        if not self._due:
            self.kernel.spawn(self._send(), "barrier")
        meeting = (at.attempt, at.epoch, at.step, self._group(at.rank, at.epoch, at.step))
        self._due.setdefault(meeting, []).append((at, deadline, answer))
        return cast("Awaitable[int]", answer)

    async def _send(self) -> None:
        due, self._due = self._due, {}
        await asyncio.gather(*(self._announce(together) for together in due.values()))

    async def _announce(self, together: list[tuple[Where, int, Future]]) -> None:
        try:
            latest = await self.line.ask("announce", [(at, deadline) for at, deadline, _ in together])
        except Exception as error:
            for *_, answer in together:
                if not answer.done():
                    answer.set_exception(error)
            return
        for *_, answer in together:
            if not answer.done():  # a cancelled rank does not wait
                answer.set_result(latest)


class RemoteWriter:
    """A rank's end of a checkpoint writer actor."""

    def __init__(self, line: Line, number: int) -> None:
        self.line = line
        self.number = number

    async def write(self, shard: Shard, at: Where) -> Served[None]:
        """Make the writer write a shard; the bytes are generated there.

        Raises:
            StorageError: the writer could not write.
        """
        served: Served[None] = await self._ask("write", self.number, shard, at)
        return served

    async def read(self, shard: Shard, at: Where) -> Served[None]:
        """Make the writer read and verify a shard; the bytes stay there.

        Raises:
            RayioError: the writer could not read, or read other bytes.
        """
        served: Served[None] = await self._ask("read", self.number, shard, at)
        return served

    async def report(self, durable: Mapping[Link, Sequence[str]], at: Where, in_burst: bool = False) -> list[Link]:
        """See ``rayio.model.checkpoint_ports.WriterPort``."""
        complete: list[Link] = await self._ask("report", durable, at, in_burst)
        return complete

    async def drain(self, shard: Shard, at: Where) -> Served[None]:
        """Make the writer copy a shard from the burst tier to storage.

        Raises:
            StorageError: the writer could not read or write.
        """
        served: Served[None] = await self._ask("drain", self.number, shard, at)
        return served

    async def clear(self, kept: Collection[str], at: Where) -> None:
        """Make the writer remove its files from the burst tier; see ``rayio.model.checkpoint_ports.WriterPort``."""
        await self._ask("clear", self.number, kept, at)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            return await self.line.ask(method, *arguments)
        except RayTaskError as error:
            raise plain(error) from None
