"""Storage without bytes: a device that says when requests would have been served, and roles that sleep until then.

First come, first served. A lease of requests takes, alone on its connection, the sum of its first-byte latencies, of
its opens where those cost something, and its bytes at the connection's rate. What all connections share (bandwidth,
requests or opens per second) is a queue without gaps: the lease's share of it begins when the lease arrives or when the
queue is free, whichever is later. The lease is served when both are done. So one reader sees its connection's rate and
many readers share exactly the aggregate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.storage.base import READ, WRITE, Clock, Issued, Opener, Places, Requests, Served
from rayio.storage.itemise import itemise, synced

T = TypeVar("T")

#: Draws one first-byte latency in seconds for each index below an address.
FirstByte = Callable[[int, NDArray[np.int64]], NDArray[np.float64]]


class Latency(Protocol):
    """A time that is drawn at an address, as every distribution of a scenario offers."""

    def draw(self, address_key: int, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Draw one time in seconds for each index below an address."""


#: Requests of one step are drawn at indices of their own: 2**20 of them per step.
REQUESTS_PER_STEP_BITS = 20


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """What one modelled system can do: bytes per second per connection and in all, requests per second (None: any)."""

    connection_bandwidth: float
    bandwidth: float
    requests_per_second: float | None = None
    #: In place of a cap on requests: files opened per second, as a metadata server has it.
    opens_per_second: float | None = None
    #: What opening one file takes; None is nothing.
    open: Latency | None = None

    @property
    def calls_per_second(self) -> float | None:
        """The rate of what is capped, opens or requests; None is no cap."""
        return self.requests_per_second if self.opens_per_second is None else self.opens_per_second

    def calls(self, num_opens: int, num_requests: int) -> int:
        """Count what is capped."""
        return num_requests if self.opens_per_second is None else num_opens


class Device:
    """The shared part of one modelled system: the single arbiter of who is served when. Pure; times in ns."""

    def __init__(self, spec: DeviceSpec) -> None:
        self.spec = spec
        self._calls_per_second = spec.calls_per_second
        #: When everything reserved so far will have gone through the shared part: whole nanoseconds, and the rest of
        #: one (a float of the wall clock's nanoseconds has steps of 256: small requests would take no time at all).
        self.free_at = 0
        self._rest = 0.0

    def reserve(self, arrival: int, num_requests: int, nbytes: int, alone: int) -> int:
        """Give the time at which ``num_requests`` (or opens, see :meth:`DeviceSpec.calls`) of ``nbytes`` are served.

        ``arrival`` is when the first of them is issued; ``alone`` is how long they take on an idle system.
        """
        work = nbytes / self.spec.bandwidth
        if self._calls_per_second is not None:
            work = max(work, num_requests / self._calls_per_second)
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


class Latencies:
    """First-byte and open latencies, drawn for many steps of a rank at once; the readers of a process share them."""

    #: At most so many steps, and about so many requests, are drawn together.
    STEPS = 32
    REQUESTS = 4096

    def __init__(self, draw: FirstByte, seed: int, num_ranks: int = 1) -> None:
        self.draw = draw
        self.seed = seed
        self._most = 4 * num_ranks
        self._drawn: dict[tuple[str, int, int, int], NDArray[np.float64]] = {}

    def of_reads(self, address: tuple[int, int, int], number: int) -> NDArray[np.float64]:
        """Give the latencies in seconds of the first ``number`` requests of a step; equal wherever they are asked."""
        return self._of("first_byte", self.draw, address, number)

    def of_opens(self, latency: Latency, address: tuple[int, int, int], number: int) -> NDArray[np.float64]:
        """Give the latencies in seconds of the files that a step opens."""
        return self._of("open", latency.draw, address, number)

    def _of(self, kind: str, draw: FirstByte, address: tuple[int, int, int], number: int) -> NDArray[np.float64]:
        rank, epoch, step = address
        many = max(1, min(self.STEPS, self.REQUESTS // max(1, number)))
        block, row = divmod(step, many)
        drawn = self._drawn.get((kind, rank, epoch, block))
        if drawn is None or drawn.shape != (many, number):
            steps = np.arange(block * many, (block + 1) * many, dtype=np.int64)
            index = (steps[:, None] << REQUESTS_PER_STEP_BITS) + np.arange(number, dtype=np.int64)
            drawn = draw(seeds.key(self.seed, kind, rank, epoch), index)
            while len(self._drawn) >= self._most:
                del self._drawn[next(iter(self._drawn))]
            self._drawn[kind, rank, epoch, block] = drawn
        latencies: NDArray[np.float64] = drawn[row]
        return latencies

    def of_writes(self, path: str, number: int) -> NDArray[np.float64]:
        """Give the latencies in seconds of a file's write requests."""
        return self.draw(seeds.key(self.seed, f"first_byte/{path}"), np.arange(number, dtype=np.int64))

    def of_creation(self, latency: Latency, path: str) -> NDArray[np.float64]:
        """Give the latency in seconds of opening a file to write it."""
        return latency.draw(seeds.key(self.seed, f"open/{path}"), np.zeros(1, np.int64))


class ModelStorage:
    """One role's connections to a modelled system: draws latencies, reserves, and sleeps until served."""

    def __init__(
        self,
        arbiter: Arbiter,
        spec: DeviceSpec,
        latencies: Latencies,
        clock: Clock,
        *,
        io_depth: int = 1,
        is_itemised: bool = False,
    ) -> None:
        self.arbiter = arbiter
        self.spec = spec
        self.latencies = latencies
        self.clock = clock
        self.io_depth = io_depth
        #: Whether each modelled request is given out, and not only their number.
        self.is_itemised = is_itemised

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Let the time pass that these requests take; answer None, for a model has no bytes."""
        nbytes = int(requests.nbytes.sum())
        latencies = alone = self.latencies.of_reads(requests.address, len(requests.nbytes))
        opens = None
        if self.spec.open is not None:
            opens = self.latencies.of_opens(self.spec.open, requests.address, requests.num_opens)
            latencies = _each_before_a_request(opens, latencies)
        arrival = await self._serve(latencies, requests.nbytes, nbytes, requests.num_opens)
        issued = None
        if self.is_itemised:
            opens = np.zeros(requests.num_opens) if opens is None else opens
            issued = self._itemised(READ, arrival, alone, requests.nbytes, opens, requests.places)
        return Served(None, requests.num_opens, len(requests.nbytes), nbytes, 0, issued)

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Let the time pass that a file of ``num_bytes`` takes; latencies are drawn at the address of its path."""
        sizes = np.full(max(1, -(-num_bytes // request_bytes)), request_bytes, np.int64)
        sizes[-1] = num_bytes - request_bytes * (len(sizes) - 1)
        latencies = alone = self.latencies.of_writes(path, len(sizes))
        opens = np.zeros(1)
        if self.spec.open is not None:
            opens = self.latencies.of_creation(self.spec.open, path)
            latencies = _each_before_a_request(opens, latencies)
        arrival = await self._serve(latencies, sizes, num_bytes, 1)
        syncs = 2 if fsync else 0
        if not self.is_itemised:
            return Served(None, 1, len(sizes), num_bytes, syncs)
        issued = self._itemised(WRITE, arrival, alone, sizes, opens, None)
        return Served(None, 1, len(sizes), num_bytes, syncs, synced(Issued(issued.rows, [path]), syncs))

    async def _serve(
        self, latencies: NDArray[np.float64], sizes: NDArray[np.int64], nbytes: int, num_opens: int
    ) -> int:
        """Sleep until the lease is served; give when it arrived."""
        depth = min(self.io_depth, len(sizes))
        if depth <= 1:
            alone = float(latencies.sum()) + nbytes / self.spec.connection_bandwidth
        else:
            each = latencies + sizes / self.spec.connection_bandwidth
            alone = max(float(each.sum()) / depth, float(each.max()))
        arrival = self.clock.now()
        calls = self.spec.calls(num_opens, len(sizes))
        served = await self.arbiter.reserve(arrival, calls, nbytes, round(alone * 1e9))
        await self.clock.sleep_until(served)
        return arrival

    def _itemised(
        self, kind: int, arrival: int, latencies: NDArray[np.float64], sizes: NDArray[np.int64],
        opens: NDArray[np.float64], places: Places | None,
    ) -> Issued:  # fmt: skip
        seconds = latencies + sizes / self.spec.connection_bandwidth
        return itemise(kind, arrival, self.clock.now(), seconds, sizes, opens, depth=self.io_depth, places=places)


def _each_before_a_request(opens: NDArray[np.float64], latencies: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add the times of opens to those of requests, one each as far as there are requests, and then round again."""
    number = len(latencies)
    if not number:
        return latencies
    added = latencies.copy()
    np.add.at(added, np.arange(len(opens)) % number, opens)
    return added
