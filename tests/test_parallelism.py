"""``train.parallelism``: which rank has which part of the model, and what is impossible."""

from __future__ import annotations

import pytest

from rayio.errors import ScenarioError
from rayio.model.planning import plan_of
from rayio.scenario import checks
from rayio.scenario.topology import Topology
from scenarios import scenario


@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (2, 1), (1, 2), (2, 3), (4, 3), (12, 2)])
def test_ranks_are_numbered_by_tensor_then_stage_then_replica(tensor: int, pipeline: int) -> None:
    """DLIO's order: tensor r % TP, stage (r // TP) % PP, replica r // (TP × PP)."""
    here = Topology(nodes=3, ranks_per_node=8, tensor_parallel=tensor, pipeline_parallel=pipeline)
    places = {rank: (here.tensor_of(rank), here.stage_of(rank), here.replica_of(rank)) for rank in range(24)}
    assert places == {
        rank: (rank % tensor, (rank // tensor) % pipeline, rank // (tensor * pipeline)) for rank in range(24)
    }
    assert len({*places.values()}) == 24 == here.parts * here.data_parallel
    for rank, (part, stage, replica) in places.items():
        assert [*here.tensors_of(rank)] == [r for r, at in places.items() if at[1:] == (stage, replica)]
        assert [*here.stages_of(rank)] == [r for r, at in places.items() if (at[0], at[2]) == (part, replica)]
        assert [*here.replicas_of(rank)] == [r for r, at in places.items() if at[:2] == (part, stage)]
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
        ("data", 2, "no such key; train.parallelism has pipeline, tensor, zero_stage"),
    ],
)
def test_an_impossible_value_is_one_line(key: str, value: float, allowed: str) -> None:
    with pytest.raises(ScenarioError) as told:
        scenario(train__parallelism={key: value})
    assert f"train.parallelism.{key}" in str(told.value)
    assert allowed in str(told.value)
    assert "\n" not in str(told.value)


def test_a_division_that_nothing_follows_is_named() -> None:
    (note,) = checks.idle(scenario(train__parallelism={"tensor": 2}))
    assert note == "train.parallelism: changes nothing with these train.sync and checkpoint.writers"
    assert not checks.idle(scenario(train__parallelism={"tensor": 1}))


def test_a_stage_of_zero_without_replicas_or_shares_is_named() -> None:
    saved = {"every": {"steps": 1}, "path": "ck", "model": {"bytes": 9}, "writers": "per_group"}
    shape = {"kind": "transformer", "layers": 2, "hidden": 8, "ffn": 8, "vocabulary": 8, "heads": 2}
    parallel = saved | {"model": shape, "writers": "parallel"}
    zero = "train.parallelism.zero_stage=1: changes nothing"
    for checkpoint, tensor, note in (
        (saved, 1, [f"{zero} without checkpoint.writers=parallel"]),
        (parallel, 2, [f"{zero}, the model has one replica"]),
        (parallel, 1, []),
    ):
        wanted = scenario(train__parallelism={"tensor": tensor, "zero_stage": 1}, checkpoint=checkpoint)
        assert checks.idle(wanted) == note
