"""The order in which a worker serves calls that come through in any order."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from rayio.engines.ray.transport.turns import Turns

T = TypeVar("T")
PATIENCE = 0.5


class Jumping(selectors.SelectSelector):
    """Waits for nothing: the clock of its loop goes to where the wait would end."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nobody is due, and nobody ever will be"
        self.now += timeout
        return super().select(0)


def played(scene: Coroutine[Any, Any, T]) -> T:
    """Play a scene on a clock that jumps to whoever is due next: it shows what the machine cannot delay."""
    selector = Jumping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        return loop.run_until_complete(scene)
    finally:
        loop.close()


async def call(turns: Turns, turn: int, served: list[int], seconds: float = 0.0) -> None:
    async with turns.of(turn):
        served.append(turn)
        await asyncio.sleep(seconds)
        assert served[-1] == turn, "two calls were let in at once"


def arriving(order: list[int], turns: Turns, gap: float = 0.0, seconds: float = 0.0) -> tuple[list[int], float]:
    """Let calls arrive one after the other; give the order they were served in, and how long that took."""

    async def scene() -> tuple[list[int], float]:
        served: list[int] = []
        loop = asyncio.get_running_loop()
        began, tasks = loop.time(), []
        for turn in order:
            tasks.append(loop.create_task(call(turns, turn, served, seconds)))
            await asyncio.sleep(gap)
        await asyncio.gather(*tasks)
        return served, loop.time() - began

    return played(scene())


@pytest.mark.parametrize("seed", range(20))
def test_calls_that_overtook_each_other_are_served_in_their_order(seed: int) -> None:
    order = list(range(30))
    random.Random(seed).shuffle(order)
    assert arriving(order, Turns(PATIENCE), seconds=0.0001)[0] == sorted(order)


def test_a_free_worker_waits_for_the_call_before_the_one_that_is_here() -> None:
    served, seconds = arriving([1, 0], Turns(PATIENCE), gap=0.005)
    assert served == [0, 1]
    assert seconds == pytest.approx(2 * 0.005)


def test_calls_in_order_wait_for_nothing() -> None:
    assert arriving([0, 1, 2, 3], Turns(PATIENCE)) == ([0, 1, 2, 3], 0)


def test_a_restarted_worker_serves_what_is_sent_to_it_again_after_some_patience() -> None:
    served, seconds = arriving([58, 57, 59], Turns(PATIENCE))
    assert served == [57, 58, 59]
    assert seconds == pytest.approx(PATIENCE), "given up once"


def test_a_restarted_sender_counts_from_nought_again_and_is_served_at_once() -> None:
    turns = Turns(PATIENCE)
    assert arriving([0, 1, 2, 3], turns)[0] == [0, 1, 2, 3]
    assert arriving([0, 1, 2], turns) == ([0, 1, 2], 0)


def test_a_call_that_never_comes_costs_its_patience_once() -> None:
    served, seconds = arriving([0, 2, 3, 4], Turns(PATIENCE))
    assert served == [0, 2, 3, 4]
    assert seconds == pytest.approx(PATIENCE), "given up once"


def test_a_call_that_fails_lets_the_next_one_in() -> None:
    async def scene() -> list[int]:
        turns, served = Turns(PATIENCE), list[int]()

        async def fail() -> None:
            async with turns.of(0):
                await asyncio.sleep(0.001)
                raise OSError("no file")

        failed, after = asyncio.gather(fail(), return_exceptions=True), asyncio.create_task(call(turns, 1, served))
        assert isinstance((await failed)[0], OSError)
        await after
        return served

    assert played(scene()) == [1]


@pytest.mark.parametrize("is_let_in", [False, True])
def test_a_call_that_is_cancelled_keeps_nobody_waiting(is_let_in: bool) -> None:
    async def scene() -> list[int]:
        turns, served = Turns(PATIENCE), list[int]()
        async with turns.of(0):
            cancelled = asyncio.create_task(call(turns, 1, served))
            last = asyncio.create_task(call(turns, 2, served))
            await asyncio.sleep(0)
            if not is_let_in:
                cancelled.cancel()
        cancelled.cancel()  # no wait since the line above: it is let in, and has not run yet
        await asyncio.wait_for(last, 10 * PATIENCE)
        return served

    assert played(scene()) == [2]
