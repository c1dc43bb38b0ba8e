from __future__ import annotations

import pytest

from rayio.engines.virtual.clock import VirtualKernel
from rayio.model.barrier import Barrier, BarrierState
from rayio.model.queue import StaleAttemptError


def test_the_last_to_announce_releases_the_step_with_the_latest_deadline() -> None:
    barrier = BarrierState(lambda epoch, step, group: 3)
    assert barrier.arrive(0, (0, 0, 0), 0, 100) == {}
    assert barrier.arrive(1, (0, 0, 0), 0, 300) == {}
    assert barrier.arrive(2, (0, 0, 0), 0, 200) == {(0, 0, 0): 300}


def test_a_repeated_arrival_does_not_count_twice() -> None:
    barrier = BarrierState(lambda epoch, step, group: 2)
    assert barrier.arrive(0, (0, 0, 0), 0, 100) == {}
    assert barrier.arrive(0, (0, 0, 0), 0, 100) == {}
    assert barrier.arrive(1, (0, 0, 0), 0, 50) == {(0, 0, 0): 100}


def test_an_arrival_repeated_after_the_release_gets_the_same_answer() -> None:
    barrier = BarrierState(lambda epoch, step, group: 2)
    barrier.arrive(0, (0, 0, 0), 0, 100)
    assert barrier.arrive(1, (0, 0, 0), 0, 50) == barrier.arrive(0, (0, 0, 0), 0, 100) == {(0, 0, 0): 100}


def test_ranks_with_fewer_steps_are_not_awaited() -> None:
    barrier = BarrierState(lambda epoch, step, group: 2 if step == 0 else 1)
    barrier.arrive(0, (0, 0, 0), 0, 1)
    barrier.arrive(1, (0, 0, 0), 0, 2)
    assert barrier.arrive(0, (0, 1, 0), 0, 3) == {(0, 1, 0): 3}


def test_a_restarted_barrier_frees_a_rank_that_waits_where_others_have_passed() -> None:
    barrier = BarrierState(lambda epoch, step, group: 2)
    assert barrier.arrive(0, (0, 7, 0), 0, 70) == {}  # rank 1 got its answer for step 7 before the restart
    assert barrier.arrive(1, (0, 8, 0), 0, 80) == {(0, 7, 0): 70}


def test_a_rank_that_ran_out_of_steps_does_not_free_those_that_did_not() -> None:
    barrier = BarrierState(
        lambda epoch, step, group: 2 if step == 5 else 3, lambda rank, epoch, step, group: step < 5 or rank != 2
    )
    assert barrier.arrive(0, (0, 5, 0), 0, 10) == {}
    assert barrier.arrive(2, (1, 0, 0), 0, 30) == {}, "rank 2 has no step 5: it knows nothing of it"
    assert barrier.arrive(1, (0, 5, 0), 0, 20) == {(0, 5, 0): 20}
    assert barrier.arrive(0, (1, 0, 0), 0, 40) == {}
    assert barrier.arrive(1, (1, 0, 0), 0, 50) == {(1, 0, 0): 50}


def test_a_message_of_an_older_attempt_is_refused() -> None:
    barrier = BarrierState(lambda epoch, step, group: 2)
    barrier.arrive(0, (0, 0, 0), 1, 100)
    with pytest.raises(StaleAttemptError, match="rank 1 of attempt 0"):
        barrier.arrive(1, (0, 0, 0), 0, 100)


def test_every_rank_hears_the_latest_deadline() -> None:
    kernel = VirtualKernel()
    barrier = Barrier(kernel, BarrierState(lambda epoch, step, group: 3))

    async def rank(number: int) -> int:
        await kernel.sleep_until(number)
        return int(await barrier.announce(number, 0, 0, 0, deadline=10 * number))

    assert kernel.run(kernel.gather(*(rank(n) for n in range(3)))) == [20, 20, 20]
