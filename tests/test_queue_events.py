"""Laws of the prefetch queue over random orders of events: late and lost messages, kills, restarts of the rank."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from queues import CheckedQueue

from rayio.model.consumed import Consumed
from rayio.model.queue import Delivery, Lease, QueueSpec, QueueState, StaleAttemptError, Take
from rayio.place import Where
from rayio.scenario.workers import Autoscaled

EPOCHS = 2


def size_of(epoch: int, step: int) -> int:
    return 50 + 37 * ((7 * epoch + step) % 4)


class QueueAndRank(RuleBasedStateMachine):
    """A rank, its queue and its readers, with nothing between them that keeps an order or is sure to arrive."""

    @initialize(
        workers=st.integers(1, 3),
        prefetch=st.integers(1, 3),
        steps=st.integers(1, 9),
        in_order=st.booleans(),
        assignment=st.sampled_from(["static", "dynamic"]),
        max_bytes=st.sampled_from([None, 100, 300]),
        lump=st.integers(1, 2),
        scales=st.booleans(),
    )
    def begin(
        self,
        workers: int,
        prefetch: int,
        steps: int,
        in_order: bool,
        assignment: str,
        max_bytes: int | None,
        lump: int,
        scales: bool,
    ) -> None:
        scaling = Autoscaled(min=1, max=workers) if scales else None
        self.spec = QueueSpec(0, workers, prefetch, (steps,) * EPOCHS, assignment, in_order, max_bytes, scaling)
        self.lump = lump if assignment == "static" else 1
        self.attempt = 0
        self.consumed, self.hand = Consumed(), dict[int, Delivery]()
        self.consumed.open(Where(0, 0, 0))
        #: Of this attempt and epoch, the steps that the rank has had in its hands.
        self.had: list[int] = []
        self.takes: list[Take] = []
        self.is_killed()

    # What may happen, at any time.

    @rule(want=st.integers(1, 3))
    def rank_asks(self, want: int) -> None:
        self.takes.append(self.consumed.take(want, self.attempt, tuple(sorted(self.hand))))

    @precondition(lambda self: self.spec.scaling is not None)
    @rule(number=st.integers(0, 99))
    def readers_come_or_go(self, number: int) -> None:
        workers = 1 + number % self.spec.num_workers
        self.queue.employ(workers)
        before = len(self.reading)
        self.grant()
        assert all(lease.worker < workers for lease in self.reading[before:])

    @precondition(lambda self: self.takes)
    @rule(which=st.integers(0, 99), comes_again=st.booleans())
    def a_take_arrives(self, which: int, comes_again: bool) -> None:
        place = which % len(self.takes)
        take = self.takes[place] if comes_again else self.takes.pop(place)
        if self.queue.is_overtaken(take):
            return
        try:
            is_news = self.queue.rank_advanced(take)
        except StaleAttemptError:
            assert (take.attempt, take.epoch) < (self.queue.attempt, self.queue.epoch)
            return
        if is_news:
            self.grant()
        answer = self.queue.deliverable(take)
        assert len(answer) <= take.want
        assert not {d.step for d in answer} & {*take.holding, *take.extra, *range(take.consumed)}
        if self.spec.in_order:
            assert [d.step for d in answer] == sorted(d.step for d in answer)
        for delivery in answer:
            is_current = (delivery.epoch, delivery.attempt) == (self.consumed.epoch, self.attempt)
            if is_current and not self.consumed.has(delivery.step):
                self.hand[delivery.step] = delivery

    @precondition(lambda self: self.reading)
    @rule(which=st.integers(0, 99), runs_again=st.booleans())
    def a_worker_has_read(self, which: int, runs_again: bool) -> None:
        place = which % len(self.reading)
        lease = self.reading[place] if runs_again else self.reading.pop(place)
        for step in lease.steps:
            nbytes = size_of(lease.epoch, step)
            self.queue.batch_read(Delivery(lease.epoch, step, lease.worker, 1, nbytes, 0, None, lease.attempt))
        if self.spec.assignment == "dynamic":
            self.grant()

    @precondition(lambda self: self.next_in_hand() is not None)
    @rule()
    def rank_takes_a_batch_out_of_its_hand(self) -> None:
        step = self.next_in_hand()
        assert step is not None
        assert step not in self.had, "delivered twice"
        del self.hand[step]
        self.had.append(step)
        self.consumed.add(step)
        assert not self.spec.in_order or self.had == sorted(self.had)

    @precondition(lambda self: self.is_over() and self.consumed.epoch < EPOCHS - 1)
    @rule()
    def rank_goes_on_to_the_next_epoch(self) -> None:
        self.consumed.open(Where(0, self.consumed.epoch + 1, 0))
        self.hand, self.had = {}, []

    @rule()
    def is_killed(self) -> None:
        """End the queue: what it had leased is read for nobody, and it is built again from its spec."""
        self.queue: QueueState = CheckedQueue(self.spec, size_of)
        self.reading: list[Lease] = []

    @rule(data=st.data())
    def rank_starts_again_from_a_checkpoint(self, data: st.DataObject) -> None:
        back = data.draw(st.integers(0, self.consumed.low))
        epoch = self.consumed.epoch
        self.attempt += 1
        self.consumed, self.hand, self.had = Consumed(epoch, back), {}, [*range(back)]

    # What must hold.

    def next_in_hand(self) -> int | None:
        if self.spec.in_order:
            return self.consumed.low if self.consumed.low in self.hand else None
        return min(self.hand, default=None)

    def is_over(self) -> bool:
        return self.consumed.number == self.spec.steps[self.consumed.epoch]

    def grant(self) -> None:
        self.reading += self.queue.grant(self.lump)

    def teardown(self) -> None:
        """From wherever this is, every step of every epoch is still delivered once, when messages arrive."""
        if not hasattr(self, "spec"):
            return
        for epoch in range(self.consumed.epoch, EPOCHS):
            if epoch > self.consumed.epoch:
                self.rank_goes_on_to_the_next_epoch()
            for _ in range(4 * self.spec.steps[epoch] + 8):
                while self.next_in_hand() is not None:
                    self.rank_takes_a_batch_out_of_its_hand()
                if self.is_over():
                    break
                self.rank_asks(3)
                self.a_take_arrives(len(self.takes) - 1, False)
                while self.reading:
                    self.a_worker_has_read(0, False)
            assert self.is_over(), f"the rank waits for ever after {self.consumed}"
            assert sorted(self.had) == [*range(self.spec.steps[epoch])]


TestQueueAndRank = QueueAndRank.TestCase
TestQueueAndRank.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_restarted_queue_grants_nothing_that_its_rank_had_of_the_one_before() -> None:
    queue = CheckedQueue(QueueSpec(0, 1, 3, (9,), "dynamic"), size_of)
    queue.rank_advanced(Take(epoch=0, consumed=0))  # sent before the kill, and late
    assert [lease.steps for lease in queue.grant()] == [(0,)], "there is one worker"
    queue.rank_advanced(Take(epoch=0, consumed=3))  # the rank had three batches in its hand
    queue.batch_read(Delivery(0, 0, 0, 1, 50, 0))
    assert [lease.steps for lease in queue.grant()] == [(3,)]


def broken(**wrong: object) -> QueueState:
    queue = CheckedQueue(QueueSpec(0, 2, 2, (9, 9)), size_of)
    queue.rank_advanced(Take(epoch=0, consumed=1))
    queue.grant()
    for name, value in wrong.items():
        setattr(queue, name, value)
    return queue


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"consumed": 6}, "not consumed <= next_step"),
        ({"ready": {1: Delivery(0, 1, 1, 1, 50, 0)}}, "leased and ready"),
        ({"leased": {1: 1}}, "not those between consumed and next_step"),
        ({"extra": {0}}, "consumed out of order"),
        ({"leased": {1: 0, 2: 0, 3: 1, 4: 0}}, "another worker than its own"),
        ({"leased": {1: 1}, "ready": {2: Delivery(1, 2, 0, 1, 50, 0)}}, "of another place"),
        ({"bytes_in_flight": 5}, "bytes_in_flight"),
        ({"next_step": 6, "leased": {1: 1, 2: 0, 3: 1, 4: 0, 5: 1}}, "the window is 4"),
    ],
)
def test_validate_says_what_is_broken_and_shows_the_state(wrong: dict[str, object], what: str) -> None:
    broken().validate()
    with pytest.raises(AssertionError, match=what) as refused:
        broken(**wrong).validate()
    assert "'next_step':" in str(refused.value)
