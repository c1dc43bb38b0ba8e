"""What every kernel promises, and what only the wall clock's does: threads, cancelling, a shared anchor."""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Never, TypeVar

import pytest

from rayio.engines.ray.actors import shells
from rayio.engines.virtual.clock import VirtualKernel
from rayio.machine import timers
from rayio.model.cpu_account import Stopwatch
from rayio.model.kernel import BlockingKernel, Future, Kernel, WallKernel

T = TypeVar("T")

Story = Callable[[Kernel], Coroutine[Any, Any, T]]
Live = Callable[[Story[Any]], Any]


def on_the_wall_clock(story: Story[T]) -> T:
    async def main() -> T:
        kernel = WallKernel()
        try:
            return await story(kernel)
        finally:
            await kernel.cancel()

    return asyncio.run(main())


def alone_on_the_wall_clock(story: Story[T]) -> T:
    async def main() -> T:
        kernel = WallKernel(alone=True)
        try:
            return await story(kernel)
        finally:
            await kernel.cancel()

    return asyncio.run(main())


def punctual_on_the_wall_clock(story: Story[T]) -> T:
    async def main() -> T:
        kernel = WallKernel(alone=True, punctual=True)
        try:
            return await story(kernel)
        finally:
            await kernel.cancel()

    return asyncio.run(main())


def on_the_virtual_clock(story: Story[T]) -> T:
    kernel = VirtualKernel()
    return kernel.run(story(kernel))


every_kernel = pytest.mark.parametrize(
    "live", [on_the_wall_clock, alone_on_the_wall_clock, punctual_on_the_wall_clock, on_the_virtual_clock]
)


@every_kernel
def test_gathering_gives_values_in_the_order_of_the_work_not_of_its_ends(live: Live) -> None:
    async def story(kernel: Kernel) -> tuple[list[int], list[int]]:
        ended: list[int] = []

        async def work(number: int) -> int:
            await kernel.sleep_until(kernel.now() + (3 - number) * 3_000_000)
            ended.append(number)
            return number

        return await kernel.gather(*(work(n) for n in range(3))), ended

    values, ended = live(story)
    assert values == [0, 1, 2]
    assert sorted(ended) == [0, 1, 2]


@every_kernel
def test_gathering_nothing_gives_nothing(live: Live) -> None:
    assert live(lambda kernel: kernel.gather()) == []


@every_kernel
def test_the_first_error_of_a_gathering_is_raised_and_what_waits_is_not_waited_for(live: Live) -> None:
    async def story(kernel: Kernel) -> list[str]:
        async def fails() -> None:
            await kernel.sleep_until(kernel.now() + 1)
            raise ValueError("broken")

        async def waits() -> None:
            await kernel.future("news that never comes")

        with pytest.raises(ValueError, match="broken"):
            await kernel.gather(waits(), fails(), waits())
        return ["went on"]

    assert live(story) == ["went on"]


@every_kernel
def test_an_error_raised_before_the_first_wait_is_raised_too(live: Live) -> None:
    async def story(kernel: Kernel) -> None:
        async def fails() -> None:
            raise ValueError("broken at once")

        async def fine() -> None:
            pass

        await kernel.gather(fine(), fails(), fine())

    with pytest.raises(ValueError, match="broken at once"):
        live(story)


@every_kernel
def test_a_future_gives_its_value_to_all_who_wait_and_to_all_who_come_later(live: Live) -> None:
    async def story(kernel: Kernel) -> list[str]:
        future = kernel.future("news")

        async def waits() -> str:
            return str(await future)

        async def tells() -> str:
            assert not future.done()
            future.set_result("good")
            assert future.done()
            return "told"

        return [*await kernel.gather(waits(), waits(), tells()), await waits()]

    assert live(story) == ["good", "good", "told", "good"]


@every_kernel
def test_a_futures_error_is_raised_in_all_who_wait(live: Live) -> None:
    async def story(kernel: Kernel) -> int:
        future = kernel.future("news")
        caught = 0

        async def waits() -> None:
            nonlocal caught
            with pytest.raises(ValueError, match="bad news"):
                await future
            caught += 1

        async def tells() -> None:
            future.set_exception(ValueError("bad news"))

        await kernel.gather(waits(), waits(), tells())
        return caught

    assert live(story) == 2


@every_kernel
def test_what_is_spawned_runs_beside_the_caller_and_can_be_awaited(live: Live) -> None:
    async def story(kernel: Kernel) -> tuple[list[str], str]:
        log: list[str] = []

        async def beside() -> str:
            log.append("beside")
            return "done"

        task = kernel.spawn(beside(), "beside")
        log.append("caller")
        return log, await task

    assert live(story) == (["caller", "beside"], "done")


@every_kernel
def test_the_clock_never_steps_back_and_a_sleep_ends_at_its_deadline_or_later(live: Live) -> None:
    async def story(kernel: Kernel) -> bool:
        deadline = kernel.now() + 3_000_000
        await kernel.sleep_until(deadline)
        woken = kernel.now()
        await kernel.sleep_until(deadline - 1)
        return deadline <= woken <= kernel.now()

    assert live(story)


@every_kernel
def test_threaded_gives_what_the_function_gives_and_raises_what_it_raises(live: Live) -> None:
    async def story(kernel: Kernel) -> int:
        def fails() -> Never:
            raise OSError("no such disk")

        with pytest.raises(OSError, match="no such disk"):
            await kernel.threaded(fails)
        return await kernel.threaded(lambda: 7)

    assert live(story) == 7


def test_on_the_wall_clock_an_error_cancels_the_others_and_waits_for_their_ends() -> None:
    async def story(kernel: Kernel) -> list[str]:
        log: list[str] = []

        async def waits() -> None:
            try:
                await kernel.future("news that never comes")
            finally:
                log.append("cleaned up")

        async def fails() -> None:
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            await kernel.gather(waits(), waits(), fails())
        return list(log)

    assert on_the_wall_clock(story) == ["cleaned up"] * 2


def test_on_the_wall_clock_cancelling_a_gathering_cancels_what_it_gathers() -> None:
    async def story(kernel: Kernel) -> list[str]:
        log: list[str] = []

        async def waits(begun: Future) -> None:
            try:
                begun.set_result(None)
                await kernel.future("news that never comes")
            except asyncio.CancelledError:
                log.append("cancelled")
                raise

        begun = [kernel.future("a beginning") for _ in range(2)]
        gathering = asyncio.ensure_future(kernel.gather(*map(waits, begun)))
        for beginning in begun:
            await beginning
        gathering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gathering
        return list(log)

    assert on_the_wall_clock(story) == ["cancelled"] * 2


def test_on_the_wall_clock_blocking_functions_run_side_by_side_and_off_the_loop() -> None:
    async def main() -> set[int]:
        kernel = WallKernel(threads=3)
        together = threading.Barrier(3)

        def meets() -> int:
            together.wait(30)  # breaks unless all three are there
            return threading.get_ident()

        try:
            return set(await kernel.gather(*(kernel.threaded(meets) for _ in range(3))))
        finally:
            await kernel.cancel()

    threads = asyncio.run(main())
    assert len(threads) == 3
    assert threading.get_ident() not in threads


def test_on_the_wall_clock_without_threads_blocking_functions_run_in_place() -> None:
    async def main() -> int:
        return await WallKernel(threads=0).threaded(threading.get_ident)

    assert asyncio.run(main()) == threading.get_ident()


def test_cancelling_the_wall_clocks_kernel_ends_what_was_spawned_and_its_threads() -> None:
    async def main() -> list[str]:
        kernel, log = WallKernel(), []

        async def waits() -> None:
            try:
                await kernel.future("news that never comes")
            finally:
                log.append("ended")

        async def fails() -> None:
            raise ValueError("nobody asked")

        kernel.spawn(waits(), "waits")
        kernel.spawn(fails(), "fails")
        await asyncio.sleep(0)
        await kernel.cancel()
        with pytest.raises(RuntimeError, match="after shutdown"):
            await kernel.threaded(lambda: 1)
        return list(log)

    assert asyncio.run(main()) == ["ended"]


def test_kernels_that_share_an_anchor_share_a_clock() -> None:
    one, other = WallKernel(anchor=5), WallKernel(anchor=5)
    before = time.perf_counter_ns()
    times = [one.now(), other.now(), one.now()]
    after = time.perf_counter_ns()
    assert [before + 5, *times, after + 5] == sorted([before + 5, *times, after + 5])


def test_without_an_anchor_the_clock_counts_from_the_unix_epoch() -> None:
    kernel = WallKernel()
    assert abs(kernel.now() - time.time_ns()) < 60 * 10**9


@pytest.mark.skipif(sys.platform != "linux", reason="timer slack is Linux's")
def test_a_role_that_is_alone_has_its_thread_woken_as_early_as_the_kernel_can() -> None:
    slack: dict[str, int] = {}

    def live(name: str, kernel: WallKernel) -> None:
        async def sleep() -> None:
            await kernel.sleep_until(kernel.now() + 1_000_000)
            slack[name] = ctypes.CDLL(None).prctl(30, 0, 0, 0, 0)  # PR_GET_TIMERSLACK, of this thread

        asyncio.run(sleep())

    kernels = {"alone": WallKernel(alone=True), "blocking": BlockingKernel(), "shared": WallKernel()}
    for name, kernel in kernels.items():
        thread = threading.Thread(target=live, args=(name, kernel))
        thread.start()
        thread.join()
    assert slack["alone"] == slack["blocking"] == 1
    assert slack["shared"] == ctypes.CDLL(None).prctl(30, 0, 0, 0, 0)


class Machine:
    """A clock that only sleeps and looks at it move, and that wakes sleepers late."""

    def __init__(self, late: Callable[[int], int]) -> None:
        self.now, self.worked, self.slept, self._late = 10**9, 0, 0, late

    def perf_counter_ns(self) -> int:
        self.now += 100
        self.worked += 100
        return self.now

    def thread_time_ns(self) -> int:
        return self.worked

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.now += round(seconds * 1e9) + self._late(self.slept)


def ends(machine: Machine, monkeypatch: pytest.MonkeyPatch, sleeps: int) -> tuple[timers.Punctual, list[int]]:
    """How late each of some sleeps of 10 ms ended, in ns."""
    monkeypatch.setattr(timers, "time", machine)
    punctual, late = timers.Punctual(), []
    for _ in range(sleeps):
        deadline = machine.now + 10_000_000
        punctual.sleep_until(deadline)
        late.append(machine.now - deadline)
    return punctual, late


def test_who_is_punctual_wakes_up_as_much_earlier_as_it_was_late_and_never_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(lambda _: 70_000)
    punctual, late = ends(machine, monkeypatch, 400)
    assert min(late) >= 0
    assert max(late[:3]) > 30_000
    assert sorted(late[100:])[int(300 * 0.85)] < 1_000, "nine in ten end in time"
    assert 0 < punctual.awake_ns < 400 * 30_000, "and are awake for little more than what others are late by"


def test_rare_late_wake_ups_keep_nobody_awake_and_frequent_ones_to_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    rare, _ = ends(Machine(lambda n: 150_000 if n % 20 == 0 else 0), monkeypatch, 400)
    assert rare.early_ns <= 2 * timers.LATER_NS
    often, late = ends(Machine(lambda n: 190_000 if n % 3 else 20_000), monkeypatch, 400)
    assert timers.MOST_AWAKE_NS - timers.LATER_NS < often.early_ns <= timers.MOST_AWAKE_NS
    assert max(late[100:]) < timers.LATER_NS


def test_who_waits_for_a_processor_does_not_wait_awake_too(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, late = ends(Machine(lambda n: 3_000_000 if n % 10 else 0), monkeypatch, 400)
    assert busy.early_ns <= timers.LATER_NS
    assert busy.awake_ns <= 40 * timers.LATER_NS
    assert sum(one > 2_900_000 for one in late) == 360


def test_what_a_punctual_role_waits_awake_is_no_work_of_its() -> None:
    punctual = timers.Punctual()
    punctual.early_ns = 20_000_000
    stopwatch, whole = Stopwatch("rank", punctual=punctual), Stopwatch("rank")
    stopwatch.begin()
    whole.begin()
    for _ in range(200):  # a busy machine may take the processor away in the middle of a sleep
        punctual.sleep_until(time.perf_counter_ns() + 20_000_000)
        if punctual.awake_ns > 5_000_000:
            break
    mine, every = stopwatch.read(), whole.read()
    assert mine is not None
    assert every is not None
    assert punctual.awake_ns > 5_000_000
    assert every.seconds - mine.seconds == pytest.approx(punctual.awake_ns / 1e9, abs=0.002)


def test_ranks_are_punctual_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(timers.Punctual, "sleep_until", lambda self, deadline: asked.append(deadline))
    kernel = WallKernel(anchor=1000, alone=True, punctual=True)
    deadline = kernel.now() + 1_000_000
    asyncio.run(kernel.sleep_until(deadline))
    assert asked == [deadline - 1000], "by the clock that it looks at"
    assert WallKernel(alone=True).punctual is None
    kinds = [kind for kind in vars(shells).values() if isinstance(kind, type) and issubclass(kind, shells.Host)]
    assert [kind for kind in kinds if kind.keeps_steps] == [shells.TrainerRank]
