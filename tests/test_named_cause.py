"""The cause that an explanation names, and the change that it advises, held against runs with each cause taken away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rayio
from rayio.records.explained import Explained
from scenarios import scenario

RUN: dict[str, Any] = {
    "cluster__nodes": 2, "cluster__ranks_per_node": 4, "dataset__num_files": 8 * 8 * 100,
    "dataset__sample_bytes": 1000, "train__epochs": 1, "loader__batch_size": 8, "loader__num_workers": 2,
    "checkpoint": None, "storage__model": {"first_byte": 0, "connection_bandwidth": "1 GB/s", "bandwidth": "4 GB/s"},
}  # fmt: skip


def jittery(stdev: str) -> dict[str, Any]:
    return {"train__compute": {"kind": "gamma", "mean": "100 ms", "stdev": stdev}}


def all_reduced(size: str) -> dict[str, Any]:
    sync = {"kind": "allreduce", "bytes": size, "bandwidth": "50 GB/s", "latency": "20 us"}
    return {"train__sync": sync}


def saved(every: int, size: str) -> dict[str, Any]:
    return {"checkpoint": {"every": {"steps": every}, "path": "ck", "model": {"bytes": size}, "writers": "sharded"}}


EVALUATED = {
    "dataset__eval": {"num_files": 640}, "train__evaluate": {"every": {"steps": 25}, "compute": "160 ms"},
}  # fmt: skip
#: What takes each cause away, really. Ranks that compute equally long take their mean of the 100 ms.
GONE: dict[str, dict[str, Any]] = {
    "straggler": {"train__compute": "100 ms"}, "allreduce": {"train__sync": "barrier"},
    "checkpoint": {"checkpoint": None}, "evaluate": {"train__evaluate": None},
}  # fmt: skip


def lasted(keys: dict[str, Any], root: Path) -> float:
    """From the first step to the end of the last step, checkpoint or evaluation."""
    spans = rayio.simulate(scenario(**keys), root=root).spans().query("role == 'rank'")
    return float((spans.start_ns + spans.duration_ns).max() - spans.start_ns[spans.name == "compute"].min())


def explained(keys: dict[str, Any], root: Path) -> Explained:
    return rayio.explain(rayio.simulate(scenario(**RUN | keys), root=root))


@pytest.mark.parametrize(
    ("keys", "cause"),
    [
        (jittery("5 ms") | all_reduced("0.4 GB") | saved(10, "2 GB"), "checkpoint"),
        (jittery("25 ms") | all_reduced("0.5 GB") | saved(20, "0.5 GB"), "straggler"),
        (jittery("8 ms") | all_reduced("0.7 GB") | EVALUATED, "evaluate"),
        (jittery("8 ms") | all_reduced("1.2 GB") | saved(25, "1 GB"), "allreduce"),
    ],
)
def test_the_cause_named_is_the_one_whose_removal_really_saves_most(
    keys: dict[str, Any], cause: str, tmp_path: Path
) -> None:
    usual = RUN | keys
    before = lasted(usual, tmp_path)
    saves = {
        name: 1 - lasted(usual | {key: value for key, value in gone.items() if key in usual}, tmp_path) / before
        for name, gone in GONE.items()
        if set(gone) & set(keys)
    }
    assert max(saves, key=lambda name: saves[name]) == cause
    found = explained(keys, tmp_path)
    assert found.verdict.cause == cause
    assert found.simulated is not None
    by_name = {"equal compute": "straggler", "all-reduce = 0": "allreduce", "no checkpoints": "checkpoint",
               "no evaluations": "evaluate"}  # fmt: skip
    said = {by_name[row.change]: row.time_saved for row in found.simulated.changes if row.change in by_name}
    assert said == {name: pytest.approx(saves[name], abs=0.02) for name in said}
    assert len(said) == 3
    assert found.prediction is not None
    assert "no barrier" not in found.prediction.change


def test_advice_for_another_loss_than_the_named_one_says_which(tmp_path: Path) -> None:
    keys = jittery("15 ms") | all_reduced("1 GB") | saved(25, "4 GB")
    keys["storage__model"] = RUN["storage__model"] | {"bandwidth": "2 GB/s"}
    found = explained(keys, tmp_path)
    assert found.verdict.cause == "checkpoint"
    assert found.prediction is not None
    assert found.prediction.change == "With train.sync.overlap=0.5, which acts on the all-reduce"


def test_a_slow_rank_is_charged_only_with_what_it_costs(tmp_path: Path) -> None:
    slow = {"ranks": [3], "factor": 1.5}
    by_chance = explained(jittery("15 ms") | {"train__stragglers": slow | {"probability": 0.7}}, tmp_path).sentence
    assert " Without it the run is " in by_chance
    assert "; equal compute of all ranks makes it " in by_chance
    assert "Without it" not in explained(jittery("1 ms") | {"train__stragglers": slow}, tmp_path).sentence


def test_storage_that_is_slow_for_a_part_of_the_run_is_no_matter_of_single_batches(tmp_path: Path) -> None:
    """The first of four epochs reads 10 batches/s, later ones come from a cache; a rank needs 20.

    Where single batches are slow at any time, the rate while the rank waits is that of the whole run.
    """
    planted = {
        "cluster": {"nodes": 1, "ranks_per_node": 1}, "checkpoint": None,
        "dataset": {"path": "model://p", "num_files": 600, "sample_bytes": "1 MB"},
        "loader": {"batch_size": 4, "num_workers": 4}, "train": {"epochs": 4, "compute": "50 ms"},
    }  # fmt: skip
    slow = {"first_byte": "0 ms", "connection_bandwidth": "20 MB/s", "bandwidth": "40 MB/s"}
    cached = {"model": slow, "cache": [{"tier": "ram", "bytes": "10 GB"}]}
    found = rayio.explain(rayio.simulate(scenario(**planted | {"storage": cached}), root=tmp_path))
    assert found.capacity.delivered_late == pytest.approx(10, rel=0.15)
    assert "fast enough on average" in found.sentence
    assert (
        f"not all the time: while the ranks wait, about {found.capacity.delivered_late:.3g} batches/s come"
        in found.sentence
    )
    times = {"kind": "exponential", "mean": "60 ms"}
    jitter = {"model": slow | {"first_byte": times, "connection_bandwidth": "1 GB/s", "bandwidth": "10 GB/s"}}
    one = {"epochs": 1, "compute": "50 ms"}
    fewer = planted | {
        "storage": jitter,
        "loader": {"batch_size": 1, "num_workers": 4, "prefetch_factor": 1},
        "train": one,
    }
    found = rayio.explain(rayio.simulate(scenario(**fewer), root=tmp_path))
    assert found.capacity.delivered_late is None
    assert "single batches come late" in found.sentence
