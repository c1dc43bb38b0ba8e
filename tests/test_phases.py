"""Checkpoints without training: writes together, a pause, reads together; nothing of the dataset is read or made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayio.analyze import gate
from rayio.errors import RayioError
from rayio.model.manifest import search
from rayio.report.explain import explain
from rayio.report.text.explanation import text
from rayio.scenario import checks, derive
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.session.execute import run
from rayio.storage import open as open_store
from scenarios import scenario, simulated

MS = 1_000_000
DEVICE = {"first_byte": "0 s", "connection_bandwidth": "1 GB/s", "bandwidth": "1000 GB/s", "scope": "cluster"}


def phases(writes: int, reads: int, gap: str = "0 s", *, path: str = "model://x", **more: Any) -> Scenario:
    """Two ranks that save shards of 10 MB, which take 10 ms each."""
    section = {
        "phases": {"writes": writes, "reads": reads, "gap": gap}, "path": "ck", "model": {"bytes": "20 MB"},
        "writers": "sharded", "request_bytes": "1 GB", "fsync": False,
    }  # fmt: skip
    return scenario(
        checkpoint=section | more.pop("checkpoint", {}), dataset__path=path, storage__model=DEVICE,
        train__sync={"kind": "barrier"}, **more,
    )  # fmt: skip


def test_writes_a_pause_and_reads_follow_each_other_and_take_the_device_s_time() -> None:
    wanted = phases(4, 3, "50 ms")
    done = simulated(wanted)
    for rank in range(2):
        for name, number, lasts in (("checkpoint", 4, 10 * MS), ("restore", 3, 10 * MS), ("gap", 1, 50 * MS)):
            assert [row["duration_ns"] for row in done.rows(name, rank=rank)] == [lasts] * number
        last_write = done.rows("checkpoint", rank=rank)[-1]
        (gap,), first_read = done.rows("gap", rank=rank), done.rows("restore", rank=rank)[0]
        assert last_write["start_ns"] + last_write["duration_ns"] <= gap["start_ns"]
        assert gap["start_ns"] + gap["duration_ns"] <= first_read["start_ns"]
    written = [(row["epoch"], row["step"]) for row in done.rows("write", rank=0)]
    assert written == [*derive.checkpoint_steps(wanted)] == [(0, number) for number in range(4)]
    assert [(row["epoch"], row["step"]) for row in done.rows("load", rank=1)] == [(0, number) for number in range(3)]
    assert not [*done.rows("data_wait"), *done.rows("read"), *done.rows("compute")]
    assert done.ledger.even
    assert done.ledger.delivered_steps == 0


def test_ranks_begin_each_checkpoint_together() -> None:
    slow = phases(3, 3, checkpoint={"writers": "all_ranks"})
    slow = slow.model_copy(
        update={"storage": slow.storage.model_copy(update={"model": build_model(bandwidth="1 GB/s")})}
    )  # the second rank is served after the first
    done = simulated(slow)
    for name in ("checkpoint", "restore"):
        first, second = (done.rows(name, rank=rank) for rank in range(2))
        assert [row["start_ns"] for row in first] == [row["start_ns"] for row in second]
        assert {row["duration_ns"] // MS for row in first} | {row["duration_ns"] // MS for row in second} == {20, 40}


def build_model(**changed: str) -> Any:
    return scenario(storage__model=DEVICE | changed).storage.model


def test_on_real_files_every_byte_is_read_back_and_no_dataset_is_made(tmp_path: Path) -> None:
    done = run(phases(3, 3, "1 ms", path="data"), engine="local", root=tmp_path, out="run")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "ck"}
    there = search(open_store(tmp_path / "ck"))
    assert (len(there.complete), there.passed) == (3, {})
    saved, restored = done.result.saved, done.result.restored
    assert saved is not None
    assert restored is not None
    assert (saved.checkpoints, saved.bytes) == (restored.checkpoints, restored.bytes) == (3, 60_000_000)
    spans = done.spans()
    assert spans[spans.name == "verify"]["bytes"].sum() == 60_000_000
    assert restored.fetched is not None
    if restored.fetched.source in ("device", "other"):
        codes = {doubt.code for doubt in done.result.doubts or ()}
        assert gate.RESTORED_FROM_MEMORY in codes
        assert any(note.startswith("all checkpoints (57.2 MiB) fit in memory") for note in done.result.notes)
    assert done.exit_code == 0
    assert (tmp_path / "run" / "report.html").exists() or done.summary()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"phases": {"writes": 2, "reads": 3}}, "checkpoint.phases.reads=3: more than the 2 of writes"),
        ({"phases": {"reads": 3}}, "checkpoint.phases.writes: is required and missing"),
        ({"phases": {"writes": 0}}, "checkpoint.phases.writes=0: must be a whole number of at least 1"),
        ({"phases": None}, "checkpoint.every: is required and missing; give it, or checkpoint.phases"),
        ({"restore": "newest"}, "checkpoint.restore=newest: checkpoint.phases reads the checkpoints that it writes"),
    ],
    ids=str,
)
def test_contradictions_are_one_line(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(RayioError) as refused:
        phases(2, 2, checkpoint=keys)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_evaluation_without_training_is_refused() -> None:
    with pytest.raises(RayioError, match=r"train\.evaluate: checkpoint\.phases is a run without training"):
        phases(1, 1, train__evaluate={"compute": "1 ms"}, dataset__eval={"num_files": 4})


def test_the_scenario_says_how_many_there_are() -> None:
    wanted = phases(10, 10)
    assert not [note for note in checks.idle(wanted) if "checkpoint" in note or "warmup" in note]
    given = phases(10, 10, checkpoint={"every": {"steps": 2}})
    assert "checkpoint.every: no effect, because checkpoint.phases has no training" in checks.idle(given)
    assert derive.num_checkpoints(wanted) == 10
    assert derive.total_steps(wanted) == 0
    assert build(wanted.model_dump(mode="json", exclude_none=True)) == wanted


def test_explain_says_nothing_about_stages_where_there_are_no_steps(tmp_path: Path) -> None:
    explained = explain(run(phases(2, 2), engine="virtual", root=tmp_path, out="run").path)
    assert explained.capacity is not None
    assert explained.capacity.stages == ()
    assert "what each stage can do" not in text(explained)


@pytest.mark.parametrize("shift", [0, 1, 2, 3])
def test_ranks_read_what_others_saved(shift: int, tmp_path: Path) -> None:
    changed: dict[str, Any] = {"phases": {"writes": 1, "reads": 1, "shift": shift}, "model": {"bytes": "3001 B"}}
    wanted = phases(1, 1, path="data", checkpoint=changed, cluster={"ranks_per_node": 3}, trace__level="io")
    spans = run(wanted, engine="local", root=tmp_path, out="run").spans()
    read = spans[(spans.name == "io.read") & (spans.role == "checkpoint_writer")]
    asked = {(row["rank"], int(row["index"]), row["file"].rpartition("/")[2]) for _, row in read.iterrows()}
    assert asked == {(rank, rank, f"shard-{(rank + shift) % 3:05d}.bin") for rank in range(3)}
    assert spans[spans.name == "verify"]["bytes"].sum() == 3001
    note = "checkpoint.phases.shift=3: no effect with 3 ranks, each reads back what it saved"
    assert (note in checks.idle(wanted)) == (shift == 3)


def test_ranks_that_save_nothing_cannot_be_shifted_to() -> None:
    with pytest.raises(RayioError, match=r"checkpoint\.phases\.shift=1: with these checkpoint\.writers not every rank"):
        phases(1, 1, checkpoint={"phases": {"writes": 1, "reads": 1, "shift": 1}, "writers": "rank_zero"})
