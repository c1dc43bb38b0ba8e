"""Result folders of DLIO with checkpoints and evaluations: made by hand in its form, and what a hand computes."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pages import check

import rayio
from rayio.errors import DataError
from rayio.report.build import report
from rayio.report.explain import explain
from rayio.session.imported import import_dlio_results
from rayio.session.mlperf_summary import write_mlperf
from rayio.session.result import Run

#: GiB of Llama 8B as published, the seconds of two checkpoints on two ranks, and the pause before each.
SIZE, SECONDS, PAUSE = 104.70452117919922, {"save": ((2.0, 2.5), (2.2, 2.1)), "load": ((4.0, 3.0), (5.0, 5.5))}, 5
CONFIG = """workload:
  model:
    {name: llama_8b, type: transformer, num_layers: 32, parallelism: {tensor: 1, pipeline: 1, zero_stage: 3},
    transformer: {vocab_size: 128256, hidden_size: 4096, ffn_hidden_size: 14336, num_kv_heads: 8}}
  framework: pytorch
  workflow: {generate_data: False, train: False, checkpoint: True}
  checkpoint: {checkpoint_folder: checkpoints/llama_8b, num_checkpoints_write: 2, num_checkpoints_read: 2, fsync: True}
"""


def clock(seconds: float) -> str:
    return (datetime(2026, 7, 3, 10) + timedelta(seconds=seconds)).isoformat(timespec="microseconds")


def write(folder: Path, name: str, value: object) -> None:
    (folder / name).write_text(json.dumps(value))


def published(kind: str) -> dict[str, float]:
    """DLIO's numbers of rank 0: means and population deviations of seconds and of GiB/s."""
    own = [times[0] for times in SECONDS[kind]]
    rates = [SIZE / seconds for seconds in own]
    return {
        f"{kind}_checkpoint_io_mean_GB_per_second": statistics.fmean(rates),
        f"{kind}_checkpoint_io_stdev_GB_per_second": statistics.pstdev(rates),
        f"{kind}_checkpoint_duration_mean_seconds": statistics.fmean(own),
        f"{kind}_checkpoint_duration_stdev_seconds": statistics.pstdev(own),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two ranks write two checkpoints and read them back; DLIO starts each on all ranks after a barrier."""
    made = tmp_path / "results"
    (made / ".hydra_config").mkdir(parents=True)
    (made / ".hydra_config" / "config.yaml").write_text(CONFIG)
    stats: list[dict[str, Any]] = [{"1": {"start": clock(1)}} for _ in range(2)]
    at = 2.0
    for kind, checkpoints in SECONDS.items():
        for number, times in enumerate(checkpoints, 1):
            at += PAUSE
            for rank, seconds in enumerate(times):
                stats[rank]["1"][f"{kind}_ckpt{number}"] = {
                    "start": clock(at), "end": clock(at + seconds), "duration": seconds, "throughput": SIZE / seconds,
                }  # fmt: skip
            at += max(times)
    for rank, each in enumerate(stats):
        each["1"]["end"] = clock(at)
        write(made, f"{rank}_per_epoch_stats.json", each)
        empty: dict[str, Any] = {key: {} for key in ("load", "proc", "throughput", "au", "compute")}
        write(made, f"{rank}_output.json", {"hostname": "h", "1": {"start": clock(1), **empty, "end": clock(at)}})
    metric = published("save") | published("load") | {"checkpoint_size_GB": SIZE}
    about = {"num_accelerators": 2, "num_hosts": 1, "hostname": "h", "epochs": 0, "num_files_train": 8}
    write(made, "summary.json", {"start": clock(0), "end": clock(at + 1), **about, "metric": metric})
    return made


def changed(folder: Path, name: str, change: Callable[[Any], object]) -> None:
    value = json.loads((folder / name).read_text())
    change(value)
    write(folder, name, value)


def test_checkpoints_without_training_have_the_times_of_every_rank(folder: Path, tmp_path: Path) -> None:
    run = import_dlio_results(folder, tmp_path / "run")
    spans = run.spans()
    for name, kind in (("checkpoint", "save"), ("restore", "load")):
        mine = spans[spans.name == name].sort_values(["start_ns", "rank"])
        by_hand = [seconds for times in SECONDS[kind] for seconds in times]
        assert [length / 1e9 for length in mine.duration_ns] == pytest.approx(by_hand), name
    result = Run.open(tmp_path / "run").result
    assert (result["steps"], result["au"], result["imported"]["au"]) == (0, None, None)
    for key, kind in (("saved", "save"), ("restored", "load")):
        longest = sum(max(times) for times in SECONDS[kind])
        assert result[key]["bytes"] == round(2 * SIZE * 2**30)
        assert result[key]["mib_per_second"] == pytest.approx(2 * SIZE * 1024 / longest)
        told = result["imported"][key]
        assert told["all_ranks_seconds"] == pytest.approx(longest / 2)
        assert told["mib_per_second"] == 1024 * published(kind)[f"{kind}_checkpoint_io_mean_GB_per_second"]
    assert "checkpoints imported from results of DLIO: 2 ranks" in run.summary()


def test_checkpoints_without_training_are_explained_reported_and_written_back(folder: Path, tmp_path: Path) -> None:
    made = import_dlio_results(folder, tmp_path / "run")
    text = explain(made.path).as_text()
    assert "written in 2.10 s (49.97 GiB/s), read back in 4.50 s (23.56 GiB/s)" in " ".join(text.split())
    page = check(report(made.path).read_text(encoding="utf-8"))
    rate = 1024 * published("save")["save_checkpoint_io_mean_GB_per_second"]
    assert f"saving {rate:,.1f} MiB/s as published" in page.words
    write_mlperf(made, tmp_path / "back.json")
    theirs = json.loads((folder / "summary.json").read_text())["metric"]
    assert json.loads((tmp_path / "back.json").read_text())["metric"] == theirs


def test_their_scenario_saves_what_was_published(folder: Path, tmp_path: Path) -> None:
    made = import_dlio_results(folder, tmp_path / "run")
    again = rayio.simulate(
        str(made.path / "scenario.yaml"), overrides={"storage.model": "nvme"}, out=tmp_path / "again"
    )
    saved, restored = again.result["saved"], again.result["restored"]
    assert (saved["checkpoints"], restored["checkpoints"]) == (2, 2)
    assert saved["bytes"] == pytest.approx(2 * SIZE * 2**30, rel=1e-4)


@pytest.mark.parametrize("kinds", [("save", "load"), ("save",), ("load",)])
def test_a_summary_alone_has_the_published_means(kinds: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    """A run that only reads has NaN for what it did not write, as DLIO writes it."""
    for name in ("0_per_epoch_stats.json", "1_per_epoch_stats.json", "0_output.json", "1_output.json"):
        (folder / name).unlink()

    def only(summary: dict[str, Any]) -> None:
        for name in [*summary["metric"]]:
            if name.partition("_")[0] in {"save", "load"} - {*kinds}:
                summary["metric"][name] = math.nan

    changed(folder, "summary.json", only)
    run = import_dlio_results(folder, tmp_path / "run")
    imported = run.result["imported"]
    for key, kind in (("saved", "save"), ("restored", "load")):
        told = imported.get(key)
        assert (told is not None) == (kind in kinds)
        if told is not None:
            assert told["seconds"] == published(kind)[f"{kind}_checkpoint_duration_mean_seconds"]
    assert "checkpoints as published, 105 GiB each" in run.summary()
    assert "no times of single checkpoints" in run.summary()


def test_without_times_of_other_ranks_those_of_rank_0_are_taken(folder: Path, tmp_path: Path) -> None:
    (folder / "1_per_epoch_stats.json").unlink()
    run = import_dlio_results(folder, tmp_path / "run")
    assert run.result["imported"]["saved"]["all_ranks_seconds"] is None
    assert run.result["saved"]["seconds"] == pytest.approx(4.2)
    assert "1 of 2 ranks have no" in run.summary()


@pytest.mark.parametrize(
    ("name", "change", "line"),
    [
        ("1_per_epoch_stats.json", lambda s: s["1"].pop("load_ckpt2"), "has checkpoints save_ckpt1 of epoch 1"),
        ("1_per_epoch_stats.json", lambda s: s["1"]["load_ckpt2"].pop("end"), "1_per_epoch_stats.json: epoch 1 load"),
        ("0_per_epoch_stats.json", lambda s: s["1"]["save_ckpt1"].update(duration=9.0), "duration is 9 s, but from"),
        ("0_per_epoch_stats.json", lambda s: s["1"]["save_ckpt1"].update(throughput=9.0), "throughput 9 GiB/s in 2 s"),
        ("0_per_epoch_stats.json", lambda s: s["1"]["save_ckpt1"].update(end=clock(1)), "not after its start"),
        ("0_per_epoch_stats.json", lambda s: s.update({"1": 7}), "epoch 1: holds int, expected its checkpoints"),
        ("summary.json", lambda s: s["metric"].update(save_checkpoint_duration_mean_seconds=9.0), "rank 0's times is"),
        ("summary.json", lambda s: s["metric"].update(load_checkpoint_duration_stdev_seconds=3.0), "of different runs"),
        ("summary.json", lambda s: s["metric"].update(save_checkpoint_io_mean_GB_per_second=2.0), "is at least"),
        ("summary.json", lambda s: s["metric"].update(save_checkpoint_io_mean_GB_per_second=-2.0), "of at least 0"),
        ("summary.json", lambda s: s.update(num_accelerators="two"), "num_accelerators is two; expected"),
        ("summary.json", lambda s: s.update(metric={"save_checkpoint_io_mean_GB_per_second": None}), "no duration"),
    ],
)  # fmt: skip
def test_checkpoints_that_contradict_each_other_are_one_line(
    name: str, change: Callable[[Any], object], line: str, folder: Path, tmp_path: Path
) -> None:
    if "no duration" in line:
        (folder / "0_per_epoch_stats.json").unlink()
    changed(folder, name, change)
    with pytest.raises(DataError) as refused:
        import_dlio_results(folder, tmp_path / "run")
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_copied_file_of_times_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "1_per_epoch_stats.json").write_bytes((folder / "0_per_epoch_stats.json").read_bytes())
    with pytest.raises(DataError, match=r"exactly the times of .*: a copied file"):
        import_dlio_results(folder, tmp_path / "run")


#: Seconds of load and compute of an evaluation's steps, on two ranks, and those of training.
EVALUATED = (((0.5, 0.1), (0.2, 0.2)), 0.4)
TRAINED = (((3.0, 0.1, 0.1, 0.1), (2.0, 0.2, 0.3, 0.1)), 1.0)


def lists(loads: tuple[float, ...], compute: float) -> dict[str, list[float]]:
    return {
        "load": [*loads], "proc": [load + compute for load in loads], "compute": [compute for _ in loads],
    }  # fmt: skip


@pytest.fixture
def evaluated(tmp_path: Path) -> Path:
    """Two ranks train two epochs of four steps in 10 s; after each they save on both ranks and evaluate for 2 s."""
    made = tmp_path / "trained"
    made.mkdir()
    trained = [100 * 3 * 1.0 / (10 - loads[0] - 1) for loads in TRAINED[0]]
    au = [100 * 0.4 / (2 - loads[0] - 0.4) for loads in EVALUATED[0]]
    for rank in range(2):
        output: dict[str, Any] = {"hostname": "h"}
        stats: dict[str, Any] = {}
        for number, at in (("1", 2.0), ("2", 20.0)):
            block, held_out = lists(TRAINED[0][rank], TRAINED[1]), lists(EVALUATED[0][rank], EVALUATED[1])
            output[number] = {key: {"block1": block[key], "eval": held_out[key]} for key in block} | {
                "au": {"block1": trained[rank], "eval": au[rank]}, "throughput": {"block1": 1.0, "eval": 1.0},
            }  # fmt: skip
            stats[number] = {
                "start": clock(at), "block1": {"start": clock(at), "end": clock(at + 10), "duration": "10.00"},
                "save_ckpt1": {"start": clock(at + 10), "end": clock(at + 11 + rank), "duration": 1.0 + rank},
                "end": clock(at + 12), "eval": {"start": clock(at + 12), "end": clock(at + 14), "duration": "2.00"},
            }  # fmt: skip
        write(made, f"{rank}_output.json", output)
        write(made, f"{rank}_per_epoch_stats.json", stats)
    metric = {
        "train_au_percentage": [statistics.fmean(trained)] * 2, "train_au_mean_percentage": statistics.fmean(trained),
        "eval_au_mean_percentage": statistics.fmean(au) / 2,  # DLIO divides by the ranks once more
        "save_checkpoint_duration_mean_seconds": 1.0,
    }  # fmt: skip
    about = {
        "num_accelerators": 2,
        "num_hosts": 1,
        "hostname": "h",
        "epochs": 2,
        "num_files_train": 8,
        "num_samples_per_file": 1,
    }
    write(made, "summary.json", {"start": clock(0), "end": clock(40), **about, "metric": metric})
    return made


def test_evaluations_and_checkpoints_of_all_ranks_are_part_of_a_training(evaluated: Path, tmp_path: Path) -> None:
    run = import_dlio_results(evaluated, tmp_path / "run")
    result = run.result
    rounds = result["evaluation"]
    assert (rounds["rounds"], rounds["steps"], rounds["mean_seconds"]) == (2, 8, 2.0)
    assert rounds["au"] == pytest.approx((2 * 0.4) / 2)  # Σ compute / Σ time
    assert rounds["data_wait_share"] == pytest.approx((0.6 + 0.4) / 4)
    assert result["time"]["evaluate"] == pytest.approx(2 * 2 * 2.0)
    assert result["time"]["checkpoint"] == pytest.approx(2 * (1.0 + 2.0))
    assert result["imported"]["saved"]["all_ranks_seconds"] == pytest.approx(2.0)
    assert [epoch["checkpoint_seconds"] for epoch in result["imported"]["epochs"]] == [1.0, 1.0]
    assert "not imported" not in run.summary()


def test_their_scenario_evaluates_and_saves_as_often(evaluated: Path, tmp_path: Path) -> None:
    (evaluated / "config.yaml").write_text(
        "workload: {model: {name: m, model_size_bytes: 5000}, framework: pytorch, workflow: {evaluation: True, "
        "checkpoint: True}, dataset: {format: npz, record_length_bytes: 9000, num_files_train: 8, num_files_eval: 4}, "
        "reader: {batch_size: 1, batch_size_eval: 1}, train: {epochs: 2, computation_time: 1.0}, evaluation: "
        "{eval_time: 0.4}}"
    )
    made = import_dlio_results(evaluated, tmp_path / "run")
    again = rayio.simulate(
        str(made.path / "scenario.yaml"), overrides={"storage.model": "nvme"}, out=tmp_path / "again"
    )
    theirs, ours = made.result["evaluation"], again.result["evaluation"]
    assert (ours["rounds"], ours["steps"]) == (theirs["rounds"], theirs["steps"]) == (2, 8)
    assert again.result["saved"]["checkpoints"] == made.result["imported"]["saved"]["number"] == 2
    assert again.result["saved"]["bytes"] == 2 * 5000


def test_an_evaluation_of_another_run_is_one_line(evaluated: Path, tmp_path: Path) -> None:
    changed(evaluated, "summary.json", lambda s: s["metric"].update(eval_au_mean_percentage=77.0))
    with pytest.raises(DataError, match=r"eval_au_mean_percentage is 77, but the mean of the ranks' is 32\.4675"):
        import_dlio_results(evaluated, tmp_path / "run")
    changed(
        evaluated, "1_output.json", lambda out: [out["2"][key]["eval"].pop() for key in ("load", "proc", "compute")]
    )
    with pytest.raises(DataError, match=r"1_output.json \(rank 1\): epoch 2 eval: has 1 steps, rank 0 2"):
        import_dlio_results(evaluated, tmp_path / "run")
