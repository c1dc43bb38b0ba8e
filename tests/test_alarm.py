"""Exact sleeps of tasks that share a loop; what a timer is set to is read from the kernel (``/proc/self/fdinfo``)."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rayio.machine import alarm as module
from rayio.machine.alarm import Alarm
from rayio.machine.timers import Punctual
from rayio.model.kernel import WallKernel

MS = 1_000_000
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="such timers are Linux's")


def left(timer: int) -> int:
    """Return the nanoseconds until a timer fires, as the kernel has them; 0 if it is not set."""
    found = re.search(r"it_value: \((\d+), (\d+)\)", Path(f"/proc/self/fdinfo/{timer}").read_text())
    assert found is not None
    return int(found[1]) * 1_000_000_000 + int(found[2])


def timers() -> set[int]:
    """Return the timers that this process has open."""
    files = [file for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]  # that of the listing is closed
    return {int(file.name) for file in files if str(file.readlink()).endswith("[timerfd]")}


def with_alarm(work: Callable[[Alarm], Awaitable[None]], punctual: Punctual | None = None) -> None:
    async def main() -> None:
        alarm = Alarm(asyncio.get_running_loop(), punctual)
        await work(alarm)
        alarm.close()

    before = timers()
    asyncio.run(main())
    assert timers() == before


def test_the_timer_is_set_to_the_nanosecond() -> None:
    async def work(alarm: Alarm) -> None:
        deadline = time.perf_counter_ns() + 3_600_123_456_789
        sleeper = asyncio.create_task(alarm.sleep_until(deadline))
        await asyncio.sleep(0)
        most = deadline - time.perf_counter_ns()
        (timer,) = timers()
        found = left(timer)
        least = deadline - time.perf_counter_ns()
        assert least <= found <= most
        sooner = asyncio.create_task(alarm.sleep_until(deadline - 1_000_000_000_001))
        await asyncio.sleep(0)
        assert left(timer) <= most - 1_000_000_000_001
        sleeper.cancel()
        sooner.cancel()

    with_alarm(work)


def test_a_punctual_alarm_is_set_early_by_the_lateness_of_those_before() -> None:
    punctual = Punctual()
    punctual.early_ns = 60_000_000_000

    async def work(alarm: Alarm) -> None:
        deadline = time.perf_counter_ns() + 3_600_000_000_000
        sleeper = asyncio.create_task(alarm.sleep_until(deadline))
        await asyncio.sleep(0)
        most = deadline - punctual.early_ns - time.perf_counter_ns()
        (timer,) = timers()
        assert left(timer) <= most
        sleeper.cancel()

    with_alarm(work, punctual)


@pytest.mark.parametrize("punctual", [False, True])
def test_tasks_wake_in_the_order_of_their_deadlines_and_never_early(punctual: bool) -> None:
    woken = list[int]()

    async def sleep(alarm: Alarm, deadline: int) -> None:
        await alarm.sleep_until(deadline)
        assert time.perf_counter_ns() >= deadline
        woken.append(deadline)

    async def work(alarm: Alarm) -> None:
        begin = time.perf_counter_ns()
        wanted = [begin + place * 7 % 11 * MS + place % 3 for place in range(60)]
        await asyncio.gather(*(sleep(alarm, deadline) for deadline in wanted))
        await sleep(alarm, begin)  # has passed
        late = [deadline for deadline in wanted if deadline > begin + 5 * MS]
        assert [deadline for deadline in woken[:-1] if deadline in late] == sorted(late)
        assert sorted(woken[:-1]) == sorted(wanted)

    with_alarm(work, Punctual() if punctual else None)


def test_a_cancelled_sleep_does_not_end_the_others() -> None:
    async def work(alarm: Alarm) -> None:
        now = time.perf_counter_ns()
        first = asyncio.create_task(alarm.sleep_until(now + 5 * MS))
        second = asyncio.create_task(alarm.sleep_until(now + 10 * MS))
        await asyncio.sleep(0)
        first.cancel()
        await second
        assert first.cancelled()

    with_alarm(work)


def test_a_kernel_makes_no_timer_until_a_role_sleeps_and_closes_it_at_the_end() -> None:
    async def main() -> None:
        kernel, before = WallKernel(), timers()
        await kernel.sleep_until(kernel.now() - 1)
        await kernel.gather(*(kernel.sleep_until(kernel.now() + MS) for _ in range(5)))
        assert len(timers() - before) == 1
        await kernel.cancel()
        assert timers() == before

    asyncio.run(main())


def test_a_kernel_sleeps_in_one_loop_after_another() -> None:
    kernel = WallKernel()
    for _ in range(2):
        deadline = kernel.now() + MS
        asyncio.run(kernel.sleep_until(deadline))
        assert kernel.now() >= deadline


def test_without_such_timers_asyncio_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_library", lambda: None)

    async def work(alarm: Alarm) -> None:
        deadline = time.perf_counter_ns() + 2 * MS
        await alarm.sleep_until(deadline)
        assert time.perf_counter_ns() >= deadline
        assert not timers()

    with_alarm(work)
