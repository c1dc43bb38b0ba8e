"""The law that the whole design rests on: one scenario means the same batches in the same order on every engine."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayio.errors import DataError
from rayio.model.planning import plan_of
from rayio.place import batch_id
from rayio.scenario.costs import charged
from rayio.scenario.model import Costs, Scenario
from scenarios import Outcome, run_locally, scenario, simulated

#: A modelled system as fast as memory, whose batches still overtake each other.
FAST = {
    "first_byte": {"kind": "lognormal", "median": "100 us", "sigma": 1.0},
    "connection_bandwidth": "1 TB/s",
    "bandwidth": "1 TB/s",
}
#: What a real engine's messages would cost.
COSTS = {"lease": "1 ms", "take": "700 us", "put": "300 us", "barrier": "2 ms", "transfer_latency": "10 us"}

#: Decoding that is work where there are bytes, and a time where there are none.
CHECKSUM = {"kind": "checksum", "passes": 2, "rate": "100 MB/s"}
INFLATE = {"kind": "decompress", "ratio": 3, "rate": "100 MB/s"}


def wall_clock(examples: int) -> settings:
    return settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Draw a scenario of at most 90 samples, whose ranks and batches need not divide them."""
    ranks, batch, per_file = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    drop_last = draw(st.booleans())
    files = draw(st.integers(-(-ranks * (batch if drop_last else 1) // per_file), 90 // per_file))
    overrides: dict[str, Any] = {}
    if draw(st.booleans()):
        writers = draw(st.sampled_from(["rank_zero", "all_ranks", "sharded", {"dedicated": 3}]))
        every = {draw(st.sampled_from(["steps", "steps", "epochs"])): draw(st.integers(1, 5))}
        overrides["checkpoint"] = {
            "every": every, "path": "ck", "model": {"bytes": 5000}, "writers": writers, "fsync": False,
            "asynchronous": draw(st.booleans()), "snapshot_bandwidth": "50 MB/s",
            "incremental": draw(st.sampled_from(["none", {"fraction": 0.3, "full_every": 2}])),
        }  # fmt: skip
    held_out: dict[str, Any] = {"num_files": 0}
    if draw(st.booleans()):
        overrides["train__evaluate"] = {
            "every": draw(st.sampled_from([{"epochs": 1}, {"epochs": 2}, {"steps": 1}, {"steps": 3}])),
            "compute": {"kind": "uniform", "low": "10 us", "high": "200 us"},
            "batch_size": draw(st.sampled_from([None, 2])),
            "steps": draw(st.sampled_from([None, 2])),
        }
        held_out = {"num_files": draw(st.integers(ranks, 9)), "samples_per_file": draw(st.sampled_from([None, 2]))}
    clusters = [{"ranks_per_node": ranks}, {"nodes": ranks, "placement": "spread"}]
    clusters += [{"nodes": 2, "ranks_per_node": [1, ranks - 1]}] if ranks > 1 else []
    epochs = draw(st.integers(1, 2))
    caps = st.none() | st.integers(1, 9) | st.lists(st.integers(1, 9), min_size=epochs, max_size=epochs)
    return scenario(
        seed=draw(st.integers(0, 1000)),
        cluster=draw(st.sampled_from(clusters)),
        dataset={
            "path": "data",
            "num_files": files,
            "samples_per_file": per_file,
            "sample_bytes": {"kind": "uniform", "low": 16, "high": 400},
            "eval": held_out,
        },
        loader={
            "batch_size": batch,
            "num_workers": draw(st.integers(0, 3)),
            "prefetch_factor": draw(st.integers(1, 3)),
            "assignment": draw(st.sampled_from(["static", "dynamic"])),
            "in_order": draw(st.booleans()),
            "drop_last": drop_last,
            "partition": draw(st.sampled_from(["contiguous", "strided", "replicated"])),
            "scaling": draw(st.sampled_from(["strong", "weak"])),
            "shuffle": draw(st.sampled_from(["none", "file", "block", "buffer", "global"])),
            "shuffle_block": draw(st.integers(1, 5)),
            "shuffle_buffer": draw(st.integers(1, 9)),
            "decode": draw(st.sampled_from([0, "20 us", CHECKSUM, INFLATE])),
            "max_bytes_in_flight": draw(st.sampled_from(["auto", 1, 1500])),
        },
        train={
            "epochs": epochs,
            "steps": draw(caps),
            "compute": {"kind": "uniform", "low": "10 us", "high": "300 us"},
            "sync": draw(st.sampled_from(["none", "barrier"])),
        },
        storage__model=FAST,
        **overrides,
    )


def deliver_the_same(one: Outcome, other: Outcome) -> None:
    """Hold two runs of a scenario to the law."""
    plan = one.plan
    for rank in range(plan.world_size):
        steps = plan.steps_of(rank)
        planned = [batch_id(rank, epoch, step) for epoch in range(len(steps)) for step in range(steps[epoch])]
        if plan.loader.in_order:
            assert one.delivered(rank) == other.delivered(rank) == planned
        else:
            assert sorted(one.delivered(rank)) == sorted(other.delivered(rank)) == planned
        tried = [row["link"] for row in one.rows("eval_data_wait", rank=rank)]
        again = [row["link"] for row in other.rows("eval_data_wait", rank=rank)]
        steps = plan.evaluation_steps_of(rank)
        planned = [batch_id(rank, epoch, step) for epoch in range(len(steps)) for step in range(steps[epoch])]
        assert sorted(tried) == sorted(again) == planned
        if plan.loader.in_order:
            assert tried == again == planned
    assert one.ledger.even
    assert one.ledger == other.ledger
    assert one.tallies == other.tallies


def asked_for(run: Outcome) -> dict[tuple[str, str, int], tuple[int, int]]:
    """Bytes and requests of every read and every checkpoint, by batch and by who asked.

    A rank that only waits, for what is still written as its steps are over, saves nothing; how long that is differs.
    With ``assignment: dynamic`` it depends on who is free first which worker reads a batch.
    """
    is_static = run.plan.loader.assignment == "static"
    asked = {}
    for row in [*run.rows("read"), *run.rows("write"), *run.rows("checkpoint")]:
        if row["bytes"]:
            who = row["index"] if is_static or row["name"] != "read" else row["index"].split("-")[0]
            asked[row["name"], who, row["batch"]] = row["bytes"], row["requests"]
    return asked


def computed(run: Outcome) -> dict[int, int]:
    return {row["batch"]: row["duration_ns"] for row in [*run.rows("compute"), *run.rows("eval_compute")]}


def roles_do_one_thing_at_a_time(run: Outcome) -> None:
    """Hold the spans on lane 0 of every role to not overlapping."""
    lanes: dict[tuple[str, str], list[tuple[int, int, str]]] = defaultdict(list)
    for row in run.all_rows:
        assert row["duration_ns"] >= 0
        if row["lane"] == 0:
            span = (row["start_ns"], row["start_ns"] + row["duration_ns"], row["name"])
            lanes[row["role"], row["index"]].append(span)
    for who, spans in lanes.items():
        for (_, end, before), (start, _, after) in pairwise(sorted(spans)):
            assert end <= start, f"{after} of {who} begins before its {before} has ended"


def agree_on_modelled_storage(wanted: Scenario) -> None:
    here, there = simulated(wanted), run_locally(wanted, Path(), modelled=True)
    deliver_the_same(here, there)
    assert asked_for(here) == asked_for(there)
    assert computed(here) == computed(there)
    roles_do_one_thing_at_a_time(there)


@wall_clock(6)
@given(scenarios())
def test_the_virtual_and_the_wall_clock_deliver_the_same_and_ask_the_same_of_modelled_storage(wanted: Scenario) -> None:
    agree_on_modelled_storage(wanted)


@pytest.mark.slow
@wall_clock(80)
@given(scenarios())
def test_more_scenarios_deliver_the_same_on_both_clocks(wanted: Scenario) -> None:
    agree_on_modelled_storage(wanted)


def agree_on_real_files(root: Path, wanted: Scenario) -> None:
    here, there = simulated(wanted), run_locally(on_disk(wanted, root), root)
    deliver_the_same(here, there)
    assert computed(here) == computed(there)
    roles_do_one_thing_at_a_time(there)


@wall_clock(6)
@given(scenarios())
def test_real_files_deliver_what_the_model_says(tmp_path_factory: pytest.TempPathFactory, wanted: Scenario) -> None:
    agree_on_real_files(tmp_path_factory.mktemp("run"), wanted)


@pytest.mark.slow
@wall_clock(80)
@given(scenarios())
def test_more_real_files_deliver_what_the_model_says(
    tmp_path_factory: pytest.TempPathFactory, wanted: Scenario
) -> None:
    agree_on_real_files(tmp_path_factory.mktemp("run"), wanted)


@settings(max_examples=settings().max_examples // 2)
@given(scenarios(), st.sampled_from([{}, COSTS]))
def test_on_the_virtual_clock_a_ranks_spans_tile_its_life_to_the_nanosecond(
    wanted: Scenario, costs: dict[str, str]
) -> None:
    run = simulated(wanted.model_copy(update={"costs": Costs.model_validate(costs)}))
    roles_do_one_thing_at_a_time(run)
    for rank in range(run.plan.world_size):
        (life,) = run.rows("life", rank=rank)
        spans = [r for r in run.all_rows if (r["role"], r["rank"], r["lane"]) == ("rank", rank, 0)]
        time = life["start_ns"]
        for span in sorted(spans, key=lambda r: (r["start_ns"], r["start_ns"] + r["duration_ns"])):
            assert span["start_ns"] == time
            time += span["duration_ns"]
        assert time == life["start_ns"] + life["duration_ns"]


@settings(max_examples=20, deadline=None)
@given(scenarios())
def test_simulating_twice_gives_equal_spans(wanted: Scenario) -> None:
    assert simulated(wanted).spans.equals(simulated(wanted).spans)


def test_a_truncated_file_ends_a_local_run_with_its_name_and_sample(tmp_path: Path) -> None:
    wanted = on_disk(scenario(dataset__path="data", train__compute="100 us"), tmp_path)
    victim = sorted((tmp_path / "data").rglob("*.npz"))[17]
    victim.write_bytes(victim.read_bytes()[:-600])
    with pytest.raises(DataError, match=f"{victim.name}: sample 17 "):
        run_locally(wanted, tmp_path)


def test_two_swapped_files_end_a_local_run(tmp_path: Path) -> None:
    wanted = on_disk(scenario(dataset__path="data", train__compute="100 us", loader__num_workers=0), tmp_path)
    one, other = sorted((tmp_path / "data").rglob("*.npz"))[4:6]
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    with pytest.raises(DataError, match="files were swapped"):
        run_locally(wanted, tmp_path)


def test_ranks_are_held_as_long_as_by_the_loader_that_costs_name(tmp_path: Path) -> None:
    """A batch that is ready is not had before PyTorch's main process would have it."""
    waits = {}
    for named in ("none", "torch"):
        wanted = scenario(costs=named, train__compute="12 ms", storage__model="memory")
        done = run_locally(wanted, tmp_path, modelled=True)
        assert done.ledger.even
        waits[named] = [row["duration_ns"] for row in done.rows("data_wait")]
    held = charged("torch").receive - charged("ray").receive
    assert min(waits["torch"]) >= held * 1e9
    assert min(waits["none"]) < held * 1e9
    assert plan_of(scenario(costs="torch", loader__kind="torch"), modelled=False).held_seconds == 0
    # The virtual clock charges what costs say, once.
    ready = min(row["duration_ns"] for row in simulated(wanted).rows("data_wait"))
    assert ready == charged("torch").receive * 1e9
