"""From roles to actors: everyone has one place, and what shares an actor follows from the plan alone."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayio.engines.ray.placement import TIER, ActorSpec, Kind, Place, actors, grounds, num_processes
from rayio.errors import ClusterError
from rayio.model.plan import Plan
from rayio.model.planning import plan_of
from scenarios import scenario


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    writers = draw(st.sampled_from(["none", "rank_zero", "all_ranks", "dedicated"]))
    saved: dict[str, Any] | None = None
    if writers != "none":
        who = {"dedicated": draw(st.integers(1, 20))} if writers == "dedicated" else writers
        saved = {"every": {"epochs": 1}, "path": "ck", "model": {"bytes": 1000}, "writers": who}
    workers = draw(st.integers(0, 5))
    wanted = scenario(
        cluster={
            "nodes": draw(st.integers(1, 4)),
            "ranks_per_node": draw(st.integers(1, 20)),
            "placement": draw(st.sampled_from(["colocated", "spread", *["dedicated_readers"] * (workers > 0)])),
            "reader_nodes": draw(st.integers(1, 3)),
            "roles_per_actor": draw(st.just("auto") | st.integers(1, 9)),
        },
        dataset={"path": "data", "num_files": 200, "sample_bytes": 100},
        loader={
            "num_workers": workers,
            "batch_size": 1,
            "queue": draw(st.sampled_from(["actor", "in_rank"])),
        },
        checkpoint=saved,
        train__sync=draw(st.sampled_from(["none", "barrier"])),
    )
    return plan_of(wanted, modelled=draw(st.booleans()))


def members(found: list[ActorSpec], kind: str) -> Counter[tuple[int, ...]]:
    return Counter(member for actor in found if actor.kind == kind for member in actor.members)


def once(roles: Any) -> Counter[tuple[int, ...]]:
    return Counter(list(roles))


@settings(max_examples=60)
@given(plans())
def test_every_role_lives_in_exactly_one_actor(plan: Plan) -> None:
    found = actors(plan)
    ranks = [(rank,) for rank in range(plan.world_size)]
    assert members(found, "rank") == once(ranks)
    assert members(found, "reader") == once(plan.readers())
    assert members(found, "queue") == once(ranks if plan.loader.num_workers and plan.loader.queue == "actor" else [])
    assert members(found, "checkpoint_writer") == once((n,) for n in range(plan.num_writers))
    assert members(found, "storage") == once((n,) for n in range(plan.num_devices if plan.modelled else 0))


@settings(max_examples=60)
@given(plans())
def test_every_actor_is_on_the_node_of_all_its_roles(plan: Plan) -> None:
    homes: dict[str, Callable[..., int]] = {
        "rank": plan.node_of_rank,
        "queue": plan.node_of_rank,
        "reader": plan.node_of_reader,
        "checkpoint_writer": plan.node_of_writer,
        "storage": lambda number: number,
    }
    for actor in actors(plan):
        assert {homes[actor.kind](*member) for member in actor.members} == {actor.node}
        assert 0 <= actor.node < plan.cluster.all_nodes


@settings(max_examples=60)
@given(plans())
def test_names_are_unique_and_say_who_is_inside(plan: Plan) -> None:
    found = actors(plan)
    assert len({actor.name for actor in found}) == len(found)
    for actor in found:
        first = "-".join(map(str, actor.members[0]))
        assert actor.name.removeprefix(f"{actor.kind}-").split("..")[0] == first


@settings(max_examples=60)
@given(plans())
def test_actors_hold_no_more_roles_than_said_and_none_is_left_half_empty(plan: Plan) -> None:
    most = plan.cluster.roles_per_actor
    for kind in ("reader", "queue", "rank", "checkpoint_writer"):
        for node in range(plan.cluster.all_nodes):
            sizes = [len(a.members) for a in actors(plan) if (a.kind, a.node) == (kind, node)]
            assert len(set(sizes[:-1])) <= 1
            assert not sizes or sizes[-1] <= sizes[0]
            assert most == "auto" or not sizes or sizes[0] <= most
            assert most == "auto" or len(sizes) < 2 or sizes[0] == most


@settings(max_examples=60)
@given(plans())
def test_placement_follows_from_the_plan_alone(plan: Plan) -> None:
    there = pickle.loads(pickle.dumps(plan))
    assert actors(there) == actors(plan)
    assert grounds(there, [Place()]) == grounds(plan, [Place()])


@settings(max_examples=60)
@given(plans(), st.integers(1, 3))
def test_as_threads_the_readers_of_a_rank_share_one_actor(plan: Plan, together: int) -> None:
    beside = plan.cluster.model_copy(update={"placement": "colocated", "roles_per_actor": together})
    here = replace(plan, loader=replace(plan.loader, worker="thread"), cluster=beside)
    readers = actors(here, "reader")
    assert members(readers, "reader") == once(here.readers())
    for actor in readers:
        ranks = Counter(rank for rank, _ in actor.members)
        assert set(ranks.values()) == {here.loader.num_workers}, "a rank's readers are never parted"
        assert len(ranks) <= together
        assert {here.node_of_reader(*who) for who in actor.members} == {actor.node}


def test_threads_take_the_place_of_processes() -> None:
    def readers(ranks: int, workers: int, worker: str) -> list[str]:
        loader = {"num_workers": workers, "worker": worker, "batch_size": 1}
        wanted = scenario(cluster__ranks_per_node=ranks, loader=loader, dataset={
            "path": "data", "num_files": 200, "sample_bytes": 100,
        })  # fmt: skip
        return [actor.name for actor in actors(plan_of(wanted, modelled=False), "reader")]

    assert readers(2, 2, "process") == ["reader-0-0", "reader-0-1", "reader-1-0", "reader-1-1"]
    assert readers(2, 2, "thread") == ["reader-0-0..0-1", "reader-1-0..1-1"]
    assert len(readers(16, 8, "thread")) == 16, "not packed: 16 processes a node as without threads"
    assert readers(32, 1, "thread")[0] == "reader-0-0..1-0", "more are packed, by whole ranks"


def test_placement_needs_no_ray() -> None:
    code = "import sys, rayio.engines.ray.placement; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_actors_are_started_before_those_that_call_them() -> None:
    saved = {"every": {"epochs": 1}, "path": "ck", "model": {"bytes": 1000}}
    found = actors(plan_of(scenario(checkpoint=saved), modelled=True))
    kinds = list(dict.fromkeys(actor.kind for actor in found))
    assert kinds.index("storage") < kinds.index("reader") < kinds.index("queue") < kinds.index("rank")
    assert kinds.index("checkpoint_writer") < kinds.index("rank")


def layout(modelled: bool, ranks: int, workers: int, **cluster: Any) -> dict[str, list[int]]:
    """Give the numbers of roles in the actors of one node, by kind."""
    wanted = scenario(
        cluster={"ranks_per_node": ranks, **cluster},
        dataset={"path": "data", "num_files": 2000, "sample_bytes": 100},
        loader={"num_workers": workers, "batch_size": 1},
    )
    found = [actor for actor in actors(plan_of(wanted, modelled)) if actor.node == 0]
    return {kind: [len(a.members) for a in found if a.kind == kind] for kind in ("reader", "queue", "rank")}


@pytest.mark.parametrize("modelled", [True, False])
@pytest.mark.parametrize(("ranks", "workers", "others"), [(1, 1, [1]), (4, 4, [4]), (1, 16, [1]), (6, 2, [4, 2])])
def test_up_to_sixteen_readers_each_has_an_actor_and_four_ranks_share_one(
    modelled: bool, ranks: int, workers: int, others: list[int]
) -> None:
    assert layout(modelled, ranks, workers) == {"reader": [1] * (ranks * workers), "queue": others, "rank": others}


def test_ranks_that_read_and_roles_that_failures_kill_have_an_actor_each() -> None:
    assert layout(False, 4, 0)["rank"] == [1] * 4
    phases = {"path": "ck", "model": {"bytes": 1000}, "writers": "sharded", "phases": {"writes": 1}}
    lasting = scenario(cluster={"ranks_per_node": 5}, loader={"num_workers": 0, "batch_size": 1}, checkpoint=phases)
    kinds: tuple[Kind, ...] = ("rank", "checkpoint_writer")

    def sizes(plan: Plan) -> list[list[int]]:
        return [[len(actor.members) for actor in actors(plan, kind)] for kind in kinds]

    assert sizes(plan_of(lasting, modelled=False)) == [[4, 1], [2, 2, 1]], "without training no rank reads"
    saved = {"path": "ck", "model": {"bytes": 1000}, "writers": "sharded", "every": {"steps": 1}}
    killed = scenario(
        cluster={"ranks_per_node": 3}, checkpoint=saved, failures={"events": [{"kind": "rank", "at": "1 s"}]}
    )
    assert sizes(plan_of(killed, modelled=False)) == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    ("modelled", "ranks", "workers", "readers", "others"),
    [
        (True, 1, 17, [9, 8], [1]),
        (True, 17, 1, [9, 8], [9, 8]),
        (True, 8, 8, [32, 32], [4, 4]),
        (False, 1, 17, [2] * 8 + [1], [1]),
        (False, 8, 8, [4] * 16, [4, 4]),
        (False, 3, 11, [3] * 11, [2, 1]),
    ],
)
def test_above_that_sleepers_are_packed_in_two_and_real_readers_in_at_most_sixteen(
    modelled: bool, ranks: int, workers: int, readers: list[int], others: list[int]
) -> None:
    assert layout(modelled, ranks, workers) == {"reader": readers, "queue": others, "rank": others}


def test_each_node_is_packed_for_itself() -> None:
    assert layout(True, 8, 2, nodes=4)["reader"] == [1] * 16
    assert layout(True, 8, 4, nodes=4, placement="spread")["reader"] == [16, 16]


def test_a_number_of_roles_per_actor_is_obeyed() -> None:
    assert layout(True, 3, 3, roles_per_actor=4) == {"reader": [4, 4, 1], "queue": [3], "rank": [3]}


def test_many_ranks_that_read_for_themselves_are_packed_too() -> None:
    assert layout(True, 32, 0) == {"reader": [], "queue": [], "rank": [16, 16]}


def test_actors_are_named_for_their_first_and_last_role() -> None:
    alone = {actor.name for actor in actors(plan_of(scenario(), modelled=True))}
    assert alone == {
        "storage-0", "reader-0-0", "reader-0-1", "reader-1-0", "reader-1-1", "queue-0..1", "rank-0..1",
    }  # fmt: skip
    packed = {actor.name for actor in actors(plan_of(scenario(cluster__roles_per_actor=3), modelled=True))}
    assert packed == {"storage-0", "reader-0-0..1-0", "reader-1-1", "queue-0..1", "rank-0..1"}


@pytest.mark.parametrize(("sync", "more"), [("barrier", 2), ("none", 1)])
def test_the_barrier_and_the_collector_are_processes_too(sync: str, more: int) -> None:
    plan = plan_of(scenario(train__sync=sync), modelled=True)
    assert num_processes(plan) == len(actors(plan)) + more


def laid(places: list[Place], **cluster: Any) -> Any:
    return grounds(plan_of(scenario(cluster=cluster), modelled=True), places)


READER = {"placement": "dedicated_readers"}


def test_every_emulated_node_has_a_bundle_those_of_readers_too() -> None:
    assert len(laid([Place()], nodes=5).bundles) == 5
    assert len(laid([Place()], nodes=5, reader_nodes=3, **READER).bundles) == 8


def test_bundles_lie_on_ray_nodes_of_their_own_where_there_are_enough_else_evenly_on_all() -> None:
    found = [laid([Place()] * ray_nodes, nodes=2) for ray_nodes in (1, 2, 3)]
    assert [one.strategy for one in found] == ["SPREAD", "STRICT_SPREAD", "STRICT_SPREAD"]
    assert [one.is_packed for one in found] == [True, False, False]
    assert laid([Place()] * 3, nodes=2, reader_nodes=2, **READER).is_packed


def test_ray_nodes_that_are_labelled_for_readers_have_them_alone() -> None:
    kept = Place(is_for_readers=True)
    found = laid([Place(), kept, Place(), kept], nodes=2, reader_nodes=1, **READER)
    assert found.labels == [{TIER: "!readers"}, {TIER: "!readers"}, {TIER: "readers"}]
    assert not found.is_packed
    assert laid([Place(), kept], nodes=1, reader_nodes=2, **READER).is_packed, "two nodes of readers on one"
    assert laid([Place(), kept], nodes=2).labels == [], "nobody asked for a tier"
    assert laid([Place(), Place()], nodes=1, **READER).labels == [], "there is no label"
    with pytest.raises(ClusterError, match=r"all 2 Ray nodes with processors have the label rayio-tier=readers, and"):
        laid([kept, kept], nodes=1, **READER)


def test_a_head_without_processors_holds_no_emulated_node() -> None:
    head, kept = Place(cpus=0), Place(is_for_readers=True)
    assert not laid([head, Place(), Place()], nodes=2).is_packed
    assert laid([head, Place(), Place()], nodes=3).is_packed, "Ray would look for room on the head for ever"
    assert laid([head, Place(), kept], nodes=2, **READER).is_packed
    with pytest.raises(ClusterError, match=r"all 1 Ray nodes with processors have the label"):
        laid([head, kept], nodes=1, **READER)


def test_a_node_of_known_cores_claims_them_of_a_ray_node_of_its_own_and_is_refused_where_it_does_not_fit() -> None:
    small, large = Place(cpus=4), Place(cpus=16)
    found = laid([small, large], nodes=2, cores=[16, 2])
    assert (found.strategy, found.bundles) == ("STRICT_SPREAD", [{"CPU": 16.0}, {"CPU": 2.0}])
    assert laid([small, large], nodes=2, cores=16).bundles == [{"CPU": 0.001}] * 2, "one number is the model's alone"
    assert laid([small], nodes=2, cores=[16, 2]).bundles == [{"CPU": 0.001}] * 2, "packed: they share what there is"
    with pytest.raises(ClusterError, match=r"node 1 has 8, and the Ray node left for it has 4; .* are 16, 4$"):
        laid([small, large], nodes=2, cores=[16, 8])
    kept = Place(cpus=2, is_for_readers=True)
    with pytest.raises(ClusterError, match=r"node 1 has 3, and the Ray node left for it has 2"):
        laid([large, large, kept], nodes=1, cores=[1, 3], **READER)
