"""Checkpoints that a run begins with: complete ones of its model and layout, and every byte is compared."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayio.engines.in_process import InProcess
from rayio.errors import DataError, RayioError
from rayio.model import roles
from rayio.model.completing import Completion
from rayio.model.kernel import WallKernel
from rayio.model.manifest import NAME, Link, Manifest, parse, search
from rayio.model.planning import plan_of
from rayio.model.wiring import Wiring
from rayio.place import Where
from rayio.reporter import Reporter
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.session.execute import run
from rayio.session.result import Run
from rayio.storage import open as open_store
from rayio.trace.recorder import Recorder
from scenarios import simulated

FIRST, LAST = "epoch-0000-step-00000001", "epoch-0000-step-00000003"


def wanted(ranks: int = 2, name: str = "small", data: str = "data", **checkpoint: Any) -> Scenario:
    """Four steps, and a checkpoint of 10 kB in two shards after the second and the fourth."""
    section: dict[str, Any] = {
        "every": {"steps": 2}, "path": "kept", "model": {"bytes": "10 kB"}, "writers": "sharded",
        "request_bytes": "3 kB", "fsync": False,
    }  # fmt: skip
    return build({
        "name": name,
        "cluster": {"ranks_per_node": ranks},
        "dataset": {"path": data, "num_files": 16, "sample_bytes": "1000 B"},
        "loader": {"num_workers": 1, "batch_size": 16 // ranks // 4},
        "train": {"epochs": 1, "compute": "1 ms"},
        "checkpoint": section | checkpoint,
    })  # fmt: skip


class Heard(Reporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    warn = say


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data and the two checkpoints of a run."""
    root = tmp_path_factory.mktemp("saved")
    run(wanted(), engine="local", root=root, out="run")
    return root


@pytest.fixture
def root(saved: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return shutil.copytree(saved, tmp_path / "copy")


def restoring(root: Path, **checkpoint: Any) -> Run:
    scenario = wanted(**{"restore": "newest"} | checkpoint)
    return run(scenario, engine="local", root=root, out=f"run-{len([*root.iterdir()])}")


def changed(manifest: Path, **entries: Any) -> None:
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | entries))


def test_every_checkpoint_has_a_manifest_of_its_files(saved: Path) -> None:
    run_id = json.loads((saved / "run" / "run.json").read_text())["run_id"]
    for folder, step in ((FIRST, 1), (LAST, 3)):
        there = {file.name: file.stat().st_size for file in (saved / "kept" / folder).iterdir()}
        manifest = parse((saved / "kept" / folder / NAME).read_bytes())
        there.pop(NAME)
        assert manifest.files == there == {"shard-00000.bin": 5000, "shard-00001.bin": 5000}
        assert (manifest.epoch, manifest.step, manifest.run, manifest.scenario) == (0, step, run_id, "small")
        assert (manifest.layout["ranks"], manifest.layout["writers"]) == (2, "sharded")
        newest = max(file.stat().st_mtime_ns for file in (saved / "kept" / folder).iterdir())
        assert (saved / "kept" / folder / NAME).stat().st_mtime_ns == newest, "a file is younger than the manifest"


def test_the_newest_is_read_back_and_every_rank_has_its_part(root: Path) -> None:
    again = restoring(root)
    spans = again.spans()
    restore = spans[spans.name == "restore"]
    assert sorted(zip(restore["rank"], restore["bytes"], restore["requests"], strict=True)) == [
        (0, 5000, 2),
        (1, 5000, 2),
    ]
    assert (restore.lane == 0).all()
    assert sorted(spans[spans.name == "load"]["bytes"]) == [5000, 5000]
    assert sorted(spans[spans.name == "verify"]["bytes"]) == [5000, 5000]
    time = again.result.time
    assert time.restore == pytest.approx(restore.duration_ns.sum() / 1e9)
    assert again.result.ledger is not None
    assert again.result.ledger.even


@pytest.mark.parametrize("writers", ["rank_zero", "all_ranks", "sharded", {"dedicated": 3}], ids=str)
def test_each_engine_reads_what_was_written(writers: Any, tmp_path: Path) -> None:
    run(wanted(writers=writers), engine="local", root=tmp_path, out="run")
    real = restoring(tmp_path, writers=writers).spans()
    virtual = simulated(wanted(data="model://x", writers=writers, restore="newest"))
    for name in ("restore", "load"):
        one = real[real.name == name]
        asked = sorted(zip(one["rank"], one["index"], one["bytes"], one["requests"], strict=True))
        rows = virtual.rows(name)
        assert asked == sorted((row["rank"], row["index"], row["bytes"], row["requests"]) for row in rows)
        assert all(row["duration_ns"] > 0 for row in rows)


@pytest.mark.parametrize("place", [64, 2999, 3000, 4998, 4999])
def test_a_flipped_byte_is_found_and_named_with_its_file(place: int, root: Path) -> None:
    file = root / "kept" / LAST / "shard-00001.bin"
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=rf"kept/{LAST}/shard-00001.bin: byte {place} is not what was written there; "):
        restoring(root, request_bytes="1 kB")


def test_requests_of_any_size_read_any_checkpoint(root: Path) -> None:
    for size, requests in (("1 kB", 5), ("2999 B", 2), ("64 B", 79), ("1 MB", 1)):
        spans = restoring(root, request_bytes=size, restore=FIRST).spans()
        assert set(spans[spans.name == "load"]["requests"]) == {requests}


def half_written(kept: Path) -> Mapping[str, Callable[[], object]]:
    """Give ways in which the last checkpoint can be incomplete, by what is said of them."""
    shard = kept / LAST / "shard-00001.bin"
    return {
        "it has no manifest, so it was not completed": (kept / LAST / NAME).unlink,
        "shard-00001.bin is missing": shard.unlink,
        "shard-00001.bin has 4999 B, its manifest 5000 B": lambda: shard.write_bytes(shard.read_bytes()[:-1]),
    }


@pytest.mark.parametrize("why", [*half_written(Path())])
def test_a_half_written_checkpoint_is_passed_over_and_named(why: str, root: Path) -> None:
    half_written(root / "kept")[why]()
    heard = Heard()
    again = run(wanted(restore="newest"), engine="local", root=root, out="again", reporter=heard)
    assert f"restoring {root}/kept/{FIRST}" in heard.said
    note = f"incomplete checkpoints were passed over: {LAST} ({why})"
    assert note in heard.said
    assert note in again.result.notes
    half_written(root / "kept")[why]()
    with pytest.raises(DataError, match=r"checkpoint.restore=.*; choose a complete checkpoint, or newest"):
        restoring(root, restore=LAST)


def test_the_newest_is_the_last_one_written_not_the_one_of_the_highest_step(root: Path) -> None:
    changed(root / "kept" / FIRST / NAME, saved_ns=(1 << 62))
    assert [manifest.folder for manifest in search(open_store(root / "kept")).complete] == [FIRST, LAST]


def test_where_nothing_is_complete_a_run_is_refused_before_the_dataset_is_made(root: Path) -> None:
    for folder in (FIRST, LAST):
        (root / "kept" / folder / NAME).unlink()
    shutil.rmtree(root / "data")
    with pytest.raises(DataError) as refused:
        restoring(root)
    assert str(refused.value).startswith(
        f"checkpoint.restore=newest: {root}/kept has no complete checkpoint ({FIRST}: "
    )
    assert not (root / "data").exists()
    shutil.rmtree(root / "kept")
    with pytest.raises(DataError, match=r"kept has no complete checkpoint; use checkpoint.restore=none, or run once"):
        restoring(root)
    assert {path.name for path in root.iterdir()} == {"run"}


@pytest.mark.parametrize(
    ("checkpoint", "said"),
    [
        ({"model": {"bytes": "12 kB"}}, "of another model: it has bytes=10 kB, the run 12 kB"),
        (
            {"writers": "all_ranks"},
            "of another layout: it has writers=sharded, the run all_ranks; checkpoints are not resharded",
        ),
        ({"ranks": 4}, "of another layout: it has ranks=2, the run 4; checkpoints are not resharded"),
    ],
    ids=str,
)
def test_another_model_or_layout_is_refused_with_both(checkpoint: dict[str, Any], said: str, root: Path) -> None:
    with pytest.raises(DataError) as refused:
        restoring(root, **checkpoint)
    assert str(refused.value) == (
        f"checkpoint.restore=newest: {root}/kept/{LAST} is a checkpoint {said}; choose another checkpoint.path, or the "
        "scenario that saved it"
    )


def test_another_scenario_of_the_same_model_may_restore(root: Path) -> None:
    assert restoring(root, name="other").result.time.restore


def damaged(manifest: Path) -> Mapping[str, Callable[[], object]]:
    """Give ways in which a manifest can be damaged, by what is said of it."""

    def fifo() -> None:
        manifest.unlink()
        os.mkfifo(manifest)

    def huge() -> None:
        with manifest.open("r+b") as file:
            file.truncate(100 << 20)

    return {
        "it is no JSON object": lambda: manifest.write_text("[]"),
        "is damaged: Expecting value": lambda: manifest.write_text("not json"),
        "is damaged: it has NaN": lambda: manifest.write_text('{"step": NaN}'),
        "is damaged: version must be 2": lambda: changed(manifest, version=3),
        "is damaged: step has a wrong value": lambda: changed(manifest, step="3"),
        "is damaged: files has a wrong entry": lambda: changed(manifest, files={"../x": 1}),
        "is damaged: it names no files": lambda: changed(manifest, files={}),
        "is damaged: it has 100 MiB": huge,
        f"{NAME} is that of epoch-0000-step-00000007": lambda: changed(manifest, step=7),
        "it is a named pipe": fifo,
    }


@pytest.mark.parametrize("said", [*damaged(Path())])
def test_a_damaged_manifest_is_one_line_and_is_never_used(said: str, root: Path) -> None:
    damaged(root / "kept" / LAST / NAME)[said]()
    with pytest.raises(RayioError) as refused:
        restoring(root, restore=LAST)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    if "pipe" not in said:
        assert search(open_store(root / "kept")).complete[0].folder == FIRST
        assert said in search(open_store(root / "kept")).passed[LAST]


@settings(max_examples=200)
@given(st.data())
def test_any_change_of_a_manifest_is_a_value_error_or_a_manifest(data: st.DataObject) -> None:
    whole = Manifest(
        "run", 0, 0, 3, 1, "small", {"bytes": "1 kB"}, {"ranks": 1}, 10, {"shard-00000.bin": 1000}
    ).content()
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        piece = data.draw(st.sampled_from([b"", b"null", b"-1", b"1e999", b"[]", b'"', b"{", b"\xff", b"9" * 5000]))
        content[at : at + data.draw(st.integers(0, 40))] = piece
    try:
        manifest = parse(bytes(content))
    except ValueError:
        return
    assert all(type(number) is int for number in (manifest.step, manifest.saved_ns, *manifest.files.values()))
    assert manifest.content()


def test_a_manifest_is_taken_away_before_a_file_of_its_checkpoint_is_replaced(root: Path) -> None:
    folder = root / "kept" / LAST
    (folder / "shard-00001.bin").unlink()
    (folder / "shard-00001.bin").mkdir()  # cannot be replaced: the run breaks off there
    with pytest.raises(RayioError, match=r"shard-00001\.bin"):
        run(wanted(), engine="local", root=root, out="again")
    assert not (folder / NAME).exists()
    assert (root / "kept" / FIRST / NAME).exists()


def kept(root: Path) -> list[str]:
    """Give the names of all that is in the folder of checkpoints, after a look that all of it is complete."""
    store = open_store(root / "kept")
    assert search(store).passed == {}
    folders = sorted(store.entries())
    assert folders == sorted(manifest.folder for manifest in search(store).complete)
    return folders


def test_the_newest_checkpoints_stay_and_older_ones_are_removed_once_a_newer_one_is_complete(tmp_path: Path) -> None:
    run(wanted(every={"steps": 1}, keep=2), engine="local", root=tmp_path, out="run")
    assert kept(tmp_path) == ["epoch-0000-step-00000002", LAST]
    run(wanted(every={"steps": 2}), engine="local", root=tmp_path, out="all")
    assert kept(tmp_path) == [FIRST, "epoch-0000-step-00000002", LAST]
    # the next complete one is after step 3 again: it replaces the newest, and of the others one stays
    run(wanted(every={"steps": 4}, keep=2), engine="local", root=tmp_path, out="again")
    assert kept(tmp_path) == [FIRST, LAST], "of older ones, that which was written last stays"
    run(wanted(every={"steps": 4}, keep=1, asynchronous=True), engine="local", root=tmp_path, out="last")
    assert kept(tmp_path) == [LAST]


def test_what_is_not_of_the_checkpoint_is_not_removed_with_it(root: Path) -> None:
    (root / "kept" / FIRST / "rank-00007.bin").write_bytes((root / "kept" / FIRST / "shard-00000.bin").read_bytes())
    run(wanted(keep=1, every={"steps": 4}), engine="local", root=root, out="again")
    assert [path.name for path in (root / "kept" / FIRST).iterdir()] == ["rank-00007.bin"]


def test_an_incomplete_checkpoint_removes_no_complete_one(root: Path) -> None:
    (root / "kept" / LAST / "shard-00001.bin").unlink()
    (root / "kept" / LAST / "shard-00001.bin").mkdir()
    with pytest.raises(RayioError, match=r"shard-00001\.bin"):
        run(wanted(keep=1, every={"steps": 4}), engine="local", root=root, out="again")
    assert (root / "kept" / FIRST / NAME).exists()


def test_kept_checkpoints_and_one_more_are_the_room_that_a_run_needs(tmp_path: Path) -> None:
    heard = Heard()
    run(wanted(every={"steps": 1}, keep=1), engine="local", root=tmp_path, out="run", reporter=heard)
    (line,) = [said for said in heard.said if said.startswith("checkpoints ")]
    assert "2 of 9.77 KiB, 19.5 KiB in all" in line


def test_what_this_run_has_still_to_write_is_not_removed_meanwhile(root: Path) -> None:
    """Of a run's places those it has not completed may hold files that a faster rank has just written."""
    plan = plan_of(wanted(keep=1), modelled=False)
    saved, kernel = plan.checkpointing, WallKernel()
    assert saved is not None

    async def first_is_complete() -> None:
        recorder = Recorder()
        env = Wiring(plan, kernel, recorder, root, InProcess(plan, kernel, recorder, []), num_ranks=2).writer(0)
        completion = Completion(env, saved, "run", roles.complete, InProcess(plan, kernel, recorder, []).book)
        await completion.report({Link(0, 1): ["shard-00000.bin", "shard-00001.bin"]}, Where(0, 0, 1))

    asyncio.run(first_is_complete())
    assert {path.name for path in (root / "kept").iterdir()} == {FIRST, LAST}


def stopped_amid_a_checkpoint(run: subprocess.Popen[bytes], kept: Path) -> bool:
    """Stop a run, and let it go on again unless it has a complete checkpoint and a later one with unfinished files."""
    run.send_signal(signal.SIGSTOP)
    _, status = os.waitpid(run.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "the run was over before it could be killed"
    there = search(open_store(kept))
    if there.complete and any(file.parent.name in there.passed for file in kept.glob("*/*.partial")):
        return True
    run.send_signal(signal.SIGCONT)
    return False


def test_a_run_killed_while_it_writes_a_checkpoint_is_followed_by_one_that_restores_the_one_before(
    tmp_path: Path,
) -> None:
    section: dict[str, Any] = {"model": {"bytes": "8 MB"}, "request_bytes": "4 kB", "keep": 2}
    (tmp_path / "s.yaml").write_text(to_yaml(wanted(**section)))
    command = [sys.executable, "-m", "rayio", "run", "s.yaml", "--engine", "local", "--root", str(tmp_path)]
    nowhere = subprocess.DEVNULL
    killed = subprocess.Popen(
        [*command, "train.epochs=3000", "--out", "killed"], cwd=tmp_path, stdout=nowhere, stderr=nowhere
    )
    try:
        while not stopped_amid_a_checkpoint(killed, tmp_path / "kept"):
            pass
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    there = search(open_store(tmp_path / "kept"))
    done = subprocess.run(
        [*command, "checkpoint.restore=newest", "--out", "again"], cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"restoring {tmp_path}/kept/{there.complete[0].folder}" in done.stderr
    assert "incomplete checkpoints were passed over: " in done.stderr
    assert all(folder > there.complete[0].folder for folder in there.passed if folder in done.stderr)
