"""Calls to readers: they carry leases of prefetch queues to workers, in any process of the queue."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from rayio.engines.ray.actors.staff import RayStaff, Wish
from rayio.engines.ray.transport.lines import Line
from rayio.engines.ray.transport.remote import Fetches, plain
from rayio.engines.ray.transport.shared import Piece
from rayio.model.plan import Plan
from rayio.model.prefetch import PrefetchQueue
from rayio.model.queue import Delivery, Lease, QueueSpec
from rayio.model.wiring import Wiring

#: Work (s) of one call to a reader with several short steps.
LEASE_SECONDS = 5e-3
LEASE_BYTES = 8 << 20
#: Largest growth of the typical step time from one call to the next: a timer that ends late is not slow storage.
RISE = 1.1


class Loan(NamedTuple):
    """A loan of a batch's memory: the worker, and the turn and caller (``of``) of the call."""

    of: int
    rank: int
    worker: int
    turn: int


class Lent(NamedTuple):
    """A batch's bytes in its reader's shared memory, and the loan that ends when they are no longer used."""

    piece: Piece
    loan: Loan


class ReaderCalls:
    """The prefetch queues of one process, and their calls to readers.

    ``lines`` lead to the actors of each (rank, worker). Over a line only headers travel, and the bytes are in the
    reader's shared memory; Ray's calls return the bytes as a separate object, which the queue passes on unread.
    ``in_rank`` queues fetch the bytes at once. Other queues use one kind: if one reader is on another Ray node, all
    calls are Ray's.
    """

    def __init__(self, plan: Plan, lines: Mapping[tuple[int, ...], Line], wish: Wish, *, in_rank: bool) -> None:
        self.plan = plan
        self.in_rank = in_rank
        self.lines = dict(lines)
        #: Requests a number of readers for a rank that scales; and the staff that reports back, by rank.
        self._wish = wish
        self._staff: dict[int, RayStaff] = {}
        #: Connections to readers that have left.
        self._gone: dict[tuple[int, ...], Line] = {}
        #: Distinguishes loans of this process from those of a killed predecessor on this host.
        self.number = time.monotonic_ns()
        #: Ray's method for a lease of each worker.
        self._read = {who: self._reading(line) for who, line in lines.items()}
        #: The number of each worker's next call.
        self._turn = dict.fromkeys(lines, 0)
        #: Calls of each worker whose batches are done, until the next call reports it.
        self._stored: dict[tuple[int, ...], list[int]] = {who: [] for who in lines}
        #: Batches in use of each call over a line.
        self._out: dict[Loan, int] = {}
        #: Recent step time of a reader (s), by rank and whether for evaluation.
        self._step_seconds: dict[tuple[int, bool], float] = {}
        self._queues: dict[tuple[int, bool], PrefetchQueue] = {}
        #: Recorder of transfers to each rank in this process.
        self._fetches: dict[int, Fetches] = {}
        #: True if all readers have lines; None until known.
        self._are_near: bool | None = None

    def queue(self, wiring: Wiring, spec: QueueSpec, *, evaluating: bool) -> PrefetchQueue:
        """Return a new prefetch queue of a rank, or the one for its evaluations."""
        if self.in_rank:
            self._fetches.setdefault(spec.rank, Fetches(wiring, spec.rank))
        staff = self._staffed(spec) if spec.scaling is not None else None
        queue = self._queues[spec.rank, evaluating] = wiring.queue(spec, self._submit, staff, evaluating=evaluating)
        return queue

    def _reading(self, line: Line) -> Any:
        return line.handle.read.options(num_returns=1 + self.plan.payload)

    def _staffed(self, spec: QueueSpec) -> RayStaff:
        """Return the staff of a rank whose readers scale; a restarted queue begins with the first readers."""
        rank = spec.rank
        staff = self._staff[rank] = RayStaff(rank, self._wish, partial(self._is_free, rank), partial(self._end, rank))
        self._wish(rank, spec.first_workers)
        return staff

    def employ(self, rank: int, workers: int, lines: Mapping[tuple[int, ...], Line], waited: int = 0) -> None:
        """Record a rank's new number of readers, the lines to new ones, and their wait for nodes (ns)."""
        for who, line in lines.items():
            if who in self.lines and self.lines[who].handle == line.handle:
                continue
            before = self._gone.pop(who, None)
            self.lines[who] = line
            self._read[who] = self._reading(line)
            if before is None or before.handle != line.handle:  # an equal one never left: it has other ranks' readers
                self._turn[who] = 0
                self._stored[who] = []
        self._staff[rank].arrived(workers, waited)

    def _is_free(self, rank: int, worker: int) -> bool:
        return not any((loan.rank, loan.worker) == (rank, worker) for loan in self._out)

    def _end(self, rank: int, workers: int) -> None:
        for who in [who for who in self.lines if who[0] == rank and who[1] >= workers]:
            self._gone[who] = self.lines.pop(who)
            del self._read[who]

    def released(self, loan: Loan) -> None:
        """Record that one batch of a call is no longer in use."""
        left = self._out.get(loan, 0) - 1
        if left > 0:
            self._out[loan] = left
        elif self._out.pop(loan, None) is not None:
            self._stored[loan.rank, loan.worker].append(loan.turn)

    async def are_near(self) -> bool:
        """Return True if batches of all readers can be passed on over a line.

        Raises:
            RayError: a reader is gone for good.
        """
        if self._are_near is None and self.plan.loader.scaling is not None:
            # Future readers are on the queue's node, or their node is unknown.
            cluster = self.plan.cluster
            is_beside = cluster.placement == "colocated" and not cluster.has_pool
            self._are_near = is_beside and await self._first_is_near()
        if self._are_near is None:
            self._are_near = all([await line.reach() for line in self.lines.values()])
        return self._are_near

    async def _first_is_near(self) -> bool:
        return all([await line.reach() for line in list(self.lines.values())])

    async def _submit(self, lease: Lease) -> list[Delivery]:
        line = self.lines[lease.rank, lease.worker]
        try:
            is_near = await (line.reach() if self.in_rank else self.are_near())
            seconds, batches = await (self._over_line(line, lease) if is_near else self._over_ray(lease))
        except Exception as error:
            raise plain(error) from None
        which = lease.rank, self.plan.is_evaluation(lease.epoch)
        queue = self._queues[which]
        step_seconds = seconds / len(batches)
        usual = min(step_seconds, RISE * self._step_seconds.get(which, step_seconds))
        self._step_seconds[which] = usual
        queue.lease_steps = lease_steps(usual, max(batch.nbytes for batch in batches), queue.state.spec)
        return batches

    def _call(self, lease: Lease) -> tuple[Lease, int, int, tuple[int, ...]]:
        who = lease.rank, lease.worker
        turn, stored = self._turn[who], self._stored[who]
        self._turn[who] = turn + 1
        self._stored[who] = []
        return lease, self.number, turn, tuple(stored)

    async def _over_line(self, line: Line, lease: Lease) -> tuple[float, list[Delivery]]:
        called = self._call(lease)
        seconds, batches = await line.call("read", *called)
        if self.plan.payload:
            loan = Loan(self.number, lease.rank, lease.worker, called[2])
            self._out[loan] = len(batches)
            for batch in batches:
                if self.in_rank:
                    batch.payload = line.arenas.look(batch.payload)
                    batch.give_back = partial(self.released, loan)
                else:
                    batch.payload = Lent(batch.payload, loan)
        return seconds, batches

    async def _over_ray(self, lease: Lease) -> tuple[float, list[Delivery]]:
        called = self._call(lease)
        returned = self._read[lease.rank, lease.worker].remote(*called)
        if not self.plan.payload:
            seconds, batches = await returned
            return seconds, list(batches)
        headers, parcel = returned
        seconds, batches = await headers
        # Ray answers a call after storing everything that it returned.
        self._stored[lease.rank, lease.worker].append(called[2])
        if self.in_rank:
            since = self._queues[lease.rank, self.plan.is_evaluation(lease.epoch)].env.kernel.now()
            payloads = await parcel
            self._fetches[lease.rank].note(batches, since)
        else:
            payloads = [(parcel, place) for place in range(len(batches))]
        return seconds, [replace(batch, payload=payload) for batch, payload in zip(batches, payloads, strict=True)]


def lease_steps(seconds: float, nbytes: int, spec: QueueSpec) -> int:
    """Return the number of steps in one call, from a reader's seconds and bytes per step.

    A call takes one or two milliseconds; leases of several milliseconds hide that. A worker gets at most half of its
    window, so that it reads one half while the rank consumes the other.
    """
    return max(
        1, min(spec.prefetch_factor // 2, int(LEASE_SECONDS / max(seconds, 1e-6)), LEASE_BYTES // max(nbytes, 1))
    )
