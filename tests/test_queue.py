from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queues import CheckedQueue

from rayio.model.consumed import Consumed
from rayio.model.queue import Delivery, Lease, QueueSpec, QueueState, StaleAttemptError, Take
from rayio.place import Where


def state(*, workers: int = 2, prefetch: int = 2, steps: int = 10, size: int = 100, **spec: object) -> QueueState:
    wanted = QueueSpec(0, workers, prefetch, (steps, steps), **spec)  # type: ignore[arg-type]
    return CheckedQueue(wanted, lambda epoch, step: size)


def read(lease: Lease) -> Delivery:
    (step,) = lease.steps
    return Delivery(lease.epoch, step, lease.worker, 1, 100, 0, None, lease.attempt)


def steps(leases: list[Lease]) -> list[int]:
    return [step for lease in leases for step in lease.steps]


def test_nothing_is_started_before_the_rank_opens_an_epoch() -> None:
    assert state().grant() == []


def test_step_n_starts_when_step_n_minus_the_window_is_consumed() -> None:
    queue = state(workers=2, prefetch=2)
    queue.rank_advanced(Take(epoch=0, consumed=0))
    assert steps(queue.grant()) == [0, 1, 2, 3]
    assert queue.grant() == []
    queue.rank_advanced(Take(epoch=0, consumed=1))
    assert steps(queue.grant()) == [4]


def test_reading_and_delivering_do_not_move_the_window_only_consuming_does() -> None:
    queue = state(workers=1, prefetch=2)
    queue.rank_advanced(Take(epoch=0, consumed=0))
    for lease in queue.grant():
        queue.batch_read(read(lease))
    assert len(queue.deliverable(Take(epoch=0, consumed=0, want=9))) == 2
    assert queue.grant() == []


def test_with_a_lump_whole_lumps_are_handed_out_and_the_rest_of_an_epoch() -> None:
    queue = state(workers=2, prefetch=4, steps=13)
    granted: list[list[int]] = []
    for consumed in range(14):
        queue.rank_advanced(Take(epoch=0, consumed=consumed))
        granted.append(steps(queue.grant(2)))
        if consumed == 0:
            for step in range(7):
                queue.batch_read(Delivery(0, step, step % 2, 1, 100, 0))
    assert [found for found in granted if found] == [[*range(8)], [8, 9, 10, 11], [12]]
    assert granted.index([8, 9, 10, 11]) == 4, "as soon as there is room for two steps of each worker"


def test_with_a_lump_what_little_the_window_permits_is_handed_out_when_nothing_is_being_read() -> None:
    queue = state(workers=2, prefetch=4, steps=20)
    queue.rank_advanced(Take(epoch=0, consumed=0))
    for lease in queue.grant(2):
        queue.batch_read(read(lease))
    queue.rank_advanced(Take(epoch=0, consumed=1))
    assert steps(queue.grant(2)) == [8]


def test_in_order_what_is_read_behind_a_gap_comes_along_with_the_next_batch() -> None:
    queue = state(workers=2, prefetch=2)
    queue.rank_advanced(Take(epoch=0, consumed=0))
    zero, one, two, _ = queue.grant()
    queue.batch_read(read(two))
    assert queue.deliverable(Take(epoch=0, consumed=0, want=9)) == []
    queue.batch_read(read(zero))
    assert queue.deliverable(Take(epoch=0, consumed=0, want=9)) == [read(zero), read(two)]
    assert queue.deliverable(Take(epoch=0, consumed=1, want=9, holding=(2,))) == []
    queue.batch_read(read(one))
    assert queue.deliverable(Take(epoch=0, consumed=1, want=9, holding=(2,))) == [read(one)]


def test_static_assignment_gives_worker_w_the_steps_w_plus_multiples_of_the_workers() -> None:
    queue = state(workers=3, prefetch=2)
    queue.rank_advanced(Take(epoch=0, consumed=0))
    assert [(lease.worker, *lease.steps) for lease in queue.grant()] == [(s % 3, s) for s in range(6)]


def test_dynamic_assignment_gives_the_next_step_to_whoever_is_free() -> None:
    queue = state(workers=2, prefetch=2, assignment="dynamic")
    queue.rank_advanced(Take(epoch=0, consumed=0))
    first, second = queue.grant()
    assert (first.worker, second.worker) == (0, 1)
    queue.batch_read(read(second))
    (third,) = queue.grant()
    assert (third.worker, third.steps) == (1, (2,))


def test_in_order_a_batch_waits_for_the_earlier_ones() -> None:
    queue = state()
    queue.rank_advanced(Take(epoch=0, consumed=0))
    first, second, *_ = queue.grant()
    queue.batch_read(read(second))
    assert queue.deliverable(Take(epoch=0, consumed=0)) == []
    queue.batch_read(read(first))
    assert [d.step for d in queue.deliverable(Take(epoch=0, consumed=0, want=5))] == [0, 1]


def test_out_of_order_a_batch_is_handed_over_as_soon_as_it_is_read() -> None:
    queue = state(in_order=False)
    queue.rank_advanced(Take(epoch=0, consumed=0))
    queue.batch_read(read(queue.grant()[1]))
    assert [d.step for d in queue.deliverable(Take(epoch=0, consumed=0))] == [1]


def test_a_take_may_be_repeated_and_says_what_the_rank_already_holds() -> None:
    queue = state()
    queue.rank_advanced(Take(epoch=0, consumed=0))
    for lease in queue.grant():
        queue.batch_read(read(lease))
    again = Take(epoch=0, consumed=0, want=1)
    assert [d.step for d in queue.deliverable(again)] == [d.step for d in queue.deliverable(again)] == [0]
    assert [d.step for d in queue.deliverable(Take(epoch=0, consumed=0, want=1, holding=(0,)))] == [1]


def test_a_restarted_queue_leases_what_its_rank_has_not_consumed() -> None:
    queue = state(in_order=False)
    queue.rank_advanced(Take(epoch=1, consumed=3, extra=(5,)))
    assert steps(queue.grant()) == [3, 4, 6, 7]


def test_a_new_epoch_opens_a_window_of_its_own() -> None:
    queue = state(steps=3)
    queue.rank_advanced(Take(epoch=0, consumed=0))
    assert steps(queue.grant()) == [0, 1, 2]
    queue.rank_advanced(Take(epoch=1, consumed=0))
    assert [(lease.epoch, *lease.steps) for lease in queue.grant()] == [(1, 0), (1, 1), (1, 2)]


def test_what_was_read_for_an_epoch_that_is_over_is_dropped() -> None:
    queue = state(steps=3)
    queue.rank_advanced(Take(epoch=0, consumed=0))
    late = queue.grant()[0]
    queue.rank_advanced(Take(epoch=1, consumed=0))
    queue.batch_read(read(late))
    assert queue.ready == {}


@pytest.mark.parametrize("older", [Take(epoch=0, consumed=5), Take(epoch=1, consumed=0, attempt=0)])
def test_a_message_of_an_older_epoch_or_attempt_is_refused(older: Take) -> None:
    queue = state()
    queue.rank_advanced(Take(epoch=1, consumed=0, attempt=1))
    with pytest.raises(StaleAttemptError, match="refused a message of attempt 0"):
        queue.rank_advanced(older)


def test_the_bound_on_bytes_closes_the_window_and_says_so() -> None:
    queue = state(workers=2, prefetch=2, size=100, max_bytes=250)
    queue.rank_advanced(Take(epoch=0, consumed=0))
    assert steps(queue.grant()) == [0, 1]
    assert queue.memory_bound
    queue.rank_advanced(Take(epoch=0, consumed=1))
    assert steps(queue.grant()) == [2]


def test_the_next_deliverable_step_is_granted_however_large_it_is() -> None:
    queue = state(size=1000, max_bytes=1)
    queue.rank_advanced(Take(epoch=0, consumed=0))
    assert steps(queue.grant()) == [0]
    queue.rank_advanced(Take(epoch=0, consumed=1))
    assert steps(queue.grant()) == [1]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_happens_each_step_is_delivered_once_and_the_window_holds(data: st.DataObject) -> None:
    workers, prefetch = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    number, in_order = data.draw(st.integers(1, 20)), data.draw(st.booleans())
    assignment = data.draw(st.sampled_from(["static", "dynamic"]))
    bound = data.draw(st.sampled_from([None, 100, 250, 1000]))
    queue = state(
        workers=workers, prefetch=prefetch, steps=number, in_order=in_order, assignment=assignment, max_bytes=bound
    )
    consumed, got, reading = Consumed(), [], []
    consumed.open(Where(0, 0, 0))
    while consumed.number < number:
        take = consumed.take(1, 0)
        queue.rank_advanced(take)
        reading += queue.grant()
        outstanding = len(queue.leased) + len(queue.ready)
        assert outstanding <= workers * prefetch
        assert bound is None or queue.bytes_in_flight <= max(bound, 100)
        found = queue.deliverable(take)
        if found and (not reading or data.draw(st.booleans())):
            got.append(found[0].step)
            consumed.add(found[0].step)
        else:
            assert reading, "nothing to deliver and nobody reads: the run would stop"
            queue.batch_read(read(reading.pop(data.draw(st.integers(0, len(reading) - 1)))))
    assert sorted(got) == list(range(number))
    assert not in_order or got == sorted(got)


def test_what_was_told_before_is_no_news() -> None:
    queue = CheckedQueue(QueueSpec(0, 2, 2, (9, 9)), lambda epoch, step: 100)
    assert queue.rank_advanced(Take(epoch=0, consumed=0)), "the first word opens the epoch"
    queue.grant()
    assert not queue.rank_advanced(Take(epoch=0, consumed=0))
    assert queue.rank_advanced(Take(epoch=0, consumed=1))
    assert not queue.rank_advanced(Take(epoch=0, consumed=1))
    assert queue.rank_advanced(Take(epoch=0, consumed=1, extra=(2,)))
    assert queue.rank_advanced(Take(epoch=1, consumed=0))
