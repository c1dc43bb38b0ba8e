"""Kernels: time and concurrency behind one small interface, here on the wall clock, elsewhere on a virtual one.

Roles use it only through their :class:`~rayio.model.env.Env`. Times are integer nanoseconds, so intervals add up
exactly.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from rayio.machine import timers
from rayio.machine.alarm import Alarm
from rayio.model.threads import Threads

T = TypeVar("T")

#: A coroutine that is not started yet.
Coro = Coroutine[Any, Any, T]

#: asyncio wakes a sleeper up to a millisecond late; the rest before a deadline is slept exactly instead.
EXACT_NS = 2_000_000
#: Seconds for running calls to end when the run is over.
LEAVE_SECONDS = 2.0


class Future(Protocol):
    """A future, awaited by any number of roles."""

    def set_result(self, value: Any, /) -> None:
        """Set the value; every waiter continues."""

    def set_exception(self, error: Any, /) -> None:
        """Set an error; every waiter raises it."""

    def done(self) -> bool:
        """Return True if the value or the error is set."""

    def __await__(self) -> Any:
        """Wait for it."""


class Kernel(Protocol):
    """A clock and the roles that use it."""

    def now(self) -> int:
        """Return the time in nanoseconds: since the Unix epoch on a wall clock, since the start on a virtual one."""

    def sleep_until(self, deadline: int) -> Awaitable[None]:
        """Return at ``deadline`` (ns), at once if it has passed."""

    def future(self, label: str) -> Future:
        """Return a future; ``label`` names it in deadlock reports."""

    def spawn(self, work: Coro[T], name: str) -> Awaitable[T]:
        """Start ``work`` concurrently with the caller."""

    async def gather(self, *work: Coro[T]) -> list[T]:
        """Run coroutines concurrently; the first error ends the others and is raised."""

    async def threaded(self, function: Callable[[], T]) -> T:
        """Run a blocking function without stopping the other roles."""

    async def burn(self, seconds: float) -> None:
        """Use ``seconds`` of CPU without stopping the other roles."""


class WallKernel:
    """A kernel on asyncio's running loop and the wall clock.

    ``anchor`` is added to ``perf_counter_ns``; processes of a host with equal anchors share a clock. A role that is
    ``alone`` in its process blocks it at the end of a sleep. With ``punctual`` sleeps end on time, for about 0.1 ms of
    CPU each, and else some 0.1 ms late. With no ``threads``, blocking calls stop the loop: for a role without
    concurrent work.
    """

    def __init__(
        self, anchor: int | None = None, *, alone: bool = False, punctual: bool = False, threads: int = 1
    ) -> None:
        self.anchor = time.time_ns() - time.perf_counter_ns() if anchor is None else anchor
        self.alone = alone
        self.punctual = timers.Punctual() if punctual else None
        self.threads = threads
        #: CPU seconds used by :meth:`burn`.
        self.burnt_seconds = 0.0
        self.pool = Threads(max(1, threads), "rayio-io")
        #: Set when this kernel's threads are no longer awaited: their waits end.
        self.ending = threading.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._alarm: Alarm | None = None

    def now(self) -> int:
        """Return the wall clock in nanoseconds since the Unix epoch; it never steps back."""
        return self.anchor + time.perf_counter_ns()

    async def sleep_until(self, deadline: int) -> None:
        """Sleep by an alarm of the loop; if alone, by asyncio until 2 ms before the deadline, then exactly."""
        if not self.alone:
            loop = asyncio.get_running_loop()
            if self._alarm is None or self._alarm.loop is not loop:
                self._alarm = Alarm(loop, self.punctual)
            await self._alarm.sleep_until(deadline - self.anchor)
            return
        if (ahead := deadline - self.now()) > EXACT_NS:
            await asyncio.sleep((ahead - EXACT_NS) / 1e9)
        if self.punctual is not None:
            self.punctual.sleep_until(deadline - self.anchor)
        elif (ahead := deadline - self.now()) > 0:
            timers.sleep(ahead / 1e9)

    def future(self, label: str) -> Future:
        """Return an asyncio future."""
        return asyncio.get_running_loop().create_future()

    def spawn(self, work: Coro[T], name: str) -> asyncio.Task[T]:
        """Start an asyncio task and keep a reference until it ends."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def gather(self, *work: Coro[T]) -> list[T]:
        """Run coroutines concurrently; the first error cancels the others."""
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

    async def burn(self, seconds: float) -> None:
        """Use ``seconds`` of CPU in a thread."""
        self.burnt_seconds += await self.threaded(partial(timers.burn, seconds))

    async def cancel(self) -> None:
        """Cancel running tasks, and end the threads."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._alarm is not None:
            self._alarm.close()
        self.ending.set()
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.pool.join(LEAVE_SECONDS)


class BlockingKernel(WallKernel):
    """A kernel for a process or thread with only one role: every wait blocks it."""

    def __init__(self, anchor: int | None = None) -> None:
        super().__init__(anchor, alone=True, threads=0)

    async def sleep_until(self, deadline: int) -> None:
        """Sleep, exactly."""
        if (ahead := deadline - self.now()) > 0:
            timers.sleep(ahead / 1e9)

    def carry_out(self, work: Coro[T]) -> T:
        """Run a coroutine and return its result; it needs no loop, because nothing else is awaited."""
        try:
            work.send(None)
        except StopIteration as stop:
            return cast("T", stop.value)
        work.close()
        raise AssertionError("a role waits for something that a blocking kernel does not have")
