"""Autoscaled workers of ranks that meet: the last rank waits for its batches, and holds back all others."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import pytest

import rayio
from rayio.engines.virtual.clock import VirtualKernel
from rayio.model.autoscale import Look, Memory, decide, need
from rayio.model.barrier import BarrierState
from rayio.model.consumed import Consumed
from rayio.model.held_back import MEETINGS, Deadline, HeldBack
from rayio.place import Where
from rayio.scenario.load import build
from rayio.scenario.meetings import Meetings
from rayio.scenario.workers import Autoscaled

SCALING = Autoscaled.model_validate({"min": 1, "max": 8})
#: Eight samples of a batch take a worker 25 ms each in the mean; a rank takes 60 ms: 3.3 workers are enough.
READ, COMPUTE = 8 * 0.025, 0.060
NOISE = {"kind": "exponential", "mean": "25 ms"}


def simulated(out: Path, ranks: int, workers: Any, steps: int = 300, decode: Any = NOISE, **train: Any) -> rayio.Run:
    return rayio.simulate(
        build({
            "name": "meeting", "cluster": {"ranks_per_node": ranks},
            "dataset": {"path": "model://x", "format": "raw", "num_files": 8 * steps * ranks, "sample_bytes": "100 kB"},
            "storage": {"model": "memory"},
            "loader": {"batch_size": 8, "num_workers": workers, "decode": decode},
            "train": {"epochs": 1, "compute": COMPUTE, **train},
        }),
        out=out,
    )  # fmt: skip


def changes(run: rayio.Run) -> list[Any]:
    assert run.result.scaling is not None
    return [change for change in run.result.scaling.changes if change.before]


@pytest.mark.parametrize("ranks", [2, 8, 24])
def test_ranks_that_meet_get_what_one_rank_alone_gets_and_as_soon(tmp_path: Path, ranks: int) -> None:
    """One rank alone has 4 workers after 6 s. Each by itself: with 8 ranks the last one had its second after 23 s."""
    run = simulated(tmp_path / "run", ranks, {"min": 1, "max": 8})
    first = [change for change in changes(run) if change.at_seconds < 10]
    assert {change.rank for change in first if change.after == 4} == {*range(ranks)}
    fixed = simulated(tmp_path / "fixed", ranks, 4)
    assert run.result.wall_seconds is not None
    assert fixed.result.wall_seconds is not None
    assert run.result.wall_seconds < fixed.result.wall_seconds + 6, "that is until the workers are there"


def test_a_rank_that_computes_slowly_makes_no_one_hire(tmp_path: Path) -> None:
    """All wait for rank 0, and nobody for batches: a second of compute more is no lack of workers."""
    slow = {"stragglers": {"ranks": [0], "factor": 4}}
    run = simulated(tmp_path / "run", 4, {"min": 2, "max": 8}, steps=200, **slow)
    assert not changes(run)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("every", "most"), [(4, 1), (16, 2), (64, 4)])
def test_waits_that_a_slow_rank_makes_up_for_hire_no_one_after_a_meeting(
    tmp_path: Path, every: int, most: int, parts: int
) -> None:
    """One worker has a batch every 200 ms, the last rank takes one every 240 ms. Up to its meetings others wait."""
    slow = {"stragglers": {"ranks": [3], "factor": 4}, "accumulate": every, "parallelism": {"tensor": parts}}
    run = simulated(tmp_path / "run", 4, {"min": 1, "max": 8}, 300 // parts, "25 ms", **slow)
    hired = [change for change in changes(run) if change.after > change.before]
    assert max((change.after for change in hired), default=1) == most
    assert all(change.rank // parts < 3 // parts and change.at_seconds < every * 0.24 for change in hired)
    last = {change.rank: change.after for change in changes(run)}
    assert max(last.values(), default=1) <= 2, "one would be at work for 200 of 240 ms: more than 80 %"


@pytest.mark.parametrize("every", [1, 4, 16, 64])
def test_a_slow_rank_s_need_is_the_need_of_all(tmp_path: Path, every: int) -> None:
    """It takes a batch every 120 ms, for which two workers are enough; the others alone would have four."""
    slow = {"stragglers": {"ranks": [3], "factor": 2}, "accumulate": every}
    run = simulated(tmp_path / "run", 4, {"min": 1, "max": 8}, 300, "25 ms", **slow)
    second = [change for change in changes(run) if (change.before, change.after) == (1, 2)]
    assert {change.rank for change in second if change.at_seconds < 4} == {0, 1, 2, 3}
    others = [change for change in changes(run) if change not in second]
    assert all(change.rank != 3 and change.at_seconds < every * READ for change in others), "before the first meeting"


def test_slow_steps_by_chance_cost_little(tmp_path: Path) -> None:
    """Every tenth step takes ten times as long. Who comes last to a meeting after 50 steps differs from time to time.

    Four workers throughout take 709 s. It was 24 s more while a single meeting decided what it makes up for.
    """
    chance: dict[str, Any] = {"stragglers": {"probability": 0.1, "factor": 10}, "compute": 0.2, "accumulate": 50}
    run = simulated(tmp_path / "run", 4, {"min": 1, "max": 8}, 1500, {"kind": "exponential", "mean": "30 ms"}, **chance)
    assert run.result.wall_seconds is not None
    assert run.result.wall_seconds < 709 + 15


def test_workers_leave_while_meetings_make_up_for_waits(tmp_path: Path) -> None:
    """The last rank is slow for 300 s, then takes a batch every 60 ms for 30 s, then is slow again."""
    slow = {"stragglers": {"ranks": [3], "factor": 10, "every": "60 s", "lasts": "30 s"}, "accumulate": 16}
    run = simulated(tmp_path / "run", 4, {"min": 1, "max": 8}, 1100, "25 ms", **slow)
    for rank in range(4):
        numbers = [change.after for change in changes(run) if change.rank == rank]
        assert max(numbers) in {4, 5}
        assert numbers[-1] == 1
        assert len(numbers) <= 8


def test_ranks_that_share_a_limit_give_up_together(tmp_path: Path) -> None:
    """Storage serves half of what they compute: twice the workers bring nothing, and go."""
    limited = build({
        "name": "limited", "cluster": {"ranks_per_node": 4},
        "dataset": {"path": "model://x", "format": "raw", "num_files": 8000, "sample_bytes": "100 kB"},
        "storage": {"model": {"first_byte": 0, "connection_bandwidth": "1 GB/s", "bandwidth": "3 MB/s"}},
        "loader": {"batch_size": 8, "num_workers": {"min": 2, "max": 16}},
        "train": {"epochs": 1, "compute": COMPUTE},
    })  # fmt: skip
    run = rayio.simulate(limited, out=tmp_path / "run")
    assert run.result.scaling is not None
    gone = [change for change in changes(run) if change.after < change.before]
    assert {change.rank for change in gone} == {0, 1, 2, 3}
    assert all("something else is the limit" in change.why for change in gone)
    assert max(change.after for change in changes(run)) <= 4


def look(**values: float) -> Look:
    usual: dict[str, Any] = {
        "now": 10.0, "seconds": 10.0, "workers": 4, "ready": 0.0, "reading": 4.0, "waited": 0.0, "read": 100,
        "held": 0.0,
    }  # fmt: skip
    return Look(**usual | values)


def test_a_rank_that_is_held_back_gets_workers_for_when_it_is_not() -> None:
    """It takes half of what it could: its readers, at work all the time, must do twice as much."""
    assert need(SCALING, look(held=5.0)) == 8
    assert need(SCALING, look(held=5.0, reading=3.0)) == 6
    wanted, memory = decide(SCALING, Memory(), look(held=5.0))
    assert wanted.workers == 8
    assert wanted.why == "the rank waited 0% of 10.0 s, and 50% for ranks that waited longer"
    assert memory.added is not None


@pytest.mark.parametrize(("seconds", "missed"), [(100, 1), (150, 0)])
def test_workers_that_are_missed_within_four_times_calm_stay_longer_next_time(seconds: float, missed: int) -> None:
    """Calm is 30 s: workers that left 100 s ago should have stayed, and those that left 150 s ago were not needed."""
    left = Memory(short=0, went=200.0 - seconds)
    for waited in (0.0, 5.0, 5.0):
        _, left = decide(SCALING, left, look(now=200.0, waited=waited))
    assert (left.went, left.missed) == (None, missed)


def test_a_rank_that_has_enough_does_not_hire_because_another_has_not() -> None:
    wanted, memory = decide(SCALING, Memory(), look(held=5.0, reading=1.0))
    assert wanted.workers == 4
    assert memory.needs == ((10.0, 3),), "2 for twice the batches, 80 % of the time at work"


def test_readers_are_judged_by_what_they_can_read_and_not_by_what_is_taken() -> None:
    """Twice the readers, at work half of the time: the rank is held back, and they are not in vain."""
    _, memory = decide(SCALING, Memory(), look(workers=2, reading=2.0, waited=5.0))
    held = look(now=20.0, reading=2.0, waited=1.0, held=4.0)
    once, memory = decide(SCALING, memory, held)
    assert once.workers >= 4
    limited = look(now=20.0, reading=4.0, waited=5.0)
    _, before = decide(SCALING, Memory(), look(workers=2, reading=2.0, waited=5.0))
    numbers = []
    for _ in range(3):
        again, before = decide(SCALING, before, limited)
        numbers.append(again.workers)
    assert numbers == [4, 4, 2], "one look alone is often wrong"
    assert "something else is the limit" in again.why


class Port:
    """A barrier whose last rank is known."""

    def __init__(self, latest: int) -> None:
        self.latest = latest
        self.told: list[Deadline] = []

    async def announce(self, at: Where, deadline: int) -> int:
        assert isinstance(deadline, Deadline)
        self.told.append(deadline)
        return max(deadline, self.latest)


def end_of(port: Port, every: int = 1, parts: int = 1) -> HeldBack:
    meetings = Meetings(ranks=4, epochs=1, steps=100, every=every, parts=parts)
    return HeldBack(port, Consumed(), meetings, SCALING.wait, 0)


@pytest.mark.parametrize(
    ("latest", "held", "made_up"),
    [
        (Deadline.of(800, 500), 300, 0),  # it waited for batches 300 ns longer than this rank
        (Deadline.of(900, 500), 400, 100),  # without waits it would have come at 400, and this rank at 300
        (Deadline.of(700, 5000), 200, 0),  # no more than the barrier cost this rank
        (Deadline.of(900, 0), 0, 200),  # it only computed longer
        (900, 0, 0),  # a rank that meets without batches, as after a restore
        (Deadline.of(100, 5000), 0, 0),  # this rank is the last one
    ],
)
def test_what_others_wait_counts_up_to_what_the_barrier_costs(latest: int, held: int, made_up: int) -> None:
    end = end_of(Port(latest))
    end.consumed.waited = 200
    assert VirtualKernel().run(end.announce(Where(0, 0, 0), 500)) == max(500, latest)
    assert (end.consumed.held, end.consumed.made_up) == (held, made_up)


def test_a_meeting_of_all_makes_up_for_all_waits_since_the_last_one() -> None:
    """Both ranks of a replica wait 100 ns in each of two steps; the other replica computes 150 ns longer."""
    port = Port(Deadline.of(300, 100))
    end = end_of(port, every=2, parts=2)
    consumed = end.consumed
    consumed.add(0)
    consumed.waited = 100
    VirtualKernel().run(end.announce(Where(0, 0, 0), 300))
    assert (consumed.lost, consumed.met) == (100, -1), "the replica alone"
    consumed.waited, port.latest = 200, Deadline.of(750, 0)
    VirtualKernel().run(end.announce(Where(0, 0, 1), 600))
    assert [deadline.waited for deadline in port.told] == [100, 200], "since the last meeting of the same ranks"
    assert (consumed.lost, consumed.met) == (0, 1)
    consumed.waited, port.latest = 300, Deadline.of(900, 100)
    VirtualKernel().run(end.announce(Where(0, 0, 2), 900))
    consumed.waited, port.latest = 400, Deadline.of(1200, 200)
    VirtualKernel().run(end.announce(Where(0, 0, 3), 1200))
    assert (consumed.lost, consumed.met) == (200, -1), "nobody is slower, so its waits count at any time"


def test_a_meeting_makes_up_for_no_more_than_the_last_ones_did() -> None:
    """The last rank computes 40 of 100 ns longer, but in the sixth meeting as long: then waits of 10 ns count."""
    port = Port(0)
    end, lost = end_of(port, every=2), [0]
    end.consumed.add(0)
    for number in range(16):
        latest = 100 * (number + 1)
        port.latest = Deadline.of(latest, 0)
        end.consumed.waited += 10
        VirtualKernel().run(end.announce(Where(0, 0, 2 * number + 1), latest + 10 if number == 5 else latest - 30))
        lost.append(end.consumed.lost)
    assert [after - before for before, after in itertools.pairwise(lost)] == [0] * 5 + [10] * MEETINGS + [0] * 3


def test_the_last_rank_says_how_long_it_waited_wherever_it_is() -> None:
    """The answer is the deadline of the last rank, with its wait, through a barrier and between processes."""
    state = BarrierState(lambda *_: 2)
    state.arrive(0, (0, 0, 0), 0, pickle.loads(pickle.dumps(Deadline.of(500, 30))))
    (latest,) = state.arrive(1, (0, 0, 0), 0, pickle.loads(pickle.dumps(Deadline.of(700, 10)))).values()
    latest = pickle.loads(pickle.dumps(latest))
    assert latest == 700
    assert isinstance(latest, Deadline)
    assert latest.waited == 10
