from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayio.engines.virtual.clock import DeadlockError, VirtualFuture, VirtualKernel
from rayio.model.barrier import Barrier, BarrierState
from rayio.model.kernel import Future


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


def test_a_cancelled_simulation_ends_before_its_next_event() -> None:
    """An event may take a second, so the next look at every few thousand of them would be hours away."""
    kernel, events = VirtualKernel(), []

    async def steps() -> None:
        for step in range(10_000):
            events.append(step)
            if step == 3:
                kernel.cancel()
            await kernel.sleep_until(step)

    with pytest.raises(KeyboardInterrupt):
        kernel.run(steps())
    assert events == [0, 1, 2, 3]
    with pytest.raises(KeyboardInterrupt):
        kernel.check()


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


@given(
    # Without any compute several steps share an instant, and within it the order may differ.
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=4),
    st.integers(0, 2),
)
def test_ranks_answered_with_the_time_at_which_they_go_on_run_as_if_each_slept_until_then(
    ranks: list[tuple[int, int]], others: list[tuple[int, int]], after: int
) -> None:
    def told(*, sleeping_on: bool) -> list[tuple[str, int]]:
        kernel, log = VirtualKernel(), []

        def answer(future: Future, latest: int, meeting: tuple[int, int, int]) -> None:
            if sleeping_on:
                kernel.answer_at(cast("VirtualFuture", future), latest, latest + after)
            else:
                future.set_result(latest)

        barrier = Barrier(kernel, BarrierState(lambda epoch, step, group: len(ranks)), answer=answer)

        async def beside(name: str, begin: int, end: int) -> None:
            await kernel.sleep_until(begin)
            log.append((name, kernel.now()))
            await kernel.sleep_until(end)
            log.append((name, kernel.now()))

        async def rank(number: int, arrives: int, computes: int) -> None:
            for step in range(3):
                await kernel.sleep_until(kernel.now() + arrives)
                kernel.spawn(beside(f"reader {number}", kernel.now(), kernel.now() + computes), "reader")
                latest = await barrier.announce(number, 0, step, 0, kernel.now() + computes)
                await kernel.sleep_until(latest + after)
                log.append((f"rank {number}", kernel.now()))

        lives = [rank(number, *times) for number, times in enumerate(ranks)]
        kernel.run(kernel.gather(*lives, *(beside(f"other {n}", *times) for n, times in enumerate(others))))
        return log

    assert told(sleeping_on=True) == told(sleeping_on=False)


class Errands:
    """Goes on at each of some times, and notes it."""

    def __init__(self, kernel: VirtualKernel, log: list[tuple[str, int]], name: str, *times: int) -> None:
        self.kernel, self.log, self.name, self.times = kernel, log, name, [*times]

    def send(self, _: None) -> int | None:
        self.log.append((self.name, self.kernel.now()))
        if -1 in self.times[:1]:
            raise ValueError("broken")
        return self.times.pop(0) if self.times else None


def test_an_errand_runs_in_its_turn_and_at_every_time_for_which_it_asks() -> None:
    kernel, log = VirtualKernel(), list[tuple[str, int]]()

    async def sleeper() -> None:
        kernel.start(Errands(kernel, log, "errand", 5, 9))
        log.append(("before", kernel.now()))
        await kernel.sleep_until(5)
        log.append(("task", kernel.now()))
        await kernel.sleep_until(20)

    kernel.run(sleeper())
    assert log == [("before", 0), ("errand", 0), ("task", 5), ("errand", 5), ("errand", 9)]


def test_what_an_errand_raises_ends_the_run() -> None:
    kernel = VirtualKernel()

    async def sleeper() -> None:
        kernel.start(Errands(kernel, [], "errand", -1))
        await kernel.sleep_until(100)

    with pytest.raises(ValueError, match="broken"):
        kernel.run(sleeper())


def test_the_error_of_a_task_that_nobody_awaits_ends_the_run_and_that_of_an_awaited_one_does_not() -> None:
    kernel = VirtualKernel()

    async def fails() -> None:
        raise ValueError("lost")

    async def main(awaits: bool) -> str:
        task = kernel.spawn(fails(), "fails")
        await kernel.sleep_until(kernel.now() + 10)
        if awaits:
            with pytest.raises(ValueError, match="lost"):
                await task
        return "done"

    with pytest.raises(ValueError, match="lost"):
        kernel.run(main(False))
    assert kernel.run(main(True)) == "done"
