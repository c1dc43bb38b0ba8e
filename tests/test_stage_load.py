"""The load of stages on storage: what ``explain`` and ``capacity`` leave to training, by theory and by runs made."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

import rayio
from rayio.errors import RunError
from rayio.scenario.write import to_yaml
from scenarios import scenario

MB = 1_000_000
#: A file of 10 MB every 100 ms: half of a storage of 200 MB/s, for longer than the ranks train.
HALF: dict[str, Any] = {
    "name": "half", "count": 200, "arrivals": "100 ms", "reads": {"files": 1, "size": "10 MB", "request_bytes": "1 MB"},
}  # fmt: skip
SHARED = {"first_byte": 0, "connection_bandwidth": "1 TB/s", "bandwidth": "200 MB/s", "scope": "cluster"}


def shared(stages: list[dict[str, Any]], **more: Any) -> Any:
    keys = {
        "storage__model": SHARED, "costs": "none", "dataset__num_files": 600, "dataset__sample_bytes": "1 MB",
        "loader__batch_size": 1, "loader__num_workers": 2, "train__compute": "10 ms", "train__epochs": 1,
        "train__warmup_steps": 10, "stages": stages,
    }  # fmt: skip
    return scenario(**(keys | more))


@pytest.mark.parametrize("kind", ["reads", "writes"])
def test_what_stages_take_is_not_left_to_training(kind: str, tmp_path: Path) -> None:
    """Two ranks need 200 MB/s and half of it is taken: 100 batches/s are left, and the run gets them."""
    stage = {key: value for key, value in HALF.items() if key != "reads"} | {kind: HALF["reads"]}
    run = rayio.simulate(shared([stage]), out=tmp_path / "with")
    limit = rayio.explain(run).capacity.storage
    assert limit is not None
    assert limit.others_bandwidth == pytest.approx(100 * MB, rel=0.02)
    assert limit.gives == pytest.approx(100, rel=0.02)
    assert limit.gives == pytest.approx(run.result.samples_per_second, rel=0.03)
    alone = rayio.simulate(shared([]), out=tmp_path / "without")
    without = rayio.explain(alone).capacity.storage
    assert without is not None
    assert without.others_bandwidth == 0
    assert without.gives == pytest.approx(200, rel=0.01)
    assert alone.result.samples_per_second == pytest.approx(200, rel=0.03)


def test_the_bottleneck_of_a_capacity_names_what_stages_take(tmp_path: Path) -> None:
    """Each accelerator needs 50 MB/s: 4 without stages, 2 with half of the storage taken."""
    found = {}
    for name, stages in (("with", [HALF | {"count": 400}]), ("without", [])):
        wanted = shared(stages, train__compute="20 ms", cluster__ranks_per_node=1, dataset__num_files=200)
        (tmp_path / f"{name}.yaml").write_text(to_yaml(wanted))
        found[name] = rayio.capacity(tmp_path / f"{name}.yaml", most=8, out=tmp_path / name)
    assert (found["with"].accelerators, found["without"].accelerators) == (2, 4)
    # twice the bandwidth, less what stages take, is (400 - 100) / 50
    assert [change.accelerators for change in found["with"].changes] == [6]
    note = "the stages run at every point, and take their part of the storage"
    assert [any(note in line for line in found[name].notes) for name in ("with", "without")] == [True, False]


def test_a_real_run_with_stages_is_not_calibrated(tmp_path: Path) -> None:
    keys = {
        "dataset__path": "data",
        "dataset__num_files": 40,
        "dataset__sample_bytes": "1 KB",
        "train__warmup_steps": 0,
    }
    wanted = shared([HALF | {"count": 2, "arrivals": "1 ms"}], **keys)
    run = rayio.run(wanted, engine="local", root=tmp_path, out=tmp_path / "run")
    with pytest.raises(RunError, match=r"its reads waited for the files of its stages too; calibrate a run with"):
        rayio.calibrate(run, busy_run=False)


@pytest.mark.ray
def test_a_process_that_is_killed_on_ray_repeats_its_files_and_the_books_are_true(
    tmp_path: Path, local_ray: None
) -> None:
    """It is killed after its first of two files: both are there at the end, and counted once."""
    stage = {"name": "a", "count": 1, "compute": "2 s", "writes": {"files": 2, "size": "3 KB"}}
    keys = {"dataset__path": "data", "dataset__num_files": 4, "dataset__sample_bytes": "1 KB", "train__warmup_steps": 0}
    alone = {"cluster__ranks_per_node": 1, "loader__num_workers": 0, "train__sync": "none"}
    wanted = shared([stage], **keys | alone, storage__model="memory")
    written = tmp_path / "stages" / wanted.name / "a"
    killed: list[int] = []

    def kill() -> None:
        while not is_over.wait(0.02):
            if [*written.glob("out-*-0.bin")]:
                mine = psutil.Process().children(recursive=True)
                found = [each for each in mine if "StageProcess" in " ".join(each.cmdline())]
                killed.extend(each.pid for each in found)
                for each in found:
                    each.kill()
                return

    is_over = threading.Event()
    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        run = rayio.run(wanted, root=tmp_path)
    finally:
        is_over.set()
        killer.join()
    assert len(killed) == 1
    assert run.result.exit_code == 0
    assert run.result.workflow is not None
    assert run.result.workflow.even
    assert [(each.files_written, each.written_bytes) for each in run.result.workflow.stages] == [(2, 6000)]
    assert sorted(path.stat().st_size for path in written.glob("out-*.bin")) == [3000, 3000]
    assert [entry["actor"] for entry in run.directory.info["restarts"]] == ["stage-a-0"]
    assert any("stage-a-0" in note for note in run.result.notes)
    rows = [row for row in run.directory.spans().to_pylist() if row["role"] == "stage"]
    assert {row["pid"] for row in rows if row["name"] == "life"}.isdisjoint(killed)
    assert sum(row["name"] == "life" for row in rows) == 1
