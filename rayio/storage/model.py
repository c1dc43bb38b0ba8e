"""Storage without bytes: a device that says when requests would have been served, and roles that sleep until then.

First come, first served. A lease of requests takes, alone on its connection, the sum of its first-byte latencies and
its bytes at the connection's rate. What all connections share (bandwidth, requests per second) is a queue without
gaps: the lease's share of it begins when the lease arrives or when the queue is free, whichever is later. The lease is
served when both are done. So one reader sees its connection's rate and many readers share exactly the aggregate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.storage.base import Clock, Opener, Requests, Served

T = TypeVar("T")

#: Draws one first-byte latency in seconds for each index below an address.
FirstByte = Callable[[int, NDArray[np.int64]], NDArray[np.float64]]

#: Requests of one step are drawn at indices of their own: 2**20 of them per step.
REQUESTS_PER_STEP_BITS = 20


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """What one modelled system can do: bytes per second per connection and in all, requests per second (None: any)."""

    connection_bandwidth: float
    bandwidth: float
    requests_per_second: float | None = None


class Device:
    """The shared part of one modelled system: the single arbiter of who is served when. Pure; times in ns."""

    def __init__(self, spec: DeviceSpec) -> None:
        self.spec = spec
        #: When everything reserved so far will have gone through the shared part: whole nanoseconds, and the rest of
        #: one (a float of the wall clock's nanoseconds has steps of 256: small requests would take no time at all).
        self.free_at = 0
        self._rest = 0.0

    def reserve(self, arrival: int, num_requests: int, nbytes: int, alone: int) -> int:
        """Give the time at which ``num_requests`` of ``nbytes`` in all are served.

        ``arrival`` is when the first of them is issued; ``alone`` is how long they take on an idle system.
        """
        work = nbytes / self.spec.bandwidth
        if self.spec.requests_per_second is not None:
            work = max(work, num_requests / self.spec.requests_per_second)
        whole, self._rest = divmod(work * 1e9 + self._rest, 1.0)
        self.free_at = max(self.free_at, arrival) + int(whole)
        return max(arrival + alone, self.free_at + round(self._rest))


class Arbiter(Protocol):
    """A device that may live elsewhere."""

    async def reserve(self, arrival: int, num_requests: int, nbytes: int, alone: int) -> int:
        """See :meth:`Device.reserve`."""


class LocalArbiter:
    """A device in this process."""

    def __init__(self, device: Device) -> None:
        self.device = device

    async def reserve(self, arrival: int, num_requests: int, nbytes: int, alone: int) -> int:
        """See :meth:`Device.reserve`."""
        return self.device.reserve(arrival, num_requests, nbytes, alone)


class ModelStorage:
    """One role's connections to a modelled system: draws latencies, reserves, and sleeps until served."""

    def __init__(
        self, arbiter: Arbiter, spec: DeviceSpec, first_byte: FirstByte, clock: Clock, *, seed: int, io_depth: int = 1
    ) -> None:
        self.arbiter = arbiter
        self.spec = spec
        self.first_byte = first_byte
        self.clock = clock
        self.seed = seed
        self.io_depth = io_depth

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Let the time pass that these requests take; answer None, for a model has no bytes."""
        nbytes = int(requests.nbytes.sum())
        await self._serve("first_byte", requests.address, requests.nbytes, nbytes)
        return Served(None, requests.num_opens, len(requests.nbytes), nbytes)

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Let the time pass that a file of ``num_bytes`` takes; latencies are drawn at the address of its path."""
        sizes = np.full(max(1, -(-num_bytes // request_bytes)), request_bytes, np.int64)
        sizes[-1] = num_bytes - request_bytes * (len(sizes) - 1)
        await self._serve(f"first_byte/{path}", (0, 0, 0), sizes, num_bytes)
        return Served(None, 1, len(sizes), num_bytes, 2 if fsync else 0)

    async def _serve(self, kind: str, address: tuple[int, int, int], sizes: NDArray[np.int64], nbytes: int) -> None:
        rank, epoch, step = address
        index = (step << REQUESTS_PER_STEP_BITS) + np.arange(len(sizes), dtype=np.int64)
        each = self.first_byte(seeds.key(self.seed, kind, rank, epoch), index) + sizes / self.spec.connection_bandwidth
        depth = min(self.io_depth, len(sizes)) or 1
        alone = max(float(each.sum()) / depth, float(each.max(initial=0.0)))
        arrival = self.clock.now()
        served = await self.arbiter.reserve(arrival, len(sizes), nbytes, round(alone * 1e9))
        await self.clock.sleep_until(served)
