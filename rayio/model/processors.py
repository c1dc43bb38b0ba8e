"""CPUs on the virtual clock: the jobs of a node share its cores, as under a kernel's scheduler.

A job uses one core at most. More jobs than cores share them: all equally at every moment (processor sharing), or in
time slices, so that a short job waits for a long one's slice. A process runs one job at a time. Sleeps use no core.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from heapq import heappop, heappush
from typing import TypeVar

from rayio.model.kernel import Future, Kernel
from rayio.scenario.cluster import Cluster
from rayio.scenario.costs import CpuCosts
from rayio.storage.base import Opener, Requests, Served, Storage

T = TypeVar("T")

#: A job is done when less than this is left (ns), because sums of floats are not exact.
ROUNDING_NS = 0.5


class Cores:
    """The cores of one node; ``number`` excludes shares that others use permanently."""

    __slots__ = ("_done_at", "_jobs", "_number_of_jobs_ever", "_seen_at", "_served", "contention", "kernel", "number")

    def __init__(self, kernel: Kernel, number: float, contention: float = 1.0) -> None:
        self.kernel = kernel
        self.number = number
        #: Factor on the duration of work while all cores are busy.
        self.contention = contention
        #: Service of a job present from the beginning (ns), and the time until which it is known.
        self._served, self._seen_at = 0.0, 0
        #: Running jobs by their end on the scale of ``_served``.
        self._jobs: list[tuple[float, int, Future | None]] = []
        self._number_of_jobs_ever = 0
        #: Time of the next planned check; 0 without one.
        self._done_at = 0

    async def work(self, seconds: float) -> None:
        """Wait for a job of ``seconds`` of CPU."""
        if seconds > 0:
            await self.start(seconds)

    async def work_together(self, each: Sequence[float]) -> None:
        """Wait for jobs of so many seconds of CPU, which begin together."""
        futures = [self.start(seconds) for seconds in each if seconds > 0]
        for future in futures:
            await future

    def start(self, seconds: float) -> Future:
        """Start a job of more than 0 ``seconds``; return what to wait for."""
        future = self.kernel.future("a processor")
        self._begin(seconds, future)
        return future

    def spend(self, seconds: float) -> None:
        """Start a job without waiting for it."""
        if seconds > 0:
            self._begin(seconds, None)

    def _begin(self, seconds: float, future: Future | None) -> None:
        self._serve()
        self._number_of_jobs_ever += 1
        heappush(self._jobs, (self._served + seconds * 1e9, self._number_of_jobs_ever, future))
        self._look()

    def _serve(self) -> None:
        now = self.kernel.now()
        if self._jobs:
            self._served += (now - self._seen_at) * self._share
        self._seen_at = now

    @property
    def _share(self) -> float:
        share = min(1.0, self.number / len(self._jobs))
        return share if len(self._jobs) < self.number else share / self.contention

    def _look(self) -> None:
        """Schedule a check at the end of the first job, unless there is one by then."""
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
    """The cores of one node, on which jobs take turns of ``slice_ns`` each, or more if none waits."""

    __slots__ = ("_busy", "_slice_ns", "_speed", "_waiting")

    def __init__(self, kernel: Kernel, number: float, slice_ns: int, contention: float = 1.0) -> None:
        super().__init__(kernel, number, contention)
        self._slice_ns = slice_ns
        #: Each core is slowed such that they sum to ``number``.
        self._speed = number / math.ceil(number)
        #: Jobs without a core, in the order of their turns: remaining time (ns), and waiter.
        self._waiting: deque[tuple[float, Future | None]] = deque()
        self._busy = 0

    def _begin(self, seconds: float, future: Future | None) -> None:
        self._waiting.append((seconds * 1e9, future))
        if self._busy < self.number:
            self._busy += 1
            self.kernel.spawn(self._turns(), "processor")

    async def _turns(self) -> None:
        """Run jobs on one core until none waits."""
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
    """A process of a node: its jobs run one after the other, in order of arrival."""

    __slots__ = ("_last", "cores")

    def __init__(self, cores: Cores) -> None:
        self.cores = cores
        self._last: Future | None = None

    async def work(self, seconds: float) -> None:
        """Wait for a job of ``seconds`` of CPU, after earlier ones."""
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
    """Return the cores of every node by ``cluster``; None for unlimited cores.

    The permanent work of a node's processes is subtracted; a tenth of one core is left at least.
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


def hidden_share(number: int, depth: int) -> float:
    """Return the share of a batch's parsing for which there is time before its last ``depth`` answers come.

    A batch of ``number`` requests takes ⌈number / depth⌉ turns. With equal latencies the answers of a turn come one
    parsing apart, so that of the first one of each turn is waited for, and all of the last turn.

    >>> hidden_share(8, 1), hidden_share(8, 8), hidden_share(32, 4)
    (0.0, 0.0, 0.65625)
    """
    turns = math.ceil(number / depth)
    return (turns - 1) * (depth - 1) / number if turns > 1 else 0.0


class ParsedStorage:
    """Modelled storage whose answers its reader parses, on the cores of its node.

    With ``depth`` requests of a batch in flight, a worker parses one answer while it waits for others.
    """

    def __init__(self, storage: Storage, cores: Cores, costs: CpuCosts, depth: int = 1) -> None:
        self.storage = storage
        self.cores = cores
        self.costs = costs
        self.depth = depth

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Read the batch, and parse it: meanwhile what other requests in flight hide, the rest at the end."""
        turns = max(1, math.ceil(len(requests.nbytes) / self.depth))
        work = self.costs.parsing(requests.num_samples, requests.total_bytes)
        hidden = work * hidden_share(len(requests.nbytes), self.depth)
        if not hidden:
            served = await self.storage.read(requests, load)
            await self.cores.work(self.costs.parsing(requests.num_samples, served.nbytes))
            return served
        kernel = self.cores.kernel
        began, meanwhile = kernel.now(), self.cores.start(hidden)
        served = await self.storage.read(requests, load)
        first = (kernel.now() - began) / turns  # until the first answers there is nothing to parse
        await meanwhile
        await kernel.sleep_until(began + round(first + hidden * 1e9))
        await self.cores.work(self.costs.parsing(requests.num_samples, served.nbytes) - hidden)
        return served

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Write a file."""
        return await self.storage.write(path, num_bytes, request_bytes, fsync=fsync)


class MessageCpu:
    """CPU work of one rank's batches on its node, on their way from its readers (s)."""

    __slots__ = ("costs", "node", "queue", "rank")

    def __init__(self, costs: CpuCosts, rank: Process, *, in_rank: bool = False) -> None:
        self.costs = costs
        self.node = node = rank.cores
        self.rank = rank
        #: The queue's process: separate, or its rank's.
        self.queue = self.rank if in_rank else Process(node)

    async def leased(self, within: float) -> float:
        """Send a lease, which takes ``within`` seconds in all; return the seconds left."""
        work = self.costs.queue / 2
        on_the_way = min(work, within)
        await self.queue.work(on_the_way)
        self.node.spend(work - on_the_way)
        return within - on_the_way

    async def delivered(self, within: float, received: float) -> None:
        """Deliver a batch to its rank within ``within`` seconds; receiving takes ``received`` more."""
        by_queue, by_rank = self.costs.queue / 2, self.costs.rank - received
        first = min(by_queue, within)
        last = max(0.0, min(by_rank, within - first))
        await self.queue.work(first)
        self.node.spend(by_queue - first)
        kernel = self.node.kernel
        await kernel.sleep_until(kernel.now() + round((within - first - last) * 1e9))
        await self.rank.work(last)
        self.node.spend(by_rank - last)
