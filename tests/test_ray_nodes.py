"""Runs on clusters of several Ray nodes: each a command of its own with its own HOME, for they take long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rayio.model.planning import plan_of
from rayio.place import batch_id
from scenarios import scenario

pytestmark = [pytest.mark.slow, pytest.mark.ray]


def printed_by(program: str, root: Path, *arguments: str) -> dict[str, Any]:
    """Run a program of this folder; give what it prints."""
    environment = {**os.environ, "HOME": str(root), "RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, str(Path(__file__).with_name(program)), str(root), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == 0, done.stderr[-2000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_every_placement_on_four_ray_nodes_delivers_what_one_node_does(tmp_path: Path) -> None:
    told = printed_by("four_nodes.py", tmp_path)
    plan = plan_of(scenario(cluster__ranks_per_node=4, train__epochs=1), modelled=True)
    planned = [batch_id(rank, 0, step) for rank in range(4) for step in range(plan.steps[0])]
    for name, one in told.items():
        assert (one["exit"], one["ledger"]["even"]) == (0, True), name
        assert one["ledger"] == told["one node"]["ledger"], name
        assert one["delivered"] == planned, name

    on_ray = [one for name, one in told.items() if name != "one node"]
    assert [one["ray_nodes"] for one in on_ray] == [4, 4, 4, 4]
    assert [one["placement"]["is_packed"] for one in on_ray] == [False, False, False, True]
    for placement in (one["placement"] for one in on_ray):
        assert len(placement["ray_node_of"]) == placement["nodes"] + placement["reader_nodes"]
    for name in ("dedicated_readers", "packed"):
        assert (told[name]["ranks"], told[name]["readers"]) == ([False], [True]), "the label keeps ranks out"

    # On Ray nodes of their own ranks fetched what crossed; where nodes are packed, readers sent it by the model first.
    batches = told["one node"]["batches"]
    assert [told[name]["moved"] for name in ("one node", "colocated")] == [{}, {}]
    assert told["dedicated_readers"]["moved"] == {"rank": batches}
    assert told["packed"]["moved"] == {"reader": batches, "rank": batches}
    assert min(told["packed"]["sent_seconds"]) >= told["packed"]["moved_bytes"][0] / 1e6
    assert any(note.startswith("cluster.nic_bandwidth") for note in told["dedicated_readers"]["notes"])
    (packed,) = (note for note in told["packed"]["notes"] if "are emulated on" in note)
    assert packed.startswith("cluster.nodes=4 and cluster.reader_nodes=4 are emulated on 4 Ray nodes. ")


@pytest.mark.parametrize("workers", [2, 1])
def test_readers_live_in_the_pods_that_kubernetes_is_given_for_them_and_ranks_in_the_others(
    workers: int, tmp_path: Path
) -> None:
    told = printed_by("nodes_of_pods.py", tmp_path, str(workers))
    assert (told["exit"], told["even"]) == (0, True)
    assert told["groups"] == ["nodes"] * workers + ["reader-nodes"] * 2
    assert told["homes"] == ["nodes", "nodes", "reader-nodes", "reader-nodes"]
    assert (told["ranks"], told["readers"]) == (["nodes"], ["reader-nodes"])
    assert told["is_packed"] is (workers == 1), "the head, which has no processors, is not counted"
    emulated = [note for note in told["notes"] if "are emulated on" in note]
    assert [note.partition(". ")[0] for note in emulated] == [
        "cluster.nodes=2 and cluster.reader_nodes=2 are emulated on 3 Ray nodes"
    ] * (workers == 1)


def test_a_run_goes_on_with_the_nodes_that_are_left_or_with_one_that_comes_back(tmp_path: Path) -> None:
    told = printed_by("lost_nodes.py", tmp_path)
    for name, one in told.items():
        assert (one["exit"], one["ledger"]["even"], one["ledger"]["delivered_steps"]) == (0, True, 2 * 12 * 20), name
        assert one["causes"] in (["node 0"], ["node 1"]), "Ray chooses which one the driver is on"
        assert one["from_checkpoint"] == [True], name
        assert one["trace"][0] == one["trace"][1], name
    assert (told["left"]["nodes"], told["back"]["nodes"]) == (1, 2)
