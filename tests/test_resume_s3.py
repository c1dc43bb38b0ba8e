"""A run whose directory, dataset and checkpoints are objects of a real S3 server goes on there."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_resume import ENDING, SAVED, is_whole, of_two_one_goes_on

import rayio
from rayio import storage
from rayio.cli import _exit_code
from rayio.scenario.write import to_yaml
from scenarios import scenario


def test_the_command_that_starts_a_run_in_a_bucket_goes_on_with_it_later(
    place: str, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a job that is tried again does: ``rayio run SCENARIO --resume RUN``, the same words each time."""
    wanted = scenario(dataset__path="data", train__compute="2 ms", checkpoint=SAVED, failures=ENDING)
    (home / "wanted.yaml").write_text(to_yaml(wanted))
    command = ["run", "wanted.yaml", "--engine", "local", "--root", place, "--resume", "runs/one", "--no-report"]
    run = storage.open(f"{place}/runs/one")
    run.write("run.json", lambda file: file.write(b'{"version": 1}'))  # of a try that ended before it began
    assert _exit_code(["run", "--resume", f"{place}/runs/one"]) == 2
    assert "the run broke off before it began; remove it, and start it again" in capsys.readouterr().err
    run.write("mine.txt", lambda file: file.write(b"of somebody"))
    assert _exit_code(command) == 2
    assert "the run broke off before it began; remove it, and start it again" in capsys.readouterr().err
    run.remove("mine.txt")
    assert _exit_code(command) == 2
    assert "rank 1 died" in capsys.readouterr().err
    assert run.size("resume.json")
    assert _exit_code([*command, "train.epochs=3"]) == 2
    assert "has another scenario: train.epochs differs" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        of_two_one_goes_on(f"{place}/runs/one", patch)
    assert _exit_code(command) == 0
    assert "the run broke off after" in capsys.readouterr().out
    done = rayio.Run.open(f"{place}/runs/one")
    is_whole(done)
    assert done.result.failures is not None
    (restart,) = done.result.failures.attempts
    assert (restart.attempt, restart.epoch, restart.step, restart.is_from_checkpoint) == (1, 0, 8, True)
    assert run.size("resume.json") is None
    assert [*home.iterdir()] == [home / "wanted.yaml"]
    for again in (command, ["run", "--resume", f"{place}/runs/one"]):
        assert _exit_code(again) == 2
        assert "is complete (exit code 0): nothing is left to resume" in capsys.readouterr().err
