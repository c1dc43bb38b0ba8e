"""Changes that are simulated for ``explain``, each held against the change really made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayio.data.request_changes import MOST_FORMATS
from rayio.kinds import FORMATS
from rayio.predict.changes import AFTER, offered
from rayio.records.explained import Explained
from rayio.report.explain import explain
from rayio.scenario.change import Change
from rayio.scenario.model import Scenario
from rayio.session import simulate
from rayio.study.sizing.knee import Planned
from scenarios import scenario

#: Storage that takes no time but for what is planted.
QUICK: dict[str, Any] = {"first_byte": 0, "connection_bandwidth": "1 PB/s", "bandwidth": "1 PB/s"}
#: Samples larger than what formats read of a file at once, so that npz asks 3 times for each.
LARGE = "300 kB"


def planted(model: dict[str, Any] | str, **overrides: Any) -> Scenario:
    """2 ranks × 2 workers, batches of 2 samples, 60 steps of 10 ms."""
    base: dict[str, Any] = {
        "dataset__num_files": 240, "dataset__sample_bytes": LARGE, "train__epochs": 1,
        "storage__model": model if isinstance(model, str) else QUICK | model,
    }  # fmt: skip
    return scenario(**(base | overrides))


def explained(wanted: Scenario, root: Path) -> Explained:
    return explain(simulate(wanted, root=root).path)


def change(found: Explained, name: str) -> Any:
    assert found.simulated is not None
    return next(row for row in found.simulated.changes if row.change == name)


def au_of(wanted: Scenario, root: Path) -> float | None:
    """The AU of a scenario, made and explained, as the changes have it."""
    return explain(simulate(wanted, root=root).path, simulate=False).verdict.au


#: An all-reduce that takes as long as the compute, and evaluations that take about as long as training.
REDUCED: dict[str, Any] = {"kind": "allreduce", "bytes": "10 MB", "bandwidth": "10 GB/s", "latency": "2 ms"}
EVALUATED: dict[str, Any] = {
    "dataset__eval": {"path": "model://e", "num_files": 40},
    "train__evaluate": {"every": {"steps": 10}, "compute": "10 ms"},
}
#: How each change is made, and on what: parameters of storage and keys before, then keys of the change.
MADE: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "format hdf5": ({"first_byte": "5 ms"}, {}, {"dataset__format": "hdf5"}),
    "format tfrecord": ({"first_byte": "5 ms"}, {}, {"dataset__format": "tfrecord"}),
    "chunk × 2": (
        {"first_byte": "3 ms"}, {"dataset__format": "hdf5", "dataset__chunk": "50 kB"}, {"dataset__chunk": "100 kB"},
    ),
    "buffer_bytes × 4": (
        {"first_byte": "3 ms"},
        {"dataset__format": "tfrecord", "loader__file_access": "streamed", "loader__shuffle": "file",
         "loader__buffer_bytes": "20 kB"},
        {"loader__buffer_bytes": "80 kB"},
    ),
    "keep_open 64": (
        {"open": "20 ms"},
        {"dataset__format": "hdf5", "dataset__num_files": 12, "dataset__samples_per_file": 20},
        {"loader__keep_open": 64},
    ),
    "io_depth × 2": ({"first_byte": "5 ms"}, {}, {"loader__io_depth": 2}),
    "all-reduce tree": ({}, {"cluster__ranks_per_node": 4, "train__sync": REDUCED}, {
        "train__sync": REDUCED | {"algorithm": "tree"}}),
    "overlap 0.5": ({}, {"train__sync": REDUCED}, {"train__sync": REDUCED | {"overlap": 0.5}}),
    "accumulate × 2": ({}, {"train__sync": REDUCED}, {"train__accumulate": 2}),
    "evaluations ÷ 2": ({}, EVALUATED, {"train__evaluate": EVALUATED["train__evaluate"] | {"every": {"steps": 20}}}),
    "connections = ∞": (
        {"connection_bandwidth": "10 MB/s", "first_byte": "2 ms"}, {},
        {"storage__model": QUICK | {"first_byte": "2 ms", "connection_bandwidth": "1 PB/s"}},
    ),
    "requests/s = ∞": ({"requests_per_second": 500}, {}, {"storage__model": QUICK}),
    "opens/s = ∞": ({"opens_per_second": 150}, {}, {"storage__model": QUICK}),
}  # fmt: skip


def test_a_barrier_that_costs_time_is_met_half_as_often_and_other_costs_have_no_key(tmp_path: Path) -> None:
    dear = {"costs": {"barrier": "30 ms"}}
    found = explained(planted({}, **dear), tmp_path / "before")
    made = au_of(planted({}, **dear, train__accumulate=2), tmp_path / "made")
    assert change(found, "accumulate × 2").au == pytest.approx(made, abs=0.001)
    assert found.prediction is not None
    assert found.prediction.change == "With train.accumulate=2"
    alone = explained(planted({}, **dear, cluster__ranks_per_node=1), tmp_path / "alone")
    assert (alone.prediction and alone.prediction.change) == "With train.accumulate=2", "its messages take as long"
    of_steps = explained(planted({"first_byte": "4 ms"}, costs={"step": "30 ms"}), tmp_path / "steps")
    assert of_steps.prediction is None
    assert of_steps.sentence.endswith("charged by costs: barrier, end of a step. No key but `costs` changes that.")


SAVED = {"path": "c", "model": {"bytes": 4_000_000}, "request_bytes": 100_000}


@pytest.mark.parametrize("name", MADE)
def test_a_change_made_is_as_it_was_simulated(name: str, tmp_path: Path) -> None:
    model, keys, made = MADE[name]
    row = change(explained(planted(model, **keys), tmp_path / "before"), name)
    assert row.time_saved > 0.05, "the change matters"
    assert row.au == pytest.approx(au_of(planted(model, **keys | made), tmp_path / "made"), abs=0.001)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("checkpoints async", {"asynchronous": True}), ("checkpoints ÷ 2", {"every": {"steps": 20}}),
        ("checkpoints sharded", {"writers": "sharded"}),
    ],
    ids=["behind", "half as often", "sharded"],
)  # fmt: skip
def test_changes_of_checkpoints_are_as_they_were_simulated(name: str, made: dict[str, Any], tmp_path: Path) -> None:
    # 40 requests of 1 ms every 10 steps of 10 ms.
    saved = SAVED | {"every": {"steps": 10}}
    quick = {"first_byte": "1 ms"}
    found = explained(planted(quick, checkpoint=saved), tmp_path / "before")
    assert change(found, name).time_saved > 0.05
    made_au = au_of(planted(quick, checkpoint=saved | made), tmp_path / "made")
    assert change(found, name).au == pytest.approx(made_au, abs=0.001)
    assert found.prediction is not None
    assert found.prediction.change == "With checkpoint.asynchronous=true", "a key comes before no checkpoints at all"


def test_sharded_checkpoints_save_nothing_where_one_writer_fills_the_storage(tmp_path: Path) -> None:
    full = {"connection_bandwidth": "100 MB/s", "bandwidth": "100 MB/s"}
    found = explained(planted(full, checkpoint=SAVED | {"every": {"steps": 10}}), tmp_path / "before")
    made = au_of(planted(full, checkpoint=SAVED | {"every": {"steps": 10}, "writers": "sharded"}), tmp_path / "made")
    row = change(found, "checkpoints sharded")
    assert row.au == pytest.approx(made, abs=0.001)
    assert row.time_saved == pytest.approx(0, abs=0.01)


def test_sharded_checkpoints_are_offered_where_one_rank_saves_for_all_and_storage_is_a_model() -> None:
    def names(**checkpoint: Any) -> set[str]:
        wanted = planted({}, checkpoint=SAVED | {"every": {"steps": 10}} | checkpoint)
        return {each.name for each in offered(Planned(wanted), "explain")}

    assert "checkpoints sharded" in names()
    assert "checkpoints sharded" in names(writers={"dedicated": 2})
    assert "checkpoints sharded" not in names(writers="sharded")
    assert "checkpoints sharded" not in names(model={"bytes": 1}), "one byte for two ranks"


def test_by_the_clock_half_as_many_are_twice_as_many_seconds_apart(tmp_path: Path) -> None:
    saved = SAVED | {"every": {"seconds": "150 ms"}}
    quick = {"first_byte": "1 ms"}
    row = change(explained(planted(quick, checkpoint=saved), tmp_path / "before"), "checkpoints ÷ 2")
    made = au_of(planted(quick, checkpoint=saved | {"every": {"seconds": "300 ms"}}), tmp_path / "made")
    assert row.time_saved > 0.05
    assert row.au == pytest.approx(made, abs=0.001)


def test_formats_are_tried_where_requests_take_the_time_and_only_those_with_fewer(tmp_path: Path) -> None:
    full = explained(planted({"bandwidth": "60 MB/s"}), tmp_path / "full")
    fewest = explained(planted({"first_byte": "20 ms"}, dataset__format="tfrecord"), tmp_path / "fewest")
    for found in (full, fewest):
        assert found.simulated is not None
        assert not any(row.change.startswith("format") for row in found.simulated.changes)


def test_a_key_that_helps_comes_before_other_storage(tmp_path: Path) -> None:
    # 100 requests a second for 2 ranks × 2 samples × 3 requests a step: more workers change nothing, fewer requests do.
    found = explained(planted({"requests_per_second": 300}), tmp_path)
    assert found.sentence.startswith("Storage-bound: ")
    assert found.prediction is not None
    assert found.prediction.change == "With dataset.format=tfrecord"
    assert "read = 0" not in found.sentence


def test_a_large_cause_whose_removal_saves_little_is_a_contradiction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = simulate(planted({"first_byte": "20 ms"}), root=tmp_path)
    agreed = explain(run.path)
    assert not agreed.doubts, "without reads the run is as much shorter as they took"
    share = next(row.share for row in agreed.verdict.table if row.cause == "read")
    assert share is not None
    assert share > 0.5

    def without_effect(name: str, change: Change) -> Change:
        """Return a change that leaves reads as they are, as of a fault that no replay knows."""
        return replace(change, to=lambda scenario: scenario) if name == "read = 0" else change

    monkeypatch.setattr(
        "rayio.predict.counterfactual.offered",
        lambda *asked: [without_effect(change.name, change) for change in offered(*asked)],
    )
    found = explain(run.path)
    (of_read,) = found.doubts
    assert (of_read.code, of_read.names) == ("contradiction", {"cause": "read", "change": "read = 0"})
    assert of_read.numbers == {"share": share, "time_saved": pytest.approx(0, abs=1e-9)}
    assert found.verdict.cause == "read"
    assert (found.prediction, found.withheld) == (None, ("contradiction",)), "more workers would read no less"
    said = f"`read` takes {100 * share:.0f} % of step time, but with read = 0 the simulated run is only 0.0 % shorter"
    assert of_read.sentence.startswith(said)


def test_formats_tried_are_those_of_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = planted({"first_byte": "5 ms"})
    names = [change.name for change in offered(Planned(wanted), "explain") if change.name.startswith("format ")]
    others = [name for name in FORMATS if name != wanted.dataset.format and getattr(FORMATS[name], "is_proposed", True)]
    assert names == [f"format {name}" for name in others][:MOST_FORMATS]
    assert {"tar", "parquet"} < {*others}
    assert not {"csv", "jpeg"} & {*others}
    found = explained(wanted, tmp_path)
    assert found.simulated is not None
    assert "format parquet" in {row.change for row in found.simulated.changes}


def test_offers_that_wait_for_another_change_hold_only_changes_after_it() -> None:
    run = Planned(planted({"first_byte": "5 ms"}))
    for offer, after in AFTER.items():
        changes = [*offer(run)]
        assert changes
        assert all(change.after and {*change.after} <= {*after} for change in changes)
        assert not {change.name for change in changes} & {change.name for change in offered(run, "explain", ())}
        assert {change.name for change in changes} <= {change.name for change in offered(run, "explain", after[:1])}


def test_every_change_has_a_name_of_its_own_and_a_key_where_a_user_can_set_one() -> None:
    saved = SAVED | {"every": {"steps": 10}}
    changes = offered(Planned(planted({"first_byte": "5 ms"}, checkpoint=saved)), "explain")
    assert len({change.name for change in changes}) == len(changes)
    assert all(change.key for change in changes if change.kind in ("setting", "workers"))
    assert not any(change.key for change in changes if change.kind in ("removal", "limit"))
