"""``rayio explain`` names the planted cause, with shares within 3 points of a truth worked out by closed form."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from handmade import result, with_foreign
from hypothesis import HealthCheck, given, settings
from test_access import Requests
from test_engines import scenarios
from test_stalls import sums_are_exact

from rayio.analyze.arrays import RunArrays
from rayio.analyze.gate import FIRST_STEPS
from rayio.analyze.metrics import measure
from rayio.analyze.run_scenario import UNEDITED
from rayio.analyze.shape import RunShape
from rayio.analyze.stalls import CAUSES, attribute
from rayio.analyze.verdict import judge
from rayio.cli import main
from rayio.errors import RayioError, ScenarioError, StorageError
from rayio.predict import advice, counterfactual, replay
from rayio.predict.base import Base
from rayio.records.comparison import Comparison
from rayio.records.explained import Access, Explained, Prediction
from rayio.records.run_result import RunResult
from rayio.report.build import report
from rayio.report.explain import explain
from rayio.report.text.conclusion import EDITED
from rayio.report.text.explanation import text
from rayio.report.text.terms import can_do
from rayio.reporter import Reporter
from rayio.scenario.change import Change
from rayio.scenario.load import build
from rayio.scenario.model import Costs, Scenario
from rayio.scenario.section_changes import of_prefetch, of_workers
from rayio.scenario.write import to_yaml
from rayio.session import simulate
from rayio.session.compared import compare
from rayio.trace.run_directory import RunDirectory
from scenarios import Outcome, scenario, simulated

#: Points of AU by which a share may miss the planted truth.
POINTS = 0.03
#: A system that takes next to no time.
QUICK = {"first_byte": "20 us", "connection_bandwidth": "1 TB/s", "bandwidth": "1 TB/s"}

#: What with AU makes the whole of a result's step time.
SHARES = ("data_wait", "sync", "checkpoint", "evaluate", "other")

#: More evaluations than epochs, with batches of their own.
EVALUATED: dict[str, Any] = {
    "dataset__eval": {"num_files": 30},
    "train__evaluate": {"every": {"steps": 11}, "compute": "3 ms", "batch_size": 5},
}


def planted(**overrides: Any) -> Scenario:
    """2 ranks × 2 workers, 120 steps in one epoch, batches of 2 × 1000 B, 10 ms of compute, quick storage."""
    base = {"dataset__num_files": 480, "train__epochs": 1, "storage__model": QUICK}
    return scenario(**{**base, **overrides})


def explained(wanted: Scenario, root: Path) -> Explained:
    found = explain(simulate(wanted, root=root).path)
    assert json.loads(json.dumps(found.as_json(), allow_nan=False)) == found.as_json()
    return found


def share(found: Mapping[str, Any], cause: str) -> float:
    """Give the share of step time that a cause took."""
    return next(float(row["share"]) for row in found["verdict"]["table"] if row["cause"] == cause)


def changed(found: Mapping[str, Any], change: str) -> dict[str, Any]:
    return next(row for row in found["simulated"]["changes"] if row["change"] == change)


def sums_to_the_whole(found: Mapping[str, Any], au: float | None) -> None:
    """Hold an explanation to the law: the table and AU sum to 1, its seconds to the step time."""
    verdict = found["verdict"]
    assert verdict["au"] == pytest.approx(au, abs=1e-12)
    assert verdict["au"] + sum(row["share"] for row in verdict["table"]) == pytest.approx(1, abs=1e-12)
    lost = sum(row["seconds"] for row in verdict["table"])
    assert lost + verdict["compute_seconds"] == pytest.approx(verdict["seconds"], rel=1e-12)
    for row in verdict["table"]:
        assert row["seconds"] == pytest.approx(row["waiting_seconds"] + row["by_sync_seconds"], abs=1e-9)


def test_decode_bound(tmp_path: Path) -> None:
    # 2 samples of 30 ms per batch and 2 workers: a batch every 30 ms, of which 10 ms are compute.
    found = explained(planted(loader__decode="30 ms"), tmp_path)
    assert (found["verdict"]["bound"], found["verdict"]["cause"]) == ("input", "decode")
    assert share(found, "decode") == pytest.approx(1 - 10 / 30, abs=POINTS)
    assert found["sentence"].startswith(
        "Input-bound: exposed data loading takes 67 % of step time, all of it in `decode`."
    )
    # Per worker a batch in 60 ms; 6 workers per rank would do, of the doublings 8 is the first that does.
    decode = next(row for row in found["capacity"]["stages"] if row["stage"] == "decode")
    assert decode["capacity"] == pytest.approx(4 / 0.060, rel=0.01)
    assert found["capacity"]["demand"] == pytest.approx(2 / 0.010)
    assert found["prediction"]["workers"] == 8
    assert found["prediction"]["au"] == pytest.approx(1, abs=POINTS)
    assert changed(found, "workers × 2")["au"] == pytest.approx(10 / 15, abs=POINTS)
    assert changed(found, "decode = 0")["causal_share"] == pytest.approx(1, abs=POINTS)
    assert changed(found, "read = 0")["causal_share"] == pytest.approx(0, abs=POINTS)


def test_read_bound_by_latency(tmp_path: Path) -> None:
    # 2 samples of 2 requests (npz: directory and member) of 20 ms, one after the other, and 2 workers: one in 40 ms.
    found = explained(planted(storage__model={**QUICK, "first_byte": "20 ms"}), tmp_path)
    assert (found["verdict"]["bound"], found["verdict"]["cause"]) == ("input", "read")
    assert share(found, "read") == pytest.approx(1 - 10 / 40, abs=POINTS)
    assert changed(found, "read = 0")["causal_share"] == pytest.approx(1, abs=POINTS)
    assert changed(found, "bandwidth = ∞")["causal_share"] == pytest.approx(0, abs=POINTS)


def test_read_bound_by_bandwidth_is_not_mended_by_workers(tmp_path: Path) -> None:
    # Both ranks together read 2 MB per step at 50 MB/s: a step every 40 ms, however many workers.
    slow = {**QUICK, "bandwidth": "50 MB/s"}
    found = explained(planted(dataset__sample_bytes="500 kB", storage__model=slow), tmp_path)
    assert (found["verdict"]["bound"], found["verdict"]["cause"]) == ("input", "read")
    assert share(found, "read") == pytest.approx(1 - 10 / 40, abs=POINTS)
    assert changed(found, "workers × 2")["gain"] == pytest.approx(0, abs=POINTS)
    assert changed(found, "bandwidth = ∞")["causal_share"] == pytest.approx(1, abs=POINTS)
    assert found["prediction"]["change"] == "With bandwidth = ∞"


def test_compute_bound(tmp_path: Path) -> None:
    found = explained(planted(), tmp_path)
    assert (found["verdict"]["bound"], found["verdict"]["cause"]) == ("compute", None)
    assert found["verdict"]["au"] == pytest.approx(1, abs=POINTS)
    assert found["sentence"] == "No bottleneck worth removing: AU 1.00; nothing is lost."
    assert found["prediction"] is None


def test_straggler_bound(tmp_path: Path) -> None:
    # Rank 1 takes 15 ms, rank 0 waits 5 of them: a third of its time, a sixth of both.
    found = explained(planted(train__stragglers={"ranks": [1], "factor": 1.5}), tmp_path)
    assert (found["verdict"]["bound"], found["verdict"]["cause"]) == ("straggler", "straggler")
    assert share(found, "straggler") == pytest.approx(1 / 6, abs=POINTS)
    assert (found["ranks"][0]["rank"], found["ranks"][0]["of_typical"]) == (1, pytest.approx(1.5))
    named = "longer than others: rank 1 (1.50 × the compute of the others, last in 100 % of steps). With no slow ranks"
    assert named in found["sentence"]
    assert changed(found, "no slow ranks")["causal_share"] == pytest.approx(1, abs=POINTS)
    assert changed(found, "workers × 2")["causal_share"] == pytest.approx(0, abs=POINTS)


def test_what_binds_next_is_said_in_words(tmp_path: Path) -> None:
    found = explained(planted(loader__decode="30 ms", train__stragglers={"ranks": [1], "factor": 2}), tmp_path)
    assert found["prediction"]["then"] == "straggler"
    assert "; the next bottleneck is waiting for the slowest rank of each step." in found["sentence"]


def test_slow_ranks_are_counted_however_many_are_listed(tmp_path: Path) -> None:
    slow = {"ranks": list(range(12)), "factor": 1.5}
    found = explained(
        planted(train__stragglers=slow, cluster__ranks_per_node=32, dataset__num_files=1920, train__steps=12), tmp_path
    )
    assert " and 9 more. With no slow ranks" in found["sentence"]
    assert len(found["ranks"]) == 8


def test_jitter_is_lost_at_the_barrier_and_no_single_rank_is_to_blame(tmp_path: Path) -> None:
    # Of 8 uniform draws between 5 and 15 ms the largest is 5 + 10 · 8/9 in the mean; all ranks wait for it.
    jitter = {"kind": "uniform", "low": "5 ms", "high": "15 ms"}
    found = explained(planted(train__compute=jitter, cluster__ranks_per_node=8, dataset__num_files=1920), tmp_path)
    assert (found["verdict"]["bound"], found["verdict"]["cause"]) == ("straggler", "straggler")
    assert share(found, "straggler") == pytest.approx(1 - 10 / (5 + 10 * 8 / 9), abs=POINTS)
    # It is chance: no rank is slow, and if all computed as long as they do in the mean, all of the loss would be gone.
    assert "no slow ranks" not in {row["change"] for row in found["simulated"]["changes"]}
    assert changed(found, "equal compute")["causal_share"] == pytest.approx(1, abs=POINTS)
    assert changed(found, "equal compute")["time_saved"] == pytest.approx(share(found, "straggler"), abs=POINTS)
    assert changed(found, "no barrier")["causal_share"] == pytest.approx(1, abs=POINTS)
    assert found["prediction"]["change"] == "With train.accumulate=2"
    assert "that compute longer than others, a different rank each time. With train.accumulate=2" in found["sentence"]


def test_checkpoint_bound(tmp_path: Path) -> None:
    # Every 5 steps of 10 ms rank 0 writes 20 requests of 1 ms; rank 1 waits for it at the next barrier.
    found = explained(
        planted(
            storage__model={**QUICK, "first_byte": "1 ms"},
            checkpoint={
                "every": {"steps": 5}, "path": "c", "model": {"bytes": 2_000_000}, "request_bytes": 100_000,
            },
        ),
        tmp_path,
    )  # fmt: skip
    assert (found["verdict"]["bound"], found["verdict"]["cause"]) == ("checkpoint", "checkpoint")
    assert share(found, "checkpoint") == pytest.approx(20 / 70, abs=POINTS)
    checkpoint = next(row for row in found["verdict"]["table"] if row["cause"] == "checkpoint")
    assert checkpoint["by_sync_seconds"] == pytest.approx(checkpoint["waiting_seconds"], rel=0.05)
    assert changed(found, "no checkpoints")["causal_share"] == pytest.approx(1, abs=POINTS)


def test_reads_that_take_no_time_leave_checkpoints_what_they_took(tmp_path: Path) -> None:
    # Every 5 steps of 10 ms rank 0 writes 2 MB at 100 MB/s.
    slow = {**QUICK, "connection_bandwidth": "100 MB/s"}
    saved = {"every": {"steps": 5}, "path": "c", "model": {"bytes": 2_000_000}, "request_bytes": 2_000_000}
    found = explained(planted(storage__model=slow, checkpoint=saved), tmp_path)
    assert share(found, "checkpoint") == pytest.approx(20 / 70, abs=POINTS)
    assert changed(found, "read = 0")["gain"] == pytest.approx(0, abs=POINTS)
    assert changed(found, "bandwidth = ∞")["causal_share"] == pytest.approx(1, abs=POINTS)


@pytest.mark.parametrize(
    ("saved", "access"),
    [
        ({"writers": {"dedicated": 3}}, "per_sample"),  # three share a bandwidth
        ({"writers": {"dedicated": 3}}, "whole_file"),
        ({"writers": "parallel",
         "model": {"kind": "transformer", "layers": 2, "hidden": 64, "ffn": 256, "vocabulary": 512, "heads": 4}},
         "per_sample"),
    ],
    ids=["shared bandwidth", "whole files", "files of unlike sizes"],
)  # fmt: skip
def test_a_run_whose_samples_are_made_saves_as_the_one_whose_reads_take_no_time(
    saved: dict[str, Any], access: str, tmp_path: Path
) -> None:
    slow = {**QUICK, "connection_bandwidth": "30 MB/s", "bandwidth": "60 MB/s"}
    checkpoint = {"every": {"steps": 5}, "path": "c", "model": {"bytes": 4_000_000}} | saved
    keys: dict[str, Any] = {"storage__model": slow, "checkpoint": checkpoint, "train__compute": "40 ms"}
    found = explained(planted(**keys, loader__file_access=access), tmp_path)
    made = planted(**keys, dataset__format="synthetic")
    assert share(found, "checkpoint") > 0.1
    assert changed(found, "read = 0")["au"] == pytest.approx(simulate(made, root=tmp_path / "made").result.au, abs=1e-3)


def test_a_cap_on_requests_is_gone_when_reads_take_no_time(tmp_path: Path) -> None:
    # 2 ranks × 2 samples × 2 requests a step at 200 requests/s: a step every 40 ms.
    found = explained(planted(storage__model={**QUICK, "requests_per_second": 200}), tmp_path)
    assert share(found, "read") == pytest.approx(1 - 10 / 40, abs=POINTS)
    assert changed(found, "read = 0")["causal_share"] == pytest.approx(1, abs=POINTS)


def test_the_bound_on_bytes_is_named_where_it_is_what_to_change(tmp_path: Path) -> None:
    # A batch of 2 kB at a time: each begins when the one before is taken, and takes 20 ms; workers could do 4 of them.
    found = explained(
        planted(loader__decode="10 ms", loader__max_bytes_in_flight=2500, loader__num_workers=4), tmp_path
    )
    assert found["verdict"]["bound"] == "input"
    assert changed(found, "workers × 2")["gain"] == pytest.approx(0, abs=POINTS)
    assert found["prediction"]["change"] == "With loader.max_bytes_in_flight=1024 TiB"
    assert found["prediction"]["au"] == pytest.approx(1, abs=POINTS)


def test_a_deeper_window_is_simulated(tmp_path: Path) -> None:
    # One worker whose batches take 2 or 16 ms, 9 in the mean: a deeper window evens them out, as 10 ms of compute.
    uneven = {"kind": "uniform", "low": "1 ms", "high": "8 ms"}
    found = explained(planted(loader__decode=uneven, loader__num_workers=1, loader__prefetch_factor=1), tmp_path)
    deeper = planted(loader__decode=uneven, loader__num_workers=1, loader__prefetch_factor=2)
    assert changed(found, "prefetch × 2")["gain"] > POINTS
    assert changed(found, "prefetch × 2")["au"] == pytest.approx(explained(deeper, tmp_path)["verdict"]["au"], abs=1e-6)


def test_advice_that_leaves_samples_out_says_so(tmp_path: Path) -> None:
    """A rank's 80 files of a sample are 26 whole batches of one worker, and 16 of 16 workers (5 files, one batch)."""
    owned = {"format": "tfrecord", "path": "model://owned", "num_files": 160, "sample_bytes": 1000}
    loader = {"batch_size": 3, "num_workers": 1, "prefetch_factor": 1, "file_access": "streamed", "shuffle": "file"}

    def found_with(decode: str) -> Explained:
        by_file = {**loader, "assignment": "by_file", "decode": decode}
        return explain(simulate(planted(dataset=owned, train__epochs=2, loader=by_file), root=tmp_path / decode).path)

    found = found_with("100 ms")
    assert found.prediction is not None
    assert found.prediction.workers == 16
    assert found.prediction.left_out == pytest.approx(1 - 2 * 16 * 3 / 160)
    assert found.sentence.endswith("It leaves 40 % of samples out of each epoch, unless loader.drop_last=false.")
    # All steps are simulated: with a change they are fewer because samples are left out.
    (doubt,) = found_with("30 ms").doubts
    assert doubt.sentence.startswith("Run too short to predict 8 workers per rank")


def test_waits_at_the_beginnings_of_epochs_are_told_from_those_of_too_few_workers(tmp_path: Path) -> None:
    # 20 epochs of 6 steps of 10 ms: the first batch of each takes 20 ms, and the other steps wait for none.
    found = explained(
        planted(loader__decode="10 ms", train__epochs=20, train__steps=6, loader__num_workers=4), tmp_path
    )
    assert found["verdict"]["first_step_share"] == pytest.approx(1, abs=0.01)
    assert "100 % of the wait is at the first step of an epoch, where prefetching starts anew" in found["sentence"]
    assert " are fast enough on average (" in found["sentence"]
    assert not any("at the first step of an epoch" in note for note in found["notes"]), "said once"
    # Where that does not bind the run it is a note: 2 ms of 60.
    little = explained(planted(loader__decode="1 ms", train__epochs=20, train__steps=6), tmp_path / "little")
    assert little["verdict"]["bound"] == "compute"
    assert "at the first step" not in little["sentence"]
    assert any("at the first step of an epoch" in note for note in little["notes"])


def test_ranks_that_read_for_themselves_are_not_called_workers(tmp_path: Path) -> None:
    found = explained(planted(loader__decode="2 ms", loader__num_workers=0), tmp_path)
    assert "Ranks read for themselves (loader.num_workers=0): 4.0" in found["sentence"]
    assert "where ranks need" not in found["sentence"]
    assert "prefetch × 2" not in {row["change"] for row in found["simulated"]["changes"]}


def test_evaluation_bound(tmp_path: Path) -> None:
    # Every 10 steps of 10 ms each rank evaluates 10 steps of 10 ms: half of the time.
    evaluated = {"every": {"steps": 10}, "compute": "10 ms", "batch_size": 2}
    found = explained(planted(dataset__eval={"num_files": 40}, train__evaluate=evaluated), tmp_path)
    assert (found["verdict"]["bound"], found["verdict"]["cause"]) == ("evaluation", "evaluate")
    assert share(found, "evaluate") == pytest.approx(0.5, abs=POINTS)
    assert found["sentence"].startswith("Evaluation-bound: 5")
    assert "is lost to evaluations" in found["sentence"]
    assert changed(found, "no evaluations")["causal_share"] == pytest.approx(1, abs=POINTS)
    assert found["prediction"]["change"] == "With train.evaluate.every={steps: 20}"


def test_waiting_for_another_ranks_data_is_input_bound(tmp_path: Path) -> None:
    # Every rank's every batch takes 0 or 60 ms to decode; whoever is lucky waits for whoever is not.
    found = explained(planted(loader__decode={"kind": "uniform", "low": 0, "high": "30 ms"}), tmp_path)
    assert (found["verdict"]["bound"], found["verdict"]["cause"]) == ("input", "decode")
    decode = next(row for row in found["verdict"]["table"] if row["cause"] == "decode")
    assert decode["by_sync_seconds"] > 0.1 * decode["seconds"]


@pytest.mark.parametrize(
    "overrides",
    [
        {"loader__decode": {"kind": "uniform", "low": "5 ms", "high": "30 ms"}},
        {"storage__model": {**QUICK, "first_byte": {"kind": "exponential", "mean": "12 ms"}}},
        {"loader__in_order": False, "loader__assignment": "dynamic", "loader__decode": "9 ms"},
        {"loader__num_workers": 0, "loader__decode": {"kind": "exponential", "mean": "3 ms"}},
        {"costs": {"lease": "2 ms", "put": "3 ms", "take": "1 ms"}, "loader__decode": "8 ms"},
        {"train__compute": {"kind": "normal", "mean": "10 ms", "stdev": "3 ms"}, "train__epochs": 3},
        EVALUATED | {"loader__decode": {"kind": "uniform", "low": "5 ms", "high": "30 ms"}},
        EVALUATED | {"storage__model": {**QUICK, "first_byte": {"kind": "exponential", "mean": "12 ms"}}},
        {"loader__drop_last": False, "loader__batch_size": 7, "loader__decode": "9 ms"},
    ],
    ids=["decode", "read", "dynamic", "no workers", "costs", "compute", "evaluated", "evaluated read", "all samples"],
)
def test_the_run_simulated_as_it_was_is_the_run(tmp_path: Path, overrides: dict[str, Any]) -> None:
    found = explained(planted(**overrides), tmp_path)
    assert found["simulated"]["is_whole_run"]
    assert found["simulated"]["au"] == pytest.approx(found["verdict"]["au"], abs=1e-6)


@pytest.mark.parametrize("slow", [{"loader__decode": "40 ms"}, {"loader__decode": "1 ms"}])
def test_what_a_run_without_barrier_saves_is_what_it_is_sooner_over(tmp_path: Path, slow: dict[str, Any]) -> None:
    """Few steps of many ranks: when the window begins they are at different ones, and it has fewer of their batches."""
    jittery = {"kind": "lognormal", "median": "10 ms", "sigma": 0.5}
    usual = slow | {"dataset__num_files": 640, "cluster__ranks_per_node": 8, "train__compute": jittery}
    found = explained(planted(**usual), tmp_path)
    row, lasted = changed(found, "no barrier"), []
    for sync in ({}, {"train__sync": "none"}):
        steps = simulate(planted(**usual, **sync), root=tmp_path).spans().query("name == 'compute'")
        lasted.append((steps.start_ns + steps.duration_ns).max())
    assert row["time_saved"] == pytest.approx(1 - lasted[1] / lasted[0], abs=0.01)
    rate = found["simulated"]["samples_per_second"] * lasted[0] / lasted[1]
    assert row["samples_per_second"] == pytest.approx(rate, rel=0.01), "the same samples in that time"
    assert row["time_saved"] > -0.005


def test_of_a_short_run_on_saturated_storage_no_workers_are_advised(tmp_path: Path) -> None:
    """38.4 MB at 30 MB/s take 1.28 s, whatever the workers are: more of them move the wait to before the window."""
    wanted = planted(
        dataset__num_files=96, dataset__sample_bytes="200 KB", train__compute="15 ms", train__epochs=2,
        loader__num_workers=4, storage__model={"first_byte": "100 us", "connection_bandwidth": "1 GB/s",
                                               "bandwidth": "30 MB/s"},
    )  # fmt: skip
    found = explained(wanted, tmp_path)
    assert "bandwidth = ∞" in str(found.prediction)
    for change, workers in (("workers × 2", 8), ("workers ÷ 2", 2)):
        lasted = []
        for number in (4, workers):
            loader = wanted.loader.model_copy(update={"num_workers": number})
            steps = simulate(wanted.model_copy(update={"loader": loader}), root=tmp_path).spans()
            steps = steps[steps.name.isin(("data_wait", "compute", "sync")) & (steps.role == "rank")]
            lasted.append((steps.start_ns + steps.duration_ns).max() - steps.start_ns.min())
        assert changed(found, change)["time_saved"] == pytest.approx(1 - lasted[1] / lasted[0], abs=0.002)


def test_where_nothing_is_worth_removing_no_row_contradicts_the_sentence(tmp_path: Path) -> None:
    """Two epochs begin with a wait of 48 ms, and have 60 steps of 10 ms; AU counts the second wait alone."""
    late = {"storage__model": {**QUICK, "first_byte": "8 ms"}, "loader__num_workers": 8, "train__epochs": 2}
    wanted = planted(dataset__num_files=240, **late)
    found = explained(wanted, tmp_path)
    assert found["verdict"]["is_worth_removing"] is False
    made = wanted.model_copy(update={"dataset": wanted.dataset.model_copy(update={"format": "synthetic"})})
    usual, quick = (simulate(each, root=tmp_path).result.wall_seconds or 0.0 for each in (wanted, made))
    saved = changed(found, "read = 0")["time_saved"]
    assert saved == pytest.approx(1 - quick / usual, abs=0.005)
    assert saved > 0.05
    assert f"`read = 0` saves {100 * saved:.1f} % of the time" in found["sentence"]
    assert "no simulated change" not in found["sentence"]


#: Opens of 10 samples/s and rank: less than ranks need, or nearly enough.
SATURATED, NEARLY = 10, 19.5


@pytest.mark.parametrize("opens", [SATURATED, NEARLY])
def test_a_simulation_of_the_first_steps_saves_what_the_whole_run_would(
    opens: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 50 steps 13 are simulated: the wait for first batches, and those prefetched then, are part of both."""

    def whole(workers: int = 2, opens: float = opens) -> Scenario:
        model = {"first_byte": "2 ms", "connection_bandwidth": "1 GB/s", "bandwidth": "1 TB/s", "open": "100 us"}
        return planted(
            cluster={"ranks_per_node": 8}, loader={"batch_size": 8, "num_workers": workers},
            dataset={"path": "d", "format": "tfrecord", "num_files": 8, "samples_per_file": 400,
                     "sample_bytes": "150 kB"},
            storage={"model": {**model, "opens_per_second": 8 * opens}},
            train={"epochs": 1, "compute": "250 ms", "sync": {"kind": "allreduce", "bytes": "100 MB",
                                                              "bandwidth": "10 GB/s"}},
        )  # fmt: skip

    def lasted(wanted: Scenario) -> float:
        steps = simulate(wanted, root=tmp_path).spans().query("name in ('data_wait', 'compute') and role == 'rank'")
        return float((steps.start_ns + steps.duration_ns).max() - steps.start_ns.min())

    monkeypatch.setattr(replay, "MOST_RANK_STEPS", 8 * 12)
    found = explained(whole(), tmp_path)
    assert not found["simulated"]["is_whole_run"]
    usual = lasted(whole())
    really = {"workers ÷ 2": whole(workers=1), "workers × 2": whole(workers=4), "opens/s = ∞": whole(opens=1e6)}
    for change, wanted in really.items():
        saved = changed(found, change)["time_saved"]
        assert saved == pytest.approx(1 - lasted(wanted) / usual, abs=0.03), change
    assert "num_workers=1" not in found.sentence, "a run of 13 steps is 5 % shorter with it"

    shown = text(found)
    assert "warning: Only the first 13 of 50 steps of each rank are simulated" in shown
    assert "first 13 steps" in shown
    assert "baseline" not in shown
    whole_run = explain(found.run, whole=True)
    assert FIRST_STEPS not in [doubt.code for doubt in whole_run.doubts]
    assert whole_run["simulated"]["au"] == pytest.approx(found["verdict"]["au"], abs=1e-6)
    unlimited = simulate(really["opens/s = ∞"], root=tmp_path)
    assert 8 * whole_run["capacity"]["demand"] == pytest.approx(unlimited.result.samples_per_second, rel=0.001)
    for change, wanted in really.items():
        assert changed(whole_run, change)["time_saved"] == pytest.approx(1 - lasted(wanted) / usual, abs=0.001)


def test_the_need_of_ranks_is_that_of_the_steps_in_which_they_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are fast enough for the 120 steps of 40 ms, and too slow for the 360 of 10 ms: 160 batches/s of 200."""
    monkeypatch.setattr("rayio.predict.replay.MOST_RANK_STEPS", 300)
    monkeypatch.setattr("rayio.predict.counterfactual.MOST_WHOLE", 1000)
    warming = {"steps": 120, "factor": 4}
    run = simulate(planted(loader__decode="12.5 ms", dataset__num_files=1920, train__warmup=warming), root=tmp_path)
    found = explain(run.path)
    assert found.capacity.demand == pytest.approx(2 / 0.010, rel=0.1)
    assert found.capacity.mean_demand == pytest.approx(2 / 0.0175, rel=0.02)
    assert "4 workers are too slow: 1" in found.sentence
    assert f"the ranks need {found.capacity.demand:.0f} while they wait, 11" in found.sentence
    # The first 150 steps do not give the run, so all are replayed.
    assert found.simulated is not None
    assert found.simulated.is_whole_run
    assert found.prediction is not None
    assert not found.doubts
    assert changed(found.as_json(), "workers × 2")["au"] == pytest.approx(1, abs=0.01)
    # If that takes too long, the first steps predict nothing, and the remedy is --whole.
    monkeypatch.setattr("rayio.predict.counterfactual.MOST_WHOLE", 900)
    cut = explain(run.path)
    assert (cut.prediction, cut.withheld) == (None, ("first_steps",))
    assert cut.sentence.endswith("No prediction: only first steps are simulated.")
    (doubt,) = cut.doubts
    assert doubt.sentence.startswith("Only the first 150 of 480 steps of each rank are simulated.")
    assert "use rayio explain --whole" in doubt.sentence


def test_of_a_run_that_its_own_times_do_not_give_nothing_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that stalled in a way that no span shows: what a change would move is counted from another run."""
    run = simulate(planted(loader__decode="40 ms"), root=tmp_path)
    as_usual = explain(run.path)
    assert "workers" in str(as_usual.prediction)
    assert not as_usual.doubts
    whole = counterfactual.counterfactuals

    def stalled(base: Base, reporter: Reporter, **how: Any) -> counterfactual.Counterfactuals:
        found = whole(base, reporter, **how)
        judged = found.baseline.judged
        verdict = replace(judged.verdict, au=0.9)
        return replace(found, baseline=replace(found.baseline, judged=replace(judged, verdict=verdict)))

    monkeypatch.setattr("rayio.predict.explain.counterfactuals", stalled)
    found = explain(run.path)
    assert found.prediction is None
    (doubt,) = found.doubts
    measured = f"{100 * (run.au or 0):.1f} %"
    assert doubt.sentence.startswith(f"No prediction: the model gives AU 90.0 %, the run had {measured}.")
    assert found.sentence.endswith("No prediction: the model does not give the run.")
    assert found.simulated is not None
    assert found.simulated.changes == (), "they would be counted from another run"


def test_spans_of_other_libraries_explain_nothing(tmp_path: Path) -> None:
    wanted = planted(loader__decode="8 ms", dataset__num_files=96)
    run = simulated(wanted)
    alone = explain(directory(tmp_path / "alone", wanted, run))
    beside = explain(directory(tmp_path / "beside", wanted, replace(run, spans=with_foreign(run.spans))))
    assert replace(beside, run="") == replace(alone, run="")


def test_no_more_workers_are_tried_than_a_scenario_may_have() -> None:
    base = SimpleNamespace(workers=3000, scenario=planted(loader__num_workers=3000))
    replays: Any = SimpleNamespace(base=base, replayed=None, baseline=None)  # nothing is simulated
    assert advice._enough_workers(replays) is None


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ({"prefetch × 2": 0.02, "decode = 0": 0.3}, "With decode = 0"),
        ({"prefetch × 2": 0.2, "decode = 0": 0.3}, "With loader.prefetch_factor=4"),
        ({"no bound on bytes": 0.21, "decode = 0": 0.1}, "With loader.max_bytes_in_flight=1024 TiB"),
        ({"prefetch × 2": 0.004, "decode = 0": 0.006}, None),
        ({"decode = 0": None}, None),
        ({"prefetch × 2": 0.019, "decode = 0": 0.012}, None),
        ({"workers ÷ 2": 0.012}, "With loader.num_workers=1"),
        ({"workers ÷ 2": 0.012, "decode = 0": 0.3}, "With decode = 0"),
        ({"workers ÷ 2 (worse)": 0.3, "decode = 0": 0.1}, "With decode = 0"),
    ],
)
def test_advice_is_what_a_key_can_change_unless_that_gains_little(
    gains: dict[str, float | None], said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "_enough_workers", lambda *_: None)
    run: Any = SimpleNamespace(scenario=planted(), modelled=None, is_throttled=False, workers=2, was_memory_bound=True)
    changes = {change.name: change for offer in (of_prefetch, of_workers) for change in offer(run)}
    changes["decode = 0"] = Change("decode = 0", kind="removal", to=lambda scenario: scenario, helps=("decode",))
    tried = tuple(
        SimpleNamespace(
            change=changes[name.removesuffix(" (worse)")],
            row=SimpleNamespace(time_saved=gain, au=0.5, then="", left_out=None),
            saved=gain or 0.0,
            doubt=None,
            is_worse="worse" in name,
        )
        for name, gain in gains.items()
    )
    verdict: Any = SimpleNamespace(bound="input", cause="decode", is_worth_removing=True, is_processor_bound=None)
    replays: Any = SimpleNamespace(base=run, tried=tried, baseline=SimpleNamespace(au=0.3))
    found: Any = advice.prediction(verdict, replays)
    assert (found and found.prediction.change.partition(" (")[0]) == said


@pytest.mark.parametrize(
    ("before", "after", "is_given"), [(0.764, 0.772, False), (0.76, 0.79, True), (0.01, 0.015, False)]
)
def test_a_change_that_moves_au_by_less_than_a_point_is_no_advice(
    before: float, after: float, is_given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Prediction(
        change="With 4 workers per rank", workers=4, au=after, time_saved=1 - before / after, then="compute"
    )
    monkeypatch.setattr(advice, "_best", lambda *_: advice.Foreseen(row, None))
    verdict: Any = SimpleNamespace(bound="input")
    replays: Any = SimpleNamespace(baseline=SimpleNamespace(au=before))
    assert (advice.prediction(verdict, replays) is not None) == is_given


def explained_as_real(wanted: Scenario, root: Path) -> Explained:
    """Explain a run with costs that its scenario does not know of, as those of a real engine are."""
    path = directory(root, wanted.model_copy(update={"costs": Costs()}), simulated(wanted))
    told = path / "run.json"
    told.write_text(told.read_text().replace('"virtual"', '"ray"'))
    return explain(path)


def test_a_real_run_is_simulated_with_what_its_engine_added(tmp_path: Path) -> None:
    costs = {"lease": "2 ms", "put": "3 ms", "take": "1 ms", "step": "4 ms"}
    wanted = planted(costs=costs, loader__decode="8 ms", train__epochs=2, dataset__num_files=240)
    found = explained_as_real(wanted, tmp_path)
    assert share(found, "other") > 5 * POINTS
    assert found["simulated"]["au"] == pytest.approx(found["verdict"]["au"], abs=0.005)
    stages = [row["stage"] for row in found["capacity"]["stages"]]
    assert "put" in stages
    assert len(stages) == len({*stages}), "a row for each stage"


@pytest.mark.parametrize("writers", ["rank_zero", "all_ranks", {"dedicated": 3}])
def test_what_a_checkpoint_takes_beyond_its_slowest_writer_is_simulated_too(tmp_path: Path, writers: Any) -> None:
    # 20 requests of 1 ms in all, and 70 ms beyond them.
    saved = {
        "every": {"steps": 10}, "path": "ck", "model": {"bytes": 2_000_000}, "request_bytes": 100_000,
        "writers": writers,
    }  # fmt: skip
    slow = {**QUICK, "first_byte": "1 ms"}
    wanted = planted(
        costs={"checkpoint": "70 ms"}, checkpoint=saved, train__compute="20 ms", storage__model=slow
    )  # fmt: skip
    found = explained_as_real(wanted, tmp_path)
    assert share(found, "checkpoint") > 5 * POINTS
    assert found["simulated"]["au"] == pytest.approx(found["verdict"]["au"], abs=0.005)


def test_of_a_long_run_the_first_epochs_are_simulated_with_their_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = planted(**EVALUATED, train__epochs=6, dataset__num_files=120, loader__decode="9 ms")
    monkeypatch.setattr(replay, "MOST_RANK_STEPS", 2 * 3 * 30)
    found = explained(wanted, tmp_path)
    assert not found["simulated"]["is_whole_run"]
    assert found["simulated"]["steps"] < found["verdict"]["steps"]
    assert found["simulated"]["au"] == pytest.approx(found["verdict"]["au"], abs=POINTS)


@pytest.mark.parametrize(
    ("epochs", "steps", "every"),
    [(5, 27, {"checkpoint": 36}), (2, 90, {"checkpoint": 36}), (5, 30, {"evaluate": 12, "checkpoint": 24})],
)
def test_in_the_first_steps_of_a_long_run_checkpoints_and_evaluations_are_as_frequent_as_in_all(
    epochs: int, steps: int, every: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 50 steps: whole epochs of 27 would have no checkpoint, and the run has three."""
    saved = {"every": {"steps": every["checkpoint"]}, "path": "kept", "model": {"bytes": "100 MB"}}
    keys: dict[str, Any] = {"dataset__num_files": 4 * steps, "train__epochs": epochs, "checkpoint": saved}
    if "evaluate" in every:
        keys["dataset__eval"] = {"num_files": 20}
        keys["train__evaluate"] = {"every": {"steps": every["evaluate"]}, "compute": "20 ms"}
    monkeypatch.setattr(replay, "MOST_RANK_STEPS", 2 * 50)
    wanted = planted(**keys, train__compute="10 ms", storage__model={**QUICK, "bandwidth": "1 GB/s"})
    found = explained(wanted, tmp_path)
    first, total = found["simulated"]["first_steps"], epochs * steps
    assert 25 <= first <= 50
    for period in every.values():
        assert (first // period) / first == pytest.approx((total // period) / total, rel=0.06)
    assert found["simulated"]["au"] == pytest.approx(found["verdict"]["au"], abs=0.01)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios())
def test_the_table_and_au_sum_to_one_whatever_the_scenario(wanted: Scenario) -> None:
    run = simulated(wanted)
    shape = RunShape.of(wanted)
    verdict, numbers = judge(attribute(run.spans), shape).verdict, measure(RunArrays.of_spans(run.spans), shape)
    sums_to_the_whole({"verdict": verdict}, numbers["au"] or verdict["au"])
    if numbers["au"] is not None:
        assert verdict["data_wait_share"] == numbers["data_wait_share"]
        assert sum(numbers[f"{name}_share"] for name in SHARES) + numbers["au"] == pytest.approx(1, abs=1e-9)
    assert [row["cause"] for row in verdict["table"]] == [*CAUSES]


# --- as a command ---------------------------------------------------------------------------------------------------


def run_of(wanted: Scenario, root: Path) -> Path:
    return simulate(wanted, root=root).path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["explain", *arguments])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


def test_the_text_and_the_json_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_of(planted(loader__decode="30 ms", train__stragglers={"ranks": [1], "factor": 1.2}), tmp_path)
    code, shown, _ = printed(capsys, str(path))
    found = json.loads(printed(capsys, str(path), "--json")[1])
    assert code == 0
    assert " ".join(shown.split("\n\n")[1].split()) == found["sentence"]
    losses = shown.split("\n\n")[2]
    rows = {line.split()[0]: line for line in losses.splitlines()}
    for row in found["verdict"]["table"]:
        if row["seconds"]:
            assert f"{100 * row['share']:.1f} %" in rows[row["cause"]]
    for row in found["capacity"]["stages"]:
        assert can_do(row["capacity"], found["capacity"]["demand"]) in shown
    for row in found["simulated"]["changes"]:
        assert f"{row['change']:<20}{row['au']:>8.3f}{row['samples_per_second']:>12,.1f}" in shown
    assert text(Explained.of_json(found)) == shown
    assert "rank 1" in shown


def test_the_text_shows_how_storage_was_used_as_far_as_the_spans_say(tmp_path: Path) -> None:
    found = explain(run_of(planted(dataset__num_files=48), tmp_path), simulate=False)
    level = "opens, files, offsets and the sizes of single requests need trace.level=io"
    assert level in found["notes"]
    assert f"  note: {level}\n" in text(found)
    requests = Requests()
    for number in range(4):
        requests.add("open", 100, 101, file=f"f{number % 2}")
        requests.add("read", 101, 110, file=f"f{number % 2}", offset=3000 * (number // 2), nbytes=3000)
    shown = " ".join(text(replace(found, access=Access.of_json(requests.access))).split())
    for line in (
        "how storage was used (trace level io)",
        "read 4 requests, 2.93 KiB each, 11.7 KiB in all",
        "sequential (at or after the previous end) 100.0 %",
        "opens per file 2.00",
        "files touched once 0.0 %",
        "sizes of read requests: 1K-10K 100.0 %",
    ):
        assert line in shown


def test_without_simulation_there_are_no_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_of(planted(loader__decode="30 ms"), tmp_path)
    found = json.loads(printed(capsys, str(path), "--json", "--no-simulate")[1])
    assert (found["simulated"], found["prediction"]) == (None, None)
    assert "predicted" not in found["sentence"]
    code, out, err = printed(capsys, str(path), "--whole", "--no-simulate")
    assert (code, out) == (2, "")
    assert "--whole simulates all steps; remove --no-simulate, or --whole" in " ".join(err.split())
    assert json.loads(printed(capsys, str(path), "--json", "--whole")[1])["simulated"]["is_whole_run"]


def test_explaining_imports_no_ray(tmp_path: Path) -> None:
    path = run_of(planted(dataset__num_files=48), tmp_path)
    program = f"""if True:
        import sys
        from rayio.report.explain import explain
        explain({str(path)!r})
        sys.exit('ray' in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- bad input ------------------------------------------------------------------------------------------------------


def directory(root: Path, wanted: Scenario, run: Outcome | None, result: RunResult | None = None) -> Path:
    made = RunDirectory.create(root / "run", {"engine": "virtual", "modelled_storage": True})
    made.write_scenario(to_yaml(wanted))
    if run is not None:
        made.write_spans(run.spans, "part-00000")
    if result is not None:
        made.write_result(result)
    return made.path


def test_an_empty_run_is_said_to_be_one(tmp_path: Path) -> None:
    found = explain(directory(tmp_path, planted(), None))
    ending = "The run has no result: it was killed, or is still running."
    assert found["sentence"] == f"{ending} So far: No verdict: no completed step is recorded."
    assert "the run broke off before any span was stored: nothing can be explained" in found["notes"]
    assert "No verdict" in text(found)


def test_a_run_without_steps_in_its_trace_is_not_said_to_have_broken_off(tmp_path: Path) -> None:
    found = explain(run_of(planted(trace__level="none"), tmp_path))
    assert found["sentence"] == "No verdict: no completed step is recorded."
    assert found["notes"] == [
        "trace.level is none: no step was recorded, so nothing can be explained; run with trace.level=batch"
    ]


def test_spans_that_are_gone_are_told_from_spans_that_never_were(tmp_path: Path) -> None:
    path = run_of(planted(), tmp_path)
    recorded = RunDirectory.open(path).stored
    for file in (path / "spans").iterdir():
        file.unlink()
    with pytest.raises(StorageError, match=f"has no span file, and result.json says {recorded} spans"):
        explain(path)


def test_of_a_run_of_one_step_nothing_is_concluded(tmp_path: Path) -> None:
    found = explain(run_of(planted(train__steps=1, loader__decode="30 ms"), tmp_path))
    assert (found["verdict"]["bound"], found["verdict"]["cause"], found["prediction"]) == (None, None, None)
    assert found["sentence"].startswith("No verdict: 1 step per rank can be measured, 10 are needed.")
    assert "all 2 completed steps are counted, warm-up too" in found["notes"]
    assert found["verdict"]["au"] + found["verdict"]["loss"] == pytest.approx(1)


def test_an_interrupted_run_is_explained_as_far_as_it_went(tmp_path: Path) -> None:
    run = simulated(wanted := planted(loader__decode="30 ms"))
    import pyarrow.compute as pc

    ends = pc.add(run.spans["start_ns"], run.spans["duration_ns"])
    half = run.spans.filter(pc.less(ends, 1_500_000_000))
    cut = replace(run, spans=half)
    found = explain(directory(tmp_path, wanted, cut, result(exit_code=130, error="interrupted")))
    assert found["verdict"]["cause"] == "decode"
    assert found["verdict"]["au"] == pytest.approx(1 / 3, abs=POINTS)
    assert found["sentence"].startswith("The run broke off with exit code 130: interrupted. Run it again. Until then: ")
    assert found["broke_off"]["exit_code"] == 130
    assert not any("exit code" in note for note in found["notes"])
    assert any("did not finish their" in note for note in found["notes"])
    assert found["prediction"]["workers"] == 8


def test_a_run_without_spans_of_readers_says_which_level_has_them(tmp_path: Path) -> None:
    run = simulated(wanted := planted(loader__decode="30 ms"))
    import pyarrow.compute as pc

    ranks = run.spans.filter(pc.equal(run.spans["role"].cast("string"), "rank"))
    found = explain(directory(tmp_path, wanted, replace(run, spans=ranks)))
    assert (found["verdict"]["bound"], found["verdict"]["cause"]) == ("input", "unrecorded")
    assert any("run with trace.level=batch" in note for note in found["notes"])
    assert found["simulated"] is None


def test_a_truncated_span_file_is_named(tmp_path: Path) -> None:
    path = run_of(planted(), tmp_path)
    (path / "spans" / "part-00007.parquet").write_bytes(b"PAR1 and then nothing")
    assert any("part-00007.parquet" in note for note in explain(path)["notes"])


def test_edits_of_scenario_yaml_after_the_run_are_ignored_or_lead_where_what_ran_is_unknown(tmp_path: Path) -> None:
    """Explain, report and compare answer for what ran; older runs have a digest alone, and the oldest not even that."""
    paths = [simulate("unet3d-small", ["train.epochs=1"], out=tmp_path / name).path for name in ("unedited", "edited")]
    path, file = paths[1], paths[1] / "scenario.yaml"
    before, info = explain(path, simulate=False), json.loads((path / "run.json").read_text())
    digest = sha256((text := file.read_text()).encode()).hexdigest()[:16]

    def answers() -> tuple[Explained, Comparison, str]:
        report(path, simulate=False)
        return explain(path, simulate=False), compare(*paths), (path / "report.html").read_text()

    file.write_text(text.replace("num_workers: ", "num_workers: 1"))
    found, compared, page = answers()
    assert found == replace(before, notes=(UNEDITED, *before.notes))
    assert (compared.differing_keys, compared.edited, compared.edits_ignored) == ((), (), (str(path),))
    assert f"note: {path}: {UNEDITED}" in str(compared)
    assert "num_workers: 2" in page

    for older, is_known in (({"scenario_digest": digest}, True), ({}, False)):
        (path / "run.json").write_text(json.dumps({key: info[key] for key in info if key != "scenario"} | older))
        found, compared, page = answers()
        assert [row.key for row in compared.differing_keys] == ["loader.num_workers"]
        assert found.sentence.startswith(EDITED) is is_known
        assert str(compared).startswith(f"{path}: scenario.yaml was edited after the run") is is_known
        assert (f'<ul class="trouble"><li>{EDITED}' in page) is is_known


def test_what_is_no_run_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = printed(capsys, str(tmp_path / "nowhere"))
    assert (code, out) == (2, "")
    assert err == f"rayio: {tmp_path / 'nowhere'} is not a run directory: no such path\n"


def test_a_run_without_a_scenario_or_with_a_strange_one_is_refused_by_name(tmp_path: Path) -> None:
    path = directory(tmp_path, planted(), None)
    (path / "scenario.yaml").unlink()
    with pytest.raises(ScenarioError, match=r"has no scenario\.yaml"):
        explain(path)
    (path / "scenario.yaml").write_text("name: x\nnonsense: 3\n")
    with pytest.raises(ScenarioError, match=r"nonsense=3: no such key.*another version of rayio wrote it"):
        explain(path)
    (path / "scenario.yaml").write_text("name: [x\n")
    with pytest.raises(RayioError, match="is not YAML"):
        explain(path)
    elsewhere = RunDirectory.create(tmp_path / "elsewhere", {"engine": "opentelemetry"}).path
    with pytest.raises(ScenarioError, match=r"has no scenario\.yaml: there is no run to explain by it"):
        explain(elsewhere)
    for said in ("", "null\n", "[1, 2]\n", "3\n"):
        (path / "scenario.yaml").write_text(said)
        with pytest.raises(ScenarioError, match=r"scenario\.yaml is not a scenario: the file is damaged"):
            explain(path)
    (path / "run.json").write_text('{"version": 7}')
    with pytest.raises(StorageError, match="version 7"):
        explain(path)


# --- on Ray ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # by default the runs with a killed actor are explained
@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")
def test_a_decode_bound_run_on_ray_is_explained(tmp_path: Path) -> None:
    from rayio.session import run

    # One worker decodes for half a second what its rank has done in 50 ms: far more than what a busy machine adds.
    wanted = build(
        {
            "name": "decode-bound",
            "dataset": {"path": "data", "num_files": 30, "sample_bytes": "20 kB"},
            "loader": {"batch_size": 2, "num_workers": 1, "decode": "250 ms"},
            "train": {"epochs": 1, "compute": "50 ms", "sync": "none"},
        }
    )
    done = run(wanted, root=tmp_path)
    found = explain(done.path)
    sums_to_the_whole(found, done.au)
    sums_are_exact(attribute(done.directory.spans()))
    assert (found["verdict"]["bound"], found["verdict"]["cause"]) == ("input", "decode")
    assert found["prediction"]["workers"] > 1
    assert not share(found, "unrecorded")


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.clock
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")
def test_a_decode_bound_run_on_ray_is_explained_within_three_points(tmp_path: Path) -> None:
    from rayio.session import run

    # One worker, a batch every 1.2 s, of which 0.6 s are compute. What Ray's messages add is theirs, and put aside.
    wanted = build(
        {
            "name": "decode-bound",
            "cluster": {"ranks_per_node": 2},
            "dataset": {"path": "data", "num_files": 48, "sample_bytes": "20 kB"},
            "loader": {"batch_size": 2, "num_workers": 1, "decode": "600 ms"},
            "train": {"compute": "600 ms"},
        }
    )
    for _ in range(3):  # a machine that is busy with other work is no truth about the scenario
        done = run(wanted, root=tmp_path)
        found = explain(done.path)
        sums_to_the_whole(found, done.au)
        sums_are_exact(attribute(done.directory.spans()))
        assert (found["verdict"]["bound"], found["verdict"]["cause"]) == ("input", "decode")
        messages = sum(share(found, cause) for cause in ("unleased", "put", "handoff", "other"))
        decode = share(found, "decode") / (1 - messages)
        if decode == pytest.approx(0.5, abs=POINTS):
            break
    assert decode == pytest.approx(0.5, abs=POINTS)
    assert found["simulated"]["au"] == pytest.approx(found["verdict"]["au"], abs=POINTS)
    assert found["prediction"]["workers"] == 2
    assert not share(found, "unrecorded")


#: Causes planted in a run of 200 ms of compute a step, and the share that each must have (None: nothing binds).
#: In the slow tier: above each is planted on the virtual clock, and one is explained on Ray.
PLANTED: dict[str, tuple[dict[str, Any], float | None]] = {
    # 2 samples of 3 requests of 100 ms in one worker: a batch in 600 ms.
    "read": (
        {
            "storage": {"model": {**QUICK, "first_byte": "100 ms"}},
            "train": {"compute": "200 ms", "epochs": 1, "steps": 18},
        },
        1 - 200 / 600,
    ),
    "compute": ({}, None),
    # Rank 1 takes 300 ms, rank 0 waits 100 of them.
    "straggler": (
        {"train": {"compute": "200 ms", "epochs": 1, "steps": 18, "stragglers": {"ranks": [1], "factor": 1.5}}},
        1 / 6,
    ),
    # After every second step rank 0 writes for 400 ms, and rank 1 waits for it.
    "checkpoint": (
        {
            "storage": {"model": {**QUICK, "connection_bandwidth": "100 MB/s"}},
            "checkpoint": {"every": {"steps": 2}, "path": "model://c", "model": {"bytes": 40_000_000},
                           "request_bytes": 40_000_000},
        },
        1 / 2,
    ),
}  # fmt: skip


@pytest.mark.ray
@pytest.mark.clock
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")
@pytest.mark.slow
@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_is_named_on_ray_with_its_share(cause: str, tmp_path: Path) -> None:
    from rayio.session import run

    sections, expected = PLANTED[cause]
    wanted = build(
        {
            "name": f"{cause}-bound",
            "cluster": {"ranks_per_node": 2},
            "dataset": {"path": "model://d", "num_files": 144, "sample_bytes": "20 kB"},
            "storage": {"model": QUICK},
            "loader": {"batch_size": 2, "num_workers": 1},
            "train": {"compute": "200 ms", "epochs": 1},
            **sections,
        }
    )
    for attempt in range(5):  # a machine that is busy with other work is no truth about the scenario
        done = run(wanted, root=tmp_path / str(attempt))
        found = explain(done.path)
        sums_to_the_whole(found, done.au)
        verdict = found["verdict"]
        lost = verdict["loss"] if expected is None else share(found, cause)
        if lost == pytest.approx(expected or 0, abs=POINTS):
            break
    assert lost == pytest.approx(expected or 0, abs=POINTS)
    assert verdict["bound"] == ("input" if cause == "read" else cause)
    assert verdict["cause"] == (None if expected is None else cause)
    named = {"read": "Storage-bound: ", "compute": "No bottleneck worth removing: "}
    assert found["sentence"].startswith(named.get(cause, f"{verdict['bound'].capitalize()}-bound: "))
