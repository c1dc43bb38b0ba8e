"""Where readers live, and what the way to their ranks takes: held against what an interface can let through."""

from __future__ import annotations

from collections import Counter
from math import gcd
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayio.analyze.stalls import attribute
from rayio.errors import ScenarioError
from rayio.model.plan import Plan
from rayio.model.planning import plan_of
from rayio.predict.changes import offered
from rayio.predict.counterfactual import ready
from rayio.scenario.checks import idle
from rayio.scenario.cluster import in_proportion
from rayio.session import run
from rayio.storage.layers.network import Network, NetworkSpec
from rayio.trace.slices import Slices
from scenarios import Outcome, scenario, simulated

#: A rank asks for 1 MB every 10 ms: 100 MB/s.
SAMPLE, COMPUTE = 500_000, 0.010
PLACEMENTS = ("colocated", "spread", "dedicated_readers")


def far(ranks: int, placement: str, readers: int = 1, **more: Any) -> dict[str, Any]:
    cluster = {"nodes": ranks, "ranks_per_node": 1, "placement": placement, **more}
    if placement == "dedicated_readers":
        cluster["reader_nodes"] = readers
    return {
        "cluster": cluster,
        "dataset": {"path": "model://far", "num_files": 320 * ranks, "sample_bytes": f"{SAMPLE} B"},
        "loader": {"batch_size": 2, "num_workers": 4, "prefetch_factor": 4},
        "train": {"epochs": 1, "compute": "10 ms", "sync": "none"},
        "storage": {"model": "memory"},
    }


def ran(*arguments: Any, **more: Any) -> Outcome:
    return simulated(**far(*arguments, **more))


def rate(outcome: Outcome) -> float:
    """Bytes per second that all ranks took together, from the 40th step of each on: windows had filled."""
    waits = [row for row in outcome.rows("data_wait") if row["step"] >= 40]
    since = min(row["start_ns"] for row in waits)
    until = max(row["start_ns"] + row["duration_ns"] for row in waits)
    return float(len(waits) * 2 * SAMPLE / (until - since) * 1e9)


def placed(nodes: int, ranks: int, workers: int, placement: str, readers: int = 1, worker: str = "process") -> Plan:
    cluster = {"nodes": nodes, "ranks_per_node": ranks, "placement": placement}
    if placement == "dedicated_readers":
        cluster["reader_nodes"] = readers
    loader = {"batch_size": 1, "num_workers": workers, "worker": worker}
    data = {"path": "model://x", "num_files": 1000, "sample_bytes": 100}
    return plan_of(scenario(cluster=cluster, loader=loader, dataset=data), modelled=True)


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 5), st.integers(1, 7))
def test_dedicated_readers_live_on_nodes_without_ranks_as_many_on_each_as_on_the_others(
    nodes: int, ranks: int, workers: int, readers: int
) -> None:
    plan = placed(nodes, ranks, workers, "dedicated_readers", readers)
    of_node = Counter(plan.node_of_reader(*who) for who in plan.readers())
    assert {plan.node_of_rank(rank) for rank in range(plan.world_size)} == set(range(nodes))
    assert set(of_node) <= set(range(nodes, nodes + readers))
    numbers = [of_node[node] for node in range(nodes, nodes + readers)]
    assert max(numbers) - min(numbers) <= 1


@given(st.integers(1, 5), st.integers(1, 6), st.integers(2, 5), st.integers(1, 7))
def test_readers_that_are_threads_stay_together_on_a_node_of_readers(
    nodes: int, ranks: int, workers: int, readers: int
) -> None:
    plan = placed(nodes, ranks, workers, "dedicated_readers", readers, worker="thread")
    for rank in range(plan.world_size):
        assert len({plan.node_of_reader(rank, worker) for worker in range(workers)}) == 1


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_delivers_the_same_batches(placement: str) -> None:
    there, here = ran(4, placement, nic_bandwidth="100 MB/s"), ran(4, "colocated")
    assert there.ledger.even
    assert [(t.samples, t.digest) for t in there.tallies] == [(t.samples, t.digest) for t in here.tallies]


@pytest.mark.parametrize(
    ("readers", "nic", "let_through"),
    [
        (1, 200e6, 200e6),  # the one node that reads sends to all four ranks
        (2, 150e6, 300e6),  # each of two does
        (8, 50e6, 200e6),  # each rank's own node takes in no more
        (4, 1e9, 400e6),  # nothing is in the way: the ranks ask for no more
    ],
)
def test_ranks_get_what_the_narrower_end_of_the_network_lets_through(
    readers: int, nic: float, let_through: float
) -> None:
    there = ran(4, "dedicated_readers", readers, nic_bandwidth=f"{nic / 1e6:g} MB/s")
    assert rate(there) == pytest.approx(let_through, rel=0.03)


def test_spread_over_four_nodes_three_of_four_batches_cross_and_colocated_none_does() -> None:
    spread, beside = ran(4, "spread", nic_bandwidth="1 GB/s"), ran(4, "colocated", nic_bandwidth="1 B/s")
    crossed = spread.rows("transfer")
    assert len(crossed) == 3 / 4 * len(spread.rows("read"))
    assert all(row["bytes"] == 2 * SAMPLE and row["duration_ns"] >= 2 * SAMPLE for row in crossed)
    assert beside.rows("transfer") == []
    assert rate(beside) == pytest.approx(4 * 2 * SAMPLE / COMPUTE, rel=0.03)


def test_a_latency_alone_is_hidden_by_prefetching_and_shows_in_the_first_wait() -> None:
    near, there = ran(1, "dedicated_readers"), ran(1, "dedicated_readers", nic_latency="7 ms")
    first = [outcome.rows("data_wait", step=0)[0]["duration_ns"] for outcome in (near, there)]
    assert first[1] - first[0] == 7_000_000
    assert rate(there) == pytest.approx(rate(near), rel=0.01)


def test_what_ranks_lose_to_the_network_is_its_own_cause() -> None:
    lost = attribute(ran(4, "dedicated_readers", nic_bandwidth="100 MB/s").spans).lost
    total = sum(int(ns.sum()) for ns in lost.values())
    assert int(lost["transfer"].sum()) > 0.9 * total
    assert "put" not in lost


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 2), st.integers(3, 5), st.integers(0, 10**6)), max_size=30
    ),
    st.sampled_from([1e6, 1e9, None]),
)
def test_no_interface_ever_carries_more_than_it_can(sent: list[tuple[int, int, int, int]], bandwidth: float) -> None:
    network, now = Network(NetworkSpec(bandwidth, 1e-6)), 0
    carried: dict[int, list[tuple[int, int, int]]] = {}
    for later, source, target, nbytes in sent:
        now += later
        end = network.send(now, source, target, nbytes)
        assert end >= now + 1000
        for node in (source, target):
            carried.setdefault(node, []).append((now, end, nbytes))
    for batches in carried.values():
        for since, _, _ in batches:  # whatever set out from then on took its bytes' time at least
            later_on = [batch for batch in batches if batch[0] >= since]
            seconds = (max(end for _, end, _ in later_on) - since) / 1e9
            assert bandwidth is None or sum(n for _, _, n in later_on) / bandwidth <= seconds + 1e-7


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 200))
def test_nodes_with_more_cores_have_more_readers_within_one_of_their_share(cores: list[int], readers: int) -> None:
    turns = in_proportion(dict(enumerate(cores)))
    found = Counter(turns[number % len(turns)] for number in range(readers))
    for node, many in enumerate(cores):
        assert abs(found[node] - readers * many / sum(cores)) <= len(cores) / 2 + 1
    assert Counter(turns) == {node: many // gcd(*cores) for node, many in enumerate(cores)}


def test_unequal_nodes_of_readers_decode_at_the_rate_of_their_cores() -> None:
    """A sample takes 10 ms of a core: 1 + 3 cores are done with 400 of them in a second, and so are 2 + 2."""
    given: dict[str, Any] = {
        "cluster": {"nodes": 1, "ranks_per_node": 4, "placement": "dedicated_readers", "reader_nodes": 2},
        "dataset": {"path": "model://far", "num_files": 1600, "sample_bytes": "1 KB"},
        "loader": {"batch_size": 2, "num_workers": 8, "assignment": "dynamic"},
        "train": {"epochs": 1, "compute": "0 s", "sync": "none"},
        "storage": {"model": "memory"},
        "costs": {"cpu": {"sample": "10 ms"}},
    }

    def took(cores: list[int]) -> float:
        spans = simulated(**given | {"cluster": given["cluster"] | {"cores": cores}}).spans
        return float(max(row["start_ns"] + row["duration_ns"] for row in spans.to_pylist()) / 1e9)

    assert took([64, 1, 3]) == pytest.approx(1600 * 0.010 / 4, rel=0.05)
    assert took([64, 2, 2]) == pytest.approx(1600 * 0.010 / 4, rel=0.05)
    assert took([64, 2, 1]) == pytest.approx(1600 * 0.010 / 3, rel=0.05)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"cluster__placement": "dedicated_readers", "loader__num_workers": 0},
            "cluster.placement=dedicated_readers: there are no readers with loader.num_workers=0",
        ),
        (
            {"cluster__placement": "dedicated_readers", "loader__kind": "torch", "dataset__path": "data"},
            "cluster.placement=dedicated_readers: PyTorch's workers run on their rank's node",
        ),
        ({"cluster__cores": [4, 4]}, r"cluster.cores=\[4, 4\]: its length is 2; give one number for each node"),
        ({"cluster__cores": [4, 0]}, "cluster.cores=.*must have a whole number from 1 to 1048576 for each node"),
        (
            {"cluster__placement": "dedicated_readers", "cluster__reader_nodes": 2, "cluster__cores": [4]},
            r"give one number for each node \(cluster.nodes=1 and cluster.reader_nodes=2\)",
        ),
    ],
)
def test_what_cannot_be_placed_is_refused_in_one_line(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said) as refused:
        scenario(**keys)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"cluster__reader_nodes": 2}, ["cluster.reader_nodes=2: nothing lives there with placement colocated"]),
        ({"cluster__nic_latency": "1 ms"}, ["cluster.nic_latency: every batch is read on its rank's node"]),
        (
            {"cluster__placement": "spread", "cluster__nic_bandwidth": "1 GB/s"},
            ["cluster.nic_bandwidth: every batch is read on its rank's node with cluster.placement=spread on one node"],
        ),
        (
            {"cluster__placement": "dedicated_readers", "cluster__nic_bandwidth": "1 GB/s", "loader__payload": "none"},
            ["cluster.nic_bandwidth: no bytes cross it with loader.payload=none"],
        ),
        ({"cluster__placement": "dedicated_readers", "cluster__nic_bandwidth": "1 GB/s"}, []),
    ],
)
def test_keys_of_a_network_that_nothing_crosses_are_said(keys: dict[str, Any], said: list[str]) -> None:
    notes = idle(scenario(**keys))
    assert [note.partition(" with cluster.placement=colocated")[0] for note in notes] == said


def test_a_network_that_was_there_is_not_lived_again_as_a_model() -> None:
    there = ran(1, "dedicated_readers", nic_bandwidth="10 MB/s")
    spans = Slices.of(there.spans)
    charged = attribute(spans)
    for is_modelled in (True, False):
        base = ready(there.scenario, {"placement": {"is_network_modelled": is_modelled}}, charged, spans)
        assert base is not None
        assert base.scenario.cluster.has_network == is_modelled
        assert ("network = ∞" in [change.name for change in offered(base, "explain")]) == is_modelled


def test_a_run_in_one_process_says_that_its_nodes_are_emulated(tmp_path: Path) -> None:
    notes = [run(scenario(cluster__nodes=nodes), engine="local", root=tmp_path).result["notes"] for nodes in (1, 2)]
    said = [[note for note in of_run if "emulated in one process" in note] for of_run in notes]
    assert [len(of_run) for of_run in said] == [0, 1]
    assert said[1][0].startswith("2 nodes are emulated in one process: ")
