"""A run that broke off goes on in its run directory."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk
from test_failures import counted, lived

import rayio
from rayio import storage
from rayio.cli import main
from rayio.errors import RunError, ScenarioError, StorageError
from rayio.model import resuming
from rayio.model.attempts import Attempts, Resumed
from rayio.model.env_checkpoints import CheckpointEnv
from rayio.model.marks import Saved
from rayio.model.planning import plan_of
from rayio.model.resuming import Keeper
from rayio.scenario.write import to_yaml
from rayio.session import resume as resuming_run
from rayio.session.claiming import refuse_living
from rayio.session.resume import resume
from rayio.storage.stores.opening import Store
from rayio.trace.run_directory import CLAIM, RunDirectory
from scenarios import Outcome, scenario

SAVED = {"every": {"steps": 4}, "path": "ck", "model": {"bytes": 1000}, "fsync": False}
#: A rank dies in step 10, and the run with it.
ENDING = {"events": [{"kind": "rank", "number": 1, "at_step": 10}], "policy": "fail", "detect": 0, "restart": 0}


def broken_off(root: Path, **overrides: Any) -> str:
    """Give the address of a run on the local engine that a dead rank ended."""
    changed = {"dataset__path": "data", "train__compute": "2 ms", "checkpoint": SAVED, "failures": ENDING, **overrides}
    wanted = on_disk(scenario(**changed), root)
    with pytest.raises(RunError, match="rank 1 died"):
        rayio.run(wanted, engine="local", out=root / "run", root=root)
    return str(root / "run")


def is_whole(run: rayio.Run) -> None:
    """Hold a resumed run to the law: its samples are those of an undisturbed one."""
    wanted = scenario(train__compute="2 ms", checkpoint=SAVED)
    simulation, _ = lived(wanted)
    measured = Outcome(wanted, simulation.plan, [], run.directory.spans())
    for rank in (0, 1):
        assert counted(measured, rank) == simulation.delivered(rank)
    result = run.result
    assert result.exit_code == 0
    assert result.ledger is not None
    assert (result.ledger.even, result.ledger.planned_steps, result.ledger.delivered_steps) == (True, 48, 48)
    assert result.trace is not None
    assert result.trace.recorded == result.trace.stored
    assert not [note for note in result.notes if "wrong" in note]


def test_a_run_that_broke_off_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    run = resume(broken_off(tmp_path))
    is_whole(run)
    assert run.result.failures is not None
    (restart,) = run.result.failures.attempts
    assert (restart.attempt, restart.epoch, restart.step, restart.is_from_checkpoint) == (1, 0, 8, True)
    assert "the run broke off after" in run.summary()
    with pytest.raises(StorageError, match=r"is complete \(exit code 0\): nothing is left to resume"):
        resume(run.address)


def test_a_manifest_that_is_being_written_when_a_rank_dies_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = CheckpointEnv.publish

    async def late(env: CheckpointEnv, files: Any, at: Any, **more: bool) -> None:
        await env.kernel.sleep_until(env.kernel.now() + 50_000_000)  # the rank dies about 6 ms after the checkpoint
        await publish(env, files, at, **more)

    monkeypatch.setattr(CheckpointEnv, "publish", late)
    run = resume(broken_off(tmp_path))
    is_whole(run)
    assert run.result.failures is not None
    assert [(one.epoch, one.step) for one in run.result.failures.attempts] == [(0, 8)]


def test_what_an_earlier_part_survived_stays_in_the_result(tmp_path: Path) -> None:
    deaths = [{"kind": "rank", "number": 1, "at_step": step} for step in (6, 18)]
    survived = {**ENDING, "events": deaths, "policy": "from_checkpoint", "max_restarts": 1}
    run = resume(broken_off(tmp_path, failures=survived))
    is_whole(run)
    assert run.result.failures is not None
    attempts = [(one.attempt, one.cause, one.epoch, one.step) for one in run.result.failures.attempts]
    assert attempts == [(1, "rank 1", 0, 4), (2, "the run", 1, 4)]


def test_a_checkpoint_whose_files_are_gone_is_passed_over(tmp_path: Path) -> None:
    address = broken_off(tmp_path)
    (tmp_path / "ck" / "epoch-0000-step-00000007" / "rayio-checkpoint.json").unlink()
    run = resume(address)
    is_whole(run)
    assert run.result.failures is not None
    assert [(one.epoch, one.step) for one in run.result.failures.attempts] == [(0, 4)]


def test_what_is_done_again_counts_also_if_a_later_part_goes_back_further(tmp_path: Path) -> None:
    """Each batch that a rank got beyond the planned ones was one that it had again, in whichever part."""
    deaths = [{"kind": "rank", "number": 1, "at_step": step} for step in (18, 22)]
    address = broken_off(tmp_path, failures={**ENDING, "events": deaths})  # from the checkpoint before step 16
    with pytest.raises(RunError, match="rank 1 died"):
        resume(address)
    for folder in sorted((tmp_path / "ck").iterdir())[3:]:
        shutil.rmtree(folder)
    run = resume(address)
    is_whole(run)
    assert run.result.failures is not None
    first, second = run.result.failures.attempts
    assert (first.epoch, first.step, second.epoch, second.step) == (1, 4, 1, 0)
    spans = run.spans()
    again = (spans["name"] == "data_wait").sum() - 48
    assert run.result.ledger is not None
    assert run.result.ledger.redone_steps == first.redone_steps + second.redone_steps == again >= 2 * 2 + 2 * 9


def test_what_a_resumed_run_read_before_is_not_in_fetched_and_a_note_names_that(tmp_path: Path) -> None:
    run = resume(broken_off(tmp_path))
    spans = run.spans()
    assert run.result.fetched is not None
    assert run.result.fetched.read_bytes < spans[spans["name"] == "read"]["bytes"].sum()
    assert "fetched counts the bytes read since the last restart alone" in run.result.notes


def test_an_attempt_in_which_no_rank_had_begun_is_no_restart() -> None:
    attempts = Attempts(plan := plan_of(scenario(), modelled=True), plan.tallies(), Saved(plan.world_size))
    attempts.start(5, Resumed(None, 0, 1, 1))
    attempts.begun(9)  # on Ray, once all actors are there
    assert (attempts.restarts, attempts.origin, attempts.begin) == ([], 9, 9)


def test_a_run_that_broke_off_before_a_rank_began_starts_and_restarts_nothing(tmp_path: Path) -> None:
    address = broken_off(tmp_path, checkpoint=None)
    for file in (tmp_path / "run" / "spans").iterdir():
        file.unlink()
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(RunError, match="rank 1 died"):  # it is a new run, in which the rank dies in its time
        resume(address)
    run = rayio.Run.open(address)
    assert run.result.failures is None
    assert set(run.spans()["attempt"]) == {0}


def test_without_a_checkpoint_it_begins_again(tmp_path: Path) -> None:
    run = resume(broken_off(tmp_path, checkpoint=None))
    is_whole(run)
    assert run.result.failures is not None
    assert not run.result.failures.attempts[0].is_from_checkpoint


def test_what_cannot_be_resumed_is_refused_in_a_line(tmp_path: Path) -> None:
    address = broken_off(tmp_path)
    own = scenario(dataset__path="data", train__compute="3 ms", checkpoint=SAVED, failures=ENDING)
    with pytest.raises(ScenarioError, match=r"has another scenario: train.compute differs"):
        resume(address, own)
    (Path(address) / "resume.json").write_text('{"version": 3, "checkpoints": [{}], "restarts": []}')
    with pytest.raises(StorageError, match=r"resume\.json is damaged \(tallies is missing\): the run cannot be re"):
        resume(address)
    with pytest.raises(StorageError, match="is not a run directory"):
        resume(str(tmp_path / "none"))
    simulation = rayio.simulate(scenario(), out=tmp_path / "simulated")
    with pytest.raises(ScenarioError, match="a run of engine virtual cannot be resumed"):
        resume(simulation.address)


def contents(run: Store) -> dict[str, bytes | None]:
    return {name: run.read(name) for name in (*run.sizes(), *(f"spans/{part}" for part in run.sizes("spans")))}


def of_two_one_goes_on(address: str, patch: pytest.MonkeyPatch) -> None:
    """Start a second resume at each point of the first: before it claims the run, while it does, and after deaths."""
    run = storage.open(address)
    write, living = RunDirectory.write_info, refuse_living
    before, going_on, meanwhile = contents(run), list[str](), list[dict[str, bytes | None]]()
    patch.setattr(resuming_run, "run_session", lambda *given: going_on.append(given[4]))

    def restored() -> None:
        run.write("run.json", lambda file: file.write(before["run.json"] or b""))
        going_on.clear()

    def first_the_other(directory: RunDirectory) -> None:
        living(directory)
        patch.setattr(resuming_run, "refuse_living", living)
        resume(address)
        meanwhile.append(contents(run))

    patch.setattr(resuming_run, "refuse_living", first_the_other)
    with pytest.raises(StorageError, match="another process has taken up the run just now: wait for it") as refused:
        resume(address)
    assert len(going_on) == 1
    assert contents(run) == meanwhile[0], "the other one's files stay, and no claim"
    assert {*meanwhile[0]} == {*before} - {"result.json"}
    restored()

    claims = dict[str, Any]()

    def another_too(directory: RunDirectory, info: Any) -> None:
        (name,) = (entry for entry in run.entries() if entry.startswith(CLAIM))
        claims[name] = json.loads(run.read(name) or b"")
        now = contents(run)
        with pytest.raises(StorageError, match=rf"process {os.getpid()} of .* is taking up the run: wait for it; if"):
            resume(address)
        assert contents(run) == now
        write(directory, info)

    patch.setattr(RunDirectory, "write_info", another_too)
    resume(address)
    assert len(going_on) == 1
    restored()
    patch.setattr(RunDirectory, "write_info", write)

    ((name, claim),) = claims.items()
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    run.write(name, lambda file: file.write(json.dumps(claim | {"host": "elsewhere"}).encode()))
    with pytest.raises(StorageError, match=rf"of elsewhere is taking up .*; if it is dead, remove .*{name}$"):
        resume(address)
    run.write(name, lambda file: file.write(json.dumps(claim | {"pid": ended.pid}).encode()))
    resume(address)
    assert (len(going_on), "\n" in str(refused.value)) == (1, False)
    assert not [entry for entry in run.entries() if entry.startswith(CLAIM)]
    restored()


def test_of_two_that_resume_a_run_at_once_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_two_one_goes_on(broken_off(tmp_path), monkeypatch)


def test_of_two_that_start_a_run_at_once_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a scenario: where there is no run, and where one broke off before it began."""
    wanted, others = scenario(), list[str]()
    make, started = RunDirectory.make, RunDirectory.create(tmp_path / "begun").store.read("run.json")

    def started_twice(directory: RunDirectory, info: Any) -> None:
        entries = directory.store.entries
        monkeypatch.setattr(RunDirectory, "make", make)

        def looked() -> list[str]:  # the other one starts after this one has looked for files
            there = entries()
            if not others:
                others.append(resuming_run.start_or_resume("run", wanted, engine="virtual", root=tmp_path).address)
            return there

        monkeypatch.setattr(directory.store, "entries", looked)
        make(directory, info)

    for begun in (None, started):
        if begun is not None:
            (tmp_path / "run").mkdir()
            (tmp_path / "run" / "run.json").write_bytes(begun)
        monkeypatch.setattr(RunDirectory, "make", started_twice)
        with pytest.raises(StorageError, match="already holds a run, which began just now"):
            resuming_run.start_or_resume("run", wanted, engine="virtual", root=tmp_path)
        assert rayio.Run.open(others.pop()).result.exit_code == 0
        shutil.rmtree(tmp_path / "run")


def test_a_run_whose_driver_still_prepares_is_not_removed(tmp_path: Path) -> None:
    living = {"host": platform.node(), "pid": os.getppid(), "started": datetime.now(UTC).isoformat()}
    RunDirectory.create(tmp_path / "run", living)
    for again in (resume, lambda run: resuming_run.start_or_resume(run, scenario(), engine="local")):
        with pytest.raises(StorageError, match=rf"is still running \(pid {os.getppid()}\)"):
            again(str(tmp_path / "run"))
    assert (tmp_path / "run" / "run.json").exists()


def test_a_killed_driver_leaves_spans_and_a_checkpoint_to_go_on_from(tmp_path: Path) -> None:
    changed = {"dataset__path": "data", "train__compute": "20 ms", "train__epochs": 24, "checkpoint": SAVED}
    wanted = on_disk(scenario(**changed), tmp_path)
    (tmp_path / "wanted.yaml").write_text(to_yaml(wanted))
    command, info = [sys.executable, "-m", "rayio", "run"], tmp_path / "run" / "run.json"
    where = os.environ | {"PYTHONPATH": str(Path(rayio.__file__).parents[1])}
    for part in (["wanted.yaml", "--engine", "local", "--out", "run"], ["--resume", "run"]):
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen([*command, *part], cwd=tmp_path, stdout=log, stderr=log, env=where)
        try:
            complete = (tmp_path / "ck").glob  # the file also names one whose manifest is not there yet
            books = tmp_path / "run" / "resume.json"
            while (
                len([*complete("*/rayio-checkpoint.json")]) < 2
                or not books.exists()
                or not json.loads(books.read_text())["checkpoints"]
                or json.loads(info.read_text())["pid"] != process.pid
            ):
                assert process.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.05)
            with pytest.raises(StorageError, match=rf"is still running \(pid {process.pid}\)"):
                resume(str(tmp_path / "run"))
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        info.write_text(json.dumps(json.loads(info.read_text()) | {"started": "2026-01-01T00:00:00+00:00"}))
    explained = rayio.explain(tmp_path / "run", simulate=False)
    assert explained.verdict.steps > 0
    assert re.match(
        r"The run has no result, \d+ % done: it was killed, or is still running\. So far: ", explained.sentence
    )
    run = resume(str(tmp_path / "run"))
    assert run.result.exit_code == 0
    assert run.result.ledger is not None
    assert (run.result.ledger.even, run.result.ledger.planned_steps) == (True, 2 * 12 * 24)
    assert run.result.failures is not None
    assert run.result.failures.attempts[0].is_from_checkpoint
    simulation, _ = lived(wanted)
    measured = Outcome(wanted, simulation.plan, [], run.directory.spans())
    assert counted(measured, 0) == simulation.delivered(0)


def test_a_driver_that_is_killed_on_purpose_dies_once(tmp_path: Path) -> None:
    changed = {"dataset__path": "data", "train__compute": "20 ms", "checkpoint": SAVED}
    wanted = on_disk(scenario(**changed, failures={"events": [{"kind": "driver", "at": "300 ms"}]}), tmp_path)
    (tmp_path / "wanted.yaml").write_text(to_yaml(wanted))
    command = [sys.executable, "-m", "rayio", "run", "wanted.yaml", "--engine", "local", "--resume", "run"]
    where = os.environ | {"PYTHONPATH": str(Path(rayio.__file__).parents[1])}
    killed = subprocess.run(command, cwd=tmp_path, env=where, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "run" / "result.json").exists()
    is_whole(resume(str(tmp_path / "run")))


@pytest.mark.parametrize("name", ["resume.json", "scenario.yaml"])
def test_changed_books_are_refused_at_the_start(name: str, tmp_path: Path) -> None:
    address = broken_off(tmp_path)
    file = Path(address) / name
    before = file.read_text()
    changed = re.sub(r'("samples": |batch_size: )\d+', r"\g<1>3", before, count=1)
    assert changed != before
    file.write_text(changed)
    with pytest.raises(StorageError, match=r"was changed since the run wrote it, so the run cannot be resumed"):
        resume(address)


def test_checkpoints_are_named_when_they_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is over before the engine looks for the first time, after a second; its end writes the last state."""
    named: list[int] = []
    write = Keeper.write

    def noted(keeper: Keeper, *spans: Any) -> None:
        write(keeper, *spans)
        checkpoints = json.loads((tmp_path / "run" / "resume.json").read_text())["checkpoints"]
        named.append(checkpoints[-1]["number"])

    monkeypatch.setattr(Keeper, "write", noted)
    monkeypatch.setattr(resuming, "PAUSE_WRITES", 0)
    monkeypatch.setattr(resuming, "PAUSE_SECONDS", 0.0)
    broken_off(tmp_path)
    assert named[:2] == [0, 1]


def test_a_change_does_not_go_with_the_resume_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--resume", "runs/one", "train.epochs=3"])
    assert ended.value.code == 2
    assert "train.epochs=3 does not go with --resume" in " ".join(capsys.readouterr().err.split())
