"""A rank's queue and readers if the end of each read is known as it begins: one object per read, without tasks.

That is so on the virtual clock if modelled storage answers at once, transfers take no time, batches come in order and
workers take turns. Then this replaces ``QueueState``, ``PrefetchQueue``, ``Workers`` and ``roles.read_lease``
with little memory: with a thousand ranks each event finds its rank's memory outside the processor's cache. Spans and
order of storage calls are equal; laws compare both.

- Requests are planned for many steps of a rank at once.
- Spans of a read are recorded when its rank takes the batch; times at which nobody waits just pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from rayio.engines.virtual.clock import VirtualFuture, VirtualKernel
from rayio.model.env import Env
from rayio.model.loading import Loading
from rayio.model.phases import PhasedStorage
from rayio.model.queue import Delivery, QueueSpec
from rayio.place import Where
from rayio.storage.base import Behind, Delay, Served
from rayio.storage.model import Latencies, LocalArbiter, ModelStorage

#: Steps planned at once: those whose latencies are drawn together.
AHEAD = Latencies.STEPS
#: Their samples at most, so that planning takes less than a second.
AHEAD_SAMPLES = 1 << 17

#: States of a reading: waiting for its reader, granted, reading, decoding, done.
WAITS, BEGINS, READS, DECODES, OVER = range(5)


class Readers:
    """The readers of one rank: each reads one lease at a time, in order of arrival."""

    __slots__ = ("envs", "kernel", "last", "loading", "names", "reserve")

    def __init__(self, envs: Sequence[Env], loading: Loading, kernel: VirtualKernel) -> None:
        self.envs = envs
        self.kernel = kernel
        self.loading = loading
        self.names = [env.name for env in envs]
        self.reserve = cast("LocalArbiter", self.storage(0).arbiter).reserve
        #: By worker: its last lease.
        self.last: list[Reading | None] = [None] * len(envs)

    def storage(self, epoch: int) -> ModelStorage:
        """Return the storage of all of them in an epoch, perhaps behind a layer."""
        storage = self.envs[0].storage
        return cast("ModelStorage", storage.of(epoch) if isinstance(storage, PhasedStorage) else storage)


class Reading:
    """One step's read, from before its lease is granted until the rank has the batch."""

    __slots__ = (
        "after", "alone", "awaited", "behind", "calls", "decode_ns", "delays", "delivery", "ends", "granted", "nbytes",
        "number", "queue", "since", "stage", "waits",
    )  # fmt: skip

    granted: int
    since: int
    ends: int
    #: The causes for which it still waits behind storage, and until when; and the delays so far.
    waits: list[tuple[str, int]]
    delays: list[Delay]

    def __init__(
        self, queue: ForeseenQueue, number: int, nbytes: int, alone: int, calls: int, behind: Behind | None,
        seconds: float, delivery: Delivery,
    ) -> None:  # fmt: skip
        self.queue = queue
        self.stage = WAITS
        #: The next lease of its reader.
        self.after: Reading | None = None
        #: The rank's future, if it waits for this batch.
        self.awaited: VirtualFuture | None = None
        #: Number and bytes of requests.
        self.number, self.nbytes = number, nbytes
        #: Their duration on an idle system (ns), and the number of capped calls.
        self.alone, self.calls = alone, calls
        self.behind = behind
        #: Duration of decoding (ns); -1 without.
        self.decode_ns = round(seconds * 1e9) if seconds else -1
        self.delivery = delivery

    def send(self, _: None) -> int | None:
        """Continue; return the next time (ns) to continue, or None."""
        stage = self.stage
        if stage >= READS:
            if self.behind is not None and stage == READS and (until := self._wait()):
                return until
            if stage == READS and self.decode_ns >= 0:
                self.stage = DECODES
                return self.ends + self.decode_ns if self.decode_ns else self.send(None)
            self.stage = OVER
            if self.after is not None:
                self.after.stage = BEGINS
                self.queue.readers.kernel.start(self.after)
            if self.awaited is not None:
                self.awaited.set_result(None)
            return None
        readers = self.queue.readers
        if stage == WAITS:
            worker = self.delivery.worker
            before, readers.last[worker] = readers.last[worker], self
            if before is not None and before.stage != OVER:
                before.after = self
                return None
        self.stage = READS
        self.since = now = readers.kernel.time
        self.ends = ends = readers.reserve(now, self.calls, self.nbytes, self.alone)
        if self.behind is not None:
            self.delays, self.waits = [], self.behind.begin(now, ends)
        return ends if ends > now else self.send(None)

    def _wait(self) -> int:
        """Return until when the read waits next behind storage; 0 if it does not."""
        while self.waits:
            cause, until = self.waits.pop(0)
            if until > self.ends:
                self.delays.append(Delay(self.ends, until, cause))
                self.ends = until
                return until
        return 0


class ForeseenQueue:
    """The queue of one rank and the rank's end of it; the window moves when a batch is taken."""

    __slots__ = ("_ahead", "_granted", "_span", "epoch", "kernel", "next_step", "num_steps", "readers", "spec", "taken")

    def __init__(self, spec: QueueSpec, env: Env, readers: Readers) -> None:
        self.spec = spec
        self.kernel = readers.kernel
        self.readers = readers
        self.epoch = -1
        #: Steps of the open epoch; the next one without a worker, and the next one for the rank.
        self.num_steps = self.next_step = self.taken = 0
        #: Granted, untaken reads: by step, modulo the window.
        self._granted: list[Reading | None] = [None] * spec.window
        #: Planned reads, in reverse order.
        self._ahead: list[Reading] = []
        self._span = env.span

    async def get(self, at: Where) -> Delivery:
        """See ``rayio.model.env.QueuePort``."""
        if at.epoch != self.epoch:
            self._open(at)
        granted, taken = self._granted, self.taken
        place = taken % len(granted)
        reading = granted[place]
        assert reading is not None
        if reading.stage != OVER:
            reading.awaited = self.kernel.future(f"a batch of epoch {self.epoch} after {taken} steps")
            await reading.awaited
        granted[place] = None
        self.taken = taken + 1
        if self.next_step < self.num_steps:
            self._grant(at)
        self._record(reading, at)
        return reading.delivery

    def _open(self, at: Where) -> None:
        """Begin an epoch at the requested step; grant a window of steps."""
        steps = self.spec.steps
        self.epoch = at.epoch
        self.num_steps = steps[at.epoch] if 0 <= at.epoch < len(steps) else 0
        self.next_step = self.taken = at.step
        for _ in range(min(self.num_steps - at.step, len(self._granted))):
            self._grant(at)

    def _grant(self, at: Where) -> None:
        ahead = self._ahead or self._look_ahead(at)
        reading, kernel = ahead.pop(), self.kernel
        self._granted[self.next_step % len(self._granted)] = reading
        self.next_step += 1
        reading.granted = kernel.time
        kernel.start(reading)

    def _look_ahead(self, at: Where) -> list[Reading]:
        self.kernel.check()
        first, readers = self.next_step, self.readers
        rank, epoch, _, attempt = at
        load = readers.loading.of(Where(rank, epoch, first, attempt))
        most = min(self.num_steps - first, AHEAD - first % AHEAD, max(1, AHEAD_SAMPLES // load.block.batch_size))
        table, decoding, deliveries = load.ahead(most, [env.kept for env in readers.envs])
        known = readers.storage(epoch).ahead((rank, epoch, first), table, readers.names)
        planned = zip(table.numbers, table.totals, *known, decoding, deliveries, strict=True)
        self._ahead = [Reading(self, *step) for step in planned]
        self._ahead.reverse()
        return self._ahead

    def _record(self, reading: Reading, at: Where) -> None:
        ends, delivery = reading.ends, reading.delivery
        env = self.readers.envs[delivery.worker]
        span = env.span
        span("read", reading.since, ends, at, 0, reading.nbytes, reading.number)
        if reading.behind is not None:
            env.record_requests(Served(None, 0, 0, 0, delays=(*reading.delays,)), at)
        if reading.stage != OVER:
            return
        if reading.decode_ns >= 0:
            decoded = ends + reading.decode_ns
            span("decode", ends, decoded, at)
            ends = decoded
        self._span("lease", reading.granted, ends, at, 1, delivery.nbytes)

    def settle(self) -> None:
        """Record leases that an ended rank did not take."""
        for reading in self._granted:
            if reading is not None and reading.stage >= DECODES:
                step, attempt = reading.delivery.step, reading.delivery.attempt
                self._record(reading, Where(self.spec.rank, self.epoch, step, attempt))
