"""Busy runs beside a calibration: when they are made, what they change, and what they show."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path
from typing import Any

import pytest
from planted import sums

from rayio import session
from rayio.errors import RunError
from rayio.machine.probe import typical_turn
from rayio.model.planning import plan_of
from rayio.predict.learnable import Learnable
from rayio.records.sizing_notes import SizingNote
from rayio.report.text.sizing_notes import worded
from rayio.scenario import derive
from rayio.scenario.derive import compute_times
from rayio.scenario.model import NO_TIME, Scenario
from rayio.scenario.write import to_yaml
from rayio.session import busy_runs
from rayio.session.busy_runs import busy_scenario, calibrated, check_scenarios, lone_scenario
from rayio.study.sizing import knee
from rayio.trace.arrow import empty_table
from scenarios import scenario

REAL: dict[str, Any] = {
    "dataset__path": "data", "dataset__num_files": 64, "dataset__sample_bytes": "20 kB", "loader__batch_size": 2,
    "loader__num_workers": 1, "train__compute": "2 ms", "train__epochs": 2,
}  # fmt: skip


def told(seconds: float) -> dict[str, Any]:
    """Return a run.json on four cores in which a batch took so many CPU seconds."""
    reads = {"batches": 100, "seconds": 0.0, "samples": 200, "bytes": 4e6}
    return {"cpus": 4, "cpu_seconds": {"roles": {"reader": 100 * seconds}, "nodes": 0.0, "reads": reads}}


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_busy_run_has_no_compute_and_enough_workers_for_every_core(ranks: int) -> None:
    saved = {"path": "saved", "every": {"epochs": 1}, "model": {"bytes": "1 MB"}}
    wanted = scenario(
        **REAL | {"cluster__ranks_per_node": ranks, "checkpoint": saved, "loader__decode": "5 ms"},
        storage__page_cache="drop", dataset__eval__num_files=64, expect={"au": ">= 0.5"},
        train__evaluate={"every": {"epochs": 1}, "compute": "1 ms"},
    )  # fmt: skip
    full = busy_scenario(wanted, told(0.004))
    assert compute_times(full).expected == 0
    assert (full.train.evaluate, full.checkpoint, full.expect) == (None, None, {})
    assert full.loader.max_workers * ranks >= 2 * 4
    assert full.loader.decode == NO_TIME, "a sleep keeps no core busy"
    assert full.dataset == wanted.dataset
    assert full.storage.page_cache == "use"
    # Four cores do 3 s of work of 4 ms a batch in 3000 batches of all ranks.
    assert derive.total_rank_steps(full) == pytest.approx(3000, rel=0.15)
    plan_of(full, modelled=False)
    to_yaml(full)


def test_a_lone_run_has_one_rank_and_one_worker_whose_batches_are_ready() -> None:
    wanted = scenario(**REAL | {"cluster__ranks_per_node": 4, "loader__num_workers": 3, "train__compute": "80 ms"})
    lone = lone_scenario(wanted, told(0.004))
    assert lone is not None
    assert (lone.cluster.world_size, lone.loader.max_workers, lone.dataset) == (1, 1, wanted.dataset)
    assert compute_times(lone).expected == pytest.approx(0.005)  # its worker needs 4 ms for a batch
    assert derive.total_rank_steps(lone) == pytest.approx(400, rel=0.15)
    plan_of(lone, modelled=False)
    to_yaml(lone)


def test_check_runs_differ_from_a_busy_run_in_ranks_workers_and_compute() -> None:
    wanted = scenario(**REAL | {"cluster__ranks_per_node": 4, "loader__num_workers": 3, "train__compute": "80 ms"})
    more, single = check_scenarios(wanted, told(0.004))
    assert (more.cluster.world_size, more.loader.max_workers) == (4, 6), "twice those of a busy run"
    assert compute_times(more).expected == pytest.approx(0.002), "4 batches of 4 ms take 4 ms of 4 cores"
    assert (single.cluster.world_size, single.loader.max_workers) == (1, 8), "two for each of four cores"
    assert compute_times(single).expected == 0
    for each in (more, single):
        plan_of(each, modelled=False)
        to_yaml(each)
    (alone,) = check_scenarios(single, told(0.004))
    assert (alone.cluster.world_size, alone.loader.max_workers) == (1, 16)


@pytest.mark.parametrize("changes", [{"loader__num_workers": 0}, {"cluster__nodes": 2}])
def test_ranks_without_workers_and_several_nodes_get_no_lone_run(changes: dict[str, Any]) -> None:
    assert lone_scenario(scenario(**REAL | changes), told(0.004)) is None


def test_a_rank_that_reads_for_itself_still_does() -> None:
    assert busy_scenario(scenario(**REAL | {"loader__num_workers": 0}), told(0.004)).loader.num_workers == 0


def test_a_run_that_was_not_on_ray_gets_no_busy_run(tmp_path: Path) -> None:
    made = session.run(scenario(**REAL), engine="local", root=tmp_path)
    assert calibrated(made.path).scenario == calibrated(made.path, busy=False).scenario


@pytest.mark.parametrize(
    ("info", "gone", "reason"),
    [
        ({"engine": "local"}, False, "did not run on Ray"),
        ({"host": "elsewhere"}, False, "ran on elsewhere, not on this machine"),
        ({"modelled_storage": True}, False, "read modelled storage"),
        ({"nodes": [{}, {}]}, False, "ran on 2 Ray nodes"),
        ({}, True, r"files of run are gone \(data\)"),
        ({}, False, None),
    ],
)
def test_the_reason_for_no_busy_run_is_named(
    tmp_path: Path, info: dict[str, Any], gone: bool, reason: str | None
) -> None:

    if not gone:
        (tmp_path / "data").mkdir()
    here = {"engine": "ray", "host": platform.node(), "root": str(tmp_path), "modelled_storage": False}
    said = busy_runs._refusal([Learnable("run", scenario(**REAL), here | info, empty_table())])
    assert (said is None) if reason is None else re.search(reason, said or "")


def test_turns_of_a_core_show_its_time_slice() -> None:
    """Of interrupts (short) and of a core without another process (long) nothing is learned."""
    turns = [0.003, 0.0031, 0.0029, 0.003, 0.003, 0.0001, 0.00005, 1.5]
    assert typical_turn(turns) == 0.003
    assert typical_turn(turns[:3]) is None
    assert typical_turn([]) is None


def test_capacity_calibrates_with_a_busy_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The changes that it offers rest on the same CPU times as those of ``rayio calibrate``."""
    made = session.run(scenario(**REAL), engine="local", root=tmp_path, out="missed")
    info = made.path / "run.json"
    seconds = {"roles": {"reader": 0.1, "queue": 0.02, "rank": 0.02}, "nodes": 0.0, "reads": sums(64, 2, 4e4, 1e-3)}
    info.write_text(json.dumps(json.loads(info.read_text()) | {"engine": "ray", "cpu_seconds": seconds}))
    asked: list[tuple[int, str | None]] = []

    def refuses(scenario: Scenario, *, engine: str, address: str | None, **_: Any) -> None:
        asked.append((compute_times(scenario).expected == 0, address))
        raise RunError("the cluster is gone")

    monkeypatch.setattr("rayio.session.busy_runs.run", refuses)
    monkeypatch.setattr("rayio.session.busy_runs.probe.time_slice", lambda: None)
    monkeypatch.setattr("rayio.session.busy_runs.probe.contention", lambda: None)
    notes: list[SizingNote] = []
    knee.learned(scenario(**REAL), str(made.path), 0.5, "au", "10.0.0.1:6379", notes)
    assert asked == [(True, "10.0.0.1:6379")], "a run without compute, on the cluster of the search"
    assert worded(notes) == (
        "no busy run (the busy run failed: the cluster is gone): where processors are full, changes may take 45 % less "
        "to 50 % more time than predicted",
    )


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")
def test_a_run_on_ray_is_calibrated_with_a_busy_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy_runs, "WORKERS_PER_CORE", 1)  # fewer actors; their number is tested above
    monkeypatch.setattr(busy_runs, "SECONDS", 1.5)
    alone_on_its_node = {"cluster__ranks_per_node": 1, "train__sync": "none", "train__epochs": 1}
    made = session.run(scenario(**REAL | alone_on_its_node), root=home)
    alone, sure = calibrated(made.path, busy=False), calibrated(made.path)
    assert alone.scenario.charges.cpu.put is None
    assert sure.scenario.charges.cpu.put is not None
    width = [each.charges.cpu.at_most - each.charges.cpu.at_least for each in (alone.scenario, sure.scenario)]
    assert width[0] == pytest.approx(0.95)
    assert width[1] <= width[0], "equal where other programs leave nothing to learn"
    assert any("busy runs" in note for note in sure.notes)
