"""The virtual engine: the same roles on a clock that jumps to the next timer, so hours pass in milliseconds.

Roles on it never touch asyncio: a task is a coroutine, a sleep is a number in a heap, and whoever is ready runs in the
order in which it became ready. So a simulation is deterministic, and an idle clock with nobody due is a deadlock that
is raised, never a hang.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from heapq import heappop, heappush
from typing import Any, TypeVar, cast

from rayio.errors import RunError
from rayio.pipeline.kernel import Work

T = TypeVar("T")


class DeadlockError(RunError):
    """Every role waits and no timer is set: nothing can ever happen again."""


class VirtualFuture:
    """A value to come on the virtual clock."""

    __slots__ = ("_done", "_error", "_value", "_waiters", "label")

    def __init__(self, kernel: VirtualKernel, label: str) -> None:
        self.label = label
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._waiters: list[VirtualTask] = []

    def done(self) -> bool:
        """Say whether the value or the error is there."""
        return self._done

    def set_result(self, value: Any) -> None:
        """Give the value; every waiter runs next, in the order of their waiting."""
        self._done, self._value = True, value
        self._wake()

    def set_exception(self, error: BaseException) -> None:
        """Give an error; every waiter raises it."""
        self._done, self._error = True, error
        self._wake()

    def _wake(self) -> None:
        for task in self._waiters:
            task.kernel.ready.append(task)
        self._waiters.clear()

    def __await__(self) -> Generator[Any, None, Any]:
        if not self._done:
            yield self
        if self._error is not None:
            raise self._error
        return self._value


class VirtualTask(VirtualFuture):
    """A coroutine under way; awaiting it gives what it returns."""

    __slots__ = ("ended", "kernel", "waits_for", "work")

    def __init__(self, kernel: VirtualKernel, work: Work[Any], name: str) -> None:
        super().__init__(kernel, name)
        self.kernel = kernel
        self.work = work
        self.waits_for: str | None = None
        #: Told when the coroutine is over.
        self.ended: Callable[[VirtualTask], None] | None = None


class _Until:
    """An awaitable that asks the kernel to be woken at a time, unless that has come."""

    __slots__ = ("deadline", "kernel")

    def __init__(self, kernel: VirtualKernel, deadline: int) -> None:
        self.kernel = kernel
        self.deadline = deadline

    def __await__(self) -> Generator[int, None, None]:
        if self.deadline > self.kernel.time:
            yield self.deadline


class VirtualKernel:
    """A clock that never waits, and the tasks that live by it."""

    def __init__(self, watch: Callable[[], None] | None = None) -> None:
        self.time = 0
        #: Called about once a second of wall time, between two events.
        self.watch = watch
        self.watch_seconds = 1.0
        self.ready: deque[VirtualTask] = deque()
        self._timers: list[tuple[int, int, VirtualTask]] = []
        self._sequence = 0
        self._alive: set[VirtualTask] = set()

    def now(self) -> int:
        """Give the nanoseconds since the simulation began."""
        return self.time

    def sleep_until(self, deadline: int) -> Awaitable[None]:
        """Return at ``deadline``."""
        return _Until(self, deadline)

    def future(self, label: str) -> VirtualFuture:
        """Make a future whose label shows in a deadlock report."""
        return VirtualFuture(self, label)

    def spawn(self, work: Work[T], name: str) -> Awaitable[T]:
        """Start ``work``: it runs when the caller next waits."""
        task = VirtualTask(self, work, name)
        self._alive.add(task)
        self.ready.append(task)
        return cast("Awaitable[T]", task)

    async def gather(self, *work: Work[T]) -> list[T]:
        """Run all together; the first error is raised at once and the others are dropped with the kernel."""
        finished = self.future(f"all of {len(work)} tasks")
        left = len(work)

        def ended(task: VirtualTask) -> None:
            nonlocal left
            left -= 1
            if finished.done():
                return
            if task._error is not None:
                finished.set_exception(task._error)
            elif left == 0:
                finished.set_result(None)

        tasks = []
        for one in work:
            task = cast("VirtualTask", self.spawn(one, getattr(one, "__qualname__", "task")))
            task.ended = ended
            tasks.append(task)
        if tasks:
            await finished
        return [task._value for task in tasks]

    async def threaded(self, function: Callable[[], T]) -> T:
        """Run ``function`` in no time."""
        return function()

    def run(self, main: Work[T]) -> T:
        """Run ``main`` to its end and give its result; whatever else is under way then is dropped.

        Raises:
            DeadlockError: everybody waits and no timer is set.
        """
        collecting = gc.isenabled()
        gc.disable()  # half of the time of a million-span simulation otherwise
        try:
            task = cast("VirtualTask", self.spawn(main, "main"))
            events, watched = 0, time.monotonic()
            while not task._done:
                events += 1
                if events & 0xFFF == 0 and self.watch is not None and time.monotonic() - watched > self.watch_seconds:
                    watched = time.monotonic()
                    self.watch()
                if self.ready:
                    self._resume(self.ready.popleft())
                elif self._timers:
                    self.time, _, sleeper = heappop(self._timers)
                    self._resume(sleeper)
                else:
                    raise DeadlockError(self._who_waits())
            return cast("T", task._value) if task._error is None else self._raise(task._error)
        finally:
            for left in self._alive:
                left.work.close()
            if collecting:
                gc.enable()

    @staticmethod
    def _raise(error: BaseException) -> Any:
        raise error

    def _resume(self, task: VirtualTask) -> None:
        try:
            asked = task.work.send(None)
        except StopIteration as stop:
            self._alive.discard(task)
            task.set_result(stop.value)
            if task.ended is not None:
                task.ended(task)
        except Exception as error:
            self._alive.discard(task)
            task.set_exception(error)
            if task.ended is not None:
                task.ended(task)
        else:
            if type(asked) is int:
                self._sequence += 1
                heappush(self._timers, (asked, self._sequence, task))
            else:
                asked._waiters.append(task)
                task.waits_for = asked.label

    def _who_waits(self) -> str:
        waiting = sorted(f"{t.label} for {t.waits_for}" for t in self._alive if t.waits_for and t.label != "main")
        more = f" and {len(waiting) - 8} more" if len(waiting) > 8 else ""
        return f"deadlock at {self.time / 1e9:.3f} s: waiting are {', '.join(waiting[:8])}{more}"
