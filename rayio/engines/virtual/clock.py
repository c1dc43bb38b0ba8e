"""The virtual clock: the same roles on a clock that jumps to the next timer, so hours pass in milliseconds.

Roles on it never touch asyncio: a task is a coroutine, a wake-up time is a number in a heap, and ready tasks run in the
order in which they became ready. So a simulation is deterministic. If no task is ready and no timer is set, it raises a
deadlock instead of hanging. A task that knows its next time needs no coroutine: it is an errand.

Code that runs for every event is written for speed: few calls, few objects, and little memory per rank.
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

#: The end of the virtual clock: times of spans have 64 bits.
MAX_NS = 1 << 62
#: New objects, made while nothing was collected, that the next collection should not look through.
_MANY = 20_000


class DeadlockError(RunError):
    """Every role waits and no timer is set: nothing can happen any more."""


class VirtualFuture:
    """A future on the virtual clock."""

    __slots__ = ("_done", "_error", "_is_raised", "_ready", "_value", "_waiters", "label")

    def __init__(self, ready: deque[VirtualTask | Errand], label: str) -> None:
        self.label = label
        self._ready = ready
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        #: A task, a list of tasks, or None.
        self._waiters: Any = None

    def done(self) -> bool:
        """Return True if the value or the error is set."""
        return self._done

    def set_result(self, value: Any) -> None:
        """Set the value; waiters run next, in the order of their waiting."""
        self._done, self._value = True, value
        if self._waiters is not None:
            self._wake()

    def set_exception(self, error: BaseException) -> None:
        """Set an error, which every waiter raises."""
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
            self._is_raised = True
            raise self._error
        return self._value


class VirtualTask(VirtualFuture):
    """A running coroutine; awaiting it returns its result."""

    __slots__ = ("ended", "send", "waits_for", "work")

    def __init__(self, ready: deque[VirtualTask | Errand], work: Coro[Any], name: str) -> None:
        self.label = name
        self._ready = ready
        self._done = False
        self._value = self._error = self._waiters = None
        self._is_raised = False
        self.work = work
        self.send = work.send
        self.waits_for: str | None = None
        #: Called when the coroutine ends.
        self.ended: Callable[[VirtualTask], None] | None = None


class Errand(Protocol):
    """Work without a coroutine; nobody awaits it, and its errors end the run."""

    def send(self, value: None, /) -> int | None:
        """Continue; return the next time (ns) to continue, or None to wait for a new start."""


class Stop:
    """An errand that ends a cancelled simulation."""

    def send(self, value: None, /) -> int | None:
        """Raise KeyboardInterrupt."""
        raise KeyboardInterrupt


class VirtualKernel:
    """A clock that never waits, and its tasks."""

    def __init__(self, watch: Callable[[], None] | None = None) -> None:
        self.time = 0
        #: Called about once a second of wall time, between two events.
        self.watch = watch
        self.watch_seconds = 1.0
        self._is_cancelled = False
        self.ready: deque[VirtualTask | Errand] = deque()
        #: Wake-up times, as a heap; and the sleepers of each: a task, or a list in the order of their calls.
        #: Whole ranks of sleepers wake together (after a barrier): they share a time, and the heap stays small.
        self._times: list[int] = []
        self._sleepers: dict[int, Any] = {}
        self._alive: set[VirtualTask] = set()
        #: Tasks with an error that nobody awaited when it came.
        self._failed: list[VirtualTask] = []

    def now(self) -> int:
        """Return the nanoseconds since the simulation began."""
        return self.time

    @coroutine
    def sleep_until(self, deadline: int) -> Generator[int, None, None]:
        """Sleep until ``deadline`` (ns)."""
        if deadline > self.time:
            yield deadline

    def future(self, label: str) -> VirtualFuture:
        """Return a future whose label appears in deadlock reports."""
        return VirtualFuture(self.ready, label)

    def answer_at(self, future: VirtualFuture, value: Any, deadline: int) -> None:
        """Set a future's value now; its waiters continue at ``deadline``, as if each slept until then."""
        waiters, future._waiters = future._waiters, None
        future.set_result(value)
        if waiters is not None:
            self.spawn(self._sleep_on(waiters if type(waiters) is list else [waiters], deadline), future.label)

    async def _sleep_on(self, tasks: list[VirtualTask], deadline: int) -> None:
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
        """Run an errand in its turn, like a spawned task."""
        self.ready.append(errand)

    async def gather(self, *work: Coro[T]) -> list[T]:
        """Run coroutines concurrently; the first error is raised at once, and the kernel drops the others."""
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
        for each in work:
            task = cast("VirtualTask", self.spawn(each, getattr(each, "__qualname__", "task")))
            task.ended = ended
            tasks.append(task)
        if tasks:
            await finished
        return [task._value for task in tasks]

    async def threaded(self, function: Callable[[], T]) -> T:
        """Run ``function`` in no time."""
        return function()

    async def burn(self, seconds: float) -> None:
        """Take ``seconds``: without modelled cores there is one for each."""
        await self.sleep_until(self.now() + round(seconds * 1e9))

    def cancel(self) -> None:
        """Make :meth:`run` raise KeyboardInterrupt before the next event."""
        self._is_cancelled = True
        self.ready.appendleft(Stop())

    def check(self) -> None:
        """Raise if :meth:`cancel` was called, inside an event that takes long.

        Raises:
            KeyboardInterrupt: it was.
        """
        if self._is_cancelled:
            raise KeyboardInterrupt

    def run(self, main: Coro[T]) -> T:
        """Run ``main`` to its end and return its result; other tasks are dropped then.

        Raises:
            KeyboardInterrupt: :meth:`cancel` was called.
            DeadlockError: every task waits and no timer is set.
            Exception: the error of ``main``, or else the first one of a task that nobody awaited.
        """
        collecting = gc.isenabled()
        gc.disable()  # it would take half of the time of a million-span simulation
        try:
            task = cast("VirtualTask", self.spawn(main, "main"))
            self._live(task)
            for failed in (task, *self._failed):
                if failed._error is not None and not failed._is_raised:
                    raise failed._error
            return cast("T", task._value)
        finally:
            for left in self._alive:
                left.work.close()
            self._alive.clear()
            self._failed.clear()
            if collecting:
                # Mark all objects old, which the next collection skips. To count what a program has frozen takes 20 ms
                # for a million objects, so a small simulation leaves its own to the collection.
                if gc.get_count()[0] > _MANY and not gc.get_freeze_count():
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()

    def _live(self, main: VirtualTask) -> None:
        """Run tasks until ``main`` ends: ready ones, then due ones, then the next due ones."""
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
                    raise RunError("the virtual clock reached its end, 146 years: a drawn time was too long")
                task = sleepers.pop(now)
                if type(task) is list:
                    due.extend(task)
                    continue
            else:
                raise DeadlockError(self._who_waits())
            events += 1
            if events & 0xFFF == 0 and self.watch is not None and time.monotonic() - watched > self.watch_seconds:
                self.watch()
                watched = time.monotonic()
            try:
                awaited: Any = task.send(None)
            except StopIteration as stop:
                alive.discard(task)
                task.set_result(stop.value)
            except Exception as error:
                if type(task) is not VirtualTask:
                    raise
                alive.discard(task)
                if task.ended is None and task._waiters is None:
                    self._failed.append(task)
                task.set_exception(error)
            else:
                if type(awaited) is int:
                    others = sleepers.get(awaited)
                    if others is None:
                        sleepers[awaited] = task
                        heappush(times, awaited)
                    elif type(others) is list:
                        others.append(task)
                    else:
                        sleepers[awaited] = [others, task]
                elif awaited is not None:
                    task.waits_for = awaited.label
                    if awaited._waiters is None:
                        awaited._waiters = task
                    elif type(awaited._waiters) is list:
                        awaited._waiters.append(task)
                    else:
                        awaited._waiters = [awaited._waiters, task]
                continue
            if task.ended is not None:
                task.ended(task)

    def _who_waits(self) -> str:
        waiting = sorted(f"{t.label} for {t.waits_for}" for t in self._alive if t.waits_for and t.label != "main")
        more = f" and {len(waiting) - 8} more" if len(waiting) > 8 else ""
        return f"deadlock at {self.time / 1e9:.3f} s: waiting are {', '.join(waiting[:8])}{more}"
