"""The environment of a role: its only access to time, queues, storage, barriers and spans."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from rayio.errors import RayioError
from rayio.model.checkpoint_ports import COMPLETER as COMPLETER
from rayio.model.checkpoint_ports import Shard as Shard
from rayio.model.checkpoint_ports import WriterPort
from rayio.model.env_stages import StageEnv
from rayio.model.kernel import Kernel
from rayio.model.processors import Cores, Process
from rayio.model.queue import Delivery
from rayio.model.served_spans import failed, parts_of
from rayio.model.standing import Standing
from rayio.place import Where as Where
from rayio.place import batch_id
from rayio.storage.base import Issued, Noting, Opener, Requests, Served, Storage
from rayio.storage.itemise import Samples
from rayio.storage.layers.layer import Way
from rayio.trace.levels import narrowed
from rayio.trace.otel.foreign import Here, during
from rayio.trace.recorder import Add, Recorder
from rayio.trace.rows import Wide
from rayio.trace.span import SPANS

T = TypeVar("T")

NOTHING: Mapping[str, float] = {}
#: Activities on one file, which messages name.
FILES = {"read", "write", "load", "stage_read", "stage_write", "stage_open"}


class QueuePort(Protocol):
    """A rank's end of its prefetch queue."""

    async def get(self, at: Where) -> Delivery:
        """Return the next batch of this epoch, which then counts as consumed."""


class BarrierPort(Protocol):
    """A rank's end of the barrier."""

    def announce(self, at: Where, deadline: int) -> Awaitable[int]:
        """Announce when this rank ends its step (ns); the answer is when the last rank does."""


class Env(StageEnv):
    """A role's environment: its clock, its name in the trace, and ports from its engine."""

    #: The CPU work in ``late_ns`` (s).
    late_work = 0.0
    #: Ways of a reader's batches to its rank on another node.
    route: tuple[Way, ...] = ()
    #: The batch that is copied to the accelerator in the background, its arrival and the end of its copy (ns).
    _ahead: Awaitable[tuple[Delivery, int, int]] | None = None

    def __init__(
        self,
        kernel: Kernel,
        recorder: Recorder,
        *,
        role: str,
        index: str,
        node: int,
        storage: Storage | None = None,
        queue: QueuePort | None = None,
        barrier: BarrierPort | None = None,
        writers: Mapping[int, WriterPort] | None = None,
        born: int | None = None,
        level: str = "batch",
        is_capturing: bool = False,
        is_watched: bool = False,
    ) -> None:
        self.kernel = kernel
        self.recorder = narrowed(recorder, role, level)
        self.level = level
        self.role = role
        self.name = f"{role}-{index}"
        self.storage = storage
        self.queue = queue
        self.barrier = barrier
        self.writers = writers or {}
        #: True if spans of other libraries (``rayio.trace.otel.provider``) need this role's place.
        self.is_capturing = is_capturing
        #: True if the role's activity may be queried; False on the virtual clock.
        self.is_watched = is_watched
        #: Start of this role's life (ns); on Ray, of its actor.
        self.born = kernel.now() if born is None else born
        #: Time (ns) that taking a batch holds this rank beyond the model's.
        self.held_ns = 0
        #: Delay of the ends of this rank's steps (ns), as on a real engine.
        self.late_ns = 0
        #: This role's process; None without one.
        self.process: Process | None = None
        #: True if a rank's compute is work on a processor, not a sleep.
        self.computes_on_core = False
        #: Modelled cores of this role's work, or None.
        self.cores: Cores | None = None
        #: State that a reader keeps of each dataset's files between batches (``rayio.model.loading.Kept``).
        self.kept: dict[tuple[bool, bool], Any] = {}
        super().__init__()
        self._writer = recorder.register(role, index, node)
        #: Records a span between two times (ns). Roles record spans only here.
        self.span: Add = self.recorder.adder(self._writer)

    def scaled(
        self, start: int, end: int, at: Where, before: int, after: int, why: str, more: Mapping[str, float] = NOTHING
    ) -> None:
        """Record a change of a rank's number of readers, from its request to its completion (ns)."""
        fields = {"from": before, "to": after, "why": why, **more}
        attributes = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        lane = SPANS["scale"].lanes[self.role]
        self.recorder.add_wide(Wide(self._writer, "scale", start, end, lane, at, 0, "ok", 0, attributes))

    def standing(self) -> Iterator[Standing]:
        """Yield this role's current activity, if any."""
        if (doing := self.doing) is not None:
            name, since, at, until = doing
            file = self.file if name in FILES else ""
            yield Standing(self.role, self.name, name, at, since, max(since, self.heard), until, file)
        if (aside := self.aside) is not None:
            name, since, at, _ = aside
            yield Standing(self.role, self.name, name, at, since, max(since, self.heard), None, self.drained_file)

    @staticmethod
    def where(rank: int = -1, epoch: int = -1, step: int = -1, attempt: int = 0) -> Where:
        """Return a place in the run."""
        return Where(rank, epoch, step, attempt)

    async def sleep(self, name: str, seconds: float, at: Where, *, lane: int = 0, nbytes: int = 0) -> int:
        """Emulate work that takes ``seconds``; return its requested end (ns).

        The span has the requested duration. The excess of the sleep gets a separate span, so it never counts as work.
        """
        start = self.kernel.now()
        end = start + round(seconds * 1e9)
        before, self.doing = self.doing, (name, start, at, end)
        await self.kernel.sleep_until(end if lane else end + self.late_ns)
        if self.process is not None and not lane:
            await self.process.work(self.late_work)
        self.doing = before
        self.span(name, start, end, at, lane=lane, nbytes=nbytes)
        if (woken := self.kernel.now()) > end:
            self.span("overshoot", end, woken, at, lane=lane)
        return end

    async def compute(
        self, name: str, cores: Cores, seconds: Sequence[float], at: Where, *, lane: int = 0, slept: float = 0.0
    ) -> None:
        """Emulate work of ``seconds`` of CPU of each thread, longer if other work shares the cores; then sleep."""
        start = self.kernel.now()
        before, self.doing = self.doing, (name, start, at, None)
        await cores.work_together(seconds)
        if slept > 0:
            await self.kernel.sleep_until(self.kernel.now() + round(slept * 1e9))
        self.doing = before
        self.span(name, start, self.kernel.now(), at, lane=lane)

    async def burn(self, seconds: float) -> None:
        """Use ``seconds`` of CPU: of modelled cores, or of the kernel's."""
        await (self.kernel.burn(seconds) if self.cores is None else self.cores.work(seconds))

    async def work(self, name: str, functions: Sequence[Callable[[], int]], at: Where, *, lane: int = 0) -> None:
        """Call each function in a thread; the span has the bytes that they return."""
        start = self.kernel.now()
        before, self.doing = self.doing, (name, start, at, None)
        if len(functions) == 1:  # a kernel without a loop has no others
            nbytes = await self.kernel.threaded(functions[0])
        else:
            nbytes = sum(await self.kernel.gather(*(self.kernel.threaded(function) for function in functions)))
        self.doing = before
        self.span(name, start, self.kernel.now(), at, lane=lane, nbytes=nbytes)

    async def send(self, batches: Sequence[Delivery], at: Where, since: int) -> None:
        """Wait until a reader's batches, sent at ``since`` (ns), arrive at their rank's node."""
        if not self.route:
            return
        now, ends = self.kernel.now(), []
        for batch in batches:
            arrived = now
            for way in self.route:
                end = way.send(arrived, batch.nbytes)
                arrived = end if isinstance(end, int) else await end
            ends.append(arrived)
        for batch, end in zip(batches, ends, strict=True):
            await self.kernel.sleep_until(end)
            here = Where(at.rank, batch.epoch, batch.step, batch.attempt)
            self.span("transfer", since, self.kernel.now(), here, lane=1, nbytes=batch.nbytes)

    async def read(
        self,
        requests: Requests,
        load: Callable[[Opener], T],
        at: Where,
        *,
        lane: int = 0,
        samples: Callable[[], Samples] | None = None,
    ) -> Served[T | None]:
        """Read one batch from storage.

        At level ``io`` every request has a span, at level ``sample`` every sample of ``samples``. A sample lasts from
        the first to the last request to its file in this batch; samples of one file share that time by their bytes,
        because only the format's library knows when each is done.
        """
        assert self.storage is not None
        start = self.kernel.now()
        before, self.doing = self.doing, ("read", start, at, None)
        if requests.places is not None:
            requests = requests._replace(reader=self.name)
        try:
            if self.is_watched:
                load = self._noting(load)
            if self.is_capturing:
                load = during(Here(self._writer, at), load)
            served = await self.storage.read(requests, load)
        except Exception as error:
            self.span("read", start, self.kernel.now(), at, lane=lane, status="error")
            self._record_failed(error, at)
            raise
        self.doing = before
        self.span("read", start, self.kernel.now(), at, lane, served.nbytes, served.requests)
        self.record_requests(served, at, samples)
        return served

    def _noting(self, load: Callable[[Opener], T]) -> Callable[[Opener], T]:
        """Return ``load`` such that the currently opened file is recorded, for stall reports."""
        self.file = ""

        def note(name: str) -> None:
            self.file, self.heard = name, self.kernel.now()

        return lambda opener: load(Noting(opener, note))

    def record_requests(self, served: Served[Any], at: Where, samples: Callable[[], Samples] | None = None) -> None:
        """Record the requests of a call to storage, its failed attempts and delays."""
        if served.retried is None and served.issued is None and not served.delays:  # nothing to record, usually
            return
        for many in parts_of(served, self._writer, at, self.level, samples):
            self.recorder.add_many(many)

    def _record_failed(self, error: Exception, at: Where) -> None:
        if isinstance(error, RayioError) and isinstance(error.retried, Issued):
            self.recorder.add_many(failed(self._writer, at, error.retried))
            error.retried = None

    async def take(self, at: Where, name: str = "data_wait", lane: int = 0) -> Delivery:
        """Wait for the next batch: the rank's ``data_wait``, linked to its batch."""
        assert self.queue is not None
        kernel = self.kernel
        since = kernel.now()
        self.doing = (name, since, at, None)
        delivery = await self.queue.get(at)
        if self.held_ns:
            await kernel.sleep_until(kernel.now() + self.held_ns)
        self.doing = None
        rank, epoch, *_ = at
        self.span(name, since, kernel.now(), at, lane, delivery.nbytes, 0, batch_id(rank, epoch, delivery.step))
        return delivery

    async def meet(self, at: Where) -> None:
        """Wait for the other ranks, without compute before it: ``sync``."""
        if self.barrier is None:
            return
        start = self.kernel.now()
        self.doing = ("sync", start, at, None)
        await self.barrier.announce(at, start)
        self.doing = None
        if (end := self.kernel.now()) > start:
            self.span("sync", start, end, Where(at.rank, attempt=at.attempt))

    async def broadcast(self, seconds: float, at: Where) -> None:
        """Meet all ranks, then wait while rank 0 sends them a restored state: ``broadcast``, inside ``restore``."""
        assert self.barrier is not None
        start = self.kernel.now()
        self.doing = ("broadcast", start, at, None)
        sent = await self.barrier.announce(at, start)
        end = sent + round(seconds * 1e9)
        self.doing = ("broadcast", sent, at, end)
        await self.kernel.sleep_until(end)
        self.span("broadcast", sent, end, Where(at.rank, attempt=at.attempt), lane=1)

    async def pause(self, name: str, seconds: float, at: Where, *, nbytes: int = 0) -> None:
        """Spend ``seconds`` of a step on something else than its compute; the excess is overhead."""
        start = self.kernel.now()
        end = start + round(seconds * 1e9)
        self.doing = (name, start, at, end)
        await self.kernel.sleep_until(end)
        self.doing = None
        self.span(name, start, end, at, nbytes=nbytes)
        if (woken := self.kernel.now()) > end:
            self.span("overshoot", end, woken, at)

    def copy_ahead(self, bandwidth: float, at: Where) -> None:
        """Start to take and copy the batch of a later step, in the background."""
        self._ahead = self.kernel.spawn(self._copy_ahead(bandwidth, at), f"{self.name} copies ahead")

    async def _copy_ahead(self, bandwidth: float, at: Where) -> tuple[Delivery, int, int]:
        assert self.queue is not None
        delivery = await self.queue.get(at)
        if self.held_ns:
            await self.kernel.sleep_until(self.kernel.now() + self.held_ns)
        start = self.kernel.now()
        end = start + round(delivery.nbytes / bandwidth * 1e9)
        await self.kernel.sleep_until(end)
        self.span("copy_ahead", start, end, at, 3, delivery.nbytes)
        return delivery, start, end

    async def take_ahead(self, at: Where) -> Delivery | None:
        """Wait for the batch that is copied in the background; None without one.

        ``data_wait`` lasts until it is there, ``device_copy`` until it is copied.
        """
        if self._ahead is None:
            return None
        since = self.kernel.now()
        self.doing = ("data_wait", since, at, None)
        delivery, arrived, copied = await self._ahead
        self._ahead, self.doing = None, None
        arrived = max(since, arrived)
        link = batch_id(at.rank, at.epoch, delivery.step)
        self.span("data_wait", since, arrived, at, 0, delivery.nbytes, 0, link)
        if copied > arrived:
            self.span("device_copy", arrived, copied, at, nbytes=delivery.nbytes)
        if (woken := self.kernel.now()) > (end := max(arrived, copied)):
            self.span("overshoot", end, woken, at)
        return delivery

    async def compute_and_synchronise(self, seconds: float, sync_seconds: float | None, at: Where) -> int:
        """Compute for ``seconds``, then meet other ranks and spend ``sync_seconds`` together; None: meet nobody.

        Return the end of the step (ns), which is the same number for all ranks that meet.

        The barrier receives this rank's deadline before the compute begins; on a core, where that is unknown, at its
        end. ``sync`` runs from this rank's deadline to the latest one plus the all-reduce; the excess of messages and
        sleeps is the emulator's overhead, in a separate span.
        """
        kernel = self.kernel
        start = kernel.now()
        mine = start + round(seconds * 1e9)
        if self.computes_on_core:
            await self.burn(seconds)
            mine = kernel.now()
        elif self.barrier is None or sync_seconds is None:
            return await self.sleep("compute", seconds, at)
        if self.barrier is None or sync_seconds is None:
            self.span("compute", start, mine, at)
            return mine
        self.doing = ("compute", start, at, mine)
        latest = await self.barrier.announce(at, mine)
        end = (latest if latest > mine else mine) + round(sync_seconds * 1e9)
        self.doing = ("sync", mine, at, end)
        if kernel.now() < (wake := end + self.late_ns):
            await kernel.sleep_until(wake)
        if self.process is not None:
            await self.process.work(self.late_work)
        self.doing = None
        span = self.span
        span("compute", start, mine, at)
        if end > mine:
            span("sync", mine, end, at)
        if (woken := kernel.now()) > end:
            span("overshoot", end, woken, at)
        return end
