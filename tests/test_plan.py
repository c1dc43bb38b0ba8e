"""The plan: small whatever it plans, and sure of who lives where, who meets whom, and what travels."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayio import seeds
from rayio.data.sampler import sample_digest
from rayio.model.plan import Plan
from rayio.model.planning import plan_of
from rayio.place import Where
from scenarios import scenario

#: 5 billion samples for 8192 ranks on 1024 nodes.
HUGE: dict[str, Any] = {
    "cluster": {"nodes": 1024, "ranks_per_node": 8},
    "dataset__num_files": 5_000_000,
    "dataset__samples_per_file": 1000,
    "dataset__sample_bytes": {"kind": "normal", "mean": "100 kB", "stdev": "30 kB"},
    "loader__batch_size": 16,
    "train__epochs": 90,
    "checkpoint": {"every": {"steps": 100}, "path": "ck", "model": {"bytes": "2 TB"}, "writers": "all_ranks"},
}


def plan(modelled: bool = True, auto: int | None = None, **overrides: Any) -> Plan:
    return plan_of(scenario(**overrides), modelled, auto)


#: 5000 steps a rank, of random length.
NOISY = plan(
    dataset__num_files=10_000, loader__batch_size=1, train__compute={"kind": "normal", "mean": 1, "stdev": 0.1}
)


def test_a_plan_stays_small_whatever_it_plans_and_whoever_has_used_it() -> None:
    huge = plan(**HUGE)
    assert huge.world_size == 8192
    assert huge.layout.num_samples == 5_000_000_000
    loading = huge.loading(8192)
    for rank in (0, 4095, 8191):
        loading.of(Where(rank, 89, 38_000))
        assert len(pickle.dumps(huge.training(rank))) < 100_000
        assert len(pickle.dumps(huge.queue(rank))) < 2_000
    assert len(pickle.dumps(loading)) < 2_000
    assert len(pickle.dumps(huge)) < 100_000


def test_a_plan_that_travelled_plans_the_same() -> None:
    here = plan(**HUGE)
    there = pickle.loads(pickle.dumps(here))
    at = Where(8191, 89, 12_345)
    ours, theirs = (p.sampler().batch(at.epoch, at.rank, at.step) for p in (here, there))
    assert np.array_equal(ours.samples, theirs.samples)
    assert there.queue(8191) == here.queue(8191)
    assert there.training(5).shards(Where(5, 0, 99)) == here.training(5).shards(Where(5, 0, 99)) != ()


def test_ranks_fill_one_node_after_the_other() -> None:
    assert [plan(cluster={"nodes": 3, "ranks_per_node": 2}).node_of_rank(r) for r in range(6)] == [0, 0, 1, 1, 2, 2]


def test_colocated_readers_live_beside_their_rank() -> None:
    here = plan(cluster={"nodes": 3, "ranks_per_node": 2})
    assert list(here.readers()) == [(rank, worker) for rank in range(6) for worker in range(2)]
    assert all(here.node_of_reader(*who) == here.node_of_rank(who[0]) for who in here.readers())


@given(st.integers(1, 7), st.integers(1, 4), st.integers(1, 5))
def test_spread_readers_take_turns_so_that_every_node_has_equally_many(nodes: int, ranks: int, workers: int) -> None:
    here = plan(
        cluster={"nodes": nodes, "ranks_per_node": ranks, "placement": "spread"},
        loader__num_workers=workers,
        loader__batch_size=1,
    )
    homes = Counter(here.node_of_reader(*who) for who in here.readers())
    assert homes == dict.fromkeys(range(nodes), ranks * workers)
    first = [here.node_of_reader(0, worker) for worker in range(workers)]
    assert len(set(first)) == min(nodes, workers), "a rank's readers are on as many nodes as can be"


@pytest.mark.parametrize(
    ("writers", "nodes"),
    [("rank_zero", [0]), ("all_ranks", [0, 0, 1, 1, 2, 2]), ({"dedicated": 5}, [0, 1, 2, 0, 1])],
    ids=str,
)
def test_writers_live_beside_their_rank_and_dedicated_ones_take_turns(writers: Any, nodes: list[int]) -> None:
    saved = {"every": {"epochs": 1}, "path": "ck", "model": {"bytes": 1000}, "writers": writers}
    here = plan(cluster={"nodes": 3, "ranks_per_node": 2}, checkpoint=saved)
    assert [here.node_of_writer(number) for number in range(here.num_writers)] == nodes


def test_every_rank_has_the_same_whole_steps_and_all_meet_at_each_of_them() -> None:
    here = plan(cluster={"ranks_per_node": 3}, dataset__num_files=50, train__epochs=2)
    assert here.steps == (8, 8)  # 50 // (2 * 3)
    assert {here.meetings.parties(epoch, step) for epoch in (0, 1) for step in range(8)} == {3}
    assert here.meetings.parties(1, 8) == 0
    assert [here.training(r).steps(1) for r in range(3)] == [8] * 3
    assert here.queue(2).steps == here.steps


@given(st.integers(1, 6), st.integers(1, 4), st.integers(6, 60), st.sampled_from(["contiguous", "strided"]))
def test_without_drop_last_those_meet_at_a_step_that_have_one(ranks: int, batch: int, files: int, how: str) -> None:
    here = plan(
        cluster__ranks_per_node=ranks, loader={"batch_size": batch, "partition": how, "drop_last": False},
        dataset__num_files=files,
    )  # fmt: skip
    for epoch in (0, 1):
        for step in range(here.steps[epoch] + 1):
            meeting = [rank for rank in range(ranks) if here.meets(rank, epoch, step)]
            assert here.meetings.parties(epoch, step) == len(meeting)
            assert meeting == [rank for rank in range(ranks) if step < here.training(rank).steps(epoch)]
    assert [here.queue(rank).steps for rank in range(ranks)] == [here.steps_of(rank) for rank in range(ranks)]
    assert sum(tally.samples for tally in here.planned()) == 2 * files
    assert [(t.steps, t.samples) for t in here.planned()] == [(t.steps, t.samples) for t in here.planned_numbers()]


@pytest.mark.parametrize(("sync", "meets"), [("none", False), ("barrier", True)])
def test_ranks_meet_unless_there_is_no_sync(sync: str, meets: bool) -> None:
    assert plan(train__sync=sync).has_barrier is meets


@pytest.mark.parametrize(
    ("payload", "modelled", "travels"),
    [
        ("auto", True, False),
        ("auto", False, True),
        ("none", False, False),
        ("none", True, False),
        ("real", False, True),
        ("real", True, True),
    ],
)
def test_bytes_travel_when_they_are_really_read_unless_said_otherwise(
    payload: str, modelled: bool, travels: bool
) -> None:
    here = plan(modelled, dataset__path="data", loader__payload=payload)
    assert here.payload is travels
    assert here.loading().payload is travels


@pytest.mark.parametrize(
    ("said", "auto", "per_node", "per_queue"),
    [("auto", None, None, None), ("auto", 9000, 9000, 3000), (6000, 9000, 6000, 2000), (6000, None, 6000, 2000)],
)
def test_the_ranks_of_a_node_share_its_bound_on_bytes_in_flight(
    said: int | str, auto: int | None, per_node: int | None, per_queue: int | None
) -> None:
    here = plan(
        True, auto, cluster={"nodes": 2, "ranks_per_node": 3}, loader__max_bytes_in_flight=said, loader__batch_size=1
    )
    assert here.max_bytes_in_flight == per_node
    assert {here.queue(rank).max_bytes for rank in range(6)} == {per_queue}


def test_a_queue_is_what_the_loader_section_says() -> None:
    queue = plan(
        loader__num_workers=3, loader__prefetch_factor=4, loader__assignment="dynamic", loader__in_order=False
    ).queue(1)
    assert (queue.rank, queue.num_workers, queue.prefetch_factor) == (1, 3, 4)
    assert (queue.assignment, queue.in_order, queue.window) == ("dynamic", False, 12)


def test_opens_cost_what_the_preset_or_the_scenario_says() -> None:
    lustre = plan(storage__model="lustre-theta", cluster__nodes=3)
    written = {
        "first_byte": {"kind": "lognormal", "median": "100 us", "sigma": 0.3},
        "open": {"kind": "lognormal", "median": "1 ms", "sigma": 0.8},
        "connection_bandwidth": "2.6 GB/s",
        "bandwidth": "210 GB/s",
        "opens_per_second": 20_000,
        "scope": "cluster",
    }
    assert plan(storage__model=written, cluster__nodes=3).device == lustre.device
    assert lustre.device.open is not None
    assert lustre.num_devices == 1
    assert pickle.loads(pickle.dumps(lustre.device)) == lustre.device
    assert plan(storage__model="nvme").device.open is None


@pytest.mark.parametrize("nodes", [1, 4])
def test_the_nodes_share_s3s_cap_on_requests_and_have_a_network_each(nodes: int) -> None:
    s3 = plan(storage__model="s3", cluster__nodes=nodes)
    assert s3.num_devices == nodes
    assert s3.device.requests_per_second == 5500 / nodes
    assert s3.device.bandwidth == 12.5e9
    assert s3.first_byte.draw(1, np.arange(100_000, dtype=np.int64)).max() <= 2.0


def test_ranks_of_a_replicated_dataset_load_the_same_and_a_weak_one_grows_with_them() -> None:
    same = plan(cluster__ranks_per_node=3, loader__partition="replicated")
    assert same.steps == (24, 24)
    assert same.layout.num_samples == 48
    assert len({tally.samples for tally in same.planned()}) == 1
    grown = plan(cluster__ranks_per_node=3, loader__scaling="weak")
    assert grown.steps == (24, 24)
    assert grown.layout.num_files == grown.sampler().layout.num_files == 3 * 48
    assert sum(tally.samples for tally in grown.planned()) == 2 * 3 * 48


def test_a_preset_and_its_parameters_written_out_are_the_same_device() -> None:
    written = {
        "first_byte": {"kind": "lognormal", "median": "90 us", "sigma": 0.3},
        "connection_bandwidth": "3 GB/s",
        "bandwidth": "6 GB/s",
        "requests_per_second": 700_000,
        "scope": "node",
    }
    index = np.arange(100, dtype=np.int64)
    preset, mapping = (plan(storage__model=model, cluster__nodes=3) for model in ("nvme", written))
    assert preset.device == mapping.device
    assert np.array_equal(preset.first_byte.draw(1, index), mapping.first_byte.draw(1, index))
    assert preset.num_devices == mapping.num_devices == 3
    assert [preset.device_of_node(n) for n in range(3)] == [mapping.device_of_node(n) for n in range(3)] == [0, 1, 2]
    shared = plan(storage__model=written | {"scope": "cluster"}, cluster__nodes=3)
    assert shared.num_devices == 1
    assert [shared.device_of_node(n) for n in range(3)] == [0, 0, 0]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4999)), min_size=1, max_size=20), st.integers(0, 1))
def test_compute_times_are_drawn_at_their_address_in_whatever_order_they_are_asked_for(
    places: list[tuple[int, int]], rank: int
) -> None:
    training = NOISY.training(rank)
    for epoch, step in places:
        address = seeds.key(NOISY.seed, "compute", rank, epoch)
        (drawn,) = NOISY.training_phase.compute.draw(address, np.array([step], np.int64))
        assert training.compute_seconds(Where(rank, epoch, step)) == drawn


def test_every_rank_epoch_and_step_draws_a_compute_time_of_its_own() -> None:
    drawn = [
        NOISY.training(rank).compute_seconds(Where(rank, epoch, step))
        for rank in (0, 1)
        for epoch in (0, 1)
        for step in (0, 1, 1024)
    ]
    assert len(set(drawn)) == 12


def test_the_all_reduce_is_of_all_ranks() -> None:
    sync = {"kind": "allreduce", "bytes": "1 MB", "bandwidth": "1 GB/s", "latency": "1 ms"}
    here = plan(cluster={"nodes": 2, "ranks_per_node": 2}, train__sync=sync)
    assert here.training(3).sync_seconds == pytest.approx(2 * 3 / 4 * 0.001 + 6 * 0.001)
    assert plan(cluster__ranks_per_node=1, train__sync=sync).meetings.seconds == 0


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(12, 70))
def test_the_planned_books_are_what_the_batches_sum_to(ranks: int, batch: int, epochs: int, files: int) -> None:
    here = plan(cluster__ranks_per_node=ranks, loader__batch_size=batch, train__epochs=epochs, dataset__num_files=files)
    sampler = here.sampler()
    for rank, tally in enumerate(here.planned()):
        batches = [sampler.batch(e, rank, s) for e, steps in enumerate(here.steps) for s in range(steps)]
        assert (tally.rank, tally.steps) == (rank, len(batches))
        assert tally.samples == sum(len(b.samples) for b in batches)
        assert tally.digest == sum(sample_digest(b.epoch, rank, b.step, b.samples) for b in batches) % 2**64


def test_the_planned_numbers_are_those_of_the_planned_books() -> None:
    plan = plan_of(scenario(dataset__num_files=51, train__epochs=3), modelled=True)
    numbers = [(tally.rank, tally.steps, tally.samples) for tally in plan.planned_numbers()]
    assert numbers == [(tally.rank, tally.steps, tally.samples) for tally in plan.planned()]
