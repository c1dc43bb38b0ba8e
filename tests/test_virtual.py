from __future__ import annotations

import pytest

from rayio.pipeline.virtual import DeadlockError, VirtualKernel


def test_a_sleep_takes_no_time_and_the_clock_shows_it() -> None:
    kernel = VirtualKernel()

    async def main() -> int:
        await kernel.sleep_until(3_600_000_000_000)
        return kernel.now()

    assert kernel.run(main()) == 3_600_000_000_000


def test_whoever_is_due_first_runs_first_and_ties_keep_their_order() -> None:
    kernel, log = VirtualKernel(), []

    async def sleeper(name: str, until: int) -> None:
        await kernel.sleep_until(until)
        log.append((name, kernel.now()))

    kernel.run(kernel.gather(sleeper("late", 9), sleeper("a", 5), sleeper("b", 5)))
    assert log == [("a", 5), ("b", 5), ("late", 9)]


def test_a_future_wakes_every_waiter_in_order() -> None:
    kernel, log = VirtualKernel(), []
    future = kernel.future("news")

    async def waiter(name: str) -> None:
        log.append((name, await future))

    async def teller() -> None:
        await kernel.sleep_until(7)
        future.set_result("good")

    kernel.run(kernel.gather(waiter("a"), waiter("b"), teller()))
    assert log == [("a", "good"), ("b", "good")]


def test_a_deadlock_is_raised_with_who_waits_for_what() -> None:
    kernel = VirtualKernel()

    async def starving() -> None:
        await kernel.future("a batch that never comes")

    async def main() -> None:
        await kernel.spawn(starving(), "rank-0")

    with pytest.raises(DeadlockError, match="rank-0 for a batch that never comes"):
        kernel.run(main())


def test_the_first_error_of_a_gathering_is_raised_at_once() -> None:
    kernel = VirtualKernel()

    async def fails() -> None:
        await kernel.sleep_until(5)
        raise ValueError("broken")

    async def long() -> None:
        await kernel.sleep_until(1_000)

    async def main() -> int:
        with pytest.raises(ValueError, match="broken"):
            await kernel.gather(long(), fails())
        return kernel.now()

    assert kernel.run(main()) == 5


def test_gathering_nothing_gives_nothing() -> None:
    kernel = VirtualKernel()
    assert kernel.run(kernel.gather()) == []


def test_a_watch_is_called_while_a_long_simulation_runs() -> None:
    calls: list[int] = []
    kernel = VirtualKernel(lambda: calls.append(1))
    kernel.watch_seconds = 0.0

    async def main() -> None:
        for n in range(10_000):
            await kernel.sleep_until(n)

    kernel.run(main())
    assert calls
