"""Combinations of keys on which a real run and its simulation once disagreed, or a key did not act."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk
from walks import DATASET, requests, walking

import rayio
from rayio.errors import ScenarioError
from rayio.imports.mlperf_rules import record_bytes
from rayio.scenario.model import Scenario
from rayio.storage.ahead import Ahead
from rayio.storage.layers.faults import Faults
from scenarios import Outcome, run_locally, scenario, simulated

LINES = {**DATASET, "format": "jsonl"}
#: A system on which bytes take all the time, at 1 GB/s a server.
SERVERS = {
    "first_byte": "0 s", "connection_bandwidth": "1000 GB/s", "bandwidth": "1000 GB/s", "scope": "cluster",
    "servers": {"number": 64, "bandwidth": "1 GB/s"},
}  # fmt: skip


def of_writers(done: Outcome) -> Counter[tuple[Any, ...]]:
    """Count the requests of checkpoint writers, each by what it was, its file, offset and bytes."""
    rows = (row for row in done.all_rows if row["role"] == "checkpoint_writer" and row["name"].startswith("io."))
    return Counter((row["name"], row["index"], row["file"], row["offset"], row["bytes"]) for row in rows)


def saving(**more: Any) -> Scenario:
    """Give a run of four nodes that saves shards of 10 MB twice, and reads them back."""
    section = {
        "path": "ck", "model": {"bytes": "40 MB"}, "writers": "sharded", "request_bytes": "3 MB",
        "phases": {"writes": 2, "reads": 2},
    }  # fmt: skip
    return scenario(
        cluster={"nodes": 4},
        checkpoint=section,
        dataset__path="data",
        trace__level="io",
        storage__model=SERVERS,
        **more,
    )


def test_a_restore_makes_the_same_requests_as_in_a_real_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Ahead, "__init__")  # whole files are read straight into place
    wanted = saving()
    assert of_writers(simulated(wanted)) == of_writers(run_locally(wanted, tmp_path))


def test_the_files_of_a_restore_are_on_the_servers_that_have_them() -> None:
    done = simulated(saving())
    for step in range(2):
        saved, loaded = (done.rows(name, step=step) for name in ("write", "load"))
        assert [row["duration_ns"] for row in loaded] == [row["duration_ns"] for row in saved]


def test_the_input_files_of_a_stage_are_on_several_servers() -> None:
    stage = {"name": "one", "count": 16, "reads": {"files": 1, "size": "10 MB"}, "writes": {"size": "10 MB"}}
    done = simulated(stages=[stage], storage__model=SERVERS, trace__level="io")
    rows = [row for row in done.all_rows if row["role"] == "stage" and row["name"] == "io.read"]
    assert len({row["file"] for row in rows}) == 16
    assert max(row["duration_ns"] for row in done.rows("stage_read")) < 80_000_000, "16 files of 10 ms on 64 servers"


@pytest.mark.parametrize(
    ("access", "most"),
    [
        ({"file_access": "streamed", "buffer_bytes": "3000 B"}, 3000),
        ({"file_access": "whole_file", "request_bytes": "700 B"}, 700),
        ({"file_access": "in_memory", "request_bytes": "700 B"}, 700),
    ],
)
def test_storage_does_not_join_requests_whose_size_a_key_gives(
    access: dict[str, Any], most: int, tmp_path: Path
) -> None:
    of_bucket = {"first_byte": "1 ms", "connection_bandwidth": "1 GB/s", "bandwidth": "10 GB/s", "gap": "1 MiB"}
    wanted = walking(
        "streamed",
        dataset=LINES,
        storage__model=of_bucket,
        loader={"batch_size": 2, "num_workers": 2, "shuffle": "file", **access},
    )
    asked = requests(simulated(wanted).all_rows)
    assert max(request[-1] for batch in asked.values() for request in batch) == most
    assert asked == requests(run_locally(on_disk(wanted, tmp_path), tmp_path).all_rows)


def test_a_batch_of_what_a_worker_keeps_is_not_slow(tmp_path: Path) -> None:
    faults = {"slow_files": {"share": 1, "factor": 3}}
    wanted = walking("in_memory", dataset=LINES, storage__faults=faults, cluster__ranks_per_node=1)
    real, foretold = (
        [(row["epoch"], row["step"]) for row in done.rows("delay")]
        for done in (run_locally(on_disk(wanted, tmp_path), tmp_path), simulated(wanted))
    )
    assert len(foretold) == 2, "the first batch of each worker reads all files"
    assert sorted(real) == sorted(foretold)


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"train__device_copy": {"bandwidth": "1 MB/s"}}, "device_copy_share"),
        ({"train__parallelism": {"pipeline": 2}}, "bubble_share"),
        (
            {
                "checkpoint": {
                    "path": "ck", "model": {"bytes": "1 MB"}, "every": {"steps": 1},
                    "burst": {"path": "bb", "capacity": "1 MB", "drain_bandwidth": "10 MB/s"},
                }
            },
            "drain_wait_share",
        ),
    ],
)  # fmt: skip
def test_the_parts_of_step_time_add_up_with_rare_ones(keys: dict[str, Any], name: str, tmp_path: Path) -> None:
    result = rayio.simulate(scenario(**keys), out=tmp_path / "run").result
    parts = ("au", "data_wait_share", "sync_share", "checkpoint_share", "evaluate_share", "other_share", name)
    assert result[name] > 0.01
    assert sum(result[part] for part in parts) == pytest.approx(1)


def test_a_run_without_a_step_says_only_why_it_has_none() -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario(loader__batch_size=48, failures={"events": [{"kind": "rank", "at_step": 3}]})
    assert [line.partition(": ")[2].partition("=")[0] for line in refused.value.problems] == ["loader.batch_size"]


@pytest.mark.parametrize("depth", [1, 4])
def test_of_samples_that_are_retried_together_those_that_succeeded_are_not_retried(depth: int) -> None:
    faults = {"errors": [{"rate": 0.4}]}
    wanted = walking("per_sample", storage__faults=faults, loader__io_depth=depth, loader__batch_size=4)
    done = simulated(wanted)
    drawn = next(layer for layer in done.plan.layers if isinstance(layer, Faults))
    for row in done.rows("read"):
        attempts = [0] * 4
        for place in range(4):
            address = row["rank"], row["epoch"], row["step"]
            while place in drawn.hit("error-0", 0.4, address, 4, attempts[place] + 1):
                attempts[place] += 1
        delays = done.rows("delay", rank=row["rank"], epoch=row["epoch"], step=row["step"])
        assert len(delays) == (sum(attempts) if depth == 1 else max(attempts))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_file_that_a_reader_kept_open_and_opens_again_in_a_batch_is_read_once(
    num_workers: int, tmp_path: Path
) -> None:
    wanted = walking(
        "streamed", dataset={**LINES, "num_files": 9, "samples_per_file": 16}, cluster__ranks_per_node=1,
        loader={"batch_size": 5, "num_workers": num_workers, "io_depth": 3, "shuffle": "block", "shuffle_block": 2,
                "file_access": "streamed", "buffer_bytes": "1000 B"},
    )  # fmt: skip
    real, foretold = (
        Counter((row["name"], row["step"], row["file"], row["offset"]) for row in done.all_rows if row["file"])
        for done in (run_locally(on_disk(wanted, tmp_path), tmp_path), simulated(wanted))
    )
    assert real == foretold


@pytest.mark.parametrize(
    "access",
    [{"file_access": "collective", "partition": "replicated"}, {"file_access": "in_memory", "held_by": "node"}],
)
def test_samples_that_one_reader_skips_for_others_are_skipped_alike(access: dict[str, Any], tmp_path: Path) -> None:
    faults = {"errors": [{"rate": 0.2}], "on_error": "skip"}
    loader = {"batch_size": 4, "num_workers": 2, "shuffle": "file", **access}
    wanted = walking("per_sample", dataset=LINES, storage__faults=faults, loader=loader)
    real, foretold = run_locally(on_disk(wanted, tmp_path), tmp_path).ledger, simulated(wanted).ledger
    assert real.even
    assert foretold.even
    assert 0 < real.skipped_samples == foretold.skipped_samples
    assert real.delivered_samples == foretold.delivered_samples


@pytest.mark.parametrize(
    "size",
    [
        {"kind": "lognormal", "median": "2 kB", "sigma": 0.3},
        {"kind": "gamma", "shape": 4, "scale": "500 B"},
        {"kind": "exponential", "mean": "2 kB"},
        {"kind": "ramp", "begin": "1 kB", "end": "3 kB", "steps": 5},
    ],
)
def test_the_rules_of_mlperf_know_the_mean_of_every_distribution(size: dict[str, Any]) -> None:
    wanted = scenario(dataset={"path": "data", "num_files": 48, "sample_bytes": size})
    assert record_bytes(wanted) == pytest.approx(2000, rel=0.05)


@pytest.mark.parametrize("level", ["batch", "io"])
def test_opens_without_requests_take_their_time_where_storage_refuses(level: str) -> None:
    model = {"first_byte": "1 ms", "open": "2 ms", "connection_bandwidth": "1 GB/s", "bandwidth": "10 GB/s"}
    stage = {"name": "one", "count": 2, "opens": 3, "writes": {"size": "1 kB"}}
    for throttle in (None, {"reads_per_second": 1000}):
        storage = {"model": model, "throttle": throttle}
        done = simulated(stages=[stage], storage=storage, trace__level=level)
        assert [row["duration_ns"] for row in done.rows("stage_open")] == [6_000_000] * 2
