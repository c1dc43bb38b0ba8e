"""The order in which a worker serves calls that come through in any order."""

from __future__ import annotations

import asyncio
import random

import pytest

from rayio.cluster.turns import Turns

#: Of workers that have to give up; the others' is so long that a test in which they do gives up itself.
PATIENCE = 0.5
LONG = 60.0


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

    return asyncio.run(scene())


@pytest.mark.parametrize("seed", range(20))
def test_calls_that_overtook_each_other_are_served_in_their_order(seed: int) -> None:
    order = list(range(30))
    random.Random(seed).shuffle(order)
    assert arriving(order, Turns(LONG), seconds=0.0001)[0] == sorted(order)


def test_a_free_worker_waits_for_the_call_before_the_one_that_is_here() -> None:
    served, seconds = arriving([1, 0], Turns(LONG), gap=0.005)
    assert served == [0, 1]
    assert seconds < LONG


def test_calls_in_order_wait_for_nothing() -> None:
    served, seconds = arriving([0, 1, 2, 3], Turns(LONG))
    assert served == [0, 1, 2, 3]
    assert seconds < LONG


def test_a_restarted_worker_serves_what_is_sent_to_it_again_after_some_patience() -> None:
    served, seconds = arriving([58, 57, 59], Turns(PATIENCE))
    assert served == [57, 58, 59]
    assert PATIENCE * 0.9 <= seconds < 2 * PATIENCE, "given up once"


def test_a_restarted_sender_counts_from_nought_again_and_is_served_at_once() -> None:
    turns = Turns(LONG)
    assert arriving([0, 1, 2, 3], turns)[0] == [0, 1, 2, 3]
    served, seconds = arriving([0, 1, 2], turns)
    assert served == [0, 1, 2]
    assert seconds < LONG


def test_a_call_that_never_comes_costs_its_patience_once() -> None:
    served, seconds = arriving([0, 2, 3, 4], Turns(PATIENCE))
    assert served == [0, 2, 3, 4]
    assert PATIENCE * 0.9 <= seconds < 2 * PATIENCE, "given up once"


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

    assert asyncio.run(scene()) == [1]


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

    assert asyncio.run(scene()) == [2]
