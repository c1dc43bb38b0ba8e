"""The queue as it lives on a clock: waits, answers, failures and expiry around a QueueState; readers are made up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queues import CheckedQueue

from rayio.engines.virtual.clock import VirtualKernel
from rayio.errors import DataError
from rayio.model.env import Env
from rayio.model.kernel import WallKernel
from rayio.model.prefetch import PrefetchQueue
from rayio.model.queue import Delivery, Lease, QueueSpec, StaleAttemptError, Take
from rayio.model.queue_levels import levels_of
from rayio.scenario.workers import Autoscaled
from rayio.trace.recorder import Recorder

T = TypeVar("T")


class Story:
    """One queue of 100-byte batches on a virtual clock; a read takes ``read_ns`` of its lease, or raises its error."""

    def __init__(
        self,
        read_ns: Callable[[Lease], int] = lambda lease: 10,
        *,
        workers: int = 2,
        prefetch: int = 2,
        steps: int = 10,
        lease_steps: int = 1,
        fails: Callable[[Lease], bool] = lambda lease: False,
        **spec: Any,
    ) -> None:
        self.kernel = VirtualKernel()
        self.recorder = Recorder()
        self.read_ns = read_ns
        self.fails = fails
        #: Every lease with the time at which it was submitted.
        self.leases: list[tuple[int, Lease]] = []
        env = Env(self.kernel, self.recorder, role="queue", index="0", node=0)
        state = CheckedQueue(QueueSpec(0, workers, prefetch, (steps, steps), **spec), lambda epoch, step: 100)
        self.queue = PrefetchQueue(env, state, self._read)
        self.queue.lease_steps = lease_steps

    async def _read(self, lease: Lease) -> list[Delivery]:
        self.leases.append((self.kernel.now(), lease))
        await self.kernel.sleep_until(self.kernel.now() + self.read_ns(lease))
        if self.fails(lease):
            raise DataError(f"step {lease.steps[0]} of attempt {lease.attempt} is corrupted")
        return [Delivery(lease.epoch, step, lease.worker, 1, 100, 0, None, lease.attempt) for step in lease.steps]

    async def take(self, take: Take, patience: int | None = None) -> tuple[int, list[int]]:
        """Take, and give the time of the answer and its steps."""
        answer = await self.queue.take(take, patience)
        return self.kernel.now(), [delivery.step for delivery in answer]

    async def at(self, time: int, work: Coroutine[Any, Any, T]) -> T:
        await self.kernel.sleep_until(time)
        return await work

    def run(self, *work: Coroutine[Any, Any, T]) -> list[T]:
        return self.kernel.run(self.kernel.gather(*work))


def first(consumed: int = 0, **options: Any) -> Take:
    return Take(0, consumed, **options)


def test_a_take_waits_for_its_batch_and_is_answered_when_it_was_read() -> None:
    story = Story(lambda lease: 70)
    assert story.run(story.take(first())) == [(70, [0])]


def test_a_batch_that_is_there_is_handed_over_at_once() -> None:
    story = Story(lambda lease: 10 * (lease.steps[0] + 1))
    assert story.run(story.take(first()), story.at(35, story.take(first(1)))) == [(10, [0]), (35, [1])]


def test_a_take_gets_as_many_as_are_there_and_it_wants() -> None:
    story = Story(lambda lease: 10)
    (_, two, rest) = story.run(
        story.take(first()), story.at(20, story.take(first(want=2))), story.at(21, story.take(first(want=9)))
    )
    assert two == (20, [0, 1])
    assert rest == (21, [0, 1, 2, 3])


def test_in_order_a_batch_that_was_read_early_waits_for_those_before_it() -> None:
    story = Story(lambda lease: 100 - 10 * lease.steps[0])
    assert story.run(story.take(first(want=9))) == [(100, [0, 1, 2, 3])]


def test_out_of_order_whatever_is_there_first_is_handed_over_first() -> None:
    story = Story(lambda lease: 100 - 10 * lease.steps[0], in_order=False)
    assert story.run(story.take(first(want=9))) == [(70, [3])]


def test_a_newer_take_ends_the_older_one_which_is_answered_with_nothing() -> None:
    story = Story(lambda lease: 70)
    assert story.run(story.take(first()), story.at(30, story.take(first()))) == [(30, []), (70, [0])]


@pytest.mark.parametrize("in_order", [True, False])
def test_a_take_that_a_newer_one_overtook_is_answered_with_nothing_and_ends_no_wait(in_order: bool) -> None:
    # Ray starts a rank's calls in whatever order they come through.
    story = Story(lambda lease: 70, in_order=in_order)
    older, newer = first(want=9), first(2, want=9) if in_order else first(want=9, extra=(1, 2))
    assert story.run(story.take(newer), story.at(5, story.take(older))) == [(70, [2 if in_order else 0]), (5, [])]


def test_a_lost_answer_can_be_asked_for_again() -> None:
    story = Story()
    assert story.run(story.take(first()), story.at(50, story.take(first()))) == [(10, [0]), (50, [0])]


def test_patience_that_runs_out_is_answered_with_nothing_and_loses_nothing() -> None:
    story = Story(lambda lease: 70)
    assert story.run(story.take(first(), 40), story.at(50, story.take(first(), 40))) == [(40, []), (70, [0])]


def test_the_patience_of_an_older_take_does_not_end_a_newer_one() -> None:
    story = Story(lambda lease: 70)
    assert story.run(story.take(first(), 40), story.at(30, story.take(first(), 100))) == [(30, []), (70, [0])]


def test_a_take_that_is_dismissed_is_answered_with_nothing_and_loses_nothing() -> None:
    story = Story(lambda lease: 70)

    async def dismiss() -> tuple[int, list[int]]:
        story.queue.dismiss()
        return story.kernel.now(), []

    told = story.run(story.take(first()), story.at(30, dismiss()), story.at(50, story.take(first())))
    assert told == [(30, []), (30, []), (70, [0])]


def test_patience_does_not_hold_up_an_answer() -> None:
    story = Story(lambda lease: 10)
    assert story.run(story.take(first(), 1000)) == [(10, [0])]


def test_a_take_that_wants_nothing_only_tells_and_is_answered_at_once() -> None:
    story = Story()
    assert story.run(story.take(first(1, want=0))) == [(0, [])]
    assert [lease.steps for _, lease in story.leases] == [(1,), (2,), (3,), (4,)]


def test_a_failed_read_is_raised_into_the_waiting_take_and_into_every_later_one() -> None:
    story = Story(lambda lease: 70, fails=lambda lease: lease.steps == (0,))

    async def raised(at: int) -> int:
        await story.kernel.sleep_until(at)
        with pytest.raises(DataError, match="step 0 of attempt 0 is corrupted"):
            await story.queue.take(first())
        return story.kernel.now()

    assert story.run(raised(0), raised(80), raised(90)) == [70, 80, 90]


def test_leases_of_one_worker_are_joined_up_to_the_given_number_of_steps() -> None:
    story = Story(workers=2, prefetch=4, lease_steps=3)
    story.run(story.take(first()))
    assert [(lease.worker, lease.steps) for _, lease in story.leases] == [
        (0, (0, 2, 4)),
        (1, (1, 3, 5)),
        (0, (6,)),
        (1, (7,)),
    ]


@settings(max_examples=60)
@given(st.data())
def test_joined_or_not_every_worker_reads_the_same_steps_in_the_same_order(data: st.DataObject) -> None:
    workers, prefetch, steps = (data.draw(st.integers(1, n)) for n in (4, 5, 30))

    def worked(lease_steps: int) -> dict[int, list[int]]:
        story = Story(workers=workers, prefetch=prefetch, steps=steps, lease_steps=lease_steps)

        async def rank() -> None:
            for step in range(steps):
                assert (await story.take(first(step)))[1] == [step]

        story.run(rank())
        assert all(len(lease.steps) <= lease_steps for _, lease in story.leases)
        return {w: [s for _, lease in story.leases if lease.worker == w for s in lease.steps] for w in range(workers)}

    assert (
        worked(data.draw(st.integers(2, 6))) == worked(1) == {w: list(range(w, steps, workers)) for w in range(workers)}
    )


def test_dynamic_readers_get_their_next_step_when_they_have_finished_one_without_being_asked() -> None:
    story = Story(lambda lease: 50 if lease.worker == 0 else 20, prefetch=3, assignment="dynamic")
    story.run(story.at(200, story.take(first())), story.take(first(want=0)))
    assert [(time, lease.worker, *lease.steps) for time, lease in story.leases] == [
        (0, 0, 0),
        (0, 1, 1),
        (20, 1, 2),
        (40, 1, 3),
        (50, 0, 4),
        (60, 1, 5),
    ]


def test_a_message_of_an_older_attempt_is_refused() -> None:
    story = Story()

    async def rank() -> None:
        await story.take(first(attempt=1))
        with pytest.raises(StaleAttemptError, match="refused a message of attempt 0"):
            await story.take(first())

    story.run(rank())


def test_the_next_attempt_ends_the_wait_of_the_one_before_and_reads_everything_again() -> None:
    story = Story(lambda lease: 70)
    old, new = story.run(story.take(first()), story.at(30, story.take(first(attempt=1, want=9))))
    assert old == (30, [])
    assert new == (100, [0]), "what attempt 0 had read at 70 is not handed over"
    assert [(lease.attempt, *lease.steps) for _, lease in story.leases] == [(a, s) for a in (0, 1) for s in range(4)]


def test_a_failure_of_an_older_attempt_does_not_end_the_next_one() -> None:
    story = Story(lambda lease: 70, fails=lambda lease: lease.attempt == 0)
    assert story.run(story.take(first()), story.at(30, story.take(first(attempt=1)))) == [(30, []), (100, [0])]


def test_the_time_that_the_bound_on_bytes_closes_the_window_is_recorded() -> None:
    story = Story(max_bytes=200, steps=3)

    async def rank() -> None:
        for step, time in enumerate((0, 100, 250)):
            await story.at(time, story.take(first(step)))

    # Steps 0 and 1 fill it; when 0 is consumed there is room for 2, the last.
    story.run(rank())
    table = story.recorder.drain()
    assert table is not None
    (span,) = (row for row in table.to_pylist() if row["name"] == "memory_bound")
    assert (span["name"], span["start_ns"], span["duration_ns"]) == ("memory_bound", 0, 100)
    assert (span["rank"], span["epoch"], span["role"]) == (0, 0, "queue")


def test_a_batchs_lease_lasts_from_its_grant_until_it_is_ready() -> None:
    story = Story(lambda lease: 10 * (lease.steps[0] + 1), workers=1, prefetch=2, steps=3)

    async def rank() -> None:
        for step, time in enumerate((0, 50, 90)):
            await story.at(time, story.take(first(step)))

    # Steps 0 and 1 are granted at once; at 50 the rank has step 0 in hand, which lets step 2 begin.
    story.run(rank())
    table = story.recorder.drain()
    assert table is not None
    rows = [row for row in table.to_pylist() if row["name"] == "lease"]
    leases = {row["step"]: (row["start_ns"], row["start_ns"] + row["duration_ns"], row["lane"]) for row in rows}
    assert leases == {0: (0, 10, 1), 1: (0, 20, 1), 2: (50, 80, 1)}


def test_a_lease_is_under_way_from_when_it_is_granted_on_a_clock_that_begins_work_later_too() -> None:
    """A reader goes when nothing of its is under way: not between a lease and its first moment."""

    async def story() -> tuple[set[int], set[int], set[int]]:
        kernel = WallKernel()
        env = Env(kernel, Recorder(), role="queue", index="0", node=0)

        async def read(lease: Lease) -> list[Delivery]:
            return [Delivery(lease.epoch, step, lease.worker, 1, 100, 0) for step in lease.steps]

        queue = PrefetchQueue(env, CheckedQueue(QueueSpec(0, 2, 2, (4,)), lambda epoch, step: 100), read)
        queue.rank_advanced(first())
        leased = {*queue.state.leased}
        at_once = {step for lease in queue.under_way for step in lease.steps}
        for consumed in range(4):
            await queue.take(first(consumed))
        return leased, at_once, {step for lease in queue.under_way for step in lease.steps}

    assert asyncio.run(story()) == ({0, 1, 2, 3}, {0, 1, 2, 3}, set())


def test_the_readers_that_are_told_of_while_a_run_goes_are_those_that_are_there() -> None:
    story = Story(workers=8, scaling=Autoscaled(min=2, max=8))
    assert levels_of([story.queue], []).readers == 2
    story.queue.state.employ(5)
    assert levels_of([story.queue], []).readers == 5
