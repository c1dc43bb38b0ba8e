"""When ranks wait for each other: every step, every n-th, with accumulated gradients, and for how long."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rayio.analyze.stalls import attribute
from rayio.engines.virtual.clock import VirtualKernel
from rayio.errors import ScenarioError
from rayio.model.barrier import Barrier, BarrierState
from rayio.place import Start
from rayio.scenario import checks
from rayio.scenario.meetings import ALL, NOBODY, Meetings, allreduce_seconds
from scenarios import Outcome, run_locally, scenario, simulated

JITTER = {"kind": "gamma", "mean": "10 ms", "stdev": "4 ms"}
#: Four ranks with ten steps an epoch and nothing to wait for but each other.
FOUR: dict[str, Any] = {
    "cluster__ranks_per_node": 4, "dataset__num_files": 80, "storage__model": "memory", "train__compute": JITTER,
}  # fmt: skip
SUM = {"kind": "allreduce", "bytes": "100 MB", "bandwidth": "10 GB/s", "latency": "1 ms"}


def ends(run: Outcome) -> dict[tuple[int, int, int], int]:
    """When each rank went on after a step, in ns."""
    latest: dict[tuple[int, int, int], int] = {}
    for row in (*run.rows("compute"), *run.rows("sync")):
        place = (row["rank"], row["epoch"], row["step"])
        latest[place] = max(latest.get(place, 0), row["start_ns"] + row["duration_ns"])
    return latest


def together(run: Outcome, epoch: int = 0) -> list[int]:
    """The steps of an epoch that all ranks leave at once."""
    left = ends(run)
    steps = {step for _, of, step in left if of == epoch}
    return [step for step in sorted(steps) if len({left[rank, epoch, step] for rank in range(4)}) == 1]


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ({}, [*range(10)]),
        ({"train__accumulate": 4}, [3, 7, 9]),
        ({"train__sync": {"kind": "barrier", "every": 5}}, [4, 9]),
        ({"train__accumulate": 2, "train__sync": {"kind": "barrier", "every": 3}}, [5, 9]),
        ({"train__accumulate": 100}, [9]),
        ({"train__sync": "none", "train__accumulate": 2}, []),
    ],
)
def test_ranks_meet_every_so_many_steps_and_at_the_end_of_an_epoch(keys: dict[str, Any], steps: list[int]) -> None:
    run = simulated(scenario(**FOUR, **keys))
    assert together(run) == together(run, epoch=1) == steps
    assert {row["step"] for row in run.rows("sync")} == {*steps}
    assert run.ledger.even


def test_the_wall_clock_meets_at_the_same_steps_and_begins_again_where_it_was() -> None:
    wanted = scenario(**FOUR | {"train__compute": {"kind": "gamma", "mean": "2 ms", "stdev": "1 ms"}},
                      train__accumulate=3, train__sync=SUM | {"every": 2, "bytes": "1 kB", "latency": 0})  # fmt: skip
    there = run_locally(wanted, Path(), modelled=True)
    assert {row["step"] for row in there.rows("sync")} <= {5, 9}
    assert there.ledger.even
    whole, tail = simulated(wanted), simulated(wanted, Start(1, 4, attempt=1))
    longest = {(row["rank"], row["step"]): row["duration_ns"] for row in whole.rows("sync", epoch=1)}
    assert {row["step"] for row in tail.rows("sync")} == {step for _, step in longest}


def test_an_all_reduce_every_few_steps_waits_for_the_sum_of_their_times() -> None:
    run = simulated(scenario(**FOUR, train__accumulate=5, train__sync=SUM))
    taken = {(row["rank"], row["epoch"], row["step"]): row["duration_ns"] for row in run.rows("compute")}
    slowest = max(sum(taken[rank, 1, step] for step in range(5, 10)) for rank in range(4))
    left = ends(run)
    reduce = round(allreduce_seconds(run.scenario) * 1e9)
    waits = sum(row["duration_ns"] for row in run.rows("data_wait", epoch=1, rank=0) if row["step"] > 4)
    assert left[0, 1, 9] - left[0, 1, 4] == pytest.approx(slowest + reduce, abs=waits + 4e6)


@pytest.mark.parametrize(
    ("algorithm", "ranks", "milliseconds"),
    # 100 MB at 10 GB/s are 10 ms; a message takes 1 ms.
    [("ring", 2, 12), ("ring", 4, 21), ("ring", 8, 31.5), ("tree", 2, 22), ("tree", 4, 24), ("tree", 5, 26),
     ("tree", 8, 26), ("ring", 1, 0), ("tree", 1, 0)],
)  # fmt: skip
def test_a_ring_and_a_tree_take_their_closed_forms(algorithm: str, ranks: int, milliseconds: float) -> None:
    keys = FOUR | {"cluster__ranks_per_node": ranks, "train__compute": "10 ms"}
    run = simulated(scenario(**keys, train__sync=SUM | {"algorithm": algorithm}))
    taken = {row["duration_ns"] for row in run.rows("sync") if row["step"] > 0}
    assert {ns / 1e6 for ns in taken} == ({milliseconds} if milliseconds else set())


def test_a_tree_is_faster_where_latency_counts_and_a_ring_where_bytes_do() -> None:
    def seconds(**keys: Any) -> list[float]:
        both = ({**SUM, "algorithm": algorithm, **keys} for algorithm in ("ring", "tree"))
        return [allreduce_seconds(scenario(**FOUR, train__sync=sync)) for sync in both]

    for keys, first in (({"bytes": 1000}, False), ({"bytes": "1 GB", "latency": 0}, True)):
        ring, tree = seconds(**keys)
        assert (ring < tree) is first


@pytest.mark.parametrize(("overlap", "left"), [(0, 21), (0.5, 16), (1, 11)])
def test_compute_hides_a_part_of_the_all_reduce(overlap: float, left: float) -> None:
    run = simulated(scenario(**FOUR | {"train__compute": "10 ms"}, train__sync=SUM | {"overlap": overlap}))
    assert {row["duration_ns"] / 1e6 for row in run.rows("sync") if row["step"] > 0} == {left}


def test_no_more_than_all_of_it_is_hidden() -> None:
    run = simulated(scenario(**FOUR | {"train__compute": "10 ms"}, train__sync=SUM | {"overlap": 1, "latency": 0,
                             "bytes": "1 MB"}))  # fmt: skip
    assert not [row for row in run.rows("sync") if row["step"] > 0]


def test_every_loss_of_a_round_of_several_steps_is_charged_once_and_to_its_cause() -> None:
    """Rank 1 reads as fast, and computes 5 ms longer in each of the 4 steps between two meetings."""
    keys = FOUR | {"cluster__ranks_per_node": 2, "train__compute": "10 ms", "dataset__num_files": 160}
    slow = {"ranks": [1], "factor": 1.5}
    run = simulated(scenario(**keys, train__accumulate=4, train__stragglers=slow, train__sync=SUM))
    charged = attribute(run.spans, meetings=run.plan.meetings)
    steps = charged.steps
    lost = sum(charged.lost.values())
    assert (lost + steps.parts["compute"] == steps.duration).all()
    waits = (steps.life == 0) & (steps.parts["sync"] > 0) & (steps.step > 4)
    assert waits.any()
    assert charged.lost["straggler"][waits] == pytest.approx(20e6, abs=1e5)
    assert charged.lost["allreduce"][waits] == pytest.approx(12e6, abs=1)
    if "other" in charged.lost:
        assert not charged.lost["other"][waits].any()


def test_a_wait_inside_a_replica_has_its_cause_until_all_ranks_meet() -> None:
    """Rank 0 saves, rank 1 waits for it at their next step, and both are late where they meet the other replica."""
    run = simulated(scenario(
        cluster={"nodes": 2, "ranks_per_node": 2}, dataset__num_files=80, train__epochs=1, train__steps=20,
        loader__batch_size=1, train__compute="10 ms", train__parallelism={"tensor": 2},
        train__sync={"kind": "barrier", "every": 5}, storage__model="memory",
        checkpoint={"every": {"steps": 3}, "path": "ck", "model": {"bytes": "100 MB"}, "fsync": False},
    ))  # fmt: skip
    charged = attribute(run.spans, meetings=run.plan.meetings)
    steps, saving = charged.steps, sum(row["duration_ns"] for row in run.rows("checkpoint", rank=0))
    assert (sum(charged.lost.values()) + steps.parts["compute"] == steps.duration).all()
    assert "straggler" not in charged.lost, "all compute as long"
    for life in range(4):
        assert charged.lost["checkpoint"][steps.life == life].sum() == pytest.approx(saving, rel=0.01)


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("every", [0, 1, 2, 5])
@pytest.mark.parametrize("steps", [1, 4, 7])
def test_as_many_ranks_are_awaited_as_meet(parts: int, every: int, steps: int) -> None:
    meetings = Meetings(ranks=6, epochs=2, steps=steps, larger=2 * (parts == 1), every=every, parts=parts)
    for step in range(steps):
        groups = [meetings.group(rank, 0, step) for rank in range(6)]
        for group in {*groups} - {NOBODY}:
            assert meetings.parties(0, step, group) == groups.count(group)
            assert {rank // parts for rank, of in enumerate(groups) if of == group} == (
                {*range(6 // parts)} if group == ALL else {group - 1}
            )
        assert meetings.parties(2, step) == 0
    if every:
        assert {meetings.group(rank, 0, steps - 1) for rank in range(6)} == {ALL}


def test_groups_meet_apart() -> None:
    kernel, meetings = VirtualKernel(), Meetings(ranks=4, epochs=1, steps=9, every=9, parts=2)
    barrier = Barrier(kernel, BarrierState.of(meetings, lambda rank, epoch, step, group: True))

    async def rank(number: int) -> list[int]:
        return [int(await barrier.announce(number, 0, step, 0, deadline=10 * step + number)) for step in (7, 8)]

    assert kernel.run(kernel.gather(*(rank(n) for n in range(4)))) == [[71, 83], [71, 83], [73, 83], [73, 83]]


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"train__accumulate": 0}, "train.accumulate=0: must be a whole number of at least 1"),
        ({"train__sync": {"kind": "barrier", "every": 0}}, "train.sync.every=0: must be a whole number of at least 1"),
        ({"train__sync": SUM | {"overlap": 1.5}}, "train.sync.overlap=1.5: must be a number from 0 to 1"),
        ({"train__sync": SUM | {"algorithm": "star"}}, "train.sync.algorithm=star: must be ring or tree"),
        ({"train__sync": {"kind": "none", "every": 2}}, "train.sync.every=2: no such key"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(keys: dict[str, Any], line: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario(**FOUR, **keys)
    assert line in str(refused.value)


def test_an_accumulation_without_meetings_is_named() -> None:
    assert checks.idle(scenario(**FOUR, train__accumulate=2, train__sync="none")) == [
        "train.accumulate=2: ranks never wait for each other with train.sync=none"
    ]
    assert math.isclose(allreduce_seconds(scenario(**FOUR, train__sync=SUM)), 0.021)
