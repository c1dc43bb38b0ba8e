"""The model of processors: the jobs of a node share its cores, as under a kernel's scheduler.

A job uses at most one core. If there are more jobs than cores, they share the cores: equally at every moment (processor
sharing), or in turns of a time slice, so that a short job waits for the slices of long ones. A process runs one job at
a time. A sleep uses no core.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import cache
from heapq import heappop, heappush
from typing import TypeVar

from rayio.model.kernel import Future, Kernel
from rayio.scenario.cluster import Cluster
from rayio.scenario.costs import CpuCosts, taken
from rayio.storage.base import Opener, Requests, Served, Storage

T = TypeVar("T")

#: A job is done when less than this is left of it (ns): sums of floats are not exact.
ROUNDING_NS = 0.5


class Cores:
    """The cores of one node; ``number`` excludes the share of other processes, so it can be fractional."""

    __slots__ = ("_done_at", "_jobs", "_number_of_jobs_ever", "_seen_at", "_served", "contention", "kernel", "number")

    def __init__(self, kernel: Kernel, number: float, contention: float = 1.0) -> None:
        self.kernel = kernel
        self.number = number
        #: Factor on the time of work while all cores are busy.
        self.contention = contention
        #: CPU time that a job since the beginning would have had (ns), and the time of the last update.
        self._served, self._seen_at = 0.0, 0
        #: The running jobs by their end, on the scale of ``_served``.
        self._jobs: list[tuple[float, int, Future | None]] = []
        self._number_of_jobs_ever = 0
        #: The time of the next check for finished jobs; 0 if none is due.
        self._done_at = 0

    async def work(self, seconds: float) -> None:
        """Run a job of ``seconds`` of CPU time and wait for its end."""
        if seconds > 0:
            future = self.kernel.future("a processor")
            self._begin(seconds, future)
            await future

    def spend(self, seconds: float) -> None:
        """Begin a job of ``seconds`` of CPU time without waiting."""
        if seconds > 0:
            self._begin(seconds, None)

    def _begin(self, seconds: float, future: Future | None) -> None:
        self._serve()
        self._number_of_jobs_ever += 1
        heappush(self._jobs, (self._served + seconds * 1e9, self._number_of_jobs_ever, future))
        self._look()

    def _serve(self) -> None:
        """Update ``_served``."""
        now = self.kernel.now()
        if self._jobs:
            self._served += (now - self._seen_at) * self._share
        self._seen_at = now

    @property
    def _share(self) -> float:
        share = min(1.0, self.number / len(self._jobs))
        return share if len(self._jobs) < self.number else share / self.contention

    def _look(self) -> None:
        """Schedule a check at the end of the first job, unless an earlier check is due."""
        left = max(0.0, self._jobs[0][0] - self._served) / self._share
        when = self._seen_at + int(left) + (left > int(left))
        if not self._done_at or when < self._done_at:
            self._done_at = when
            self.kernel.spawn(self._end(when), "processor")

    async def _end(self, when: int) -> None:
        await self.kernel.sleep_until(when)
        if self._done_at != when:  # an earlier check has scheduled the next one
            return
        self._done_at = 0
        self._serve()
        jobs = self._jobs
        while jobs and jobs[0][0] <= self._served + ROUNDING_NS:
            _, _, future = heappop(jobs)
            if future is not None and not future.done():
                future.set_result(None)
        if jobs:
            self._look()


class SlicedCores(Cores):
    """The cores of one node, on which jobs take turns of ``slice_ns``, or longer if no job waits."""

    __slots__ = ("_busy", "_slice_ns", "_speed", "_waiting")

    def __init__(self, kernel: Kernel, number: float, slice_ns: int, contention: float = 1.0) -> None:
        super().__init__(kernel, number, contention)
        self._slice_ns = slice_ns
        #: Speed of each core: a fractional number of cores is spread over whole ones.
        self._speed = number / math.ceil(number)
        #: Jobs without a core, in the order of their turns: the rest of each (ns), and the future of its end.
        self._waiting: deque[tuple[float, Future | None]] = deque()
        #: Number of busy cores.
        self._busy = 0

    def _begin(self, seconds: float, future: Future | None) -> None:
        self._waiting.append((seconds * 1e9, future))
        if self._busy < self.number:
            self._busy += 1
            self.kernel.spawn(self._turns(), "processor")

    async def _turns(self) -> None:
        """Run one core until no job waits."""
        while self._waiting:
            left, future = self._waiting.popleft()
            while left > ROUNDING_NS:
                turn = min(left, self._slice_ns)
                speed = self._speed if self._busy < self.number else self._speed / self.contention
                await self.kernel.sleep_until(self.kernel.now() + math.ceil(turn / speed))
                left -= turn
                if left > ROUNDING_NS and self._waiting:
                    self._waiting.append((left, future))
                    break
            else:
                if future is not None and not future.done():
                    future.set_result(None)
        self._busy -= 1


class Process:
    """A process of a node: it runs its jobs one after the other, in the order of their arrival."""

    __slots__ = ("_last", "cores")

    def __init__(self, cores: Cores) -> None:
        self.cores = cores
        self._last: Future | None = None

    async def work(self, seconds: float) -> None:
        """Run a job of ``seconds`` of CPU time after the earlier ones, and wait for its end."""
        if seconds <= 0:
            return
        before, mine = self._last, self.cores.kernel.future("its process")
        self._last = mine
        if before is not None and not before.done():
            await before
        try:
            await self.cores.work(seconds)
        finally:
            mine.set_result(None)
            if self._last is mine:
                self._last = None


#: The cores of a node, by its number.
CoresOf = Callable[[int], Cores]


def cores_of(kernel: Kernel, cluster: Cluster, costs: CpuCosts) -> CoresOf | None:
    """Return the cores of every node of ``cluster``, less ``costs.background``; None if cores are unlimited.

    At least a tenth of a core is left.
    """
    if cluster.cores is None:
        return None

    def of(node: int) -> Cores:
        number = max(0.1, (cluster.cores_of(node) or 0) - costs.background)
        slice_ns = round(costs.slice * 1e9)
        if slice_ns:
            return SlicedCores(kernel, number, slice_ns, costs.contention)
        return Cores(kernel, number, costs.contention)

    return cache(of)


class ParsedStorage:
    """A modelled storage with the CPU time of parsing, on the cores of the worker's node."""

    def __init__(self, storage: Storage, cores: Cores, costs: CpuCosts) -> None:
        self.storage = storage
        self.cores = cores
        self.costs = costs

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Read the batch, then parse it."""
        served = await self.storage.read(requests, load)
        await self.cores.work(self.costs.parsing(requests.num_samples, served.nbytes))
        return served

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Write a file."""
        return await self.storage.write(path, num_bytes, request_bytes, fsync=fsync)


class MessageCpu:
    """The CPU time of messages: the way of one rank's batches from its workers."""

    __slots__ = ("costs", "node", "queue", "rank")

    def __init__(self, costs: CpuCosts, rank: Process, *, in_rank: bool = False) -> None:
        self.costs = costs
        self.node = node = rank.cores
        self.rank = rank
        #: The queue's process: its own, or its rank's.
        self.queue = self.rank if in_rank else Process(node)

    async def leased(self, within: float) -> float:
        """Send a lease within ``within`` seconds; return those that are left for the call itself."""
        work = self.costs.queue / 2
        on_the_way = min(work, within)
        await self.queue.work(on_the_way)
        self.node.spend(work - on_the_way)
        return within - on_the_way

    def put(self, reader: Cores, nbytes: int, seconds: float) -> None:
        """Begin the CPU time of passing on a batch, less the ``seconds`` for which it keeps its worker."""
        reader.spend(self.costs.reader + taken(nbytes, self.costs.reader_bandwidth) - seconds)
        reader.spend(self.costs.node + taken(nbytes, self.costs.node_bandwidth))

    async def delivered(self, nbytes: int, within: float, received: float) -> None:
        """Bring a batch to its rank within ``within`` seconds; receiving takes ``received`` more seconds later."""
        by_queue, by_rank = self.costs.queue / 2, self.costs.rank + taken(nbytes, self.costs.rank_bandwidth) - received
        first = min(by_queue, within)
        last = max(0.0, min(by_rank, within - first))
        await self.queue.work(first)
        self.node.spend(by_queue - first)
        kernel = self.node.kernel
        await kernel.sleep_until(kernel.now() + round((within - first - last) * 1e9))
        await self.rank.work(last)
        self.node.spend(by_rank - last)
