"""Modelled storage without bytes: a device computes when requests are served, and roles sleep until then.

First come, first served. Alone on its connection, a batch's requests take the sum of their first-byte latencies, of
their opens if these take time, and of their bytes at the connection's rate. With several in flight a reader has so many
connections, and the first that is free takes the next request. All connections share the bandwidth and the cap
(requests or opens per second), a queue without gaps: a batch's share begins at its arrival or when the queue is free,
whichever is later. The batch is served when both are done. So one reader gets its connection's rate, and many readers
share exactly the aggregate.
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
from rayio.storage.base import READ, WRITE, Ahead, Clock, Issued, Opener, Places, Requests, RequestTable, Served
from rayio.storage.itemise import evenly, in_flight, itemise, synced
from rayio.storage.uploads import upload_of

T = TypeVar("T")

#: Draws a first-byte latency in seconds for each index below an address.
FirstByte = Callable[[int, NDArray[np.int64]], NDArray[np.float64]]


#: Each step draws at separate indices: 2**20 of them.
REQUESTS_PER_STEP_BITS = 20


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """The rates of a modelled system: bytes per second by connection and in all, requests per second (None: no cap)."""

    connection_bandwidth: float
    bandwidth: float
    requests_per_second: float | None = None
    #: A cap on files opened per second, as of a metadata server, in place of a cap on requests.
    opens_per_second: float | None = None
    #: Seconds to open one file; None is nothing.
    open: Draws | None = None
    #: Parts of an upload in flight.
    upload_parts: int = 1

    @property
    def calls_per_second(self) -> float | None:
        """The capped rate, of opens or requests; None without a cap."""
        return self.requests_per_second if self.opens_per_second is None else self.opens_per_second

    def calls(self, num_opens: T, num_requests: T) -> T:
        """Return the number of capped calls: of one read, or of each of several."""
        return num_requests if self.opens_per_second is None else num_opens


class Device:
    """The shared part of a modelled system, which decides when each call is served. Pure; times in ns."""

    def __init__(self, spec: DeviceSpec) -> None:
        self.spec = spec
        self._calls_per_second = spec.calls_per_second
        #: When all reservations have passed the shared part: whole nanoseconds, and the fraction (a float of
        #: nanoseconds since
        #: the epoch has steps of 256: small requests would take no time).
        self.free_at = 0
        self._rest = 0.0

    def learn(self, free_at: int) -> None:
        """Restore the backlog from before this device restarted; an older one changes nothing."""
        if free_at > self.free_at:
            self.free_at, self._rest = free_at, 0.0

    def reserve(self, arrival: int, num_requests: int, nbytes: int, alone: int) -> int:
        """Return the time at which ``num_requests`` (or opens, see :meth:`DeviceSpec.calls`) of ``nbytes`` are served.

        ``arrival`` is the time of the first request, ``alone`` their duration on an idle system (ns). Without requests
        and bytes nothing waits for the system.
        """
        if not nbytes and not num_requests:
            return arrival + alone
        work = nbytes / self.spec.bandwidth
        if self._calls_per_second is not None:
            work = max(work, num_requests / self._calls_per_second)
        whole, self._rest = divmod(work * 1e9 + self._rest, 1.0)
        free_at = self.free_at if self.free_at > arrival else arrival
        self.free_at = free_at = free_at + int(whole)
        return max(arrival + alone, free_at + round(self._rest))

    def reserve_again(self, arrival: int, num_requests: int, nbytes: int, alone: int, free_at: int) -> tuple[int, int]:
        """Reserve after restoring the backlog that the caller knows; return the time and the new backlog."""
        self.learn(free_at)
        return self.reserve(arrival, num_requests, nbytes, alone), self.free_at


class Arbiter(Protocol):
    """A device, perhaps in another process."""

    def reserve(self, arrival: int, num_requests: int, nbytes: int, alone: int) -> int | Awaitable[int]:
        """See :meth:`Device.reserve`; a device in this process answers at once."""


class CalledDevice:
    """A device in another process, whose methods ``ask`` calls by name.

    Its users remember its backlog, and restore it after a restart.
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
    """Latencies of consecutive steps, one row a step, and the sums of rows."""

    #: Requests and opened files per step.
    width: int
    num_opens: int
    latencies: NDArray[np.float64]
    sums: list[float]


class Latencies:
    """First-byte and open latencies, drawn for many steps of a rank at once and shared by the readers of a process.

    ``together`` is the largest number of steps drawn at once: one if steps differ in their number of requests.
    ``depth`` is the number of requests in flight.
    """

    #: Limits of one draw: steps, and about so many requests.
    STEPS = 32
    REQUESTS = 4096

    def __init__(
        self, draw: FirstByte, seed: int, num_ranks: int = 1, *, together: int = STEPS, depth: int = 1
    ) -> None:
        self.draw = draw
        self.seed = seed
        self.together = together
        self.depth = depth
        self._most = 3 * num_ranks
        self._drawn: dict[tuple[int, int, int], _Drawn] = {}

    def of_reads(
        self, address: tuple[int, int, int], number: int, latency: Draws | None = None, num_opens: int = 0
    ) -> NDArray[np.float64]:
        """Return the seconds to the first byte of each of a step's ``number`` requests; equal on every call.

        If opens take time (``latency``), those of the step's ``num_opens`` files are included.
        """
        drawn, row = self._of(address, number, latency, num_opens)
        latencies: NDArray[np.float64] = drawn.latencies[row, :number]
        return latencies

    def sum_of_reads(
        self, address: tuple[int, int, int], number: int, latency: Draws | None = None, num_opens: int = 0
    ) -> float:
        """Return the sum of :meth:`of_reads`."""
        (width, _, latencies, sums), row = self._of(address, number, latency, num_opens)
        return sums[row] if width == number else float(latencies[row, :number].sum())

    def sums_of_reads(
        self, address: tuple[int, int, int], numbers: Sequence[int], latency: Draws | None, num_opens: Sequence[int]
    ) -> list[float]:
        """Return :meth:`sum_of_reads` of a step and the steps after it."""
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
        """Return the seconds of requests and of opens separately; :meth:`of_reads` adds them up."""
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
        """Return the latencies of a step and its row in them; they are drawn together with the neighbours'."""
        rank, epoch, step = address
        many = self.together if number <= 128 else max(1, min(self.together, self.REQUESTS // number))
        block, row = divmod(step, many)
        drawn = self._drawn.get((rank, epoch, block))
        # Steps of many sizes share the latencies of the widest, unless these include opens.
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
            latencies = each_before_a_request(opens, latencies, self.depth)
        drawn = _Drawn(number, num_opens, latencies, latencies.sum(axis=1).tolist())
        while len(self._drawn) >= self._most:
            del self._drawn[next(iter(self._drawn))]
        self._drawn[rank, epoch, block] = drawn
        return drawn, row

    def of_writes(self, path: str, number: int) -> NDArray[np.float64]:
        """Return the latencies in seconds of a file's write requests."""
        return self.draw(seeds.key(self.seed, f"first_byte/{path}"), np.arange(number, dtype=np.int64))

    def of_creation(self, latency: Draws, path: str) -> NDArray[np.float64]:
        """Return the latency in seconds of opening a file to write it."""
        return latency.draw(seeds.key(self.seed, f"open/{path}"), np.zeros(1, np.int64))


class Behind(NamedTuple):
    """A limit on writing in the background: each file in so many pieces at most, which let others pass in between.

    ``rate`` is the most bytes per second; None is no limit.
    """

    pieces: int
    rate: float | None


class ModelStorage:
    """A role's connections to a modelled system: it draws latencies, reserves, and sleeps until served."""

    def __init__(
        self,
        arbiter: Arbiter,
        spec: DeviceSpec,
        latencies: Latencies,
        clock: Clock,
        *,
        io_depth: int = 1,
        is_itemised: bool = False,
        behind: Behind | None = None,
    ) -> None:
        #: How files are written; None: each at once.
        self.behind = behind
        self.arbiter = arbiter
        self.spec = spec
        self.latencies = latencies
        self.clock = clock
        self.io_depth = io_depth
        #: The last requests in flight together, and their seconds.
        self._each, self._seconds = np.zeros(0), 0.0
        #: True if results list every request, not only their number.
        self.is_itemised = is_itemised

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Wait until these requests are served; return None, for a model has no bytes."""
        address, num_opens, sizes, places, known_bytes, *_ = requests
        number, spec = len(sizes), self.spec
        nbytes = requests.total_bytes if known_bytes is None else known_bytes
        if not number:
            alone = float(self.latencies.apart(address, 0, spec.open, num_opens)[1].sum())
        elif self.io_depth == 1:
            latency = self.latencies.sum_of_reads(address, number, spec.open, num_opens)
            alone = latency + nbytes / spec.connection_bandwidth
        else:
            latencies = self.latencies.of_reads(address, number, spec.open, num_opens)
            alone = self._together(latencies + sizes / spec.connection_bandwidth)
        arrival = self.clock.now()
        served = self.arbiter.reserve(arrival, spec.calls(num_opens, number), nbytes, round(alone * 1e9))
        await self.clock.sleep_until(served if isinstance(served, int) else await served)
        if not self.is_itemised:
            return Served(None, num_opens, number, nbytes)
        each, opens = self.latencies.apart(address, number, spec.open, num_opens)
        issued = self._itemised(READ, arrival, each, sizes, opens, places, depth=self.io_depth)
        return Served(None, num_opens, number, nbytes, 0, issued)

    def ahead(self, address: tuple[int, int, int], table: RequestTable, readers: Sequence[str]) -> Ahead:
        """Return what is known of the reads of a step and later steps; ``readers`` take turns."""
        spec, numbers, (num_opens, nbytes, edges, totals, _) = self.spec, table.numbers, table
        calls = spec.calls(num_opens, numbers)
        if self.io_depth == 1:
            sums = self.latencies.sums_of_reads(address, numbers, spec.open, num_opens)
            bandwidth = spec.connection_bandwidth
            each = zip(sums, totals, strict=True)
            alone = [round((latency + nbytes / bandwidth) * 1e9) for latency, nbytes in each]
            return Ahead(alone, calls, [None] * len(calls))
        rank, epoch, first = address
        alone, moving = [], nbytes / spec.connection_bandwidth
        for row, (begin, end) in enumerate(pairwise(edges)):
            latencies = self.latencies.of_reads((rank, epoch, first + row), numbers[row], spec.open, num_opens[row])
            alone.append(round(self._together(latencies + moving[begin:end]) * 1e9))
        return Ahead(alone, calls, [None] * len(calls))

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Wait for the writes of a file; latencies are drawn at the address of its path."""
        upload = upload_of(num_bytes, request_bytes, self.spec.upload_parts)
        sizes = upload.sizes
        latencies = each = self.latencies.of_writes(path, len(sizes))
        opens = np.zeros(1)
        if self.spec.open is not None:
            opens = self.latencies.of_creation(self.spec.open, path)
            latencies = each_before_a_request(opens, latencies)
        alone = round(upload.alone(latencies, self.spec.connection_bandwidth) * 1e9)
        arrival = self.clock.now()
        if self.behind is not None:
            await self._write_behind(latencies, sizes, alone, self.behind, arrival)
        else:
            served = self.arbiter.reserve(arrival, self.spec.calls(1, len(sizes)), num_bytes, alone)
            await self.clock.sleep_until(served if isinstance(served, int) else await served)
        syncs = 2 if fsync else 0
        if not self.is_itemised:
            return Served(None, 1, len(sizes), num_bytes, syncs)
        if upload.depth > 1:  # one row, as of a real upload
            each, sizes = np.array([alone / 1e9]), np.array([num_bytes])
        issued = self._itemised(WRITE, arrival, each, sizes, opens, None, depth=1)
        return Served(None, 1, len(sizes), num_bytes, syncs, synced(Issued(issued.rows, [path]), syncs))

    async def _write_behind(
        self, latencies: NDArray[np.float64], sizes: NDArray[np.int64], alone: int, behind: Behind, start: int
    ) -> None:
        """Write requests piece by piece, in turn with others; each piece has its share of the time alone."""
        pieces, written = min(behind.pieces, len(sizes)), 0
        each = latencies + sizes / self.spec.connection_bandwidth
        total = float(each.sum())
        for first, last in pairwise(np.linspace(0, len(sizes), pieces + 1).astype(np.int64).tolist()):
            nbytes = int(sizes[first:last].sum())
            share = float(each[first:last].sum()) / total if total else 0.0
            calls = self.spec.calls(int(first == 0), last - first)
            served = self.arbiter.reserve(self.clock.now(), calls, nbytes, round(alone * share))
            await self.clock.sleep_until(served if isinstance(served, int) else await served)
            written += nbytes
            if behind.rate is not None:
                await self.clock.sleep_until(start + round(written / behind.rate * 1e9))

    def _itemised(
        self, kind: int, arrival: int, latencies: NDArray[np.float64], sizes: NDArray[np.int64],
        opens: NDArray[np.float64], places: Places | None, *, depth: int,
    ) -> Issued:  # fmt: skip
        seconds = latencies + sizes / self.spec.connection_bandwidth
        return itemise(kind, arrival, self.clock.now(), seconds, sizes, opens, depth=depth, places=places)

    def _together(self, each: NDArray[np.float64]) -> float:
        """Return the seconds of requests in flight together; those of equal batches are computed once."""
        known = self._each
        if len(each) != len(known) or (len(each) and (each[0] != known[0] or not (each == known).all())):
            self._each, self._seconds = each, in_flight(each, self.io_depth)
        return self._seconds


def each_before_a_request(
    opens: NDArray[np.float64], latencies: NDArray[np.float64], depth: int = 1
) -> NDArray[np.float64]:
    """Add the times of opens to those of requests in turn, from the first request again if there are more opens.

    With ``depth`` requests in flight their order counts: opens are spread evenly. Both may have rows, one a step.
    """
    number = latencies.shape[-1]
    if not number:
        return latencies
    added = latencies.copy()
    if depth > 1 and opens.shape[-1] <= number:
        added[..., evenly(opens.shape[-1], number)] += opens
        return added
    for first in range(0, opens.shape[-1], number):
        turn = opens[..., first : first + number]
        added[..., : turn.shape[-1]] += turn
    return added


def seconds_alone(
    latencies: NDArray[np.float64], sizes: NDArray[np.int64], connection_bandwidth: float, depth: int
) -> float:
    """Return the seconds of requests on an idle system, with at most ``depth`` of them in flight."""
    if min(depth, len(sizes)) <= 1:
        return float(latencies.sum()) + int(sizes.sum()) / connection_bandwidth
    return in_flight(latencies + sizes / connection_bandwidth, depth)
