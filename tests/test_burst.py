"""Checkpoints through a burst tier: times by hand, what a failure loses, real files on both tiers, and refusals."""

from __future__ import annotations

import math
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayio.analyze.draining import draining
from rayio.analyze.stalls import CAUSES, attribute
from rayio.cli import main
from rayio.engines.virtual import simulation
from rayio.errors import ScenarioError, StorageError
from rayio.model import ledger
from rayio.model.manifest import NAME, search
from rayio.model.planning import plan_of
from rayio.records.failures import Restart
from rayio.reporter import Reporter
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.session.execute import run
from rayio.storage import open as open_store
from rayio.trace.recorder import Recorder
from scenarios import Outcome, scenario, simulated

MS = 1_000_000
#: A writer alone: so many bytes per second, and nothing else takes time.
SLOW, FAST = (
    {"first_byte": "0 s", "connection_bandwidth": rate, "bandwidth": "1000 GB/s", "scope": scope}
    for rate, scope in (("1 GB/s", "cluster"), ("10 GB/s", "node"))
)


def bursting(
    size: int = 100, *, rooms: float = 2, period: int = 10, steps: int = 60, compute: str = "10 ms", ranks: int = 1,
    nodes: int = 1, burst: dict[str, Any] | None = None, checkpoint: dict[str, Any] | None = None, **more: Any,
) -> Scenario:  # fmt: skip
    """A checkpoint of ``size`` MB after every ``period`` steps, to a tier of 10 GB/s before storage of 1 GB/s."""
    section: dict[str, Any] = {
        "every": {"steps": period}, "path": "ck", "model": {"bytes": size * 1_000_000}, "writers": "sharded",
        "request_bytes": "1 MB", "burst": {"path": "fast", "model": FAST, "capacity": round(rooms * size * 1e6 / nodes)}
        | (burst or {}),
    }  # fmt: skip
    return scenario(
        cluster={"nodes": nodes, "ranks_per_node": ranks}, checkpoint=section | (checkpoint or {}),
        storage__model=SLOW, dataset__num_files=steps * ranks * nodes, dataset__sample_bytes="16 B",
        loader__batch_size=1, train={"epochs": 1, "compute": compute}, **more,
    )  # fmt: skip


def length(run: Outcome, rank: int = 0) -> int:
    """How long a rank trained (ns), from its first batch to its end."""
    (life,) = run.rows("life", rank=rank)
    return int(life["start_ns"] + life["duration_ns"] - run.rows("compute", rank=rank)[0]["start_ns"])


def durations(run: Outcome, name: str, **where: int) -> list[int]:
    return [row["duration_ns"] for row in run.rows(name, **where)]


def about(wanted: Any) -> Any:
    """Equal but for manifests, which have a kilobyte each on both tiers, and for rounding."""
    return pytest.approx(wanted, abs=20_000)


def test_a_save_takes_the_time_of_the_tier_while_the_drain_is_shorter_than_the_interval() -> None:
    # 100 MB: 10 ms to the tier, 100 ms to storage; 100 ms of compute in between
    run = simulated(bursting(rooms=2))
    assert durations(run, "checkpoint") == about([10 * MS] * 6)
    drains = run.rows("drain")
    assert durations(run, "drain") == about([100 * MS] * 6)
    assert [row["start_ns"] for row in drains] == [
        row["start_ns"] + row["duration_ns"] for row in run.rows("checkpoint")
    ]
    assert durations(run, "drain_wait") == about([100 * MS]), "only at the end"
    assert length(run) == about(6 * (100 + 10) * MS + 100 * MS)
    assert {(row["step"], row["bytes"]) for row in drains} == {(step, 100_000_000) for step in range(9, 60, 10)}


@given(
    size=st.integers(1, 300), rooms=st.integers(1, 4), period=st.integers(1, 20), rate=st.sampled_from([None, 200]),
)  # fmt: skip
def test_the_time_between_two_checkpoints_is_that_of_the_slower_of_training_and_draining(
    size: int, rooms: int, period: int, rate: int | None
) -> None:
    """One room: max(c, D) + w. More: max(c + w, D) once the tier is full; c between saves, w to the tier, D to drain"""
    burst = {} if rate is None else {"drain_bandwidth": f"{rate} MB/s"}
    run = simulated(bursting(size, rooms=rooms, period=period, steps=8 * period, burst=burst))
    save, drain, work = size * MS // 10, size * MS * (1 if rate is None else 5), period * 10 * MS
    ends = [row["start_ns"] + row["duration_ns"] for row in run.rows("checkpoint")]
    between = [later - earlier for earlier, later in pairwise(ends)]
    steady = max(work, drain) + save if rooms == 1 else max(work + save, drain)
    # the tier fills by what each interval brings more than it takes
    fills = 0 if rooms == 1 or drain <= work + save else math.ceil(rooms * drain / max(1, drain - work - save))
    slack = MS // 10  # a manifest has a kilobyte
    assert all(abs(lasted - steady) <= slack for lasted in between[fills:])
    assert all(work + save - slack <= lasted <= steady + slack for lasted in between)
    waits = run.rows("drain_wait")
    assert {row["lane"] for row in waits} <= {0}
    held = sum(row["duration_ns"] for row in waits) + sum(row["duration_ns"] for row in run.rows("checkpoint"))
    assert length(run) == 80 * period * MS + held
    drains = run.rows("drain")
    assert len(drains) == 8
    assert all(one["start_ns"] + one["duration_ns"] <= two["start_ns"] for one, two in pairwise(drains))


def attempts_of(wanted: Scenario) -> list[Restart]:
    plan = plan_of(wanted, modelled=True)
    tallies = plan.tallies()
    done = simulation.simulate(plan, Recorder(), tallies)
    assert ledger.close(plan.planned(), tallies).even
    return done.restarts


@pytest.mark.parametrize(
    ("kind", "at", "scope", "step", "in_burst"),
    [
        ("rank", 500, "node", 30, True),  # the third one is in the tier since 330 ms
        ("node", 500, "node", 0, None),  # the first one is drained at 610 ms only
        ("node", 500, "cluster", 30, True),  # a tier that all share survives
        ("rank", 700, "node", 40, True),  # the fourth had to wait for room until 610 ms
        ("node", 700, "node", 10, False),
        ("driver", 700, "cluster", 40, True),  # a new process goes on from the tier
        ("driver", 700, "node", 10, False),  # of which it sees its own node's alone
    ],
)
def test_a_node_s_death_loses_what_was_not_drained_and_a_rank_s_does_not(
    kind: str, at: int, scope: str, step: int, in_burst: bool | None
) -> None:
    # 10 ms to the tier, 500 ms to drain, 100 ms of compute between saves; room for three
    failures = {"events": [{"kind": kind, "at": f"{at} ms"}], "detect": "0 s", "restart": "0 s"}
    wanted = bursting(
        rooms=3, nodes=2, burst={"drain_bandwidth": "100 MB/s", "model": FAST | {"scope": scope},
        "capacity": "150 MB" if scope == "node" else "300 MB"}, failures=failures,
        checkpoint={"model": {"bytes": "100 MB"}},
    )  # fmt: skip
    (restart,) = attempts_of(wanted)
    assert (restart.is_from_checkpoint, restart.epoch * 60 + restart.step) == (step > 0, step)
    assert restart.is_from_burst == bool(in_burst)


def test_what_is_restored_from_the_tier_is_drained_again_and_then_safe() -> None:
    """A rank dies at 500 ms, with nothing drained; a node at 1.2 s, when the restored checkpoint was."""
    events = [{"kind": "rank", "at": "500 ms"}, {"kind": "node", "at": "1200 ms"}]
    failures = {"events": events, "detect": "0 s", "restart": "0 s"}
    first, second = attempts_of(bursting(rooms=3, burst={"drain_bandwidth": "200 MB/s"}, failures=failures))
    assert (first.step, first.is_from_burst) == (30, True)
    assert (second.step, second.is_from_burst) == (30, False)


@pytest.mark.parametrize("writers", ["rank_zero", "all_ranks", "sharded", {"dedicated": 3}, "per_node"], ids=str)
@pytest.mark.parametrize("behind", [False, True])
def test_lane_0_tiles_a_rank_s_life_and_every_loss_is_charged_once(writers: Any, behind: bool) -> None:
    more = {"writers": writers, "asynchronous": behind, "snapshot_bandwidth": "10 GB/s" if behind else "25 GB/s"}
    run = simulated(bursting(ranks=2, nodes=2, rooms=8, period=2, steps=24, checkpoint=more))
    for rank in range(4):
        tiles = [r for r in run.all_rows if (r["role"], r["rank"], r["lane"]) == ("rank", rank, 0)]
        tiles.sort(key=lambda row: (row["start_ns"], row["start_ns"] + row["duration_ns"]))
        assert all(one["start_ns"] + one["duration_ns"] == other["start_ns"] for one, other in pairwise(tiles))
        (life,) = run.rows("life", rank=rank)
        assert tiles[-1]["start_ns"] + tiles[-1]["duration_ns"] == life["start_ns"] + life["duration_ns"]
    charged = attribute(run.spans)
    assert (charged.losses.sum(axis=1) + charged.steps.parts["compute"] == charged.steps.duration).all()
    place = [*CAUSES].index("drain_wait")
    waited = sum(durations(run, "drain_wait"))
    assert charged.losses[:, place].sum() - charged.by_sync[:, place].sum() == waited > 0
    assert {row["name"] for row in run.all_rows if row["status"] != "ok"} == set()
    assert sum(row["bytes"] for row in run.rows("drain")) == sum(row["bytes"] for row in run.rows("write"))
    assert run.ledger.even


@given(
    rooms=st.fractions(1, 5), period=st.integers(1, 6), rate=st.integers(50, 2000), behind=st.booleans(),
)  # fmt: skip
def test_the_tier_never_holds_more_than_fits(rooms: Any, period: int, rate: int, behind: bool) -> None:
    burst = {"drain_bandwidth": f"{rate} MB/s"}
    run = simulated(
        bursting(rooms=float(rooms), period=period, steps=6 * period, burst=burst, checkpoint={"asynchronous": behind})
    )
    drained = draining(run.spans)
    assert drained is not None
    assert drained.most_bytes <= math.ceil(rooms * 100_000_000)
    assert (drained.checkpoints, drained.files, drained.bytes) == (6, 6, 600_000_000)
    assert drained.longest_lag >= drained.mean_lag - 1e-9 >= drained.mean_seconds - 1e-4  # a mean is rounded
    last = durations(run, "drain_wait")[-1] / 1e9
    assert drained.end_seconds == pytest.approx(last)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"burst": {"capacity": "39 kB"}}, "checkpoint.burst.capacity=39 kB: one checkpoint has 39.1 KiB"),
        ({"burst": {"path": "kept"}}, "checkpoint.burst.path=kept: is the folder of checkpoint.path=kept;"),
        ({"burst": {"path": "kept/fast"}}, "checkpoint.burst.path=kept/fast: lies in checkpoint.path=kept"),
        ({"burst": {"path": "model://fast"}}, "checkpoint.burst.path=model://fast: has no bytes"),
        ({"burst": {"model": "unknown"}}, "checkpoint.burst.model=unknown: nobody described it"),
        ({"burst": {"model": "lustre-theta"}}, "not yet: checkpoint.burst.model=lustre-theta"),
        ({"burst": {"model": "floppy"}}, "checkpoint.burst.model"),
        ({"burst": {"drain_bandwidth": 0}}, "checkpoint.burst.drain_bandwidth=0: must be greater than 0"),
    ],
)  # fmt: skip
def test_what_a_tier_cannot_be_is_refused_in_a_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        real(**changes)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value).strip()


@pytest.mark.parametrize(
    ("path", "tier", "line"),
    [
        ("kept", "HERE/kept", "checkpoint.burst.path=HERE/kept: is the folder of checkpoint.path=kept"),
        ("kept", "HERE/kept/fast", "checkpoint.burst.path=HERE/kept/fast: lies in checkpoint.path=kept"),
        ("HERE/fast/kept", "fast", "checkpoint.path=HERE/fast/kept: lies in checkpoint.burst.path=fast"),
        ("kept", "link/fast", "checkpoint.burst.path=link/fast: lies in checkpoint.path=kept"),
    ],
)
def test_a_tier_and_storage_lie_apart_for_every_command(
    path: str, tier: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, tier, line = (text.replace("HERE", str(tmp_path)) for text in (path, tier, line))
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to("kept")
    monkeypatch.chdir(tmp_path)
    Path("one.yaml").write_text(to_yaml(real()))
    changes = [f"checkpoint.path={path}", f"checkpoint.burst.path={tier}"]
    for command in (["validate"], ["simulate", "--out", "run"], ["run", "--engine", "local", "--out", "run"]):
        with pytest.raises(SystemExit) as ended:
            main([command[0], "one.yaml", *changes, *command[1:]])
        assert (ended.value.code, capsys.readouterr().err) == (2, f"rayio: {line}; choose folders that lie apart\n")
    assert not Path("run").exists()


def test_a_tier_and_storage_lie_apart_if_both_are_modelled() -> None:
    with pytest.raises(ScenarioError, match=r"checkpoint\.burst\.path=ck/fast: lies in checkpoint\.path=ck;"):
        bursting(burst={"path": "ck/fast"})


def test_a_folder_with_other_files_is_no_tier(tmp_path: Path) -> None:
    (tmp_path / "fast").mkdir()
    (tmp_path / "fast" / "notes.txt").write_text("mine")
    with pytest.raises(StorageError, match=r"checkpoint\.burst\.path=fast: the folder holds 'notes\.txt'"):
        run(real(), engine="local", root=tmp_path, out="run")


def real(**changed: Any) -> Scenario:
    """Eight steps on real files, a checkpoint of 40 kB in two shards after every second; the tier holds two."""
    section: dict[str, Any] = {
        "every": {"steps": 2}, "path": "kept", "model": {"bytes": "40 kB"}, "writers": "sharded",
        "request_bytes": "3 kB", "fsync": False, "burst": {"path": "fast", "capacity": "80 kB"},
    }  # fmt: skip
    section["burst"] |= changed.pop("burst", {})
    return build({
        "name": "small", "cluster": {"ranks_per_node": 2},
        "dataset": {"path": "data", "num_files": 16, "sample_bytes": "1000 B"},
        "loader": {"num_workers": 1, "batch_size": 1}, "train": {"epochs": 1, "compute": "1 ms"},
        "checkpoint": section | changed.pop("checkpoint", {}), **changed,
    })  # fmt: skip


def files(folder: Path) -> dict[str, bytes]:
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in folder.glob("*/*") if path.name != NAME}


@pytest.mark.parametrize(("engine", "behind"), [("raw", False), ("raw", True), ("dcp", False)])
def test_both_tiers_have_the_same_bytes_and_the_tier_never_more_than_fits(
    engine: str, behind: bool, tmp_path: Path
) -> None:
    if engine != "raw":
        pytest.importorskip("torch")
    done = run(real(checkpoint={"engine": engine, "asynchronous": behind}), engine="local", root=tmp_path, out="run")
    assert done.result.ledger is not None
    assert done.result.ledger.even
    kept, fast = files(tmp_path / "kept"), files(tmp_path / "fast")
    newest = {f"epoch-0000-step-0000000{step}" for step in (5, 7)}
    assert {Path(name).parent.name for name in fast} == newest
    assert fast.items() <= kept.items()
    for tier, number in (("kept", 4), ("fast", 2)):
        there = search(open_store(tmp_path / tier))
        assert len(there.complete) == number
        assert not there.passed
    assert len({*kept}) == 4 * (2 + (engine == "dcp"))


def until(condition: Any, process: subprocess.Popen[bytes]) -> None:
    while not condition():
        assert process.poll() is None, "the run was over before it could be killed"
        time.sleep(0.001)


def test_a_run_killed_amid_a_drain_is_followed_by_one_that_restores_from_the_tier_or_the_checkpoint_before(
    tmp_path: Path,
) -> None:
    wanted = real(burst={"drain_bandwidth": "200 kB/s", "capacity": "200 kB"})
    (tmp_path / "s.yaml").write_text(to_yaml(wanted))
    command = [sys.executable, "-m", "rayio", "run", "s.yaml", "--engine", "local", "--root", str(tmp_path)]
    nowhere = subprocess.DEVNULL
    killed = subprocess.Popen([*command, "--out", "killed"], cwd=tmp_path, stdout=nowhere, stderr=nowhere)
    kept, fast = tmp_path / "kept", tmp_path / "fast"
    first, last = (f"epoch-0000-step-0000000{step}" for step in (1, 7))
    try:  # all four are in the tier soon; each drain takes 100 ms
        until(lambda: (fast / last / NAME).exists() and any(kept.glob("*/*.partial")), killed)
        until((kept / first / NAME).exists, killed)
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    durable = search(open_store(kept))
    assert durable.complete
    assert durable.complete[0].folder < last, "everything was drained"
    shutil.copytree(kept, tmp_path / "spare")
    shutil.copytree(fast, tmp_path / "spared")
    said = restored(wanted, tmp_path, "again")
    assert f"restoring {last} from the burst tier" in said
    for folder, spare in ((kept, "spare"), (fast, "spared")):
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / spare, folder)
    half = fast / last / "shard-00001.bin"
    half.write_bytes(half.read_bytes()[:1000])
    shutil.rmtree(fast / "epoch-0000-step-00000005")
    newest = sorted({path.parent.name for path in fast.glob(f"*/{NAME}")} - {last})[-1]
    assert f"restoring {newest} from the burst tier" in restored(wanted, tmp_path, "half")
    shutil.rmtree(kept)
    shutil.copytree(tmp_path / "spare", kept)
    shutil.rmtree(fast)
    assert f"restoring {kept}/{durable.complete[0].folder}" in restored(wanted, tmp_path, "node lost")


def restored(wanted: Scenario, root: Path, out: str) -> list[str]:
    """Restore the newest checkpoint, and return what the run said."""
    heard = Heard()
    saved = wanted.checkpoint
    assert saved is not None
    again = wanted.model_copy(update={"checkpoint": saved.model_copy(update={"restore": "newest"})})
    done = run(again, engine="local", root=root, out=out.replace(" ", "-"), reporter=heard)
    assert done.result.restored is not None
    assert done.result.restored.bytes == 40_000
    return heard.said


class Heard(Reporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    warn = say


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")  # Ray's own
def test_on_ray_a_killed_writer_drains_again_and_a_killed_rank_goes_on_from_the_tier(tmp_path: Path) -> None:
    deaths = [{"kind": "checkpoint_writer", "at": "200 ms"}, {"kind": "rank", "number": 1, "at_step": 7}]
    wanted = real(
        burst={"drain_bandwidth": "40 kB/s", "capacity": "200 kB"}, failures={"events": deaths},
        train={"epochs": 1, "compute": "50 ms"}, checkpoint={"incremental": {"fraction": 0.5, "full_every": 3}},
        loader={"num_workers": 0, "batch_size": 1},
    )  # fmt: skip
    done = run(wanted, engine="ray", root=tmp_path, out="run")
    assert done.result.ledger is not None
    assert done.result.ledger.even
    assert done.result.failures is not None
    (restart,) = done.result.failures.attempts
    assert (restart.step, restart.is_from_burst) == (6, True)
    kept, fast = files(tmp_path / "kept"), files(tmp_path / "fast")
    loads = done.spans().query("name == 'load' and rank == 1").sort_values("start_ns")
    assert [*loads.step] == [1, 3, 5]
    assert {Path(name).parent.name[-1] for name in fast} == {*"1357"}, "a chain, and the full one after it"
    assert fast.items() <= kept.items()
    assert len(search(open_store(tmp_path / "kept")).complete) == 4
