"""Engines of checkpoints: real files of PyTorch, of the size that was planned, which PyTorch alone loads too."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import sys
import tracemalloc
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayio
from rayio.engines.savers import streams
from rayio.engines.savers.streams import Written
from rayio.errors import DataError, RayioError
from rayio.kinds import SAVERS
from rayio.model.manifest import NAME, parse, search
from rayio.predict.costs import SAVING
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.session.execute import run, simulate
from rayio.session.result import Run
from rayio.storage import open as open_store
from rayio.storage.real import random_bytes

pytest.importorskip("torch")

FIRST, SECOND, LAST = "epoch-0000-step-00000000", "epoch-0000-step-00000001", "epoch-0000-step-00000003"
OF_TORCH = pytest.mark.parametrize("engine", ["torch", "dcp"])
EVERY = pytest.mark.parametrize("engine", [*SAVERS])


def wanted(engine: str, data: str = "data", **checkpoint: Any) -> Scenario:
    """Two ranks write two checkpoints of a little more than 100 kB in shards, and read them back."""
    section: dict[str, Any] = {
        "path": "kept", "model": {"bytes": 100_001}, "writers": "sharded", "request_bytes": "30 kB", "engine": engine,
        "phases": {"writes": 2, "reads": 2},
    }  # fmt: skip
    return build({
        "name": "engines", "cluster": {"ranks_per_node": 2},
        "dataset": {"path": data, "num_files": 16, "sample_bytes": "1 kB"},
        "loader": {"num_workers": 0, "batch_size": 2}, "train": {"epochs": 1, "compute": "1 ms"},
        "checkpoint": section | checkpoint,
    })  # fmt: skip


def training(engine: str, **checkpoint: Any) -> Scenario:
    return wanted(engine, **{"phases": None, "every": {"steps": 1}} | checkpoint)


def ran(scenario: Scenario, root: Path) -> Run:
    return run(scenario, engine="local", root=root, out=f"run-{len([*root.iterdir()])}")


def state(num_bytes: int, period: int = 30_000) -> bytes:
    """Return the bytes of a state, cut from its definition."""
    block = bytes(random_bytes(min(period, num_bytes)))
    return (block * (num_bytes // len(block) + 1))[:num_bytes]


@EVERY
def test_files_have_the_planned_sizes_and_every_byte_comes_back(engine: str, tmp_path: Path) -> None:
    done = ran(wanted(engine), tmp_path)
    for folder in (FIRST, SECOND):
        there = {file.name: file.stat().st_size for file in (tmp_path / "kept" / folder).iterdir()}
        manifest = parse((tmp_path / "kept" / folder / NAME).read_bytes())
        assert there.pop(NAME)
        assert manifest.files == there
        parts = {"shard-00000.bin": 50_001, "shard-00001.bin": 50_000}
        assert {name: there.pop(name) for name in parts} == {
            name: SAVERS[engine].file_bytes(size) for name, size in parts.items()
        }
        assert [*there] == ([".metadata"] if engine == "dcp" else [])
    assert search(open_store(tmp_path / "kept")).passed == {}
    spans = done.spans()
    assert spans[spans.name == "verify"]["bytes"].sum() == 2 * 100_001
    written = spans[spans.name == "write"]
    assert sorted(written["bytes"]) == sorted(2 * [SAVERS[engine].file_bytes(size) for size in parts.values()])
    most = 4 if engine == "dcp" else 3
    assert written["requests"].between(2, most).all(), "requests of request_bytes, and a last one; dcp: and the stamp's"
    saved = done.result.saved
    assert saved is not None
    assert saved.bytes == written["bytes"].sum()
    beside = {"serialise", "deserialise"} & {*spans.name}
    assert beside == ({"serialise", "deserialise"} if engine != "raw" else set())
    (note,) = [note for note in done.result.notes if "checkpoint.engine" in note] or [""]
    assert note == ("" if engine == "raw" else note)
    assert (engine == "raw") == (not note)
    assert f"checkpoint.engine={engine}: adds " in note or engine == "raw"


@pytest.mark.parametrize("num_bytes", [1, 63, 255, 256, 65_535, 65_536, 1_000_003])
def test_sizes_are_those_that_pytorch_writes(num_bytes: int, tmp_path: Path) -> None:
    import torch

    state, stamp = (torch.zeros(size, dtype=torch.uint8) for size in (num_bytes, 256))
    with (tmp_path / "b.pt").open("wb") as file:
        torch.save(state, file)
        torch.save(stamp, file)
    with (tmp_path / "c.pt").open("wb") as file:
        torch.save({"state": state, "stamp": stamp}, file)
    assert SAVERS["torch"].file_bytes(num_bytes) == (tmp_path / "c.pt").stat().st_size
    assert SAVERS["dcp"].file_bytes(num_bytes) == (tmp_path / "b.pt").stat().st_size


def test_files_beyond_memory_have_sizes_too() -> None:
    added = SAVERS["torch"].file_bytes(5 << 40) - (5 << 40)
    assert 1500 < added < 2500, "64-bit records, and no tensor in memory"
    with pytest.raises(RayioError, match=r"too large for checkpoint\.engine=torch; use more checkpoint.writers"):
        SAVERS["torch"].file_bytes(1 << 61)


def test_pytorch_alone_loads_what_torch_save_wrote(tmp_path: Path) -> None:
    import torch

    ran(training("torch", writers="rank_zero"), tmp_path)
    loaded = torch.load(tmp_path / "kept" / SECOND / "shard-00000.bin", weights_only=True)
    assert [*loaded] == ["state", "stamp"]
    assert b"shard-00000.bin" in loaded["stamp"].numpy().tobytes()
    assert loaded["state"].numpy().tobytes() == state(100_001)


def test_pytorch_alone_loads_what_dcp_wrote_and_the_ranks_files_are_one_checkpoint(tmp_path: Path) -> None:
    import torch
    from torch.distributed import checkpoint

    ran(training("dcp"), tmp_path)
    sizes = {"shard-00000.bin": 50_001, "shard-00001.bin": 50_000}
    parts = {name: torch.empty(size, dtype=torch.uint8) for name, size in sizes.items()}
    with pytest.warns(UserWarning, match="single process"):
        checkpoint.load(parts, checkpoint_id=tmp_path / "kept" / SECOND)
    assert {name: part.numpy().tobytes() for name, part in parts.items()} == {
        name: state(size) for name, size in sizes.items()
    }
    whole = {"shard-00001.bin": torch.zeros(50_000, dtype=torch.uint8)}
    with pytest.warns(UserWarning, match="single process"):
        checkpoint.load(whole, checkpoint_id=tmp_path / "kept" / FIRST)
    assert whole["shard-00001.bin"].any()


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@EVERY
def test_restored_bytes_are_those_that_the_kernel_read(engine: str, tmp_path: Path) -> None:
    """PyTorch reads the ends of an archive more than once, so they are more than the files have."""
    (tmp_path / "one.yaml").write_text(to_yaml(wanted(engine, model={"bytes": 400_000}, request_bytes="90 kB")))
    strace = ["strace", "-ff", "-y", "-e", "trace=read,pread64,readv,preadv,preadv2", "-o", "calls"]
    command = [sys.executable, "-m", "rayio", "run", "one.yaml", "--engine", "local", "--out", "run", "--no-report"]
    done = subprocess.run(
        [*strace, *command], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(Path(rayio.__file__).parents[1])},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if "PTRACE" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    calls = "".join(file.read_text(errors="replace") for file in tmp_path.glob("calls.*"))
    read = sum(
        int(size) for size in re.findall(r"^\w+\(\d+<[^>]*/(?:shard-\d+\.bin|\.metadata)>.* = (\d+)$", calls, re.M)
    )
    restored = Run.open(tmp_path / "run").result.restored
    assert restored is not None
    assert restored.bytes == read
    on_disk = sum(file.stat().st_size for file in (tmp_path / "kept").glob("*/shard-*.bin"))
    assert restored.bytes == on_disk if engine == "raw" else restored.bytes > on_disk


@OF_TORCH
@pytest.mark.parametrize("is_behind", [False, True])
def test_a_run_begins_with_what_another_saved(engine: str, is_behind: bool, tmp_path: Path) -> None:
    ran(training(engine, asynchronous=is_behind), tmp_path)
    again = ran(training(engine, asynchronous=is_behind, restore="newest"), tmp_path)
    assert again.result.restored is not None
    spans = again.spans()
    assert sorted(spans[spans.name == "verify"]["bytes"]) == [50_000, 50_001]
    with pytest.raises(
        DataError, match=r"is a checkpoint of another layout: it has engine=.*, the run raw; checkpoints are not"
    ):
        ran(training("raw", restore="newest"), tmp_path)


@OF_TORCH
@pytest.mark.parametrize("place", [10_000, 29_000, 49_999])
def test_a_flipped_byte_is_found_and_its_file_named(engine: str, place: int, tmp_path: Path) -> None:
    ran(training(engine), tmp_path)
    file = tmp_path / "kept" / LAST / "shard-00001.bin"
    content = bytearray(file.read_bytes())
    content[place] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(DataError) as refused:
        ran(training(engine, restore="newest"), tmp_path)
    assert f"kept/{LAST}/shard-00001.bin" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "; remove this one and try again, or start a run that restores another (checkpoint.restore)" in str(
        refused.value
    )


def test_an_index_that_somebody_changed_is_never_unpickled(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.write_text, (tmp_path / "harmed", "x"))

    ran(training("dcp"), tmp_path)
    index = tmp_path / "kept" / LAST / ".metadata"
    bomb = pickle.dumps(Bomb()) + b"rayio"
    index.write_bytes(bomb + b"." * (index.stat().st_size - len(bomb)))
    with pytest.raises(DataError, match=r"\.metadata: is not the index of this checkpoint; remove this one"):
        ran(training("dcp", restore="newest"), tmp_path)
    assert not (tmp_path / "harmed").exists()


def test_another_engine_may_replace_files_and_foreign_ones_stay(tmp_path: Path) -> None:
    for engine in ("raw", "torch", "dcp", "torch", "raw"):
        ran(training(engine), tmp_path)
        assert len(search(open_store(tmp_path / "kept")).complete) == 4
    import torch

    foreign = tmp_path / "kept" / FIRST / "shard-00000.bin"
    torch.save({"weights": torch.ones(1000)}, foreign)
    before = foreign.read_bytes()
    with pytest.raises(RayioError, match="which is not a checkpoint of rayio"):
        ran(training("torch"), tmp_path)
    assert foreign.read_bytes() == before


@OF_TORCH
def test_without_pytorch_it_is_refused_in_a_line(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(streams, "version", nothing)
    streams.torch_version.cache_clear()
    try:
        with pytest.raises(RayioError) as refused:
            ran(wanted(engine), tmp_path)
    finally:
        streams.torch_version.cache_clear()
    assert str(refused.value) == (
        f"checkpoint.engine={engine}: PyTorch is not installed here; run pip install 'rayio[torch]', or use "
        "checkpoint.engine=raw"
    )
    assert not (tmp_path / "kept").exists()


@OF_TORCH
def test_modelled_storage_has_the_state_alone_and_says_so(engine: str, tmp_path: Path) -> None:
    done = simulate(wanted(engine, "model://x", path="model://y"), out=tmp_path / "run")
    plain = simulate(wanted("raw", "model://x", path="model://y"), out=tmp_path / "plain")
    assert done.result.saved == plain.result.saved
    (note,) = [note for note in done.result.notes if "checkpoint.engine" in note]
    assert note.startswith(f"checkpoint.engine={engine}: no effect on modelled storage")


@OF_TORCH
def test_a_full_disk_ends_the_run_with_its_own_words(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any, buffer: Any) -> int:
        raise OSError(28, "No space left on device")

    from rayio.storage.stores import paged

    monkeypatch.setattr(paged.Appended, "write", full)
    with pytest.raises(RayioError, match="no space left") as refused:
        ran(training(engine), tmp_path)
    assert "\n" not in str(refused.value)
    assert "enforce fail" not in str(refused.value)


def test_a_state_that_does_not_fit_in_memory_is_refused(tmp_path: Path) -> None:
    huge = training("torch", model={"bytes": 1 << 44}, request_bytes="1 GiB", writers="rank_zero")
    with pytest.raises(RayioError) as refused:
        run(huge, engine="local", root=tmp_path, out="run")
    assert "are free" in str(refused.value)


def test_what_an_engine_takes_is_in_the_checkpoint_s_time(tmp_path: Path) -> None:
    spans = ran(training("torch", model={"bytes": "20 MB"}), tmp_path).spans()
    for writer in (0, 1):
        mine = spans[(spans.role == "checkpoint_writer") & (spans["index"] == str(writer)) & spans.name.isin([*SAVING])]
        parts = mine.groupby("step").duration_ns.sum()
        held = spans[(spans.name == "checkpoint") & (spans["rank"] == writer)].set_index("step").duration_ns
        assert (parts > 0).all()
        assert (parts <= held.loc[parts.index]).all(), "parts of a checkpoint are longer than it"


def test_an_array_of_a_state_is_made_once_and_its_content_repeats() -> None:
    states = streams.States()
    first = states.of(100, 30)
    assert first.tobytes() == state(100, 30)
    assert np.shares_memory(first, states.of(50, 30))
    assert states.of(64, 17).tobytes() == state(64, 17)
    states.clear()
    assert states.of(100, 17).tobytes() == state(100, 17)


def test_a_run_leaves_no_state_in_memory(tmp_path: Path) -> None:
    ran(wanted("torch"), tmp_path)
    assert not len(streams.STATES._array)


def test_a_stream_writes_whole_requests_and_takes_no_new_memory_for_them() -> None:
    class File:
        def __init__(self) -> None:
            self.requests: list[bytes] = []

        def write(self, part: memoryview) -> int:
            self.requests.append(bytes(part[:100]) if len(part) > 1000 else bytes(part))
            sizes.append(len(part))
            return len(part)

    most, sizes = 1 << 20, list[int]()
    content = bytes(range(256)) * (5 << 12)  # 5 MiB

    def write(pieces: list[int]) -> File:
        file, at = File(), 0
        stream = Written(file, most)
        for length in pieces:
            assert stream.write(memoryview(content)[at : at + length]) == length
            at += length
            assert stream.tell() == at
        stream.finish()
        return file

    write([10])  # memory for a request
    for pieces in ([3, 70, 4 * most, 9], [most], [most - 1, 1, 1], [2 * most], [1] * 5, [most // 2] * 5, [0, 0]):
        sizes.clear()
        tracemalloc.start()
        file = write(pieces)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        whole, rest = divmod(sum(pieces), most)
        assert sizes == [most] * whole + [rest] * (rest > 0)
        assert all(content[n * most :].startswith(part) for n, part in enumerate(file.requests))
        assert peak < most / 4
