"""``train.parallelism``: which rank has which part of the model, and what is impossible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rayio
from rayio.errors import ScenarioError
from rayio.model.planning import plan_of
from rayio.scenario import checks
from rayio.scenario.meetings import allreduce_seconds
from rayio.scenario.topology import Topology
from scenarios import run_locally, scenario, simulated


@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (2, 1), (1, 2), (2, 3), (4, 3), (12, 2)])
def test_ranks_are_numbered_by_tensor_then_stage_then_replica(tensor: int, pipeline: int) -> None:
    """DLIO's order: tensor r % TP, stage (r // TP) % PP, replica r // (TP × PP)."""
    here = Topology(nodes=3, ranks_per_node=8, tensor_parallel=tensor, pipeline_parallel=pipeline)
    places = {rank: (here.tensor_of(rank), here.stage_of(rank), here.replica_of(rank)) for rank in range(24)}
    assert places == {
        rank: (rank % tensor, (rank // tensor) % pipeline, rank // (tensor * pipeline)) for rank in range(24)
    }
    assert len({*places.values()}) == 24 == here.parts * here.data_parallel
    for rank, (part, _, replica) in places.items():
        assert [*here.stages_of(rank)] == [r for r, at in places.items() if (at[0], at[2]) == (part, replica)]
        assert [*here.model_of(rank)] == [r for r, at in places.items() if at[2] == replica]


def test_a_scenario_s_division_is_that_of_its_plan() -> None:
    wanted = scenario(
        cluster={"nodes": 2, "ranks_per_node": 4},
        train__parallelism={"tensor": 2, "pipeline": 2, "zero_stage": 1},
        checkpoint={"every": {"epochs": 1}, "path": "ck", "model": {"bytes": 9}},
    )
    assert wanted.topology == Topology(nodes=2, ranks_per_node=4, tensor_parallel=2, pipeline_parallel=2, zero_stage=1)
    assert wanted.topology.data_parallel == 2
    saved = plan_of(wanted, modelled=True).checkpointing
    assert saved is not None
    assert saved.topology == wanted.topology


@pytest.mark.parametrize("divided", [{"tensor": 3}, {"pipeline": 5}, {"tensor": 4, "pipeline": 4}])
def test_parts_that_do_not_divide_the_ranks_are_refused_with_their_numbers(divided: dict[str, int]) -> None:
    parts = divided.get("tensor", 1) * divided.get("pipeline", 1)
    with pytest.raises(ScenarioError, match=rf"^scenario: train\.parallelism=.* takes {parts} ranks.* the 8 of "):
        scenario(cluster__ranks_per_node=8, train__parallelism=divided)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("zero_stage", 4, "must be at most 3"),
        ("zero_stage", -1, "must be a whole number of at least 0"),
        ("tensor", 0, "must be a whole number of at least 1"),
        ("pipeline", 1.5, "must be a whole number of at least 1"),
        ("data", 2, "no such key; train.parallelism has microbatches, pipeline, tensor, zero_stage"),
    ],
)
def test_an_impossible_value_is_one_line(key: str, value: float, allowed: str) -> None:
    with pytest.raises(ScenarioError) as told:
        scenario(train__parallelism={key: value})
    assert f"train.parallelism.{key}" in str(told.value)
    assert allowed in str(told.value)
    assert "\n" not in str(told.value)


def test_a_stage_of_zero_without_replicas_or_shares_is_named() -> None:
    saved = {"every": {"steps": 1}, "path": "ck", "model": {"bytes": 9}, "writers": "per_group"}
    shape = {"kind": "transformer", "layers": 2, "hidden": 8, "ffn": 8, "vocabulary": 8, "heads": 2}
    parallel = saved | {"model": shape, "writers": "parallel"}
    zero = "train.parallelism.zero_stage=1: changes nothing"
    for checkpoint, tensor, note in (
        (None, 1, [f"{zero} without checkpoint.writers=parallel"]),
        (saved, 1, [f"{zero} without checkpoint.writers=parallel"]),
        (parallel, 2, [f"{zero}, the model has one replica"]),
        (parallel, 1, []),
    ):
        wanted = scenario(train__parallelism={"tensor": tensor, "zero_stage": 1}, checkpoint=checkpoint)
        assert checks.idle(wanted) == note


#: Eight ranks on two nodes: two replicas of 2 × 2 parts, or four of two.
EIGHT: dict[str, Any] = {"cluster": {"nodes": 2, "ranks_per_node": 4}, "dataset__num_files": 50}
DIVISIONS = [{"tensor": 2}, {"pipeline": 4}, {"tensor": 2, "pipeline": 2}, {"tensor": 8}]


@pytest.mark.parametrize("divided", DIVISIONS)
@pytest.mark.parametrize("keys", [
    {}, {"loader__partition": "strided"}, {"loader__drop_last": False}, {"loader__num_workers": 0},
    {"loader__assignment": "by_file", "loader__shuffle": "none", "dataset__samples_per_file": 8},
    {"loader__scaling": "weak"},
])  # fmt: skip
def test_the_ranks_of_a_replica_read_the_same_batches_and_replicas_read_others(
    divided: dict[str, int], keys: dict[str, Any]
) -> None:
    wanted = scenario(**EIGHT | keys, train__parallelism=divided)
    run = simulated(wanted)
    assert run.ledger.even
    parts, sampler = wanted.topology.parts, run.plan.sampler()
    seen: dict[int, list[int]] = {}
    for rank in range(8):
        steps = range(run.plan.steps_of(rank)[0])
        seen[rank] = [sample for step in steps for sample in sampler.batch(0, rank, step).samples.tolist()]
        assert seen[rank] == seen[rank - rank % parts]
    distinct = [sample for rank in range(0, 8, parts) for sample in seen[rank]]
    assert len(distinct) == len({*distinct})
    table = checks.table(wanted)
    assert sum(map(len, seen.values())) == table["samples_per_epoch"] - table["dropped_samples"]
    if keys == {"loader__drop_last": False}:
        assert sorted(distinct) == [*range(50)]


def test_an_undivided_model_is_read_as_before() -> None:
    plain = scenario(**EIGHT)
    whole = scenario(**EIGHT, train__parallelism={"tensor": 1, "pipeline": 1})
    assert simulated(plain).delivered(5) == simulated(whole).delivered(5)


def test_the_wall_clock_reads_the_same_and_an_evaluation_is_divided_too(tmp_path: Path) -> None:
    wanted = scenario(**EIGHT, train__parallelism={"tensor": 2, "pipeline": 2}, train__compute="1 ms",
                      train__evaluate={"compute": "1 ms"}, dataset__eval__num_files=8)  # fmt: skip
    here, there = simulated(wanted), run_locally(wanted, tmp_path, modelled=True)
    assert here.ledger.even
    assert there.ledger.even
    for rank in range(8):
        assert here.delivered(rank) == there.delivered(rank)
    evaluated = {row["rank"]: row["bytes"] for row in here.rows("eval_data_wait")}
    assert len(evaluated) == 8


def test_a_replica_s_ranks_compute_in_lock_step_where_all_never_meet() -> None:
    slow = {"ranks": [1], "factor": 2}
    run = simulated(scenario(**EIGHT, train__parallelism={"tensor": 2}, train__sync="none", train__stragglers=slow))
    ends = {rank: run.rows("life", rank=rank)[0]["duration_ns"] for rank in range(8)}
    assert ends[0] == pytest.approx(2 * ends[2], rel=0.02)
    assert ends[3] == ends[2]
    assert {row["rank"] for row in run.rows("sync") if row["duration_ns"] > 1e6} == {0}


def test_gradients_are_reduced_among_replicas() -> None:
    gradients = {"kind": "allreduce", "bytes": "100 MB", "bandwidth": "10 GB/s"}
    for divided, milliseconds in (({}, 17.5), ({"tensor": 2}, 15), ({"tensor": 4}, 10), ({"tensor": 8}, 0)):
        wanted = scenario(**EIGHT, train__parallelism=divided, train__sync=gradients)
        assert allreduce_seconds(wanted) == pytest.approx(milliseconds / 1e3)


def test_a_sample_that_all_ranks_of_a_replica_read_counts_once_in_samples_a_second(tmp_path: Path) -> None:
    """Two replicas of two ranks: 24 steps of 2 replicas × 4 samples of 10 ms are 800 samples/s; each is read twice."""
    keys = {
        "cluster__ranks_per_node": 4, "dataset__num_files": 192, "loader__batch_size": 4, "train__epochs": 1,
        "train__compute": "10 ms", "train__parallelism": {"tensor": 2}, "storage__model": "memory",
    }  # fmt: skip
    run = rayio.simulate(scenario(**keys), out=tmp_path / "run")
    result = run.result
    assert result.ledger is not None
    assert result.ledger.delivered_samples == 2 * 192
    assert result.samples_per_second == pytest.approx(800, rel=0.05)
    assert result.samples_per_second_dlio == pytest.approx(800, rel=0.05)
    simulated = run.explain().simulated
    assert simulated is not None
    assert simulated.samples_per_second == pytest.approx(800, rel=0.05)
