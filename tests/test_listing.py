"""The price of listing a dataset at the start, on modelled storage: closed forms."""

from __future__ import annotations

from typing import Any

import pytest

from scenarios import Outcome, simulated


def listing(rate: float | None, files: int, ranks: int = 1, **more: Any) -> Outcome:
    """Simulate some steps over a dataset of so many files."""
    storage: dict[str, Any] = {"model": "memory"} | ({} if rate is None else {"listing": rate})
    return simulated(
        cluster={"ranks_per_node": ranks}, storage=storage, train={"epochs": 1, "steps": 3, "compute": "1 ms"},
        dataset={"path": "model://many", "num_files": files, "sample_bytes": "1 kB"}, **more,
    )  # fmt: skip


def ends(outcome: Outcome) -> float:
    """Give the end of the run in seconds."""
    return float(max(row["start_ns"] + row["duration_ns"] for row in outcome.rows("life"))) / 1e9


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize(("files", "rate"), [(1_000_000, 20_000), (50_000_000, 100_000), (48_000, 1000)])
def test_ranks_list_one_after_the_other_at_the_rate_of_the_server(ranks: int, files: int, rate: float) -> None:
    with_it, without = listing(rate, files, ranks), listing(None, files, ranks)
    assert with_it.ledger.even
    assert ends(with_it) - ends(without) == pytest.approx(ranks * files / rate, rel=0.02)
    first = min(row["start_ns"] + row["duration_ns"] for row in with_it.rows("read")) / 1e9
    assert first == pytest.approx(files / rate, rel=0.02)  # the first rank has its own listing alone


def test_workers_of_a_rank_wait_for_one_listing_and_later_batches_for_none() -> None:
    outcome = listing(1000, 10_000, 1, loader={"batch_size": 2, "num_workers": 2})
    delays = outcome.rows("delay")
    assert len(delays) == 2  # a worker each
    assert {row["start_ns"] + row["duration_ns"] for row in delays} == {10_000_000_000}
    assert {row["attributes"] for row in delays} == {'{"cause":"listing","why":""}'}


def test_an_evaluation_lists_its_own_dataset() -> None:
    evaluated = {"epochs": 1, "steps": 3, "compute": "1 ms", "evaluate": {"every": {"steps": 2}, "compute": "1 ms"}}
    held_out = {"num_files": 500, "path": "model://b"}
    dataset = {"path": "model://a", "num_files": 1000, "sample_bytes": "1 kB", "eval": held_out}
    outcome = simulated(
        cluster={"ranks_per_node": 1}, storage={"model": "memory", "listing": 1000}, train=evaluated, dataset=dataset,
        loader={"batch_size": 2, "num_workers": 1},
    )  # fmt: skip
    assert [round(row["duration_ns"] / 1e9, 3) for row in outcome.rows("delay")] == [1.0, 0.5]
