"""Stamps of checkpoint files: the file of another rank, checkpoint or run in the place of one is noticed."""

from __future__ import annotations

import asyncio
import io
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_restore import FIRST, LAST, wanted

from rayio.errors import DataError, RayioError
from rayio.kinds import SAVERS
from rayio.model.env_checkpoints import CheckpointEnv, Shard
from rayio.model.manifest import NAME, parse
from rayio.model.savers import Raw
from rayio.model.stamp import STAMP_BYTES, Stamp, read
from rayio.model.verified import verified
from rayio.place import Where
from rayio.session.execute import run
from rayio.storage import open as open_store
from rayio.storage import real
from rayio.storage.base import Served
from rayio.storage.real import RealStorage, fill_random, random_bytes

MINE, OTHER = "shard-00000.bin", "shard-00001.bin"
EVERY = pytest.mark.parametrize("engine", ["raw", "torch", "dcp"])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Two runs of each engine that saved the same state: ``kept`` and ``before``."""
    roots: dict[str, Path] = {}

    def of(engine: str) -> Path:
        if engine not in roots:
            root = roots[engine] = tmp_path_factory.mktemp(engine)
            for name, path in (("one", "kept"), ("two", "before")):
                run(wanted(engine=engine, path=path), engine="local", root=root, out=name)
        return roots[engine]

    return of


def restored(root: Path, engine: str, which: str = "newest") -> str:
    """Return the line that refuses to begin with a checkpoint of ``kept``; empty if nothing does."""
    try:
        run(wanted(engine=engine, restore=which, every={"epochs": 1}), engine="local", root=root)
    except RayioError as error:
        return str(error)
    return ""


@EVERY
def test_a_file_in_the_place_of_another_is_refused_by_what_it_holds(
    engine: str, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    if engine != "raw":
        pytest.importorskip("torch")
    source = saved(engine)
    own, foreign = (parse((source / folder / LAST / NAME).read_bytes()).run for folder in ("kept", "before"))
    assert own != foreign
    sizes = {file.stat().st_size for file in (source / "kept").glob("*/shard-*")}
    assert len(sizes) == 1, "all are equal but for their stamps"
    plants: dict[str, tuple[str, Callable[[Path], Path]]] = {
        "ranks": (f"it holds {LAST}/{OTHER}; ", lambda kept: kept / LAST / OTHER),
        "steps": (f"it holds {FIRST}/{MINE}; ", lambda kept: kept / FIRST / MINE),
        "runs": (
            f"it was written by another run, {foreign}; ",
            lambda kept: kept.parent / "before" / LAST / MINE,
        ),
        "both": (
            f"it holds {LAST}/{OTHER}, of run {foreign}; ",
            lambda kept: kept.parent / "before" / LAST / OTHER,
        ),
    }
    assert restored(Path(shutil.copytree(source, tmp_path / "whole")), engine) == ""
    for name, (message, plant) in plants.items():
        root = Path(shutil.copytree(source, tmp_path / name))
        shutil.copyfile(plant(root / "kept"), root / "kept" / LAST / MINE)
        line = restored(root, engine)
        assert message in line, name
        assert f"kept/{LAST}/{MINE}: it " in line
        assert line.endswith("remove this one and try again, or start a run that restores another (checkpoint.restore)")
        assert "\n" not in line


@EVERY
def test_a_file_that_vanishes_after_the_manifest_was_read_has_a_checkpoints_remedy(
    engine: str, saved: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, load = Path(shutil.copytree(saved(engine), tmp_path / "whole")), CheckpointEnv.load
    lost = root / "kept" / LAST / MINE

    async def loaded(env: CheckpointEnv, shard: Shard, at: Where) -> Served[None]:
        lost.unlink(missing_ok=True)
        return await load(env, shard, at)

    monkeypatch.setattr(CheckpointEnv, "load", loaded)
    line = (
        "the file is missing; remove this one and try again, or start a run that restores another (checkpoint.restore)"
    )
    assert restored(root, engine) == f"{lost}: {line}"


@EVERY
@pytest.mark.parametrize("more", [-1, 1])
def test_a_file_that_is_shorter_or_longer_is_no_part_of_a_complete_checkpoint(
    engine: str, more: int, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    if engine != "raw":
        pytest.importorskip("torch")
    root = Path(shutil.copytree(saved(engine), tmp_path / "root"))
    file = root / "kept" / LAST / MINE
    content = file.read_bytes()
    file.write_bytes(content[:more] if more < 0 else content + b"\0")
    line = restored(root, engine, LAST)
    assert f"{LAST}: {MINE} has {len(content) + more} B, its manifest {len(content)} B; choose a complete" in line
    assert restored(root, engine) == "", "the checkpoint before it is taken"


def written(num_bytes: int, request_bytes: int, stamp: Stamp) -> tuple[bytes, list[int]]:
    """Return a file as the engine ``raw`` writes it, and the sizes of its requests."""
    requests: list[int] = []

    class File(io.BytesIO):
        def write(self, part: Any) -> int:
            requests.append(len(part))
            return super().write(part)

    file = File()
    Raw().fill(file, stamp.path, num_bytes, request_bytes, stamp.content)
    return file.getvalue(), requests


@given(st.integers(0, 2000), st.integers(1, 700), st.text(max_size=300), st.text(max_size=60))
def test_a_stamp_changes_neither_size_nor_requests_and_is_noticed(
    num_bytes: int, request_bytes: int, run_name: str, path: str
) -> None:
    stamp = Stamp(run_name, path)
    content, requests = written(num_bytes, request_bytes, stamp)
    plain = io.BytesIO()
    fill_random(plain, path, num_bytes, request_bytes)
    assert len(content) == num_bytes
    assert requests == [min(request_bytes, num_bytes - start) for start in range(0, num_bytes, request_bytes)]
    assert content[STAMP_BYTES:] == plain.getvalue()[STAMP_BYTES:]
    opener: Any = lambda name: io.BytesIO(content)  # noqa: E731
    verified("f", num_bytes, 64, request_bytes, stamp)(opener)
    other = Stamp(run_name, path + "1")
    if num_bytes > 16:
        with pytest.raises(DataError):
            verified("f", num_bytes, 64, request_bytes, other)(opener)


async def at_once(function: Callable[[], Any]) -> Any:
    return function()


def test_a_stamp_takes_no_copy_of_a_request(tmp_path: Path) -> None:
    """Memory of a request's size that nobody else uses costs two hundredths of the writing of a file of 64 MB."""
    size, stamp = 1 << 20, Stamp("run", "shard")
    content = random_bytes(size)
    fill = lambda file, path, num_bytes, period: Raw().fill(file, path, num_bytes, period, stamp.content)  # noqa: E731
    storage = RealStorage(open_store(tmp_path), at_once, fill=fill, note=lambda: None)
    tracemalloc.start()
    served = asyncio.run(storage.write("shard", 3 * size + 100, size, fsync=False))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < size / 2
    assert (served.requests, served.nbytes) == (4, 3 * size + 100)
    assert (tmp_path / "shard").read_bytes() == stamp.content + (bytes(content) * 4)[STAMP_BYTES : 3 * size + 100]


def test_a_restore_makes_its_requests_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests made ahead go through memory that is new and copied: reading a checkpoint then takes twice the CPU."""
    monkeypatch.setattr(real, "InFlight", None)
    assert not run(wanted(phases={"writes": 1, "reads": 1}), engine="local", root=tmp_path, out="one").exit_code


def test_a_damaged_stamp_is_a_wrong_byte() -> None:
    stamp = Stamp("run", f"{LAST}/{MINE}")
    assert read(stamp.content) == stamp
    damaged = stamp.content.replace(b"shard", b"shart")
    assert read(damaged) is None
    with pytest.raises(DataError, match=r"f: byte \d+ is not what was written there; why$"):
        stamp.check("f", damaged, "why")
    with pytest.raises(DataError, match=r"^f: it holds a\?b, of run \?; why$"):
        stamp.check("f", Stamp("\x1b", "a\nb").content, "why")


def test_the_bytes_after_a_stamp_are_still_compared(saved: Callable[[str], Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(saved("raw"), tmp_path / "root"))
    with (root / "kept" / LAST / MINE).open("r+b") as file:
        file.seek(4000)
        file.write(b"\0\0")
    assert f"{LAST}/{MINE}: byte 400" in restored(root, "raw")


def test_every_engine_is_held_to_it() -> None:
    assert {*SAVERS} == {"raw", "torch", "dcp"}
    assert bytes(random_bytes(8)) != Stamp("", "").content[:8]
