"""Answers agree with their own tables, and with the run that has the change made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_explain import QUICK, changed, explained, planted

from rayio.errors import ScenarioError
from rayio.report.content import Content
from rayio.report.explain import explain
from rayio.report.headline import head
from rayio.report.text.sizing import headline
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.session import simulate
from rayio.session.conclude import in_memory
from rayio.study.sizing.capacity import capacity
from rayio.study.sizing.prices import price_of
from rayio.study.sweeps import choices
from rayio.study.sweeps.finished import Sweep
from rayio.study.sweeps.sweeping import sweep
from rayio.trace.run_directory import RunDirectory

#: One request in 1 ms, 1 GB/s a connection, 4 GB/s in all.
STORE = {"first_byte": "1 ms", "connection_bandwidth": "1 GB/s", "bandwidth": "4 GB/s"}


def megabytes(**overrides: Any) -> Any:
    """Return 2 ranks × 2 workers with batches of 4 × 1 MB, 100 steps in one epoch."""
    base = {"dataset__num_files": 800, "dataset__sample_bytes": "1 MB", "loader__batch_size": 4, "train__epochs": 1}
    return planted(**{**base, "storage__model": STORE, **overrides})


def test_a_dataset_read_before_the_first_step_is_where_the_time_went(tmp_path: Path) -> None:
    # Both ranks read 100 MB in all at 10 MB/s a connection before they train for a second.
    found = explained(
        planted(
            dataset__format="csv", dataset__num_files=1, dataset__samples_per_file=400, dataset__sample_bytes="100 kB",
            loader__file_access="in_memory", loader__num_workers=0,
            storage__model={**QUICK, "connection_bandwidth": "10 MB/s", "bandwidth": "20 MB/s"},
        ),
        tmp_path,
    )  # fmt: skip
    assert found["verdict"]["first_batches_seconds"] == pytest.approx(4, rel=0.05)
    assert found["verdict"]["first_batches_share"] == pytest.approx(0.8, abs=0.03)
    assert "nothing is lost" not in found["sentence"]
    assert found["sentence"].startswith("Waiting for the first batches took 80 % of the wall time")
    assert found["prediction"]["change"] == "With bandwidth = ∞"
    assert found["prediction"]["time_saved"] == pytest.approx(0.8, abs=0.03)


def test_a_run_that_begins_quickly_says_nothing_of_its_beginning(tmp_path: Path) -> None:
    assert explained(planted(), tmp_path)["sentence"] == "No bottleneck worth removing: AU 1.00; nothing is lost."


def failing(**overrides: Any) -> Any:
    base = {
        "failures": {
            "events": [{"kind": "node", "at": "900 ms"}, {"kind": "node", "at": "3 s"}],
            "restart": "1 s",
            "detect": "1 s",
        },
        "checkpoint": {"every": {"steps": 10}, "path": "ck", "model": {"bytes": "40 MB"}},
        "storage__model": {**QUICK, "connection_bandwidth": "1 GB/s"},
    }
    return planted(**{**base, **overrides})


def test_failures_are_the_answer_where_they_cost_most(tmp_path: Path) -> None:
    found = explained(failing(), tmp_path)
    share = found["failures"]["lost_share"]
    assert share > 0.5
    assert found["sentence"].startswith(f"Failures took {100 * share:.0f} % of the wall time (2 restarts).")
    # Without checkpoints all work would be done again: a replay without failures cannot know.
    names = {row["change"] for row in found["simulated"]["changes"]}
    assert not names & {"no checkpoints", "checkpoints ÷ 2"}


def test_without_failures_rarer_checkpoints_are_simulated(tmp_path: Path) -> None:
    found = explained(failing(failures=None), tmp_path)
    assert {"no checkpoints", "checkpoints ÷ 2"} <= {row["change"] for row in found["simulated"]["changes"]}


def test_the_advice_is_the_change_of_a_key_that_saves_most(tmp_path: Path) -> None:
    # Checkpoints behind training, a request for each file, hold up reads: without them most is saved, but a deeper
    # window is free.
    wanted = megabytes(
        cluster={"nodes": 2, "ranks_per_node": 4}, dataset__num_files=3200, train__compute="30 ms",
        checkpoint={
            "every": {"steps": 20}, "path": "ck", "model": {"bytes": "2 GB"}, "writers": "sharded",
            "asynchronous": True, "request_bytes": "1 GB",
        },
    )  # fmt: skip
    found = explained(wanted, tmp_path)
    assert found["verdict"]["bound"] == "checkpoint"
    best = max(row["time_saved"] for row in found["simulated"]["changes"] if "×" in row["change"])
    assert found["prediction"]["time_saved"] >= 0.9 * best
    # One loss has one number.
    assert "costs more (" in found["sentence"]
    assert "input-bound too" not in found["sentence"]


def test_workers_are_not_too_slow_where_the_rank_is_held_up(tmp_path: Path) -> None:
    # Taking a batch keeps the rank 2.6 ms: workers do more than it takes, and twice as many change nothing.
    found = explained(megabytes(train__compute="8 ms", costs="torch"), tmp_path)
    assert found["verdict"]["bound"] == "loader"
    assert changed(found, "workers × 2")["time_saved"] == pytest.approx(0, abs=0.01)
    assert "too slow" not in found["sentence"]


def test_a_stage_has_one_row(tmp_path: Path) -> None:
    stages = [row["stage"] for row in explained(megabytes(costs="torch"), tmp_path)["capacity"]["stages"]]
    assert len(stages) == len({*stages})


def test_busy_workers_are_not_called_fast_enough(tmp_path: Path) -> None:
    # 4 workers share 2 cores, 16 ms a batch: each waits for a core, and they deliver less than ranks need.
    wanted = megabytes(cluster__cores=2, costs={"cpu": {"sample": "4 ms"}}, train__compute="20 ms")
    found = explained(wanted, tmp_path)
    worker = next(row for row in found["capacity"]["stages"] if row["stage"] == "worker")
    assert worker["utilisation"] > 0.95
    assert found["capacity"]["delivered"] < found["capacity"]["demand"]
    assert "fast enough" not in found["sentence"]
    assert "are busy 9" in found["sentence"]
    assert "they wait for processors" in found["sentence"]
    assert "dataset.format" not in found["prediction"]["change"]  # a key of the loader saves as much


def test_the_price_of_dedicated_readers_has_their_nodes() -> None:
    tier = {"nodes": 2, "placement": "dedicated_readers", "reader_nodes": 3}
    assert price_of(planted(cluster=tier)).nodes == 5
    assert price_of(planted(cluster={"nodes": 2})).nodes == 2


def test_no_network_limit_is_missing_from_the_stages(tmp_path: Path) -> None:
    # One node of readers sends at 500 MB/s: 125 batches of 4 MB a second, of the 400 that ranks need.
    cluster = {"nodes": 2, "ranks_per_node": 2, "placement": "dedicated_readers", "nic_bandwidth": "500 MB/s"}
    found = explained(megabytes(cluster=cluster, dataset__num_files=1600), tmp_path)
    assert found["capacity"]["delivered"] == pytest.approx(125, rel=0.03)
    network = next(row for row in found["capacity"]["stages"] if row["stage"] == "transfer")
    assert network["capacity"] == pytest.approx(125, rel=0.02)
    assert "The network passes 125 batches/s at most; the ranks need 400." in found["sentence"]


def test_capacity_names_the_limit_where_it_is_not_the_storage(tmp_path: Path) -> None:
    # The slower one of two ranks computes 1.5 times the mean of 10 ms, so both are busy for two thirds of the time.
    slow = {"kind": "exponential", "mean": "10 ms"}
    found = capacity(given(planted(train__compute=slow), tmp_path), out=tmp_path / "found", most=4)
    assert found.accelerators == 1
    assert headline(found).endswith("; the limit is waiting for slower ranks, not the storage")
    # Of sums of two steps the longer one is 2.75 means, Erlang's of two.
    (best,) = found.changes
    assert best.change == "train.accumulate=2"
    assert best.au == pytest.approx(2 / 2.75, abs=0.02)


def test_capacity_of_a_slow_store_blames_the_storage(tmp_path: Path) -> None:
    found = capacity(
        given(megabytes(storage__model={**STORE, "bandwidth": "600 MB/s"}), tmp_path), out=tmp_path / "found", most=4
    )
    assert found.accelerators == 1
    assert "not the storage" not in headline(found)


def test_capacity_tries_twice_the_network(tmp_path: Path) -> None:
    # Two ranks of a node need 800 MB/s of an interface with 500 MB/s.
    tier = {"ranks_per_node": 2, "placement": "dedicated_readers", "reader_nodes": 2, "nic_bandwidth": "500 MB/s"}
    found = capacity(given(megabytes(cluster=tier), tmp_path), out=tmp_path / "found", over="cluster.nodes", most=1)
    assert found.accelerators is None
    assert "the limit is the network, not the storage" in headline(found)
    assert any(change.change.startswith("cluster.nic_bandwidth=") and change.holds for change in found.changes)


#: Keys of which more helps, or that storage does not see.
MORE_HELPS = (
    "loader.num_workers", "loader.prefetch_factor", "loader.io_depth", "loader.decode_threads", "train.accumulate",
    "train.parallelism.microbatches", "train.warmup_steps", "cluster.reader_nodes",
)  # fmt: skip


def test_capacity_of_an_all_reduce_says_what_would_help(tmp_path: Path) -> None:
    """Half of it behind compute, and half as many: as simulated with these keys."""
    reduced = {"kind": "allreduce", "bytes": "200 MB", "bandwidth": "10 GB/s", "latency": "20 us"}
    keys: dict[str, Any] = {"train__compute": "100 ms", "cluster": {"nodes": 2, "ranks_per_node": 1}}
    found = capacity(given(planted(train__sync=reduced, **keys), tmp_path), out=tmp_path / "found", most=2)
    changes = {change.change: change for change in found.changes}
    assert {"train.sync.overlap=0.5", "train.accumulate=2"} <= changes.keys()
    for key, sync, more in (
        ("train.sync.overlap=0.5", reduced | {"overlap": 0.5}, {}),
        ("train.accumulate=2", reduced, {"train__accumulate": 2}),
    ):
        made = in_memory(planted(train__sync=sync, **(keys | more)))
        assert changes[key].au == pytest.approx(made.au, abs=0.01), key


@pytest.mark.parametrize(
    ("overrides", "over", "message"),
    [
        *(({}, key, f"--over {key}: it adds no accelerators and no bytes to a batch, .* advise --vary {key}=1..16")
          for key in MORE_HELPS),
        (
            {"dataset__format": "csv", "loader__file_access": "in_memory"}, "cluster.ranks_per_node",
            "loader.file_access=in_memory: files are read once",
        ),
    ],
)  # fmt: skip
def test_capacity_refuses_questions_without_an_answer(
    overrides: dict[str, Any], over: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError, match=message):
        capacity(given(planted(**overrides), tmp_path), out=tmp_path / "found", over=over)


def given(wanted: Scenario, root: Path) -> Path:
    """Write a scenario to a file; return its path."""
    path = root / "wanted.yaml"
    path.write_text(to_yaml(wanted))
    return path


@pytest.mark.parametrize("wanted", [failing(), megabytes(loader__decode="10 ms")], ids=["failures", "decode"])
def test_the_page_has_the_sentence_and_the_changes_of_explain(wanted: Scenario, tmp_path: Path) -> None:
    run = simulate(wanted, root=tmp_path).path
    answer, page = explain(run), Content.of(RunDirectory.open(run)).explanation
    assert page is not None
    assert page.sentence == answer.sentence
    assert page.simulated == answer.simulated


def test_the_page_of_a_long_run_says_that_nothing_was_simulated(tmp_path: Path) -> None:
    run = simulate(planted(loader__decode="30 ms"), root=tmp_path).path
    content = Content.of(RunDirectory.open(run), simulate=False)
    assert "without simulations, by the share of step time; rayio explain simulates" in head(content)


def swept(root: Path, *keys: str) -> Sweep:
    path = root / "wanted.yaml"
    path.write_text(to_yaml(megabytes(dataset__num_files=1600)))
    return sweep(path, keys, out=root / "sweep", processes=1)


def test_more_reader_nodes_for_the_same_au_are_not_on_the_front(tmp_path: Path) -> None:
    # Two nodes of readers pass what ranks need; four pass no more, and cost two nodes more.
    tier = ("cluster.nodes=2", "cluster.ranks_per_node=2", "cluster.placement=dedicated_readers")
    found = swept(tmp_path, *tier, "cluster.nic_bandwidth=1 GB/s", "cluster.reader_nodes=1,2,4")
    assert {1, 2} <= {point.values[0] for point in found.front}
    assert found.knee is not None
    assert found.knee.values == (2,)


def test_points_with_other_numbers_of_accelerators_do_not_displace_each_other(tmp_path: Path) -> None:
    # Eight ranks do more work at less AU than two: neither is the better trade-off.
    found = swept(tmp_path, "cluster.ranks_per_node=2,8", "loader.num_workers=1,2")
    assert {point.values[0] for point in found.front} == {2, 8}


def test_a_rise_of_less_than_a_point_has_no_knee() -> None:
    assert choices.knee([1, 2, 4], [0.654, 0.662, 0.662]) is not None
    assert not choices.is_rise([0.654, 0.662, 0.662])
    assert choices.is_rise([0.654, 0.762, 0.762])


def test_workers_that_save_hardly_more_time_are_not_advised(tmp_path: Path) -> None:
    # A batch takes 120 ms of a worker and 60 ms of the rank. Two workers are enough, but for the first batches of short
    # epochs, which ranks wait for whatever the number. Four would save less than 2 % more.
    wanted = planted(
        loader__decode={"kind": "normal", "mean": "30 ms", "stdev": "6 ms"}, loader__batch_size=4,
        loader__num_workers=1, dataset__num_files=192, train__epochs=4, train__compute="60 ms",
    )  # fmt: skip
    found = explained(wanted, tmp_path)
    assert found["prediction"]["workers"] == 2
    assert found["prediction"]["au"] == changed(found, "workers × 2")["au"]
