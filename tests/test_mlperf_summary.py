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
    assert summary["rayio"] == {
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
    run = rayio.run(source, [*small, "checkpoint=none"], engine="local", root=tmp_path, out=tmp_path / "run")
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
