"""The virtual engine: the same roles on a clock that jumps to the next timer, so hours pass in milliseconds.

Roles on it never touch asyncio: a task is a coroutine, a time at which somebody sleeps to is a number in a heap, and
whoever is ready runs in the order in which it became ready. So a simulation is deterministic, and an idle clock with
nobody due is a deadlock that is raised, never a hang. What knows by itself when it goes on needs no coroutine: it is an
errand.

What runs for every event is written for speed: few calls, few objects, and little memory of a rank touched.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from heapq import heappop, heappush
from types import coroutine
from typing import Any, Protocol, TypeVar, cast

from rayio.errors import RunError
from rayio.model.kernel import Coro

T = TypeVar("T")

#: Where the virtual clock ends: spans have their times in 64 bits.
MAX_NS = 1 << 62


class DeadlockError(RunError):
    """Every role waits and no timer is set: nothing can ever happen again."""


class VirtualFuture:
    """A value to come on the virtual clock."""

    __slots__ = ("_done", "_error", "_ready", "_value", "_waiters", "label")

    def __init__(self, ready: deque[VirtualTask | Errand], label: str) -> None:
        self.label = label
        self._ready = ready
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        #: One task, or a list of several, or None.
        self._waiters: Any = None

    def done(self) -> bool:
        """Say whether the value or the error is there."""
        return self._done

    def set_result(self, value: Any) -> None:
        """Set the value; every waiter runs next, in the order of their waiting."""
        self._done, self._value = True, value
        if self._waiters is not None:
            self._wake()

    def set_exception(self, error: BaseException) -> None:
        """Set an error; every waiter raises it."""
        self._done, self._error = True, error
        if self._waiters is not None:
            self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, None
        if type(waiters) is list:
            self._ready.extend(waiters)
        else:
            self._ready.append(waiters)

    def __await__(self) -> Generator[Any, None, Any]:
        if not self._done:
            yield self
        if self._error is not None:
            raise self._error
        return self._value


class VirtualTask(VirtualFuture):
    """A coroutine under way; awaiting it gives what it returns."""

    __slots__ = ("ended", "send", "waits_for", "work")

    def __init__(self, ready: deque[VirtualTask | Errand], work: Coro[Any], name: str) -> None:
        self.label = name
        self._ready = ready
        self._done = False
        self._value = self._error = self._waiters = None
        self.work = work
        self.send = work.send
        self.waits_for: str | None = None
        #: Told when the coroutine is over.
        self.ended: Callable[[VirtualTask], None] | None = None


class Errand(Protocol):
    """What the clock runs without a coroutine; nobody awaits it, and what it raises ends the run."""

    def send(self, value: None, /) -> int | None:
        """Go on; give the time at which to go on again, or None: not before somebody starts it."""


class VirtualKernel:
    """A clock that never waits, and the tasks that live by it."""

    def __init__(self, watch: Callable[[], None] | None = None) -> None:
        self.time = 0
        #: Called about once a second of wall time, between two events.
        self.watch = watch
        self.watch_seconds = 1.0
        self._is_cancelled = False
        self.ready: deque[VirtualTask | Errand] = deque()
        #: Times at which somebody wakes, as a heap; and who does: one, or a list in the order of their asking.
        #: Whole ranks of sleepers wake together (after a barrier): they share a time, and the heap stays small.
        self._times: list[int] = []
        self._sleepers: dict[int, Any] = {}
        self._alive: set[VirtualTask] = set()

    def now(self) -> int:
        """The nanoseconds since the simulation began."""
        return self.time

    @coroutine
    def sleep_until(self, deadline: int) -> Generator[int, None, None]:
        """Return at ``deadline``."""
        if deadline > self.time:
            yield deadline

    def future(self, label: str) -> VirtualFuture:
        """Make a future whose label shows in a deadlock report."""
        return VirtualFuture(self.ready, label)

    def answer_at(self, future: VirtualFuture, value: Any, deadline: int) -> None:
        """Set a future's value now, for who waits to go on at ``deadline``: as if each slept until then by itself."""
        waiters, future._waiters = future._waiters, None
        future.set_result(value)
        if waiters is not None:
            self.spawn(self._sleep_on(waiters if type(waiters) is list else [waiters], deadline), future.label)

    async def _sleep_on(self, tasks: list[VirtualTask], deadline: int) -> None:
        """Have tasks sleep that were to be woken."""
        if deadline <= self.time:
            self.ready.extend(tasks)
            return
        others = self._sleepers.get(deadline)
        if others is None:
            self._sleepers[deadline] = tasks
            heappush(self._times, deadline)
        elif type(others) is list:
            others.extend(tasks)
        else:
            self._sleepers[deadline] = [others, *tasks]

    def spawn(self, work: Coro[T], name: str) -> Awaitable[T]:
        """Start ``work``: it runs when the caller next waits."""
        task = VirtualTask(self.ready, work, name)
        self._alive.add(task)
        self.ready.append(task)
        return cast("Awaitable[T]", task)

    def start(self, errand: Errand) -> None:
        """Have an errand run in its turn, as if it were a task that was spawned."""
        self.ready.append(errand)

    async def gather(self, *work: Coro[T]) -> list[T]:
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

    def cancel(self) -> None:
        """Have :meth:`run` raise KeyboardInterrupt between two events, soon."""
        self._is_cancelled = True

    def run(self, main: Coro[T]) -> T:
        """Run ``main`` to its end and return its result; whatever else is under way then is dropped.

        Raises:
            KeyboardInterrupt: :meth:`cancel` was called.
            DeadlockError: everybody waits and no timer is set.
        """
        collecting = gc.isenabled()
        gc.disable()  # half of the time of a million-span simulation otherwise
        try:
            task = cast("VirtualTask", self.spawn(main, "main"))
            self._live(task)
            if task._error is not None:
                raise task._error
            return cast("T", task._value)
        finally:
            for left in self._alive:
                left.work.close()
            self._alive.clear()
            if collecting:
                if not gc.get_freeze_count():  # make all that is here old: the next collection need not go through it
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()

    def _live(self, main: VirtualTask) -> None:
        """Let everybody run until ``main`` is over: who is ready, then who is due, then who is due next."""
        ready, times, sleepers, alive = self.ready, self._times, self._sleepers, self._alive
        due: deque[Any] = deque()
        task: Any
        events, watched = 0, time.monotonic()
        while not main._done:
            if ready:
                task = ready.popleft()
            elif due:
                task = due.popleft()
            elif times:
                self.time = now = heappop(times)
                if now > MAX_NS:
                    raise RunError(
                        "the virtual clock came to 146 years, which is all it has: a time drawn was too long"
                    )
                task = sleepers.pop(now)
                if type(task) is list:
                    due.extend(task)
                    continue
            else:
                raise DeadlockError(self._who_waits())
            events += 1
            if events & 0xFFF == 0:
                if self._is_cancelled:
                    raise KeyboardInterrupt
                if self.watch is not None and time.monotonic() - watched > self.watch_seconds:
                    self.watch()
                    watched = time.monotonic()
            try:
                asked: Any = task.send(None)
            except StopIteration as stop:
                alive.discard(task)
                task.set_result(stop.value)
            except Exception as error:
                if type(task) is not VirtualTask:
                    raise
                alive.discard(task)
                task.set_exception(error)
            else:
                if type(asked) is int:
                    others = sleepers.get(asked)
                    if others is None:
                        sleepers[asked] = task
                        heappush(times, asked)
                    elif type(others) is list:
                        others.append(task)
                    else:
                        sleepers[asked] = [others, task]
                elif asked is not None:
                    task.waits_for = asked.label
                    if asked._waiters is None:
                        asked._waiters = task
                    elif type(asked._waiters) is list:
                        asked._waiters.append(task)
                    else:
                        asked._waiters = [asked._waiters, task]
                continue
            if task.ended is not None:
                task.ended(task)

    def _who_waits(self) -> str:
        waiting = sorted(f"{t.label} for {t.waits_for}" for t in self._alive if t.waits_for and t.label != "main")
        more = f" and {len(waiting) - 8} more" if len(waiting) > 8 else ""
        return f"deadlock at {self.time / 1e9:.3f} s: waiting are {', '.join(waiting[:8])}{more}"
