"""The least dataset by the rules of MLPerf Storage, by hand and as the command gives it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dlio_workloads import RECORDS, VOLUMES, written
from hypothesis import given
from hypothesis import strategies as st

import rayio
from rayio.cli import main
from rayio.errors import ScenarioError
from rayio.imports.mlperf_rules import floor_of
from rayio.scenario import derive
from rayio.scenario.load import build, load
from rayio.study.sizing.mlperf import sizing

GiB = 1 << 30


def test_of_volumes_the_memory_of_two_hosts_holds(tmp_path: Path) -> None:
    """By hand: 5 · 2 · 64 GiB are 687 194 767 360 bytes, of 1.5 MB a file; 500 steps of 8 × 3 samples are 12 000."""
    size = rayio.datasize(written(tmp_path, VOLUMES), memory=64 * GiB, accelerators=8, hosts=2)
    assert (size.files, size.files_by_memory, size.files_by_steps, size.bound) == (458129, 458129, 12000, "memory")
    assert size.dataset_bytes == pytest.approx(458129 * 1500000, rel=1e-6)
    assert size.steps_per_epoch == 458129 // 24


def test_with_little_memory_the_steps_hold(tmp_path: Path) -> None:
    """By hand: files of 4 samples of 20 000 bytes; 500 steps of 6 × 4 samples are 3 000 files."""
    size = rayio.datasize(written(tmp_path, RECORDS), memory=1 << 20, accelerators=6)
    assert (size.files, size.files_by_memory, size.bound) == (3000, 5 * (1 << 20) // 80000, "steps")
    assert (size.steps_per_epoch, size.hosts, size.files_now) == (500, 1, 16)


@given(
    per_file=st.integers(1, 1000),
    batch=st.integers(1, 500),
    record=st.integers(16, 10**9),
    accelerators=st.integers(1, 5000),
    memory=st.integers(1, 1 << 45),
)
def test_the_rule_is_the_published_one(per_file: int, batch: int, record: int, accelerators: int, memory: int) -> None:
    data = {"path": "model://x", "num_files": 10**6, "samples_per_file": per_file, "sample_bytes": record}
    scenario = build({"name": "x", "dataset": data, "loader": {"batch_size": batch}, "train": {"compute": 1}})
    files = sizing(scenario, accelerators, memory).files
    published = max(5 * memory // (per_file * record), 500 * accelerators * batch // per_file)
    assert files in (published, published + 1)
    assert files * per_file // batch // accelerators >= 500
    fewer = (files - 1) * per_file
    assert files == 5 * memory // (per_file * record) or fewer // batch // accelerators < 500


@pytest.mark.parametrize(
    ("name", "rules", "floor"),
    [
        ("unet3d-h100", "mlperf", 0.9), ("resnet50", "mlperf", 0.9), ("CosmoFlow-a100", "mlperf", 0.7),
        ("retinanet-b200", "mlperf", 0.85), ("cosmoflow", None, 0.9),
    ],
)  # fmt: skip
def test_the_required_au_is_that_of_the_workload(name: str, rules: str | None, floor: float) -> None:
    data = {"path": "model://x", "num_files": 9, "sample_bytes": 99}
    assert floor_of(build({"name": name, "dataset": data, "train": {"compute": 1}}), rules) == floor


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["datasize", *arguments])
    return int(ended.value.code or 0)


def test_the_command_prints_the_bounds_and_a_dataset_of_that_size_is_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = written(tmp_path, VOLUMES)
    told = ["--accelerators", "8", "--hosts", "2", "--memory", "64GiB"]
    assert command(source, *told) == 0
    printed = capsys.readouterr().out
    assert "volumes needs 458129 files (640 GiB) for 8 accelerators on 2 hosts of 64 GiB; it has 48; use" in printed
    assert [line.split()[2] for line in printed.splitlines() if line.endswith("(holds)")] == ["458,129"]
    assert command(source, *told, "dataset.num_files=458129", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["files"], answer["files_now"], answer["bound"]) == (458129, 458129, "memory")


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (["--accelerators", "0"], "--accelerators 0: must be at least 1"),
        (["--hosts", "9"], "--accelerators 1: fewer than --hosts 9"),
        (["--memory", "much"], "--memory much: "),
        (["--memory", "0"], "--memory 0: "),
        (["--memory", "4096PiB"], "more than possible"),
    ],
)
def test_bad_numbers_are_one_line(
    told: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(written(tmp_path, VOLUMES), *told) == 2
    error = capsys.readouterr().err
    assert line in error
    assert len(error.splitlines()) == 1


def test_a_dataset_of_real_files_that_is_too_small_names_the_size_of_datasize(tmp_path: Path) -> None:
    source = written(tmp_path, VOLUMES)
    size = rayio.datasize(source, memory=GiB, accelerators=1)
    overrides = {"++workload.train.epochs": 5, "dataset.num_files": size.files - 1}
    with pytest.raises(ScenarioError, match=rf"use dataset.num_files={size.files}$"):
        rayio.capacity(source, overrides, rules="mlperf", host_memory=GiB, engine="local", most=1, root=tmp_path)


#: 666 files of three samples, in batches of four.
SMALL = """
name: x
dataset: {path: "model://x", num_files: 666, samples_per_file: 3, sample_bytes: 1000}
loader: {batch_size: 4}
train: {compute: 1}
"""


def test_the_files_have_500_whole_steps_as_a_run_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(SMALL)
    size = rayio.datasize(path, memory=1)
    assert (size.files, size.steps_per_epoch) == (667, 500)
    assert derive.steps_per_epoch(load(path)) == 499


@pytest.mark.parametrize("partition", ["contiguous", "replicated"])
@pytest.mark.parametrize("scaling", ["strong", "weak"])
def test_the_value_of_num_files_is_enough_in_a_run(partition: str, scaling: str, tmp_path: Path) -> None:
    """What a run derives of the advised value is the answer; with one file less it has not 500 steps."""
    path = tmp_path / "x.yaml"
    path.write_text(SMALL)
    told = {"loader.partition": partition, "loader.scaling": scaling, "cluster.ranks_per_node": 5}
    size = rayio.datasize(path, told, memory=1)
    enough, fewer = (load(path, {**told, "dataset.num_files": size.num_files - less}) for less in (0, 1))
    assert derive.steps_per_epoch(fewer) == 499
    assert derive.steps_per_epoch(enough) == size.steps_per_epoch == 500
    assert (derive.num_files(enough), derive.dataset_bytes(enough)) == (size.files, size.dataset_bytes)
    assert size.files_now == derive.num_files(load(path, told))


def test_the_size_is_that_of_show_where_sizes_are_drawn() -> None:
    size = rayio.datasize("unet3d-h100", memory=1)
    told = derive.dataset_bytes(load("unet3d-h100", [f"dataset.num_files={size.num_files}"]))
    assert size.dataset_bytes == round(told)


def test_a_cap_of_the_steps_is_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(written(tmp_path, RECORDS), "--memory", "1MiB", "train.steps=20") == 0
    printed = capsys.readouterr().out
    assert "an epoch has 20 steps per accelerator" in printed
    assert "note: train.steps=20: an epoch has no more steps; the rules need 500; use train.steps=none" in printed


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("llama3-8b", "dataset.format=synthetic: llama3-8b makes its samples, and reads no files"),
        ("climate_seg", "dataset.format=synthetic: climate_seg makes its samples, and reads no files"),
    ],
)
def test_a_workload_without_files_is_refused(name: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(name, "--memory", "1GiB") == 2
    assert capsys.readouterr().err == f"rayio: {line}\n"


def test_a_run_without_training_has_no_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    phases = ["checkpoint.every=none", "checkpoint.phases={writes: 2, reads: 1}"]
    assert command("unet3d-h100", "--memory", "1GiB", *phases) == 2
    line = "checkpoint.phases: unet3d-h100 only saves and restores, and reads no dataset"
    assert capsys.readouterr().err == f"rayio: {line}\n"


@pytest.mark.parametrize(
    ("arguments", "blamed"),
    [
        (["--accelerators", str(10**22), "--memory", "1 GiB"], f"--accelerators {10**22}: a dataset of"),
        (["--accelerators", "8", "--memory", f"{10**30}"], "--memory "),
    ],
)
def test_a_dataset_beyond_what_is_possible_blames_the_number_that_asks_for_it(
    arguments: list[str], blamed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("unet3d-h100", *arguments) == 2
    err = capsys.readouterr().err
    assert blamed in err
    assert "more than possible" in err


def test_hosts_without_memory_are_refused_by_the_search_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["capacity", "unet3d-h100", "--rules", "mlperf", "--host-memory", "0", "storage.model=s3"])
    assert ended.value.code == 2
    assert "--host-memory 0: must be at least 1" in capsys.readouterr().err
