"""Ranks that do not answer at the end of a run: what they consumed is in their spans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rayio.model.ledger import Tally
from rayio.session.unheard import counted_from_spans
from rayio.trace.slices import Slices
from scenarios import scenario, simulated

#: Last batches of another size, on ranks that differ; evaluations amid an epoch; and batches of different sizes.
UNEVEN: dict[str, Any] = {
    "loader__drop_last": False,
    "dataset__num_files": 51,
    "dataset__eval": {"num_files": 11},
    "dataset__sample_bytes": {"kind": "uniform", "low": "500 B", "high": "1500 B"},
    "train__evaluate": {"compute": "3 ms", "every": {"steps": 4}},
}


def numbers(tally: Tally) -> tuple[int, ...]:
    return (
        tally.steps, tally.samples, tally.nbytes, tally.evaluation_steps, tally.evaluation_samples
    )  # fmt: skip


@pytest.mark.parametrize("unheard", [{0}, {1}, {0, 1}], ids=str)
@pytest.mark.parametrize("keys", [{}, UNEVEN, {"loader__in_order": False, **UNEVEN}], ids=["even", "uneven", "early"])
def test_spans_give_the_consumption_of_ranks_that_did_not_answer(keys: dict[str, Any], unheard: set[int]) -> None:
    """The roles' own counts are the truth; those of the ranks that answered stay as they are."""
    done = simulated(scenario(**keys))
    truth = [numbers(tally) for tally in done.tallies]
    assert all(samples > 0 for _, samples, *_ in truth)
    left = [Tally(tally.rank) if tally.rank in unheard else replace(tally) for tally in done.tallies]
    notes = counted_from_spans(left, unheard, done.scenario, Slices.of(done.spans), 0)
    assert [numbers(tally) for tally in left] == truth
    assert notes == (
        f"{len(unheard)} of 2 ranks did not answer at the end: their samples are counted from their spans",
    )


def test_spans_of_earlier_attempts_count_with_the_checkpoint() -> None:
    """A rank that began again has what its checkpoint had; only what came after it is added."""
    done = simulated(scenario())
    begun = [Tally(rank, steps=7, samples=14, nbytes=14_000) for rank in (0, 1)]
    counted_from_spans(begun, {0, 1}, done.scenario, Slices.of(done.spans), 1)
    assert [numbers(tally) for tally in begun] == [(7, 14, 14_000, 0, 0)] * 2


def test_ranks_that_answered_need_no_note_and_without_spans_there_is_one() -> None:
    done = simulated(scenario(trace__level="none"))
    before = [numbers(tally) for tally in done.tallies]
    assert counted_from_spans(done.tallies, (), done.scenario, Slices.of(done.spans), 0) == ()
    (note,) = counted_from_spans(done.tallies, {1}, done.scenario, Slices.of(done.spans), 0)
    assert note == (
        "1 of 2 ranks did not answer at the end: their samples are not counted, as trace.level=none keeps no spans"
    )
    assert [numbers(tally) for tally in done.tallies] == before
