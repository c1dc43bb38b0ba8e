"""Failures on Ray: real SIGKILLs, after which the run delivers what an undisturbed one does."""

from __future__ import annotations

from pathlib import Path

import pytest
from datasets import on_disk
from test_failures import counted, lived

import rayio
from scenarios import Outcome, scenario


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")  # Ray's own
def test_killed_actors_come_back_and_ranks_go_on_from_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    at_once = [{"kind": kind, "at": 0} for kind in ("reader", "queue", "checkpoint_writer", "barrier")]
    death = {"kind": "rank", "number": 1, "at_step": 10}
    wanted = scenario(
        dataset__path="data", train__compute="2 ms", loader__num_workers=1, failures={"events": [*at_once, death]},
        checkpoint={"every": {"steps": 4}, "path": "ck", "model": {"bytes": "5 KB"}, "fsync": False},
    )  # fmt: skip
    run = rayio.run(on_disk(wanted, tmp_path), engine="ray", out="run")
    result = run.result
    assert result.exit_code == 0
    assert result.ledger is not None
    assert result.ledger.even
    assert result.failures is not None
    (restart,) = result.failures.attempts
    assert (restart.cause, restart.epoch, restart.step) == ("rank 1", 0, 8)
    assert restart.redone_steps >= 2  # of rank 0
    died = [note.split(" died and was started again")[0] for note in result.notes if "was started again" in note]
    assert sorted(died) == ["barrier", "checkpoint_writer-0", "queue-0", "reader-0-0"]
    simulation, _ = lived(wanted.model_copy(update={"failures": None}))
    measured = Outcome(wanted, simulation.plan, [], run.directory.spans())
    for rank in (0, 1):
        assert counted(measured, rank) == simulation.delivered(rank)
