"""Failures on Ray: real SIGKILLs, after which the run delivers what an undisturbed one does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray
from datasets import on_disk
from test_failures import counted, lived

import rayio
from rayio import storage
from rayio.model.manifest import search
from rayio.model.planning import plan_of
from rayio.place import batch_id
from rayio.reporter import Reporter
from rayio.scenario.write import to_yaml
from rayio.session.resume import resume
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
    spans = run.spans()
    begun = spans[(spans.name == "startup") & (spans.attempt == 0) & (spans.duration_ns == 0)]
    assert sorted(begun["rank"]) == [0, 1], (
        "ranks that die before their first span have a begin, from which time counts"
    )
    died = [note.split(" died and was started again")[0] for note in result.notes if "was started again" in note]
    assert sorted(died) == ["barrier", "checkpoint_writer-0", "queue-0", "reader-0-0"]
    there = search(storage.open(tmp_path / "ck"))
    assert (len(there.complete), there.passed) == (6, {}), "the writer that came lacks reports to its predecessor"
    simulation, _ = lived(wanted.model_copy(update={"failures": None}))
    measured = Outcome(wanted, simulation.plan, [], run.directory.spans())
    for rank in (0, 1):
        assert counted(measured, rank) == simulation.delivered(rank)


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")  # Ray's own
def test_a_run_whose_driver_and_then_collector_are_killed_delivers_every_sample_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver is another process of the same Ray; its run goes on here, and loses its collector at once."""
    monkeypatch.chdir(tmp_path)
    wanted = scenario(
        dataset__path="data", train__compute="40 ms", loader__num_workers=0, train__epochs=12, train__sync="none",
        cluster__ranks_per_node=1, dataset__num_files=24,
        checkpoint={"every": {"steps": 4}, "path": "ck", "model": {"bytes": "5 KB"}, "fsync": False, "keep": 1},
        failures={"policy": "from_checkpoint", "max_restarts": 9},
    )  # fmt: skip
    (tmp_path / "wanted.yaml").write_text(to_yaml(on_disk(wanted, tmp_path)))
    command = [sys.executable, "-m", "rayio", "run", "wanted.yaml", "--out", "run"]
    address = ray.get_runtime_context().gcs_address
    with (tmp_path / "log").open("w") as log:
        driver = subprocess.Popen([*command, "--address", address], stdout=log, stderr=log)
    while not (tmp_path / "run" / "resume.json").exists():
        assert driver.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.05)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    run = resume(str(tmp_path / "run"), reporter=Killer())
    result = run.result
    assert result.exit_code == 0
    assert result.ledger is not None
    assert (result.ledger.even, result.ledger.delivered_steps) == (True, 12 * 12)
    assert result.failures is not None
    assert [one.cause for one in result.failures.attempts] == ["the run", "collector"]
    assert result.failures.attempts[0].is_from_checkpoint
    assert result.trace is not None
    assert result.trace.recorded == result.trace.stored
    plan = plan_of(wanted, modelled=True)
    measured = Outcome(wanted, plan, [], run.directory.spans())
    assert counted(measured, 0) == [batch_id(0, epoch, step) for epoch in range(12) for step in range(12)]


class Killer(Reporter):
    """Kills the collector once the run goes on."""

    is_done = False

    def live(self, text: str, share: float | None = None) -> None:
        named = ray.util.list_named_actors(all_namespaces=True)
        for one in (one for one in named if one["name"] == "collector" and not self.is_done):
            self.is_done = True
            os.kill(ray.get(ray.get_actor(**one).ready.remote())["pid"], signal.SIGKILL)
