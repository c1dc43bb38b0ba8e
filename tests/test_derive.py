from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayio.errors import ScenarioError
from rayio.model.planning import plan_of
from rayio.scenario import checks, derive
from rayio.scenario.load import build
from rayio.scenario.model import AllReduce, BarrierSync, NoSync, Scenario


def scenario(**sections: Any) -> Scenario:
    """2 nodes × 2 ranks, 10 files × 5 samples of 1000 B, batches of 3, 10 ms of compute."""
    data: dict[str, Any] = {
        "name": "test",
        "cluster": {"nodes": 2, "ranks_per_node": 2},
        "dataset": {"path": "data/x", "num_files": 10, "samples_per_file": 5, "sample_bytes": 1000},
        "loader": {"batch_size": 3, "num_workers": 2, "prefetch_factor": 3},
        "train": {"epochs": 2, "compute": "10 ms"},
    }
    for name, keys in sections.items():
        data[name] = {**data.get(name, {}), **keys}
    return build(data)


def saving(**keys: Any) -> dict[str, Any]:
    return {"every": {"steps": 1}, "path": "c", "model": {"bytes": 10}, **keys}


def test_the_numbers_of_a_small_scenario_are_those_worked_out_by_hand() -> None:
    assert checks.table(scenario(checkpoint=saving(every={"steps": 3}))) == {
        "world_size": 4,
        "num_files": 10,
        "num_samples": 50,
        "samples_per_epoch": 50,
        "steps_per_epoch": 4,
        "fewest_steps_per_epoch": 4,
        "total_steps": 8,
        "dropped_samples": 2,
        "capped_samples": 0,
        "dataset_bytes": 50_000,
        "batch_bytes": 3000,
        "window_steps": 6,
        "window_bytes": 18_000,
        "read_demand": 300_000,
        "total_read_demand": 1_200_000,
        "ideal_seconds": 0.08,
        "num_readers": 8,
        "num_queues": 4,
        "num_writers": 1,
        "num_checkpoints": 2,
        "checkpoint_files": 1,
        "checkpoint_bytes": 10,
        "checkpoint_model_bytes": 0,
        "checkpoint_optimizer_bytes": 0,
        "checkpoint_fewest_rank_bytes": 0,
        "checkpoint_most_rank_bytes": 10,
        "allreduce_seconds": 0,
        "num_evaluations": 0,
        "evaluation_samples": 0,
        "evaluation_steps": 0,
        "evaluation_dataset_bytes": 0,
    }


def test_a_cap_on_steps_is_told_apart_from_dropped_samples() -> None:
    capped = scenario(train={"steps": 3})
    assert derive.steps_per_epoch(capped) == 3
    assert derive.total_steps(capped) == 6
    assert derive.dropped_samples(capped) == 2
    assert derive.capped_samples(capped) == 12
    assert derive.steps_per_epoch(scenario(train={"steps": 99})) == 4
    assert derive.capped_samples(scenario(train={"steps": 99})) == 0


def test_without_drop_last_every_sample_is_read_and_ranks_may_differ_by_a_step() -> None:
    # 50 samples for 4 ranks: 12, 13, 12 and 13 of them, in batches of 3 and of 4
    fours, threes = (scenario(loader={"batch_size": size, "drop_last": False}) for size in (4, 3))
    assert derive.rank_steps(fours) == (3, 4)
    assert derive.rank_steps(threes) == (4, 5)
    assert [plan_of(threes, modelled=True).meetings.parties(0, step) for step in (0, 3, 4, 5)] == [4, 4, 2, 0]
    assert derive.total_rank_steps(threes) == 2 * (2 * 4 + 2 * 5)
    assert derive.samples_read(threes) == derive.samples_read(fours) == 50
    assert derive.dropped_samples(threes) == derive.capped_samples(threes) == 0
    capped = scenario(loader={"batch_size": 3, "drop_last": False}, train={"steps": 3})
    assert (derive.samples_read(capped), derive.capped_samples(capped)) == (36, 14)
    assert derive.rank_steps(scenario(loader={"batch_size": 99, "drop_last": False})) == (1, 1)


@given(files=st.integers(1, 400), nodes=st.integers(1, 9), batch=st.integers(1, 9), cap=st.none() | st.integers(1, 30))
def test_every_sample_is_visited_dropped_or_capped(files: int, nodes: int, batch: int, cap: int | None) -> None:
    ranks = nodes * 2
    nodes, batch = (nodes, batch) if ranks * batch <= files * 5 else (1, 1)
    one = scenario(
        cluster={"nodes": nodes}, dataset={"num_files": files}, loader={"batch_size": batch}, train={"steps": cap}
    )
    visited = derive.steps_per_epoch(one) * derive.samples_per_step(one)
    assert visited + derive.dropped_samples(one) + derive.capped_samples(one) == derive.num_samples(one)
    assert 0 <= derive.dropped_samples(one) < derive.samples_per_step(one)
    low, high = derive.samples_per_rank(one)
    assert low <= derive.num_samples(one) / derive.world_size(one) <= high <= low + 1
    assert derive.whole_steps_per_epoch(one) == low // batch


def test_weak_scaling_gives_every_rank_the_dataset_for_itself() -> None:
    def numbers(nodes: int, scaling: str) -> tuple[float, ...]:
        one = scenario(
            cluster={"nodes": nodes}, dataset={"path": "model://x"}, loader={"scaling": scaling}, train={"steps": 9}
        )
        table = checks.table(one)
        return tuple(table[name] for name in NAMES)

    assert NAMES[0] == "num_files"
    assert numbers(1, "strong") == (10, 50, 50, 8, 2, 0, 50_000)
    assert numbers(2, "strong") == (10, 50, 50, 4, 2, 0, 50_000)
    # 16 whole steps of 3 samples from 50, of which 9 are made
    assert numbers(1, "weak") == (20, 100, 100, 9, 4, 42, 100_000)
    assert numbers(2, "weak") == (40, 200, 200, 9, 8, 84, 200_000)


NAMES = (
    "num_files", "num_samples", "samples_per_epoch", "steps_per_epoch", "dropped_samples", "capped_samples",
    "dataset_bytes",
)  # fmt: skip


@pytest.mark.parametrize("scaling", ["strong", "weak"])
def test_a_replicated_dataset_is_read_whole_by_every_rank(scaling: str) -> None:
    table = checks.table(scenario(loader={"partition": "replicated", "scaling": scaling}))
    assert tuple(table[name] for name in NAMES) == (10, 50, 200, 16, 8, 0, 50_000)
    assert derive.samples_per_rank(scenario(loader={"partition": "replicated"})) == (50, 50)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"loader": {"shuffle_block": 3}}, "loader.shuffle_block=3: nothing asks for it with loader.shuffle=global"),
        ({"loader": {"shuffle_buffer": 3, "shuffle": "none"}}, "loader.shuffle_buffer=3: nothing asks for it with"),
        ({"loader": {"shuffle": "block", "shuffle_block": 50}}, "loader.shuffle=block: shuffles nothing, all 50"),
        (
            {"loader": {"shuffle": "file"}, "dataset": {"num_files": 1, "samples_per_file": 50}},
            "loader.shuffle=file: shuffles nothing, all 50 samples are in one",
        ),
        ({"loader": {"scaling": "weak", "partition": "replicated"}}, "loader.scaling=weak: changes nothing with"),
        ({"loader": {"shuffle": "block", "shuffle_block": 49}}, None),
        ({"loader": {"shuffle": "buffer", "shuffle_buffer": 1000}}, None),
        ({"loader": {"shuffle": "file"}}, None),
        ({"loader": {"scaling": "weak"}, "dataset": {"path": "model://x"}}, None),
    ],
)
def test_a_shuffle_or_scaling_that_changes_nothing_is_said(sections: dict[str, Any], said: str | None) -> None:
    lines = checks.idle(scenario(**sections))
    assert len(lines) == (said is not None)
    assert said is None or lines[0].startswith(said)


def test_keys_of_buckets_without_a_bucket_are_said_to_do_nothing() -> None:
    where = "no effect, because no path of this run is at s3://"
    keys = {"region": "eu", "max_attempts": 3}
    lines = [f"storage.region=eu: {where}", f"storage.max_attempts=3: {where}"]
    assert [*checks.unused_schemes(scenario(storage=keys))] == lines
    faulty = scenario(storage=keys | {"faults": {"errors": [{"rate": 0.1}]}})
    assert [*checks.unused_schemes(faulty)] == lines[:1], "an error is followed by another attempt"
    for place in ({"base": "s3://bucket"}, {"out": "s3://bucket/run"}):
        real = scenario(storage=keys, dataset={"path": "data"})
        assert [*checks.unused_schemes(real, **place)] == []


def test_a_replicated_dataset_may_have_fewer_samples_than_there_are_ranks() -> None:
    many = scenario(cluster={"nodes": 100}, loader={"partition": "replicated", "batch_size": 50})
    assert derive.steps_per_epoch(many) == 1


def test_a_rank_that_reads_itself_has_no_window_no_readers_and_no_queue() -> None:
    alone = scenario(loader={"num_workers": 0})
    assert derive.window_steps(alone) == derive.num_readers(alone) == derive.num_queues(alone) == 0


def test_no_compute_means_infinite_demand() -> None:
    assert derive.read_demand(scenario(train={"compute": 0})) == math.inf
    assert derive.total_read_demand(scenario(train={"compute": 0})) == math.inf


@pytest.mark.parametrize(
    ("every", "due"),
    [
        ({"steps": 3}, [(0, 2), (1, 1)]),
        ({"steps": 4}, [(0, 3), (1, 3)]),
        ({"steps": 9}, []),
        ({"epochs": 1}, [(0, 3), (1, 3)]),
        ({"epochs": 2}, [(1, 3)]),
        ({"epochs": 3}, []),
    ],
)
def test_a_checkpoint_follows_every_nth_step_or_the_last_step_of_every_nth_epoch(
    every: dict[str, int], due: list[tuple[int, int]]
) -> None:
    saved = scenario(checkpoint=saving(every=every))
    assert [*derive.checkpoint_steps(saved)] == due
    assert derive.num_checkpoints(saved) == len(due)


def test_without_checkpoints_nothing_is_due_and_nobody_writes() -> None:
    assert [*derive.checkpoint_steps(scenario())] == []
    assert (
        derive.num_checkpoints(scenario()) == derive.num_writers(scenario()) == derive.checkpoint_bytes(scenario()) == 0
    )


@pytest.mark.parametrize(
    ("writers", "shards"),
    [
        ("rank_zero", (10,)),
        ("all_ranks", (10, 10, 10, 10)),
        ({"dedicated": 4}, (3, 3, 2, 2)),
        ({"dedicated": 1}, (10,)),
    ],
)
def test_writers_share_the_state_or_save_it_each(writers: object, shards: tuple[int, ...]) -> None:
    saved = scenario(checkpoint=saving(writers=writers))
    assert derive.checkpoint_shards(saved) == shards
    assert derive.num_writers(saved) == len(shards)
    assert derive.num_roles(saved) == 8 + 4 + 4 + len(shards)


def test_an_all_reduce_over_a_ring_sends_every_byte_almost_twice() -> None:
    ring = AllReduce(bytes=8_000_000, bandwidth=1e9, latency=1e-5)
    assert ring.seconds(4) == pytest.approx(2 * 3 / 4 * 8e6 / 1e9 + 6 * 1e-5)
    assert ring.seconds(1) == 0
    assert BarrierSync().seconds(4) == NoSync().seconds(4) == 0


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"loader": {"batch_size": 13}}, "loader.batch_size=13: 4 ranks need 52 samples for a step"),
        ({"loader": {"batch_size": 13}}, "use at most 12"),
        (
            {"loader": {"batch_size": 51, "scaling": "weak"}, "dataset": {"path": "model://x"}},
            "dataset.samples_per_file=5 × 4 ranks (loader.scaling=weak) has 200; use at most 50",
        ),
        (
            {"loader": {"batch_size": 51, "partition": "replicated"}},
            "has 50 for each of them; use at most 50",
        ),
        (
            {"loader": {"batch_size": 2**20 + 1}, "dataset": {"num_files": 10**7}},
            "loader.batch_size=1048577: must be at most 1048576",
        ),
        ({"loader": {"shuffle": "block"}}, "loader.shuffle=block: give loader.shuffle_block, a number of samples"),
        ({"loader": {"shuffle": "buffer", "shuffle_block": 3}}, "give loader.shuffle_buffer, a number of samples"),
        (
            {
                "storage": {
                    "model": {
                        "first_byte": 0,
                        "connection_bandwidth": 1,
                        "bandwidth": 1,
                        "requests_per_second": 1,
                        "opens_per_second": 1,
                    }
                }
            },
            "storage.model.opens_per_second: takes the place of requests_per_second",
        ),
        ({"cluster": {"nodes": 26}}, "cluster.nodes=26 × cluster.ranks_per_node=2: 52 ranks for the 50 samples"),
        ({"cluster": {"nodes": 2**20}}, "at most 1048576 are possible"),
        ({"dataset": {"num_files": 2**62}}, "samples; at most"),
        ({"dataset": {"sample_bytes": "1000 PB"}}, "dataset.sample_bytes"),
        ({"dataset": {"sample_bytes": 15}}, "dataset.sample_bytes=15 B: must be at least 16 B"),
        ({"dataset": {"sample_bytes": 0}}, "dataset.sample_bytes=0 B"),
        ({"train": {"epochs": 5000}}, "train.epochs=5000: must be at most 4096"),
        (
            {"cluster": {"placement": "spread"}, "loader": {"worker": "thread"}},
            "the readers of a rank share a process, and cluster.placement=spread has them on 2 nodes",
        ),
        ({"dataset": {"path": "model://x"}, "loader": {"payload": "real"}}, "loader.payload=real"),
        (
            {"checkpoint": saving(writers={"dedicated": 11})},
            "checkpoint.writers.dedicated=11: more writers than the 10 B",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario(**sections)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_threads_are_said_to_change_nothing_for_a_single_reader(workers: int) -> None:
    said = checks.idle(scenario(loader={"worker": "thread", "num_workers": workers, "prefetch_factor": 2}))
    assert any("loader.worker=thread: changes nothing" in line for line in said) == (workers < 2)


def test_keeping_the_last_batch_where_all_are_whole_is_said_to_change_nothing() -> None:
    fits = scenario(cluster={"nodes": 1}, loader={"batch_size": 5, "drop_last": False})
    assert any("loader.drop_last=false: changes nothing" in line for line in checks.idle(fits))
    assert not any("drop_last" in line for line in checks.idle(scenario(loader={"drop_last": False})))
    unequal = scenario(cluster={"nodes": 3}, dataset={"num_files": 101}, loader={"batch_size": 1, "drop_last": False})
    assert not any("drop_last" in line for line in checks.idle(unequal)), "two ranks have a step more"


def test_the_largest_batch_and_the_most_ranks_that_fit_are_accepted() -> None:
    assert derive.steps_per_epoch(scenario(loader={"batch_size": 12})) == 1
    assert derive.steps_per_epoch(scenario(cluster={"nodes": 25}, loader={"batch_size": 1})) == 1
    assert checks.table(scenario(dataset={"sample_bytes": 16}))["dataset_bytes"] == 800


def test_a_scenario_made_in_python_can_be_checked() -> None:
    fine = scenario()
    checks.check(fine)
    changed = fine.model_copy(update={"loader": fine.loader.model_copy(update={"batch_size": 99})})
    with pytest.raises(ScenarioError, match=r"loader\.batch_size=99"):
        checks.check(changed)
