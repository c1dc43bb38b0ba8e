"""What the books notice: everything that reached a rank and was not meant for it, and everything that did not."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rayio.data.sampler import sample_digest
from rayio.model.ledger import Ledger, Tally, close
from rayio.model.planning import plan_of
from rayio.model.queue import Delivery
from rayio.place import Where
from scenarios import scenario

#: Sample ids by batch: what the readers found in the bytes.
Found = dict[Where, NDArray[np.int64]]

PLAN = plan_of(scenario(), modelled=True)


def meant() -> Found:
    """Give what the plan means to be found."""
    sampler = PLAN.sampler()
    return {
        Where(rank, epoch, step): sampler.batch(epoch, rank, step).samples.copy()
        for rank in range(PLAN.world_size)
        for epoch, steps in enumerate(PLAN.steps)
        for step in range(steps)
    }


def book(found: Found) -> list[Tally]:
    tallies = [Tally(rank) for rank in range(PLAN.world_size)]
    for at, ids in found.items():
        digest = sample_digest(at.epoch, at.rank, at.step, ids)
        tallies[at.rank].add(Delivery(at.epoch, at.step, 0, len(ids), 1000 * len(ids), digest))
    return tallies


def closed(found: Found) -> Ledger:
    return close(PLAN.planned(), book(found))


def test_when_everything_planned_arrives_the_books_are_even() -> None:
    ledger = closed(meant())
    assert ledger.even
    assert (ledger.planned_steps, ledger.delivered_steps) == (48, 48)
    assert (ledger.planned_samples, ledger.delivered_samples) == (96, 96)
    assert ledger.delivered_bytes == 96_000


@given(st.permutations(list(meant())))
def test_the_order_of_arrival_does_not_matter(order: list[Where]) -> None:
    found = meant()
    assert closed({at: found[at] for at in order}).even


def test_the_order_within_a_batch_does_not_matter() -> None:
    assert closed({at: ids[::-1] for at, ids in meant().items()}).even


def lose_a_sample(found: Found) -> None:
    found[Where(1, 0, 5)] = found[Where(1, 0, 5)][:-1]


def lose_a_batch(found: Found) -> None:
    del found[Where(1, 0, 5)]


def find_a_sample_twice(found: Found) -> None:
    found[Where(1, 0, 5)] = np.repeat(found[Where(1, 0, 5)], [2, 1])


def find_one_sample_in_the_place_of_another(found: Found) -> None:
    found[Where(1, 0, 5)][1] = found[Where(1, 0, 5)][0]


def find_a_sample_of_another_dataset(found: Found) -> None:
    found[Where(1, 0, 5)][1] = 48


def swap_samples(found: Found, one: Where, other: Where) -> None:
    found[one][0], found[other][0] = found[other][0], found[one][0]


def swap_samples_of_two_steps(found: Found) -> None:
    swap_samples(found, Where(1, 0, 5), Where(1, 0, 6))


def swap_samples_of_two_epochs(found: Found) -> None:
    swap_samples(found, Where(1, 0, 5), Where(1, 1, 5))


def swap_samples_of_two_ranks(found: Found) -> None:
    swap_samples(found, Where(1, 0, 5), Where(0, 0, 5))


def swap_two_batches(found: Found) -> None:
    found[Where(1, 0, 5)], found[Where(1, 0, 6)] = found[Where(1, 0, 6)], found[Where(1, 0, 5)]


CHANGES: list[Callable[[Found], None]] = [
    lose_a_sample,
    lose_a_batch,
    find_a_sample_twice,
    find_one_sample_in_the_place_of_another,
    find_a_sample_of_another_dataset,
    swap_samples_of_two_steps,
    swap_samples_of_two_epochs,
    swap_samples_of_two_ranks,
    swap_two_batches,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_the_books_show_when_readers(change: Callable[[Found], None]) -> None:
    found = meant()
    change(found)
    ledger = closed(found)
    assert not ledger.even
    ranks = {0, 1} if change is swap_samples_of_two_ranks else {1}
    assert [line.split(":")[0] for line in ledger.differences] == [f"rank {rank}" for rank in sorted(ranks)]


@given(st.sampled_from(list(meant())), st.integers(0, 1), st.integers(0, 2**62))
def test_any_other_id_in_any_place_shows(at: Where, place: int, other: int) -> None:
    found = meant()
    same = other == found[at][place]
    found[at][place] = other
    assert closed(found).even == same


def test_a_batch_delivered_a_second_time_shows() -> None:
    tallies = book(meant())
    ids = meant()[Where(0, 1, 3)]
    tallies[0].add(Delivery(1, 3, 0, len(ids), 2000, sample_digest(1, 0, 3, ids)))
    (difference,) = close(PLAN.planned(), tallies).differences
    assert difference == "rank 0: 24 steps and 48 samples were planned, 25 and 50 delivered"


def test_a_batch_delivered_twice_in_the_place_of_another_shows() -> None:
    found = meant()
    ids = found.pop(Where(0, 1, 4))
    tallies = book(found)
    tallies[0].add(Delivery(1, 3, 0, len(ids), 2000, sample_digest(1, 0, 3, found[Where(0, 1, 3)])))
    (difference,) = close(PLAN.planned(), tallies).differences
    assert difference.startswith("rank 0: the right number of samples, but not the planned ones")


def test_a_rank_that_said_nothing_is_missed() -> None:
    ledger = close(PLAN.planned(), book(meant())[:1])
    assert ledger.differences == ("rank 1: 24 steps and 48 samples were planned, 0 and 0 delivered",)
    assert ledger.delivered_steps == 24


def test_a_rank_that_nobody_planned_shows() -> None:
    ledger = close(PLAN.planned(), [*book(meant()), Tally(7, steps=1, samples=2)])
    assert not ledger.even
    assert "rank 7" in ledger.differences[0]


def test_digests_stay_within_64_bits() -> None:
    tally = Tally(0)
    for step in range(3):
        tally.add(Delivery(0, step, 0, 1, 1, (1 << 64) - 1))
    assert tally.digest == (1 << 64) - 3


def test_the_ledger_of_a_result_is_json_and_names_at_most_sixteen_ranks() -> None:
    ledger = close([Tally(rank, steps=1) for rank in range(40)], [])
    written = json.loads(json.dumps(ledger.as_dict()))
    assert written["even"] is False
    assert written["planned_steps"] == 40
    assert len(written["differences"]) == 16
    assert len(ledger.differences) == 40
