"""The summary for reviewers of MLPerf Storage: its fields, by hand, and read back by the import."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from dlio_workloads import VOLUMES, written

import rayio
from rayio.cli import main
from rayio.errors import DataError
from rayio.session.imported import import_dlio_results
from rayio.session.mlperf_summary import summary_of, write_mlperf
from rayio.session.result import Run

PUBLISHED = Path(__file__).parents[2] / "shared" / "mlperf-storage-v1.0"
RANKS = 3
SLOW = [f"cluster.ranks_per_node={RANKS}", "storage.model=ebs-gp3", "++workload.reader.batch_size=2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A simulated run that waits for storage."""
    folder = tmp_path_factory.mktemp("run")
    return rayio.simulate(written(folder, VOLUMES), SLOW, out=folder / "run")


def test_the_fields_are_those_of_the_run(run: Run) -> None:
    summary = summary_of(run)
    metric = summary["metric"]
    au, rates = metric["train_au_percentage"], metric["train_throughput_samples_per_second"]
    assert (len(au), summary["epochs"], summary["num_accelerators"], summary["num_hosts"]) == (4, 4, RANKS, 1)
    assert metric["train_au_mean_percentage"] == pytest.approx(statistics.fmean(au))
    assert metric["train_au_stdev_percentage"] == pytest.approx(statistics.pstdev(au))
    assert metric["train_throughput_mean_samples_per_second"] == pytest.approx(statistics.fmean(rates))
    assert metric["train_io_mean_MB_per_second"] == pytest.approx(statistics.fmean(rates) * 1500000 / 1024**2)
    assert run.result.au_dlio == pytest.approx(metric["train_au_mean_percentage"])
    assert 5 < metric["train_au_mean_percentage"] < 90
    # 48 files are 8 steps of 3 ranks; DLIO counts 2 steps fewer, of 7 that its AU counts
    ideal = RANKS * 2 / 0.05 * metric["train_au_mean_percentage"] / 100
    assert metric["train_throughput_mean_samples_per_second"] == pytest.approx(ideal * 6 / 7, rel=0.02)
    assert summary["data_size_per_host_GB"] == pytest.approx(48 * 1500000 / 2**30)
    assert {**summary["rayio"], "checkpoints": None} == {
        "checkpoints": None,
        "engine": "virtual", "is_measured": False, "workload": "volumes", "required_au_percentage": 80.0,
    }  # fmt: skip
    assert "start" not in summary
    assert summary["hostname"].startswith("no host: virtual")


def test_the_import_reads_the_same_numbers_back(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mlperf"
    with pytest.raises(SystemExit) as ended:
        main(["report", str(run.path), "--no-html", "--mlperf", str(folder)])
    assert ended.value.code == 0
    assert f"rayio: summary: {folder}/summary.json" in capsys.readouterr().err
    back = import_dlio_results(folder, tmp_path / "back").result
    metric = json.loads((folder / "summary.json").read_text())["metric"]
    assert back.au_dlio == metric["train_au_mean_percentage"] == run.result.au_dlio
    assert back.au_dlio_stdev == run.result.au_dlio_stdev
    assert back.samples_per_second_dlio == run.result.samples_per_second_dlio
    assert back.samples_per_second_dlio_stdev == run.result.samples_per_second_dlio_stdev
    assert back.imported is not None
    assert [epoch.au for epoch in back.imported.epochs] == metric["train_au_percentage"]
    assert [epoch.samples_per_second for epoch in back.imported.epochs] == metric["train_throughput_samples_per_second"]


@pytest.mark.parametrize(("expect", "met"), [("{au_dlio: '>= 1'}", "success"), ("{au_dlio: '>= 99'}", "fail")])
def test_the_verdict_is_that_of_the_expected_au(expect: str, met: str, tmp_path: Path) -> None:
    run = rayio.simulate(written(tmp_path, VOLUMES), [*SLOW, f"expect={expect}"], out=tmp_path / "run")
    assert summary_of(run)["metric"]["train_au_meet_expectation"] == met


def test_a_measured_run_has_hosts_and_times(tmp_path: Path) -> None:
    source = written(tmp_path, VOLUMES)
    small = [
        "dataset.sample_bytes=1000",
        "dataset.num_files=12",
        "train.compute=0.001",
        "train.epochs=1",
        "checkpoint=none",
    ]
    run = rayio.run(source, small, engine="local", root=tmp_path, out=tmp_path / "run")
    summary = json.loads(write_mlperf(run, tmp_path / "theirs").read_text())
    assert summary["start"] < summary["end"]
    assert summary["rayio"]["is_measured"]
    assert len(summary["host_memory_GB"]) == len(summary["potential_caching"]) == 1
    assert summary["potential_caching"] == [1]  # 12 kB fit any memory
    assert import_dlio_results(tmp_path / "theirs", tmp_path / "back").result.au_dlio == run.result.au_dlio


def test_a_run_too_short_for_the_formula_is_one_line(tmp_path: Path) -> None:
    run = rayio.simulate(written(tmp_path, VOLUMES), ["train.steps=2"], out=tmp_path / "run")
    with pytest.raises(DataError, match="has no AU by DLIO's formula: it needs a complete epoch of at least three"):
        write_mlperf(run, tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


EVALUATED = VOLUMES.replace("checkpoint: True", "checkpoint: True, evaluation: True").replace(
    "num_files_train: 48", "num_files_train: 48\n  num_files_eval: 15"
) + "evaluation: {eval_time: 0.02, epochs_between_evals: 1}\n"  # fmt: skip


@pytest.fixture(scope="module")
def occasions(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A simulated run with four evaluations of 15 files, on 3 ranks, and four checkpoints of rank 0."""
    folder = tmp_path_factory.mktemp("occasions")
    source = written(folder, EVALUATED.replace("after_epoch: 4, epochs_between_checkpoints: 2", "after_epoch: 1"))
    return rayio.simulate(source, SLOW, out=folder / "run")


def test_evaluations_are_those_of_the_spans_by_hand(occasions: Run) -> None:
    """AU leaves out the first step of each rank; throughput counts all 15 samples over the ranks' own times."""
    spans = occasions.spans()
    au, rates = [], []
    for number in range(4):
        of_ranks, per_second = [], []
        for rank in range(RANKS):
            inner = spans[
                (spans["rank"] == rank) & (spans["epoch"] == 4 + number) & spans["name"].str.startswith("eval_")
            ]
            begin, end = inner["start_ns"].min(), (inner["start_ns"] + inner["duration_ns"]).max()
            later = inner[inner["step"] > 0]
            compute = later[later["name"] == "eval_compute"]["duration_ns"].sum()
            assert set(inner["step"]) == {*range(5)}
            of_ranks.append(100 * compute / (end - later["start_ns"].min()))
            per_second.append(5 / ((end - begin) / 1e9))
        au.append(statistics.fmean(of_ranks))
        rates.append(sum(per_second))
    metric = summary_of(occasions)["metric"]
    assert metric["eval_au_percentage"] == pytest.approx(au)
    assert metric["eval_au_mean_percentage"] == pytest.approx(statistics.fmean(au))
    assert metric["eval_au_stdev_percentage"] == pytest.approx(statistics.pstdev(au))
    assert metric["eval_throughput_samples_per_second"] == pytest.approx(rates)
    assert metric["eval_io_mean_MB_per_second"] == pytest.approx(statistics.fmean(rates) * 1500000 / 2**20)
    assert metric["eval_au_meet_expectation"] == ("success" if statistics.fmean(au) >= 80 else "fail")
    assert 0 < statistics.fmean(au) < 100


def test_checkpoints_are_those_of_the_spans_by_hand(occasions: Run) -> None:
    spans = occasions.spans()
    seconds = [ns / 1e9 for ns in spans[(spans["name"] == "checkpoint") & (spans["rank"] == 0)]["duration_ns"]]
    rates = [4000000 / 2**30 / each for each in seconds]
    metric, more = summary_of(occasions)["metric"], summary_of(occasions)["rayio"]["checkpoints"]
    assert len(seconds) == 4 == more["save"]["number"]
    assert metric["save_checkpoint_duration_mean_seconds"] == pytest.approx(statistics.fmean(seconds))
    assert metric["save_checkpoint_duration_stdev_seconds"] == pytest.approx(statistics.pstdev(seconds), abs=1e-12)
    assert metric["save_checkpoint_io_mean_GB_per_second"] == pytest.approx(statistics.fmean(rates))
    assert metric["save_checkpoint_io_stdev_GB_per_second"] == pytest.approx(statistics.pstdev(rates), abs=1e-12)
    assert metric["checkpoint_size_GB"] == pytest.approx(4000000 / 2**30)
    assert more["save"]["io_min_GB_per_second"] == pytest.approx(min(rates))
    assert more["save"]["duration_max_seconds"] == pytest.approx(max(seconds))
    assert "load" not in more
    assert not [name for name in metric if name.startswith("load_")]


#: What reviewers know of a run of checkpoints alone.
OF_CHECKPOINTS = {"checkpoint_size_GB"} | {
    f"{kind}_checkpoint_{what}" for kind in ("save", "load")
    for what in ("io_mean_GB_per_second", "io_stdev_GB_per_second", "duration_mean_seconds", "duration_stdev_seconds")
}  # fmt: skip


ALONE = """
name: checkpoints
dataset: {path: model://none, num_files: 8, sample_bytes: 1 KB}
loader: {batch_size: 1}
train: {epochs: 1, compute: 1 ms}
checkpoint: {path: model://ck, model: {bytes: 8 GB}}
"""


def test_a_run_of_checkpoints_alone_has_the_fields_of_mlperf_storage(tmp_path: Path) -> None:
    """Eight ranks write 1 GB each to 2 GB/s that they share, in 4 s, and read it back at as much."""
    storage = {"first_byte": 0, "connection_bandwidth": "1 TB/s", "bandwidth": "2 GB/s", "scope": "cluster"}
    keys: dict[str, Any] = {
        "cluster.nodes": 2, "cluster.ranks_per_node": 4, "storage.model": storage,
        "checkpoint.writers": "sharded", "checkpoint.phases": {"writes": 3, "reads": 2, "pause": "5 s"},
        "costs": "none",
    }  # fmt: skip
    file = tmp_path / "checkpoints.yaml"
    file.write_text(ALONE)
    run = rayio.simulate(file, keys, out=tmp_path / "run")
    summary = summary_of(run)
    assert {*summary["metric"]} == OF_CHECKPOINTS
    for kind in ("save", "load"):
        assert summary["metric"][f"{kind}_checkpoint_duration_mean_seconds"] == pytest.approx(4, rel=1e-3)
        assert summary["metric"][f"{kind}_checkpoint_io_mean_GB_per_second"] == pytest.approx(2e9 / 2**30, rel=1e-3)
    more = summary["rayio"]["checkpoints"]
    assert (more["save"]["number"], more["load"]["number"]) == (3, 2)
    assert 1 - 1e-3 <= more["save"]["duration_of_rank_0_mean_seconds"] <= 4 + 1e-3  # a share has an eighth of the rate
    assert (summary["epochs"], summary["num_accelerators"], summary["num_hosts"]) == (0, 8, 2)
    assert "num_files_train" not in summary
    gaps = run.spans().query("name == 'gap'")["duration_ns"]
    assert [*gaps] == [5_000_000_000] * (8 * 5)


@pytest.mark.parametrize("name", ["hpe-unet3d-h100-run-1", "juicedata-resnet50-run1"])
def test_of_an_imported_result_the_summary_is_the_published_one(name: str, tmp_path: Path) -> None:
    if not (PUBLISHED / name).exists():
        pytest.skip("the published results are not here")
    run = import_dlio_results(PUBLISHED / name, tmp_path / "run")
    theirs: dict[str, Any] = json.loads((PUBLISHED / name / "summary.json").read_text())
    ours = summary_of(run)
    for key in ("num_accelerators", "num_hosts", "num_files_train", "num_samples_per_file", "epochs"):
        assert ours[key] == theirs[key], key
    for key, published in theirs["metric"].items():
        if published == "success" or key not in ours["metric"]:
            assert ours["metric"].get(key, published) == published
            continue
        # AU is computed from the records of ranks, bytes from a sample of a whole number of bytes
        assert ours["metric"][key] == pytest.approx(published, rel=2e-3, abs=0.02), key
    assert len({*ours["metric"]} & {*theirs["metric"]}) >= 7
    assert ours["data_size_per_host_GB"] == pytest.approx(theirs["data_size_per_host_GB"], rel=1e-3)
