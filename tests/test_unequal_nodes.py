"""Nodes with unequal numbers of ranks: held against theory, and against equal numbers."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rayio.errors import ScenarioError
from rayio.model.attempts import Attempts
from rayio.model.marks import Saved
from rayio.model.planning import plan_of
from rayio.scenario import checks
from rayio.scenario.load import build
from rayio.scenario.topology import node_of, ranks_of
from rayio.scenario.write import to_yaml
from rayio.storage.layers.collective import Collective
from scenarios import Outcome, scenario, simulated

SAMPLE = 500_000
SAVED = {"every": {"steps": 3}, "path": "ck", "model": {"bytes": 1000}, "fsync": False}


def unequal(*ranks: int, **more: Any) -> dict[str, Any]:
    """Give keys of a run on nodes with these ranks."""
    files = 48 * sum(ranks)
    return {"cluster__nodes": len(ranks), "cluster__ranks_per_node": [*ranks], "dataset__num_files": files, **more}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_ranks_are_numbered_node_by_node(each: list[int]) -> None:
    listed = [node for node, number in enumerate(each) for _ in range(number)]
    assert [node_of(rank, tuple(each)) for rank in range(sum(each))] == listed
    assert [[*ranks_of(node, tuple(each))] for node in range(len(each))] == [
        [rank for rank, node in enumerate(listed) if node == mine] for mine in range(len(each))
    ]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"cluster__placement": "spread", "cluster__nic_bandwidth": "1 MB/s"},
        {"cluster__placement": "dedicated_readers", "cluster__nic_bandwidth": "1 MB/s"},
        {"checkpoint": SAVED | {"writers": "per_node"}},
        {"checkpoint": SAVED | {"writers": "sharded", "phases": {"writes": 3, "reads": 2, "shift": "node"}}},
        {"checkpoint": SAVED, "failures": {"events": [{"kind": "node", "number": 1, "at_step": 5}]}},
        {"loader__partition": "replicated", "loader__file_access": "collective", "loader__aggregators": 2,
         "cluster__nic_bandwidth": "1 MB/s"},
        {"storage__cache": [{"tier": "ram", "bytes": "10 KB"}], "loader__partition": "replicated"},
        {"storage__model": "nvme", "loader__max_bytes_in_flight": "8 KB"},
        {"train__speeds": {"nodes": {1: 0.5}}, "loader__num_workers": {"min": 1, "max": 3}},
    ],
    ids=lambda keys: ",".join(keys) or "plain",
)  # fmt: skip
def test_a_list_of_equal_numbers_gives_the_spans_of_the_number(keys: dict[str, Any]) -> None:
    listed = simulated(**unequal(3, 3, **keys))
    plain = simulated(**unequal(3, 3, **keys) | {"cluster__ranks_per_node": 3})
    assert listed.spans.equals(plain.spans)
    assert checks.table(listed.scenario) == checks.table(plain.scenario)


def taken(run: Outcome, rank: int) -> float:
    """Bytes per second of a rank's batches, from the 20th step on: windows had filled."""
    waits = [row for row in run.rows("data_wait", rank=rank) if 20 <= row["step"] < 60]
    until = waits[-1]["start_ns"] + waits[-1]["duration_ns"]
    first = waits[0]["start_ns"] + waits[0]["duration_ns"]
    return float((len(waits) - 1) * 2 * SAMPLE / (until - first) * 1e9)


def test_the_ranks_of_a_node_share_its_interface() -> None:
    nic, placed = 100e6, {"placement": "dedicated_readers", "reader_nodes": 4, "nic_bandwidth": "100 MB/s"}
    run = simulated(
        cluster={"nodes": 2, "ranks_per_node": [3, 1], **placed}, train={"compute": 0, "sync": "none"},
        dataset={"path": "model://far", "num_files": 4 * 200, "sample_bytes": SAMPLE}, storage={"model": "memory"},
        loader={"batch_size": 2, "num_workers": 1, "prefetch_factor": 4},
    )  # fmt: skip
    for rank, share in enumerate((3, 3, 3, 1)):
        assert taken(run, rank) == pytest.approx(nic / share, rel=0.03)


def test_what_belongs_to_a_node_follows_its_ranks() -> None:
    keys = unequal(3, 1, 2, checkpoint=SAVED | {"writers": "per_node"}, loader__max_bytes_in_flight="60 KB")
    run = simulated(**keys)
    nodes = [0, 0, 0, 1, 2, 2]
    for name in ("read", "data_wait", "compute"):
        assert {(row["rank"], row["node"]) for row in run.rows(name)} == {*enumerate(nodes)}
    saving = {row["rank"] for row in run.rows("checkpoint") if row["bytes"]}
    assert saving == {0, 3, 4}, "the first rank of every node"
    assert {(row["rank"], row["node"], row["bytes"]) for row in run.rows("write")} == {
        (0, 0, 334), (3, 1, 333), (4, 2, 333)
    }  # fmt: skip
    bounds = [run.plan.queue(rank).max_bytes for rank in range(6)]
    assert bounds == [20_000] * 3 + [60_000] + [30_000] * 2
    assert run.ledger.even


def test_a_cache_of_a_node_serves_its_ranks() -> None:
    cache = [{"tier": "ram", "bytes": "1 GB"}]
    run = simulated(**unequal(3, 1, loader__partition="replicated", storage__cache=cache, train__epochs=1))
    moved = [tally.moved for tally in run.tallies if tally.moved is not None]
    asked, fetched = sum(each.requested for each in moved), sum(each.fetched or 0 for each in moved)
    assert asked / 4 == fetched / 2 > 0, "each node fetches the dataset once, whatever its ranks"


def test_bytes_read_for_others_cross_to_other_nodes_alone() -> None:
    keys = {"loader__partition": "replicated", "loader__file_access": "collective", "loader__aggregators": 1}
    wanted = scenario(**unequal(3, 1, **keys, cluster__nic_bandwidth="1 MB/s", cluster__nic_latency="1 ms"))
    (layer,) = (layer for layer in plan_of(wanted, modelled=True).layers if isinstance(layer, Collective))
    assert [layer.node_beyond(rank, 0) for rank in range(4)] == [None, None, None, 1]


def test_a_node_dies_with_its_first_rank_and_nobody_else_s() -> None:
    events = [{"kind": "node", "number": 2, "at_step": 5}]
    run = simulated(**unequal(3, 1, 2, checkpoint=SAVED, failures={"events": events}))
    assert [(doom.rank, doom.step) for doom in Attempts(run.plan, run.plan.tallies(), Saved(6)).plan.doomed] == [(4, 5)]
    assert run.ledger.even
    assert {row["attempt"] for row in run.rows("compute")} == {0, 1}


@pytest.mark.parametrize("ranks", [(2, 2, 1), (1, 2, 3), (4, 3, 1, 1)])
def test_no_node_reads_back_what_it_saved(ranks: tuple[int, ...]) -> None:
    phases = {"writes": 1, "reads": 1, "shift": "node"}
    plan = plan_of(
        scenario(**unequal(*ranks, checkpoint=SAVED | {"writers": "sharded", "phases": phases})), modelled=True
    )
    saving = plan.checkpointing
    assert saving is not None
    for rank in range(sum(ranks)):
        (link,) = (written := plan.training(rank).written(0, 0)).chain
        shards = saving.restored_shards(written, link, rank)
        saved_by = {int(shard.path.rpartition("-")[2].removesuffix(".bin")) for shard in shards}
        assert plan.node_of_rank(rank) not in {plan.node_of_rank(other) for other in saved_by}


def test_the_memory_of_a_node_holds_what_the_most_ranks_keep() -> None:
    keys = {"loader__file_access": "in_memory", "cluster__memory": "300 KB", "loader__num_workers": 1}
    # each worker keeps the whole dataset: 96 files of 1 KB
    scenario(**{**unequal(1, 1, **keys), "dataset__num_files": 96})
    with pytest.raises(ScenarioError, match="the 4 of a node"):
        scenario(**{**unequal(4, 1, **keys), "dataset__num_files": 96})


def test_numbers_shown_and_files_written_are_those_of_the_list() -> None:
    wanted = scenario(**unequal(4, 2, 1, loader__num_workers=3))
    assert checks.table(wanted)["world_size"] == 7
    assert checks.table(wanted)["num_readers"] == 21
    assert yaml.safe_load(to_yaml(wanted))["cluster"]["ranks_per_node"] == [4, 2, 1]
    assert build(yaml.safe_load(to_yaml(wanted))) == wanted
    firsts = [wanted.cluster.ranks_of(node)[0] for node in range(3)]
    assert firsts == [0, *accumulate((4, 2))]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"cluster__ranks_per_node": [2, 1]},
         r"cluster.ranks_per_node=\[2, 1\]: its length is 2; give one number for each node \(cluster.nodes=1\)"),
        ({"cluster__ranks_per_node": []}, "must have a whole number from 1 to 1048576 for each node"),
        ({"cluster__ranks_per_node": [2, 0], "cluster__nodes": 2}, "must have a whole number from 1 to"),
        ({"cluster__ranks_per_node": [1 << 20, 1], "cluster__nodes": 2}, "ranks; at most 1048576 are possible"),
        (unequal(3, 1, checkpoint=SAVED | {"writers": "sharded", "subset_of": 3, "phases": {"writes": 1}}),
         "checkpoint.subset_of=3: must be at least the 4 ranks of the run"),
        (unequal(3, 1, checkpoint=SAVED | {"writers": "sharded",
                                           "phases": {"writes": 1, "reads": 1, "shift": "node"}}),
         "checkpoint.phases.shift=node: a node has 3 of the 4 ranks"),
        (unequal(3, 1, train__parallelism={"tensor": 3}), "which do not divide the 4 of cluster.nodes"),
        (unequal(2, 1, failures={"events": [{"kind": "node", "number": 2, "at": 1}]}), "no node 2; the run has 0 to 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said) as refused:
        scenario(**keys)
    assert len(str(refused.value).splitlines()) == 1
