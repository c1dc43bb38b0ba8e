"""Storage without bytes: a device that says when requests would have been served, and roles that sleep until then.

First come, first served. A lease of requests takes, alone on its connection, the sum of its first-byte latencies, of
its opens where those cost something, and its bytes at the connection's rate. What all connections share (bandwidth,
requests or opens per second) is a queue without gaps: the lease's share of it begins when the lease arrives or when the
queue is free, whichever is later. The lease is served when both are done. So one reader sees its connection's rate and
many readers share exactly the aggregate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.seeds import Draws
from rayio.storage.base import READ, WRITE, Clock, Issued, Opener, Places, Requests, RequestTable, Served
from rayio.storage.itemise import itemise, synced

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
    #: In place of a cap on requests: files opened per second, as a metadata server has it.
    opens_per_second: float | None = None
    #: What opening one file takes; None is nothing.
    open: Draws | None = None

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

    def learn(self, free_at: int) -> None:
        """Take over a backlog that this device told of before it was started again; an older one changes nothing."""
        if free_at > self.free_at:
            self.free_at, self._rest = free_at, 0.0

    def reserve(self, arrival: int, num_requests: int, nbytes: int, alone: int) -> int:
        """The time at which ``num_requests`` (or opens, see :meth:`DeviceSpec.calls`) of ``nbytes`` are served.

        ``arrival`` is when the first of them is issued; ``alone`` is how long they take on an idle system.
        """
        work = nbytes / self.spec.bandwidth
        if self._calls_per_second is not None:
            work = max(work, num_requests / self._calls_per_second)
        whole, self._rest = divmod(work * 1e9 + self._rest, 1.0)
        free_at = self.free_at if self.free_at > arrival else arrival
        self.free_at = free_at = free_at + int(whole)
        return max(arrival + alone, free_at + round(self._rest))

    def reserve_again(self, arrival: int, num_requests: int, nbytes: int, alone: int, free_at: int) -> tuple[int, int]:
        """Do as :meth:`reserve`, after learning the backlog that the caller last heard of; answer with the new one."""
        self.learn(free_at)
        return self.reserve(arrival, num_requests, nbytes, alone), self.free_at


class Arbiter(Protocol):
    """A device that may live elsewhere."""

    def reserve(self, arrival: int, num_requests: int, nbytes: int, alone: int) -> int | Awaitable[int]:
        """See :meth:`Device.reserve`; a device of this process answers at once."""


class CalledDevice:
    """A device in another process, whose methods ``ask`` calls by name.

    All who use it remember its backlog: one that is started again learns that from them.
    """

    def __init__(self, ask: Callable[..., Awaitable[Any]]) -> None:
        self.ask = ask
        self._free_at = 0

    async def reserve(self, arrival: int, num_requests: int, nbytes: int, alone: int) -> int:
        """See :meth:`Device.reserve`."""
        answer = await self.ask("reserve_again", arrival, num_requests, nbytes, alone, self._free_at)
        served, free_at = answer
        self._free_at = max(self._free_at, int(free_at))
        return int(served)


class LocalArbiter:
    """A device in this process."""

    def __init__(self, device: Device) -> None:
        self.reserve = device.reserve


class _Drawn(NamedTuple):
    """Latencies of consecutive steps, one row a step, and what each row sums up to."""

    #: Requests and opened files of each step.
    width: int
    num_opens: int
    latencies: NDArray[np.float64]
    sums: list[float]


class Latencies:
    """First-byte and open latencies, drawn for many steps of a rank at once; the readers of a process share them.

    ``together`` is how many steps at most: one, where each asks for a number of requests of its own.
    """

    #: At most so many steps, and about so many requests, are drawn together.
    STEPS = 32
    REQUESTS = 4096

    def __init__(self, draw: FirstByte, seed: int, num_ranks: int = 1, *, together: int = STEPS) -> None:
        self.draw = draw
        self.seed = seed
        self.together = together
        self._most = 3 * num_ranks
        self._drawn: dict[tuple[int, int, int], _Drawn] = {}

    def of_reads(
        self, address: tuple[int, int, int], number: int, latency: Draws | None = None, num_opens: int = 0
    ) -> NDArray[np.float64]:
        """The seconds until the first byte of each of a step's ``number`` requests; equal wherever it is asked.

        Where opening a file takes its time (``latency``), those of the step's ``num_opens`` files are in them.
        """
        drawn, row = self._of(address, number, latency, num_opens)
        latencies: NDArray[np.float64] = drawn.latencies[row, :number]
        return latencies

    def sum_of_reads(
        self, address: tuple[int, int, int], number: int, latency: Draws | None = None, num_opens: int = 0
    ) -> float:
        """The sum of :meth:`of_reads`."""
        (width, _, latencies, sums), row = self._of(address, number, latency, num_opens)
        return sums[row] if width == number else float(latencies[row, :number].sum())

    def sums_of_reads(
        self, address: tuple[int, int, int], numbers: Sequence[int], latency: Draws | None, num_opens: Sequence[int]
    ) -> list[float]:
        """:meth:`sum_of_reads` of a step and of those after it."""
        (width, _, _, sums), row = self._of(address, number := numbers[0], latency, num_opens[0])
        many = len(numbers)
        is_even = width == number and numbers.count(number) == many and num_opens.count(num_opens[0]) == many
        if is_even and row + many <= len(sums):
            return sums[row : row + many]
        rank, epoch, first = address
        each = enumerate(zip(numbers, num_opens, strict=True), first)
        return [self.sum_of_reads((rank, epoch, step), number, latency, opened) for step, (number, opened) in each]

    def apart(
        self, address: tuple[int, int, int], number: int, latency: Draws | None, num_opens: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The seconds of each request and of each open apart, which :meth:`of_reads` adds up."""
        rank, epoch, step = address
        first = step << REQUESTS_PER_STEP_BITS
        requests = self.draw(seeds.key(self.seed, "first_byte", rank, epoch), first + np.arange(number, dtype=np.int64))
        if latency is None:
            return requests, np.zeros(num_opens)
        index = first + np.arange(num_opens, dtype=np.int64)
        return requests, latency.draw(seeds.key(self.seed, "open", rank, epoch), index)

    def _of(
        self, address: tuple[int, int, int], number: int, latency: Draws | None, num_opens: int
    ) -> tuple[_Drawn, int]:
        """Find the latencies of a step and its row in them, drawing them with its neighbours' when not at hand."""
        rank, epoch, step = address
        many = self.together if number <= 128 else max(1, min(self.together, self.REQUESTS // number))
        block, row = divmod(step, many)
        drawn = self._drawn.get((rank, epoch, block))
        # Steps of many sizes: the latencies of the widest do for all, unless those of opens are among them.
        if drawn is not None:
            width, opened, _, sums = drawn
            if len(sums) == many and (width >= number if latency is None else width == number and opened == num_opens):
                return drawn, row
        steps = np.arange(block * many, (block + 1) * many, dtype=np.int64)[:, None] << REQUESTS_PER_STEP_BITS
        index = steps + np.arange(number, dtype=np.int64)
        latencies = self.draw(seeds.key(self.seed, "first_byte", rank, epoch), index)
        if latency is not None:
            index = steps + np.arange(num_opens, dtype=np.int64)
            opens = latency.draw(seeds.key(self.seed, "open", rank, epoch), index)
            latencies = each_before_a_request(opens, latencies)
        drawn = _Drawn(number, num_opens, latencies, latencies.sum(axis=1).tolist())
        while len(self._drawn) >= self._most:
            del self._drawn[next(iter(self._drawn))]
        self._drawn[rank, epoch, block] = drawn
        return drawn, row

    def of_writes(self, path: str, number: int) -> NDArray[np.float64]:
        """The latencies in seconds of a file's write requests."""
        return self.draw(seeds.key(self.seed, f"first_byte/{path}"), np.arange(number, dtype=np.int64))

    def of_creation(self, latency: Draws, path: str) -> NDArray[np.float64]:
        """The latency in seconds of opening a file to write it."""
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
        address, num_opens, sizes, places, known_bytes, _, _, _ = requests
        number, spec = len(sizes), self.spec
        nbytes = requests.total_bytes if known_bytes is None else known_bytes
        if self.io_depth == 1:
            latency = self.latencies.sum_of_reads(address, number, spec.open, num_opens)
            alone = latency + nbytes / spec.connection_bandwidth
        else:
            alone = self._alone(self.latencies.of_reads(address, number, spec.open, num_opens), sizes)
        arrival = self.clock.now()
        served = self.arbiter.reserve(arrival, spec.calls(num_opens, number), nbytes, round(alone * 1e9))
        await self.clock.sleep_until(served if isinstance(served, int) else await served)
        if not self.is_itemised:
            return Served(None, num_opens, number, nbytes)
        each, opens = self.latencies.apart(address, number, spec.open, num_opens)
        return Served(None, num_opens, number, nbytes, 0, self._itemised(READ, arrival, each, sizes, opens, places))

    def ahead(self, address: tuple[int, int, int], table: RequestTable) -> tuple[list[int], list[int]]:
        """What a step and those after it take on an idle system (ns), and what the device may cap of them."""
        spec, numbers, (num_opens, nbytes, edges, totals) = self.spec, table.numbers, table
        calls = [spec.calls(*counted) for counted in zip(num_opens, numbers, strict=True)]
        if self.io_depth == 1:
            sums = self.latencies.sums_of_reads(address, numbers, spec.open, num_opens)
            each = zip(sums, totals, strict=True)
            return [round((latency + nbytes / spec.connection_bandwidth) * 1e9) for latency, nbytes in each], calls
        rank, epoch, first = address
        alone = []
        for row, (begin, end) in enumerate(pairwise(edges)):
            latencies = self.latencies.of_reads((rank, epoch, first + row), numbers[row], spec.open, num_opens[row])
            alone.append(round(self._alone(latencies, nbytes[begin:end]) * 1e9))
        return alone, calls

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Let the time pass that a file of ``num_bytes`` takes; latencies are drawn at the address of its path."""
        sizes = sizes_of_writes(num_bytes, request_bytes)
        latencies = each = self.latencies.of_writes(path, len(sizes))
        opens = np.zeros(1)
        if self.spec.open is not None:
            opens = self.latencies.of_creation(self.spec.open, path)
            latencies = each_before_a_request(opens, latencies)
        alone = round(self._alone(latencies, sizes) * 1e9)
        arrival = self.clock.now()
        served = self.arbiter.reserve(arrival, self.spec.calls(1, len(sizes)), num_bytes, alone)
        await self.clock.sleep_until(served if isinstance(served, int) else await served)
        syncs = 2 if fsync else 0
        if not self.is_itemised:
            return Served(None, 1, len(sizes), num_bytes, syncs)
        issued = self._itemised(WRITE, arrival, each, sizes, opens, None)
        return Served(None, 1, len(sizes), num_bytes, syncs, synced(Issued(issued.rows, [path]), syncs))

    def _itemised(
        self, kind: int, arrival: int, latencies: NDArray[np.float64], sizes: NDArray[np.int64],
        opens: NDArray[np.float64], places: Places | None,
    ) -> Issued:  # fmt: skip
        seconds = latencies + sizes / self.spec.connection_bandwidth
        return itemise(kind, arrival, self.clock.now(), seconds, sizes, opens, depth=self.io_depth, places=places)

    def _alone(self, latencies: NDArray[np.float64], sizes: NDArray[np.int64]) -> float:
        """The seconds that requests take on an idle system."""
        return seconds_alone(latencies, sizes, self.spec.connection_bandwidth, self.io_depth)


def sizes_of_writes(num_bytes: int, request_bytes: int) -> NDArray[np.int64]:
    """The bytes of each request that writes a file; the last one is the rest."""
    sizes = np.full(max(1, -(-num_bytes // request_bytes)), request_bytes, np.int64)
    sizes[-1] = num_bytes - request_bytes * (len(sizes) - 1)
    return sizes


def each_before_a_request(opens: NDArray[np.float64], latencies: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add the times of opens to those of requests, one each as far as there are requests, and then round again.

    Both may have rows, one a step.
    """
    number = latencies.shape[-1]
    if not number:
        return latencies
    added = latencies.copy()
    for first in range(0, opens.shape[-1], number):
        turn = opens[..., first : first + number]
        added[..., : turn.shape[-1]] += turn
    return added


def seconds_alone(
    latencies: NDArray[np.float64], sizes: NDArray[np.int64], connection_bandwidth: float, depth: int
) -> float:
    """The seconds that requests take on an idle system, at most ``depth`` of them in flight."""
    depth = min(depth, len(sizes))
    if depth <= 1:
        return float(latencies.sum()) + int(sizes.sum()) / connection_bandwidth
    each = latencies + sizes / connection_bandwidth
    return max(float(each.sum()) / depth, float(each.max()))
