"""Unequal nodes, unequal epochs and increments on Ray: the run delivers and saves what the virtual clock foresees."""

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
def test_unequal_nodes_epochs_and_checkpoints_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saving = {
        "every": {"steps": 2}, "path": "ck", "model": {"bytes": 3001}, "writers": "per_node", "fsync": False,
        "incremental": {"fraction": 0.1, "full_every": 2},
    }  # fmt: skip
    wanted = scenario(
        cluster={"nodes": 2, "ranks_per_node": [2, 1], "roles_per_actor": 4}, dataset__path="data",
        loader__in_order=False, loader__queue="in_rank",
        train={"epochs": 2, "steps": [4, 6], "compute": "2 ms"}, checkpoint=saving,
        failures={"events": [{"kind": "node", "number": 1, "at_step": 9}]},
    )  # fmt: skip
    run = rayio.run(on_disk(wanted, tmp_path), engine="ray", out="run")
    simulation, _ = lived(wanted)
    measured = Outcome(wanted, simulation.plan, [], run.directory.spans())
    assert run.result.ledger is not None
    assert run.result.ledger.even
    assert run.result.ledger.planned_steps == 3 * (4 + 6)
    assert run.result.failures is not None
    (restart,) = run.result.failures.attempts
    assert (restart.cause, restart.epoch, restart.step) == ("node 1", 1, 4)
    for rank, node in enumerate((0, 0, 1)):
        assert sorted(counted(measured, rank)) == sorted(counted(simulation, rank))  # batches may come early
        assert {row["node"] for row in measured.rows("compute", rank=rank)} == {node}
    for name in ("load", "restore"):
        one, other = ([(row["rank"], row["bytes"]) for row in each.rows(name)] for each in (measured, simulation))
        assert sorted(one) == sorted(other)
    assert {row["rank"] for row in measured.rows("load")} == {0, 2}, "the first rank of each node saves and reads"
    assert [row["bytes"] for row in measured.rows("load", rank=2)] == [1500, 150]
    files = {path.parent.name: path.stat().st_size for path in (tmp_path / "ck").rglob("node-00000.bin")}
    assert [*dict(sorted(files.items())).values()] == [1501, 151, 1501, 151, 1501]
