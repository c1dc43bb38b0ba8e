"""Names of run directories that nobody gave: no two runs have one."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

import rayio
from rayio import storage
from rayio.errors import RayioError
from rayio.files import make_folders
from rayio.session import naming
from scenarios import scenario

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return NOW

    monkeypatch.setattr(naming, "datetime", Clock)


def taken(base: str, number: int) -> list[str]:
    """Return the names that as many runs choose in the same second, all after a look that the first is free."""
    together = Barrier(number)
    exists = type(storage.open(base)).exists.fget  # type: ignore[attr-defined]

    def look(store: Any) -> bool:
        there: bool = exists(store)
        if store.address.endswith(f"{NOW.astimezone():%S}"):
            together.wait()
        return there

    def one(_: int) -> str:
        with naming.named(scenario(), base, None) as address:
            return address

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(number) as threads:
        patch.setattr(type(storage.open(base)), "exists", property(look))
        return sorted(address.rpartition("/")[2] for address in threads.map(one, range(number)))


def test_runs_of_the_same_second_get_names_of_their_own(tmp_path: Path) -> None:
    names = taken(str(tmp_path), 4)
    stem = f"{scenario().name}-{NOW.astimezone():%Y%m%d-%H%M%S}"
    assert names == [stem, *(f"{stem}-{number}" for number in (1, 2, 3))]


def test_so_they_do_in_a_bucket(place: str) -> None:
    assert len({*taken(place, 3)}) == 3


@pytest.mark.parametrize("out", [None, "new/deep/run"])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_refused_run_leaves_nothing_that_it_made(out: str | None, is_there: bool, tmp_path: Path) -> None:
    above = ["runs", "new"] if is_there else []
    for name in above:
        (tmp_path / name).mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "notes.txt").write_text("mine")
    for wanted in (scenario(dataset__path="data"), scenario(dataset__path="data/notes.txt")):
        with pytest.raises(RayioError):  # after the run directory was made, and before
            rayio.run(wanted, engine="local", root=tmp_path, out=out)
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*above, "data"])
        assert not any([*(tmp_path / name).iterdir()] for name in above)


def test_a_folder_in_which_another_run_begins_stays(tmp_path: Path) -> None:
    with ExitStack() as others:
        with ExitStack() as stack:
            stack.enter_context(pytest.raises(RayioError))
            first = stack.enter_context(naming.named(scenario(), str(tmp_path), None))
            second = others.enter_context(naming.named(scenario(), str(tmp_path), None))
            raise RayioError("no")
        assert not Path(first).exists()
        assert Path(second).is_dir()


def test_a_name_is_claimed_though_a_refused_run_removes_the_folder_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = [True, True]

    def made(path: Path) -> list[Path]:
        folders = make_folders(path)
        if refused:
            refused.pop()
            path.rmdir()
        return folders

    monkeypatch.setattr(naming, "make_folders", made)
    with naming.named(scenario(), str(tmp_path), None) as address:
        assert Path(address).is_dir()
    assert not refused


def test_a_run_in_a_bucket_leaves_no_mark_of_its_name(place: str) -> None:
    done = rayio.simulate(scenario(), root=place)
    assert done.address.startswith(f"{place}/runs/")
    assert ".reserved" not in storage.open(done.address).entries()


@pytest.mark.slow
def test_commands_that_begin_together_both_run(tmp_path: Path) -> None:
    """Found by starting two: whichever is first, each has a directory with a result."""
    where = os.environ | {"PYTHONPATH": str(Path(rayio.__file__).parents[1])}
    command = [sys.executable, "-m", "rayio", "simulate", "unet3d-small", "train.epochs=1", "--no-report"]
    both = [subprocess.Popen(command, cwd=tmp_path, env=where, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    assert len([*(tmp_path / "runs").glob("*/result.json")]) == 2
