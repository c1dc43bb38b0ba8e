"""Random kills over a run's life on Ray: it ends, and every planned sample counts once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk

import rayio
from scenarios import scenario

#: Kinds of processes that are killed, and how many there are of each.
PROCESSES = {"rank": 2, "reader": 4, "queue": 2, "checkpoint_writer": 2, "barrier": 1, "node": 2}
KILLS = 25


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")  # Ray's own
@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_survives_random_kills_with_true_books(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    drawn = random.Random(seed)
    events: list[dict[str, Any]] = []
    for number in range(KILLS):
        kind = drawn.choice([*PROCESSES])
        at = 1000 * (2.0 * number + drawn.uniform(0, 2))
        events.append({"kind": kind, "number": drawn.randrange(PROCESSES[kind]), "at": f"{at:.0f} ms"})
    wanted = scenario(
        cluster={"nodes": 2, "ranks_per_node": 1}, dataset__path="data", train__compute="50 ms", train__epochs=60,
        checkpoint={"every": {"steps": 5}, "path": "ck", "model": {"bytes": "5 KB"}, "writers": "sharded"},
        failures={"events": events},
    )  # fmt: skip
    run = rayio.run(on_disk(wanted, tmp_path), engine="ray", out="run")
    result = run.result
    assert result.exit_code == 0
    assert result.ledger is not None
    assert (result.ledger.even, result.ledger.delivered_steps) == (True, 2 * 12 * 60)
    assert result.failures is not None
    missed = [note for note in result.notes if note.startswith("failures: ")]
    assert len(missed) < KILLS / 2
