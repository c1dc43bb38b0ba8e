"""Folders of checkpoints before a run: room for all of them, nobody else's files, apart from the others."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rayio.errors import RayioError, ScenarioError, StorageError
from rayio.model.planning import plan_of
from rayio.reporter import Reporter
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.session.execute import run
from rayio.session.folders import Checkpoints, refuse_folders


def wanted(data: str = "data", **checkpoint: Any) -> Scenario:
    """One rank, four steps, a checkpoint after the second and the fourth."""
    return build({
        "name": "small",
        "dataset": {"path": data, "num_files": 4, "sample_bytes": "1000 B"},
        "loader": {"num_workers": 1},
        "train": {"epochs": 1, "compute": "1 ms"},
        "checkpoint": {"every": {"steps": 2}, "path": "kept", "model": {"bytes": "10 kB"}} | checkpoint,
    })  # fmt: skip


def made(tmp_path: Path, out: str = "run", **checkpoint: Any) -> None:
    run(wanted(**checkpoint), engine="local", root=tmp_path, out=out)


class Heard(Reporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def test_checkpoints_that_do_not_fit_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    each = free * 2 // 3  # one would fit, and both are kept
    with pytest.raises(StorageError) as told:
        made(tmp_path, model={"bytes": each}, request_bytes="1 GiB")
    assert str(told.value).startswith("checkpoint.path=kept: only ")
    assert "choose another checkpoint.path, or fewer or smaller checkpoints" in str(told.value)
    with pytest.raises(ScenarioError, match=r"request_bytes=4 MiB: a writer's 500 TB .*; use at least 114 MiB$"):
        made(tmp_path, model={"bytes": "500 TB"})
    with pytest.raises(StorageError, match=r"only .* are free for checkpoints"):
        made(tmp_path, model={"bytes": "500 TB"}, request_bytes="114 MiB")
    assert not [*tmp_path.iterdir()]


def test_what_checkpoints_take_and_what_is_free_is_said(tmp_path: Path) -> None:
    heard = Heard()
    run(wanted(), engine="local", root=tmp_path, out="run", reporter=heard)
    (line,) = [said for said in heard.said if said.startswith("checkpoints ")]
    assert line.startswith(f"checkpoints {tmp_path}/kept: 2 of 9.77 KiB, 19.5 KiB in all; ")
    assert line.endswith(" are free")


def test_where_nobody_knows_what_is_free_that_is_said() -> None:
    scenario = wanted(path="s3://bucket/kept", model={"bytes": "900 TB"}, request_bytes="1 GB")
    said = Checkpoints(scenario, plan_of(scenario, modelled=False), "/").check_space()
    assert said.startswith("2 of ")
    assert said.endswith("; free space unknown")


def test_checkpoints_in_place_of_earlier_ones_take_the_room_of_one_more(tmp_path: Path) -> None:
    made(tmp_path)
    files = sorted((tmp_path / "kept").rglob("*.bin"))
    assert len(files) == 2
    checkpoints = Checkpoints(wanted(), plan_of(wanted(), modelled=False), str(tmp_path))
    checkpoints.look()
    assert checkpoints.replaced == sum(file.stat().st_size for file in files) == 20_000
    made(tmp_path, "again")
    assert sorted((tmp_path / "kept").rglob("*.bin")) == files


def test_what_a_writer_that_was_killed_left_is_removed_by_the_next_run(tmp_path: Path) -> None:
    made(tmp_path)
    folder = next((tmp_path / "kept").iterdir())
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    host = socket.gethostname()
    orphan = folder / f"shard-00000.bin+1+{host}+{int(dead.stdout)}+0123456789ab.partial"
    elsewhere = folder / f"shard-00000.bin+1+{host}-x+{int(dead.stdout)}+0123456789ab.partial"
    alive = folder / f"shard-00000.bin+1+{host}+{os.getppid()}+0123456789ab.partial"
    for unfinished in (orphan, elsewhere, alive):
        unfinished.write_bytes(b"half")
    made(tmp_path, "again")
    assert not orphan.exists()
    assert elsewhere.exists()
    assert alive.exists()


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "epoch-0/shard-00000.bin",
        "epoch-0000-step-00000001/shard-00000.bin",
        "epoch-0000-step-00000099/mine",
    ],
)
def test_a_folder_with_anything_else_is_refused_and_left_alone(name: str, tmp_path: Path) -> None:
    mine = tmp_path / "kept" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(
        StorageError, match=r"^checkpoint.path=kept: the folder holds '.*', which is not a checkpoint of rayio"
    ):
        made(tmp_path)
    assert mine.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize(("name", "what"), [("rayio-dataset.json", "a dataset"), ("run.json", "a run")])
def test_a_run_directory_in_a_dataset_or_a_run_is_refused_on_every_engine(name: str, what: str, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / name).write_text("{}")
    (tmp_path / "link").symlink_to(there)
    for engine in ("virtual", "local"):
        with pytest.raises(
            ScenarioError, match=rf"--out=.*link/deep/run is inside .*there, which holds {what}; choose"
        ):
            run("unet3d-small", engine=engine, out=tmp_path / "link" / "deep" / "run", root=tmp_path)
    assert [path.name for path in there.iterdir()] == [name]


def test_checkpoints_of_other_writers_and_other_lengths_are_checkpoints(tmp_path: Path) -> None:
    made(tmp_path, writers="all_ranks", every={"steps": 1})
    made(tmp_path, "again", writers="rank_zero", model={"bytes": "11 B"})
    made(tmp_path, "third", model={"bytes": "12 kB"})
    assert {path.name for path in (tmp_path / "kept").rglob("*.bin")} == {"rank-00000.bin", "shard-00000.bin"}


@pytest.mark.parametrize(
    ("keys", "out", "said"),
    [
        ({"checkpoint": "data/kept"}, "run", "checkpoint.path=data/kept: lies in dataset.path=data"),
        ({"checkpoint": "data"}, "run", "checkpoint.path=data: is the folder of dataset.path=data"),
        ({"checkpoint": "./data/../data/x"}, "run", "lies in dataset.path=data"),
        ({"data": "kept/data"}, "run", "dataset.path=kept/data: lies in checkpoint.path=kept"),
        ({}, "data/run", "--out=data/run: lies in dataset.path=data"),
        ({"checkpoint": "run/kept"}, "run", "checkpoint.path=run/kept: lies in --out=run"),
        ({"data": "run/spans"}, "run", "dataset.path=run/spans: lies in --out=run"),
        ({"checkpoint": "link/kept"}, "run", "checkpoint.path=link/kept: lies in dataset.path=data"),
        ({"data": "s3://b/d", "checkpoint": "s3://b/d/c"}, "run", "checkpoint.path=s3://b/d/c: lies in dataset.path=s3://b/d"),
        ({"data": "s3://b/d"}, "s3://b/d/run/", "--out=s3://b/d/run/: lies in dataset.path=s3://b/d"),
        ({"data": "s3://b//d/"}, "s3://b/d", "--out=s3://b/d: is the folder of dataset.path=s3://b//d/"),
    ],
)  # fmt: skip
def test_folders_of_a_run_lie_apart(keys: dict[str, str], out: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")

    def begin() -> None:
        scenario = wanted(keys.get("data", "data"), path=keys.get("checkpoint", "kept"))
        refuse_folders(scenario, str(tmp_path), out)

    with pytest.raises(ScenarioError) as told:
        begin()
    assert said in str(told.value)
    assert "choose folders that lie apart" in str(told.value)


def test_folders_with_names_that_begin_alike_lie_apart(tmp_path: Path) -> None:
    refuse_folders(wanted(path="data-kept"), str(tmp_path), "dat")
    refuse_folders(wanted(path="s3://b/data2"), str(tmp_path), "s3://b/data")


@pytest.mark.parametrize("path", ["/proc/x", "/sys/x"])
def test_a_folder_that_cannot_be_made_is_told_in_its_own_words(path: str, tmp_path: Path) -> None:
    with pytest.raises(RayioError) as told:
        made(tmp_path, path=path)
    assert str(told.value).startswith(f"checkpoint.path={path}: ")
    assert "choose another path" in str(told.value)
    assert "dataset" not in str(told.value)
