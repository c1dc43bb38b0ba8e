"""The interface to time and concurrency, and its implementation on the wall clock; virtual.py has the virtual clock.

Roles reach it only through their :class:`~rayio.model.env.Env`. Times are integer nanoseconds, so that intervals
add up exactly.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar, cast

from rayio.machine import timers
from rayio.model.threads import Threads

T = TypeVar("T")

#: A coroutine that has not been started.
Coro = Coroutine[Any, Any, T]

#: asyncio wakes a sleeper up to a millisecond late; the last stretch before a deadline is slept exactly instead.
EXACT_NS = 2_000_000
#: Seconds that running calls have to end when the kernel is cancelled.
LEAVE_SECONDS = 2.0


class Future(Protocol):
    """A value to come, awaited by any number of roles."""

    def set_result(self, value: Any, /) -> None:
        """Set the value; every waiter continues."""

    def set_exception(self, error: Any, /) -> None:
        """Set an error; every waiter raises it."""

    def done(self) -> bool:
        """Return True if the value or the error is there."""

    def __await__(self) -> Any:
        """Wait for it."""


class Kernel(Protocol):
    """A clock and the roles that run by it."""

    def now(self) -> int:
        """Return the time (ns): since the Unix epoch on the wall clock, since the start on the virtual clock."""

    def sleep_until(self, deadline: int) -> Awaitable[None]:
        """Return at ``deadline``, or at once when that has passed."""

    def future(self, label: str) -> Future:
        """Return a new future; ``label`` names in a deadlock report what its waiters wait for."""

    def spawn(self, work: Coro[T], name: str) -> Awaitable[T]:
        """Start ``work`` concurrently; return an awaitable of its result."""

    async def gather(self, *work: Coro[T]) -> list[T]:
        """Run all concurrently and return their results; the first error cancels the others and is raised."""

    async def threaded(self, function: Callable[[], T]) -> T:
        """Run a blocking function without stopping the clock of the other roles."""


class WallKernel:
    """A kernel over asyncio's running loop and the wall clock.

    ``anchor`` is added to ``perf_counter_ns``; processes of one host that share an anchor share a clock. A role that
    is ``alone`` in its process sleeps exactly; roles that share one must not block each other and wake up to 1 ms late.
    A ``punctual`` role also busy-waits before each deadline, for about 0.1 ms of CPU time.
    With ``threads=0``, blocking calls stop the loop.
    """

    def __init__(
        self, anchor: int | None = None, *, alone: bool = False, punctual: bool = False, threads: int = 1
    ) -> None:
        self.anchor = time.time_ns() - time.perf_counter_ns() if anchor is None else anchor
        self.alone = alone
        self.punctual = timers.Punctual() if alone and punctual else None
        self.threads = threads
        self.pool = Threads(max(1, threads), "rayio-io")
        #: Set when the kernel ends: its threads then stop waiting.
        self.ending = threading.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    def now(self) -> int:
        """Read the wall clock, in nanoseconds since the Unix epoch; it never steps back."""
        return self.anchor + time.perf_counter_ns()

    async def sleep_until(self, deadline: int) -> None:
        """Sleep through asyncio to 2 ms before the deadline, then exactly if alone."""
        ahead = deadline - self.now()
        if not self.alone:
            if ahead > 0:
                await asyncio.sleep(ahead / 1e9)
            return
        if ahead > EXACT_NS:
            await asyncio.sleep((ahead - EXACT_NS) / 1e9)
        if self.punctual is not None:
            self.punctual.sleep_until(deadline - self.anchor)
        elif (ahead := deadline - self.now()) > 0:
            timers.sleep(ahead / 1e9)

    def future(self, label: str) -> Future:
        """Return a new asyncio future."""
        return asyncio.get_running_loop().create_future()

    def spawn(self, work: Coro[T], name: str) -> asyncio.Task[T]:
        """Start an asyncio task, and keep a reference until it ends."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def gather(self, *work: Coro[T]) -> list[T]:
        """Run all concurrently; cancel the others at the first error."""
        tasks = [asyncio.ensure_future(w) for w in work]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def threaded(self, function: Callable[[], T]) -> T:
        """Run ``function`` in this kernel's thread pool, or in place without one."""
        if not self.threads:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self.pool, function)

    async def cancel(self) -> None:
        """Cancel the running tasks, and end the threads."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.ending.set()
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.pool.join(LEAVE_SECONDS)


class BlockingKernel(WallKernel):
    """A kernel for a process or thread with one role: every wait blocks it."""

    def __init__(self, anchor: int | None = None) -> None:
        super().__init__(anchor, alone=True, threads=0)

    async def sleep_until(self, deadline: int) -> None:
        """Sleep, exactly."""
        if (ahead := deadline - self.now()) > 0:
            timers.sleep(ahead / 1e9)

    def carry_out(self, work: Coro[T]) -> T:
        """Run ``work`` to its end and return its result; it needs no event loop, because every wait blocks."""
        try:
            work.send(None)
        except StopIteration as stop:
            return cast("T", stop.value)
        work.close()
        raise AssertionError("a role waits for something that a blocking kernel does not have")
