"""Which resource of a storage is the limit: by the formula, by the virtual clock, and in what ``explain`` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_explain import directory

from rayio.records.explained import Explained, StorageLimit
from rayio.report.explain import explain
from rayio.report.text.explanation import text
from rayio.report.text.supplying import limited
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.session import simulate
from rayio.storage.limits import Asked, System, Taken, limit
from rayio.study.sizing.capacity import capacity
from scenarios import scenario, simulated

#: Storage that takes no time but for what is planted.
QUICK: dict[str, Any] = {"first_byte": 0, "connection_bandwidth": "1 PB/s", "bandwidth": "1 PB/s"}
#: 20 MB a batch in one request.
ONE = Asked(20e6, 1, 1)


def planted(model: dict[str, Any], **overrides: Any) -> Scenario:
    """2 ranks × 2 workers, batches of 2 samples of 1 MB, in a request each (tfrecord), 20 ms compute: 100 batches/s."""
    base: dict[str, Any] = {
        "dataset__format": "tfrecord", "dataset__num_files": 480, "dataset__sample_bytes": "1 MB",
        "train__epochs": 1, "train__compute": "20 ms", "storage__model": QUICK | model,
    }  # fmt: skip
    return scenario(**(base | overrides))


def explained(wanted: Scenario, root: Path, **asked: Any) -> Explained:
    return explain(simulate(wanted, root=root).path, **asked)


def stage(found: Explained, name: str) -> Any:
    (row,) = (row for row in found.capacity.stages if row.stage == name)
    return row


def storage_of(found: Explained) -> StorageLimit:
    assert found.capacity.storage is not None
    return found.capacity.storage


# --- the formula ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "asked", "readers", "depth", "resource", "gives"),
    [
        (System(bandwidth=400e6, connection_bandwidth=1e15), ONE, 4, 1, "bandwidth", 20.0),
        (System(bandwidth=400e6, connection_bandwidth=1e15, number=3), ONE, 4, 1, "bandwidth", 60.0),
        (System(bandwidth=1e15, connection_bandwidth=40e6), ONE, 4, 1, "connections", 8.0),
        (System(bandwidth=1e15, connection_bandwidth=1e15, first_byte=0.03), Asked(1, 7, 1), 2, 1, "latency", 2 / 0.21),
        (System(bandwidth=1e15, connection_bandwidth=1e15, first_byte=0.03), Asked(1, 8, 1), 2, 4, "latency", 2 / 0.06),
        (System(bandwidth=1e15, connection_bandwidth=1e15, first_byte=0.03), Asked(1, 1, 1), 2, 4, "latency", 2 / 0.03),
        (
            System(bandwidth=1e15, connection_bandwidth=1e15, open=0.04, first_byte=0.01),
            Asked(1, 2, 2), 3, 1, "open latency", 30.0,
        ),
        (
            System(bandwidth=1e15, connection_bandwidth=1e15, requests_per_second=500.0),
            Asked(1, 10, 2), 4, 1, "requests", 50.0,
        ),
        (
            System(bandwidth=1e15, connection_bandwidth=1e15, opens_per_second=500.0),
            Asked(1, 10, 2), 4, 1, "opens", 250.0,
        ),
        (
            System(bandwidth=1e15, connection_bandwidth=1e15, reads_per_second=500.0, number=3),
            Asked(1, 10, 2), 4, 1, "throttling", 50.0,
        ),
    ],
)  # fmt: skip
def test_the_narrowest_resource_is_the_limit(
    system: System, asked: Asked, readers: int, depth: int, resource: str, gives: float
) -> None:
    found = limit(system, asked, readers=readers, depth=depth, needs=gives * 1.01)
    assert (found.resource, found.is_short) == (resource, True)
    assert found.gives == pytest.approx(gives)
    assert limit(system, asked, readers=readers, depth=depth, needs=gives * 0.99).is_short is False
    assert limit(system, asked, readers=readers, depth=depth).is_short is None


def test_of_storage_that_takes_no_time_nothing_is_the_limit() -> None:
    found = limit(System(bandwidth=1e9, connection_bandwidth=1e9), Asked(0, 0, 0), readers=2, needs=10)
    assert (found.gives, found.is_short) == (None, False)


def test_both_numbers_are_said_in_the_unit_of_the_resource() -> None:
    mib = float(1 << 20)
    shared = System(bandwidth=400 * mib, connection_bandwidth=1e15)
    said = limited(limit(shared, Asked(20 * mib, 1, 1), readers=4, needs=33.35))
    assert said == "Storage gives 400 MiB/s; the ranks need 667 MiB/s."
    slow = System(bandwidth=1e15, connection_bandwidth=1e15, first_byte=0.03)
    said = limited(limit(slow, Asked(1, 4, 1), readers=2, depth=4, needs=100))
    assert said == (
        "2 workers with 4 requests in flight each, at 30 ms a request, get 66.7 batches/s from storage; "
        "the ranks need 100 batches/s."
    )


# --- held against the virtual clock ---------------------------------------------------------------------------------

#: Limits that 4 readers meet (100 batches/s are needed), as parameters and the sentence's words.
LIMITS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "bandwidth": ({"bandwidth": "100 MB/s"}, {}, "Storage gives 95.4 MiB/s; the ranks need 191 MiB/s."),
    "requests": ({"requests_per_second": 100}, {}, "Storage gives 100 requests/s; the ranks need 200."),
    "opens": ({"opens_per_second": 100}, {}, "Storage gives 100 opens/s; the ranks need 200."),
    "latency": (
        {"first_byte": "40 ms"}, {}, "4 workers with 1 request in flight each, at 40 ms a request, get 50 batches/s",
    ),
    "latency × depth": (
        {"first_byte": "80 ms"}, {"loader__io_depth": 2},
        "4 workers with 2 requests in flight each, at 80 ms a request, get 50 batches/s",
    ),
    "open latency": (
        {"open": "40 ms"}, {}, "4 workers with 1 request in flight each, at 40 ms to open a file, get 50 batches/s",
    ),
    "connections": (
        {"connection_bandwidth": "25 MB/s"}, {},
        "4 workers with 1 connection each, at 23.8 MiB/s a connection, get 95.4 MiB/s",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_what_storage_is_said_to_give_is_what_its_readers_get(name: str, tmp_path: Path) -> None:
    model, keys, said = LIMITS[name]
    found = explained(planted(model, **keys), tmp_path, simulate=False)
    given = storage_of(found)
    assert given.resource == name.partition(" ×")[0]
    assert given.needs == pytest.approx(100)
    assert given.is_short
    assert given.gives == pytest.approx(50, rel=0.01)
    assert found.capacity.delivered == pytest.approx(given.gives, rel=0.02)
    assert found.sentence.startswith("Storage-bound: ")
    assert said in found.sentence


@pytest.mark.parametrize("level", ["batch", "io", "sample"])
def test_it_is_said_at_every_level_that_has_reads(level: str, tmp_path: Path) -> None:
    wanted = planted({"bandwidth": "100 MB/s"}, trace__level=level, dataset__num_files=96)
    assert LIMITS["bandwidth"][2] in explained(wanted, tmp_path, simulate=False).sentence


def test_without_spans_of_readers_the_plan_says_what_storage_gives_and_a_note_what_nobody_knows(tmp_path: Path) -> None:
    wanted = planted({"bandwidth": "100 MB/s"}, trace__level="step", dataset__num_files=96)
    found = explained(wanted, tmp_path, simulate=False)
    assert found.sentence.startswith("Input-bound: ")
    assert LIMITS["bandwidth"][2] in found.sentence
    assert any("no spans of workers: waits cannot be taken apart" in note for note in found.notes)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_full_device_can_deliver_the_same_whatever_the_workers(workers: int, tmp_path: Path) -> None:
    found = explained(planted({"bandwidth": "100 MB/s"}, loader__num_workers=workers), tmp_path, simulate=False)
    assert stage(found, "storage").capacity == pytest.approx(50, rel=0.001)
    assert stage(found, "storage").utilisation == pytest.approx(1, abs=0.02)
    assert stage(found, "worker").capacity == pytest.approx(50, rel=0.001)
    assert "50 /s" in text(found)


def test_each_node_has_a_system_of_its_own_or_all_share_one(tmp_path: Path) -> None:
    for scope, gives in (("node", 100), ("cluster", 50)):
        model = {"bandwidth": "100 MB/s", "scope": scope}
        wanted = planted(model, cluster__nodes=2, train__compute="10 ms", dataset__num_files=960)
        found = explained(wanted, tmp_path / scope, simulate=False)
        assert storage_of(found).gives == pytest.approx(gives, rel=0.001)
        assert found.capacity.delivered == pytest.approx(gives, rel=0.02)


def test_numbers_far_beyond_the_need_are_not_written_out(tmp_path: Path) -> None:
    costs = {"lease": "100 ms"}  # telling a worker what to read takes longer than compute
    found = explained(planted({"first_byte": "1 us"}, costs=costs), tmp_path)
    assert found.verdict.bound == "loader"
    for said in (found.sentence, text(found)):
        assert not any(len(word.replace(",", "")) >= 7 and word.replace(",", "").isdigit() for word in said.split())
    assert "too slow" not in found.sentence
    assert "> 10,000 /s" in text(found)


@pytest.mark.parametrize("files", [168, 672])
def test_a_full_device_is_named_in_a_short_run_as_in_a_long_one(files: int, tmp_path: Path) -> None:
    run = simulate(
        "unet3d-h100",
        {"cluster.ranks_per_node": 8, "dataset.path": "model://x", "dataset.num_files": files, "train.epochs": 5},
        root=tmp_path,
    )
    found = explain(run.path, simulate=False)
    assert found.sentence.startswith("Storage-bound: ")
    assert "Storage gives 5.59 GiB/s; the ranks need 2" in found.sentence
    assert "first step of an epoch" not in found.sentence
    assert storage_of(found).gives == pytest.approx(6e9 / (7 * 146.6e6), rel=0.03)
    assert storage_of(found).needs == pytest.approx(24.8, rel=0.01)


def test_what_the_beginnings_of_epochs_cost_on_a_full_device_is_told_from_what_the_device_costs(tmp_path: Path) -> None:
    # 90 % of what is needed, and 4 steps an epoch: all 4 workers of both ranks begin at once.
    short = {"train__epochs": 12, "dataset__num_files": 16, "loader__num_workers": 4, "train__compute": "36 ms"}
    found = explained(planted({"bandwidth": "100 MB/s"}, **short), tmp_path)
    assert "These workers allow AU 0.90: 100 % of the wait is at the first step of an epoch" in found.sentence
    assert found.prediction is not None
    assert found.prediction.change == "With loader.num_workers=2"


def test_what_binds_where_a_search_for_capacity_ends_is_told_in_the_same_words(tmp_path: Path) -> None:
    # Each rank needs 100 MB/s.
    (tmp_path / "one.yaml").write_text(to_yaml(planted({"bandwidth": "150 MB/s"}, train__warmup_steps=2)))
    found = capacity(tmp_path / "one.yaml", most=4, out=tmp_path / "found")
    assert found.accelerators == 1
    assert found.binds is not None
    assert found.binds.startswith("Storage-bound: ")
    assert found.binds.endswith("The limit is the bandwidth of the storage.")


# --- real storage ---------------------------------------------------------------------------------------------------


def test_of_real_storage_what_was_delivered_is_said_and_no_limit(tmp_path: Path) -> None:
    wanted = planted({"bandwidth": "100 MB/s"})
    path = directory(tmp_path, wanted, simulated(wanted))
    told = path / "run.json"
    as_real = (
        told.read_text().replace('"virtual"', '"ray"').replace('"modelled_storage": true', '"modelled_storage": false')
    )
    told.write_text(as_real)
    found = explain(path, simulate=False)
    assert found.capacity.storage is None
    assert "So far: Input-bound: " in found.sentence, "it has no result"
    said = "While busy, the 4 workers delivered 50 batches/s of 1.91 MiB; the ranks need 100."
    assert said in found.sentence
    assert "To find the storage's limit, run with more workers." in found.sentence


# --- nothing worth removing -----------------------------------------------------------------------------------------


def test_a_target_that_is_reached_leaves_nothing_worth_removing(tmp_path: Path) -> None:
    short = {"first_byte": "25 ms"}  # 50 ms a batch and 4 workers: 80 batches/s of 100
    found = explained(planted(short, expect={"au": ">= 0.7"}), tmp_path / "met")
    assert found.verdict.target_au == 0.7
    assert found.verdict.is_worth_removing is False
    begin = "No bottleneck worth removing: AU 0.80 reaches its target of 0.70; the largest loss"
    assert found.sentence.startswith(begin)
    assert found.sentence.endswith("is `read`, 20 % of step time.")
    assert found.prediction is None
    found = explained(planted(short), tmp_path / "none", target_au=0.85)
    assert found.sentence.startswith("Storage-bound: exposed data loading takes 20 % of step time")
    assert found.prediction is not None


def test_a_target_above_what_is_left_names_what_is_in_its_way(tmp_path: Path) -> None:
    little = {"first_byte": "20.5 ms"}  # 41 ms a batch: 97.6 batches/s of 100
    found = explained(planted(little), tmp_path / "none")
    assert found.sentence.startswith("No bottleneck worth removing: AU 0.98; the largest loss is `read`, 2.4 % of step")
    found = explained(planted(little), tmp_path / "target", target_au=0.99)
    assert found.sentence.startswith("Storage-bound: exposed data loading takes 2.4 % of step time")


def test_causes_that_hide_each_other_are_not_worth_removing_one_by_one(tmp_path: Path) -> None:
    # One worker decodes for 40 ms, and rank 1 computes for 40: without either the other is as slow.
    found = explained(
        planted({}, loader__num_workers=1, loader__decode="20 ms", train__stragglers={"ranks": [1], "factor": 2}),
        tmp_path,
    )
    assert found.simulated is not None
    assert max(row.time_saved or 0 for row in found.simulated.changes if row.change != "no barrier") < 0.05
    assert found.sentence.startswith("No bottleneck worth removing: AU 0.7")
    assert "no simulated change saves more than 5.0 % of the time" in found.sentence


# --- what shares the storage ----------------------------------------------------------------------------------------


def test_what_others_take_is_not_there_for_these_readers() -> None:
    system = System(bandwidth=400e6, connection_bandwidth=1e15, number=2)
    found = limit(system, ONE, readers=4, needs=100, taken=Taken(nbytes=200e6))
    assert found.gives == pytest.approx((2 * 400e6 - 200e6) / 20e6)
    assert limited(found).startswith(
        "Storage gives 572 MiB/s on 2 nodes together (checkpoints, evaluations and stages take "
    )
    capped = System(bandwidth=1e15, connection_bandwidth=1e15, requests_per_second=500.0)
    taken = Taken(requests=100, reads=30)
    assert limit(capped, Asked(1, 10, 2), readers=99, taken=taken).gives == pytest.approx(40)
    refuses = System(bandwidth=1e15, connection_bandwidth=1e15, reads_per_second=500.0)
    found = limit(refuses, Asked(1, 10, 2), readers=99, needs=50, taken=taken)
    assert found.gives == pytest.approx(47)
    assert "Storage serves 470 requests/s (checkpoints, evaluations and stages take 30) and refuses" in limited(found)
    nothing = limit(system, ONE, readers=4, taken=Taken(nbytes=900e6)).gives
    assert nothing is not None
    assert 0 < nothing < 0.01


#: A checkpoint of 40 MB behind every 10 steps of 2 ranks, whose batches are 2 MB: 4 MB of each step's 8 are its own.
BEHIND: dict[str, Any] = {"path": "c", "every": {"steps": 10}, "model": {"bytes": 40_000_000}}


def test_checkpoints_behind_training_leave_it_what_they_do_not_take(tmp_path: Path) -> None:
    saved = BEHIND | {"asynchronous": True, "every": {"steps": 20}}
    wanted = planted({"bandwidth": "160 MB/s"}, dataset__num_files=960, checkpoint=saved)
    found = explained(wanted, tmp_path, simulate=False)
    given = storage_of(found)
    assert (given.resource, given.is_short) == ("bandwidth", True)
    assert found.capacity.delivered == pytest.approx(160 / 3, rel=0.01), "20 steps: 80 MB read, 40 MB saved"
    # The last checkpoint is written after the last step.
    assert given.gives == pytest.approx(160 / 3, rel=0.05)
    assert given.others_bandwidth == pytest.approx(160e6 / 3, rel=0.06)
    assert "Storage gives 10" in found.sentence
    assert "MiB/s (checkpoints, evaluations and stages take 4" in found.sentence
    assert stage(found, "storage").capacity == pytest.approx(given.gives)
    alone = storage_of(explained(planted({"bandwidth": "160 MB/s"}), tmp_path, simulate=False))
    assert alone.gives == pytest.approx(80, rel=0.001)
    assert alone.others_bandwidth == 0


@pytest.mark.parametrize("case", ["checkpoints", "evaluations"])
def test_what_ranks_pause_for_takes_nothing_of_what_training_gets(case: str, tmp_path: Path) -> None:
    evaluated = {"compute": "1 ms", "every": {"epochs": 1}}
    every: dict[str, dict[str, Any]] = {
        "checkpoints": {"checkpoint": BEHIND},
        "evaluations": {"train__evaluate": evaluated, "dataset__eval": {"num_files": 48}},
    }
    keys = every[case]
    found = explained(planted({"bandwidth": "100 MB/s"}, train__epochs=2, **keys), tmp_path, simulate=False)
    given = storage_of(found)
    assert given.gives == pytest.approx(50, rel=0.02)
    assert given.others_bandwidth < 2e6
    assert "evaluations take" not in found.sentence
