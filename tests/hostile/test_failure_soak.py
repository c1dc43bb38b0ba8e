"""Random kills over a run's life on Ray, of every kind of process: it ends, and every planned sample counts once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from datasets import on_disk
from stories import KEPT, KILLS
from test_failures import counted

from rayio.model.planning import plan_of
from rayio.place import batch_id
from rayio.scenario.write import to_yaml
from rayio.session import Run
from scenarios import Outcome, scenario

#: Kills of a run, and runs: 200 kills in all.
DEATHS, RUNS = 25, 8
EPOCHS, STEPS = 100, 12
#: Seconds within which a command makes progress or ends.
HANGS = 300.0


def processes() -> dict[str, list[int]]:
    """Give the processes of runs on this Ray that answer within a second, by kind."""
    import ray

    named = [one for one in ray.util.list_named_actors(all_namespaces=True) if one["namespace"].startswith("rayio-")]
    asked = []
    for one in named:
        try:
            asked.append(ray.get_actor(**one).ready.remote())
        except ValueError:  # it has died since
            continue
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=1.0) if asked else ([], [])
    found: dict[str, list[int]] = {}
    for reference in answered:
        try:
            about = ray.get(reference)
        except ray.exceptions.RayError:
            continue
        found.setdefault(about["name"].split("-")[0], []).append(about["pid"])
    return found


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")  # Ray's own
@pytest.mark.parametrize("seed", range(RUNS))
def test_a_run_survives_random_kills_of_every_kind_with_true_books(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """The driver is a command that is started again with the same words whenever it has died."""
    import ray

    monkeypatch.chdir(tmp_path)
    drawn, killed = random.Random(seed), Counter[str]()
    wanted = scenario(
        cluster={"nodes": 2, "ranks_per_node": 1}, dataset__path="data", train__compute="30 ms", train__epochs=EPOCHS,
        loader__num_workers=1, storage__faults={"slow_files": {"share": 0.1, "factor": 2}},
        checkpoint={"every": {"steps": 5}, "path": "ck", "model": {"bytes": "5 KB"}, "writers": "sharded"},
        failures={"policy": "from_checkpoint"},
    )  # fmt: skip
    (tmp_path / "wanted.yaml").write_text(to_yaml(on_disk(wanted, tmp_path)))
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "rayio", "run", "wanted.yaml", "--resume", "run", "--no-report"]
    ends: list[int] = []
    with (tmp_path / "log").open("w") as log:
        while not ends or ends[-1] != 0:
            driver = subprocess.Popen([*command, "--address", address], stdout=log, stderr=log)
            deadline = time.monotonic() + HANGS
            while driver.poll() is None:
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-3000:]
                time.sleep(drawn.uniform(0.2, 2.0))
                alive = processes() | {"driver": [driver.pid]}
                if sum(killed.values()) < DEATHS and len(alive) > 1 and (tmp_path / "run" / "resume.json").exists():
                    kind = drawn.choice(sorted(alive))
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(drawn.choice(alive[kind]), signal.SIGKILL)
                    killed[kind] += 1
                    deadline = time.monotonic() + HANGS
            ends.append(driver.returncode)
            said = (tmp_path / "log").read_text()
            assert "Traceback" not in said, said[-3000:]
            assert driver.returncode in (0, -signal.SIGKILL) or "did not start" in said.splitlines()[-1], said[-3000:]
    record_property(KILLS, sum(killed.values()))
    sys.stderr.write(f"seed {seed}: {dict(killed)}, ends {ends}\n")
    run = Run.open(tmp_path / "run")
    result = run.result
    assert result.ledger is not None
    assert (result.ledger.even, result.ledger.delivered_steps) == (True, 2 * STEPS * EPOCHS)
    measured = Outcome(wanted, plan_of(wanted, modelled=True), [], run.directory.spans())
    for rank in (0, 1):
        planned = [batch_id(rank, epoch, step) for epoch in range(EPOCHS) for step in range(STEPS)]
        assert counted(measured, rank) == planned
    record_property(KEPT, 1)
