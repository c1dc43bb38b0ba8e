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


def test_those_who_wake_at_one_time_wake_in_the_order_of_their_asking_each_with_what_follows_from_it() -> None:
    kernel, log = VirtualKernel(), []

    async def follower(name: str) -> None:
        log.append((f"after {name}", kernel.now()))

    async def sleeper(name: str, first: int, last: int) -> None:
        await kernel.sleep_until(first)
        await kernel.sleep_until(last)
        log.append((name, kernel.now()))
        kernel.spawn(follower(name), name)
        await kernel.sleep_until(last)

    kernel.run(kernel.gather(sleeper("c", 3, 9), sleeper("a", 1, 9), sleeper("b", 2, 9), sleeper("late", 1, 10)))
    assert log == [
        ("a", 9), ("after a", 9), ("b", 9), ("after b", 9), ("c", 9), ("after c", 9), ("late", 10), ("after late", 10),
    ]  # fmt: skip


def test_an_interrupt_closes_everybody_and_is_raised() -> None:
    kernel, closed = VirtualKernel(), []

    async def sleeper(name: str) -> None:
        try:
            await kernel.sleep_until(100)
        finally:
            closed.append(name)

    async def interrupts() -> None:
        await kernel.sleep_until(5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kernel.run(kernel.gather(sleeper("a"), sleeper("b"), interrupts()))
    assert sorted(closed) == ["a", "b"]


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
