from __future__ import annotations

import pytest
from handmade import Trace, measure

from rayio.analyze.arrays import RunArrays
from rayio.analyze.shape import RunShape


def step(load: int, compute: int, *more: tuple[str, int]) -> list[tuple[str, int]]:
    return [("data_wait", load), ("compute", compute), *more]


def test_one_epoch_is_one_block_without_its_first_step() -> None:
    trace = Trace()
    trace.rank(0, [("startup", 77), *step(90, 100), *step(20, 110), *step(30, 120, ("gap", 7)), *step(40, 130)])
    result = measure(RunArrays.of_spans(trace.spans), RunShape(1, 2, 1, 1, 4))
    block = 90 + 100 + 20 + 110 + 30 + 120 + 7 + 40 + 130
    total = block - (90 + 100)
    assert result["au_dlio"] == pytest.approx(100 * (110 + 120 + 130) / total, rel=1e-12)
    assert result["samples_per_second_dlio"] == pytest.approx((4 - 2) / (total / 1e9) * 2, rel=1e-12)
    assert (result["au_dlio_stdev"], result["samples_per_second_dlio_stdev"]) == (0, 0)


def test_utilisation_is_a_mean_over_ranks_and_throughput_a_sum() -> None:
    trace = Trace()
    trace.rank(0, step(10, 90) * 5)
    trace.rank(1, step(50, 50) * 5)
    result = measure(RunArrays.of_spans(trace.spans), RunShape(2, 3, 1, 1, 5))
    assert result["au_dlio"] == pytest.approx((90 + 50) / 2, rel=1e-12)
    assert result["samples_per_second_dlio"] == pytest.approx(2 * (5 - 2) / (400 / 1e9) * 3, rel=1e-12)


def test_epochs_have_a_mean_and_a_population_deviation() -> None:
    trace = Trace()
    trace.rank(0, [*step(10, 90) * 3, *step(30, 70) * 3], per_epoch=3)
    result = measure(RunArrays.of_spans(trace.spans), RunShape(1, 1, 1, 2, 3))
    assert result["au_dlio"] == pytest.approx(80, rel=1e-12)
    assert result["au_dlio_stdev"] == pytest.approx(10, rel=1e-12)


def test_a_checkpoint_ends_a_block_on_every_rank_and_costs_dlio_nothing() -> None:
    trace = Trace()
    save = [*step(10, 90) * 3, ("checkpoint", 1_000), *step(30, 70) * 5, ("checkpoint", 500), ("gap", 3)]
    trace.rank(0, save)
    trace.rank(1, [*step(10, 90) * 3, ("sync", 1_000), *step(30, 70) * 5])
    result = measure(RunArrays.of_spans(trace.spans), RunShape(2, 1, 1, 1, 8))
    rank_0 = (3 * 90 + 5 * 70) / 8
    # Rank 1 saves nothing, but its block ends too: what it waits for then is in its block, as in DLIO.
    rank_1 = (3 * (100 * 180 / 1_200) + 5 * 70) / 8
    assert result["au_dlio"] == pytest.approx((rank_0 + rank_1) / 2, rel=1e-12)
    rate_0 = (3 * 1 / 200 + 5 * 3 / 400) / 8
    rate_1 = (3 * 1 / 1_200 + 5 * 3 / 400) / 8
    assert result["samples_per_second_dlio"] == pytest.approx((rate_0 + rate_1) * 1e9, rel=1e-12)


@pytest.mark.parametrize(("every", "said"), [(1, True), (2, True), (3, False)])
def test_blocks_too_short_for_a_throughput_are_explained(every: int, said: bool) -> None:
    trace = Trace()
    trace.rank(0, [*step(10, 90) * every, ("checkpoint", 1_000)] * (6 // every))
    result = measure(RunArrays.of_spans(trace.spans), RunShape(1, 1, 1, 1, 6))
    assert (result["samples_per_second_dlio"] == 0) is said
    note = "0 samples/s as DLIO: its formula leaves out 2 steps of each block between checkpoints or evaluations"
    assert (f"{note}, and no block has more" in result["notes"]) is said


def test_an_epoch_that_broke_off_is_left_out() -> None:
    trace = Trace()
    trace.rank(0, [*step(10, 90) * 4, *step(50, 50) * 3], per_epoch=4)
    assert measure(RunArrays.of_spans(trace.spans), RunShape(1, 1, 1, 2, 4))["au_dlio"] == pytest.approx(90, rel=1e-12)


@pytest.mark.parametrize("steps", [1, 2])
def test_epochs_of_fewer_than_three_steps_have_no_dlio_numbers(steps: int) -> None:
    trace = Trace()
    trace.rank(0, step(10, 90) * steps * 10, per_epoch=steps)
    result = measure(RunArrays.of_spans(trace.spans), RunShape(1, 1, 1, 10, steps))
    assert (result["au_dlio"], result["samples_per_second_dlio"]) == (None, None)
    assert "no au_dlio: it needs a whole epoch of at least 3 steps" in result["notes"]
