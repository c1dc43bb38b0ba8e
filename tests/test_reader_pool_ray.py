"""Nodes that really come and go: Ray's autoscaler brings them for readers. A command of its own with its own HOME."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nodes_in_vain
import pytest
from coming_nodes import RANKS, STEPS

from rayio.place import batch_id

pytestmark = [pytest.mark.slow, pytest.mark.ray]
#: Seconds after which nothing is waited for any more.
GUARD = 900


def told(root: Path, program: str = "coming_nodes.py", *arguments: str) -> dict[str, Any]:
    """Run a program of this folder; give what it prints."""
    environment = {**os.environ, "HOME": str(root), "RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, str(Path(__file__).with_name(program)), str(root), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=GUARD)
    assert done.returncode == 0, done.stderr[-2000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def test_nodes_come_for_readers_and_go_with_them_and_nothing_is_lost(tmp_path: Path) -> None:
    run = told(tmp_path)
    assert run["exit"] == 0, run.get("error")
    assert run["ledger"]["even"]
    assert run["delivered"] == sorted(batch_id(rank, 0, step) for rank in range(RANKS) for step in range(STEPS))
    assert run["trace"]["recorded"] == run["trace"]["stored"]
    numbers = [number for _, number in run["seen"]]  # of Ray nodes that were alive, as Ray says
    assert (numbers[0], max(numbers), numbers[-1]) == (1, 3, 1)

    scaling, pool = run["scaling"], run["scaling"]["pool"]
    came = [change for change in scaling["changes"] if change["after"] > change["before"] > 0]
    assert {change["rank"] for change in came} == {0, 1}
    for change in came:
        assert 0 < change["node_seconds"] < change["seconds"]
        assert change["first_batch_seconds"] > 0
    assert scaling["most"] == 4
    assert (pool["most"], pool["came"], pool["given_up"]) == (2, 2, 0)
    assert pool["batches"] > 0

    # each reader that came lived where the trace says: on a node of its own, which was there meanwhile
    homes = {name: ray_node for name, (node, ray_node) in run["where"].items() if node >= 1}
    assert set(homes) == {"reader-0-1", "reader-1-1"}
    assert len(set(homes.values())) == 2
    assert not set(homes.values()) & {ray_node for node, ray_node in run["where"].values() if node == 0}
    assert run["read_on"] == [0, 1, 2]
    lives = {one["node"]: one for one in run["pool"] if one["name"] == "node_up"}
    assert set(lives) == {1, 2}
    assert pool["node_seconds"] == pytest.approx(sum(one["duration_ns"] for one in run["pool"]) / 1e9)


@pytest.mark.parametrize("story", ["unknown", "few"])
def test_a_run_goes_on_with_the_readers_that_it_has_where_nodes_do_not_come(story: str, tmp_path: Path) -> None:
    run = told(tmp_path, "nodes_in_vain.py", story)
    assert run["exit"] == 0, run.get("error")
    assert run["ledger"]["even"]
    ranks, steps = nodes_in_vain.RANKS, nodes_in_vain.STEPS
    assert run["delivered"] == sorted(batch_id(rank, 0, step) for rank in range(ranks) for step in range(steps))
    assert run["trace"]["recorded"] == run["trace"]["stored"]

    # who is refused asks no more, and asks again later; at the end nobody does
    late = [one for one in run["scaling"]["changes"] if one["after"] == one["before"] == 1]
    assert len(late) > 1
    assert len(run["asking"]) > 2
    assert [] in run["asking"][1:]
    assert run["left"] == {"PENDING": [], "CREATED": [], "RESCHEDULING": []}
    assert run["scaling"]["pool"]["given_up"] == len(late)
    for one in late:
        assert nodes_in_vain.SECONDS <= one["node_seconds"] <= one["seconds"]
    (note,) = [one for one in run["notes"] if "cluster.reader_pool.deadline" in one]
    assert f"warning: {note}" in run["said"]
    assert f"{len(late)} workers got none in time" in run["summary"]
    assert f"{len(late)} workers got none in time" in run["report"]
    assert note.partition(";")[0] in run["report"]

    came = [one for one in run["scaling"]["changes"] if one["after"] > one["before"] > 0]
    if story == "unknown":
        assert came == []
        assert run["readers"] == ["0-0", "1-0"]
        assert "none of its node types" in note
    else:
        assert {one["after"] for one in came} == {2}
        assert len(run["readers"]) > 2
        assert run["scaling"]["pool"]["most"] == 1
        assert "none of its node types" not in note
