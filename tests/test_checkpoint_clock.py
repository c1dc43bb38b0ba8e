"""Checkpoints by the clock: all ranks save after the same step, the first that ends in a new interval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayio.errors import RayioError
from rayio.model.manifest import search
from rayio.model.schedule import ByClock
from rayio.scenario import checks, derive
from rayio.scenario.model import Scenario
from rayio.session.execute import run
from rayio.storage import open as open_store
from scenarios import Outcome, scenario, simulated

#: A device on which a checkpoint of 10 MB takes 10 ms, and reading nothing worth a word.
DEVICE = {"first_byte": "0 s", "connection_bandwidth": "1 GB/s", "bandwidth": "1000 GB/s"}


def clocked(
    seconds: str, *, compute: Any = "10 ms", ranks: int = 4, steps: int = 100, files: int = 0, **more: Any
) -> Scenario:
    section = {
        "every": {"seconds": seconds}, "path": "ck", "model": {"bytes": "10 MB"}, "writers": "rank_zero",
        "request_bytes": "1 GB", "fsync": False,
    } | more.pop("checkpoint", {})  # fmt: skip
    return scenario(
        cluster={"nodes": 1, "ranks_per_node": ranks}, dataset__num_files=files or 400 * ranks, train__compute=compute,
        loader__batch_size=1, train__epochs=1, train__steps=steps, storage__model=DEVICE, checkpoint=section, **more,
    )  # fmt: skip


def saved_after(done: Outcome) -> list[int]:
    return [row["step"] for row in done.rows("write")]


def planted(done: Outcome, seconds: float) -> list[int]:
    """Return the steps with a checkpoint, from the ends of steps alone: the last rank's compute ends a step."""
    ends: dict[int, int] = {}
    for name in ("compute", "sync"):
        for row in done.rows(name):
            end = row["start_ns"] + row["duration_ns"]
            ends[row["step"]] = max(ends.get(row["step"], 0), end)
    first, passed, steps = ends[0], 0, []
    for step in sorted(ends):
        number = (ends[step] - first) // round(seconds * 1e9)
        if number > passed:
            steps.append(step)
        passed = max(passed, number)
    return steps


def test_a_checkpoint_follows_the_first_step_of_each_interval() -> None:
    """Steps of 10 ms, checkpoints of 10 ms that hold rank 0: each interval of 95 ms has 9 steps and a checkpoint."""
    done = simulated(clocked("95 ms"))
    steps = saved_after(done)
    assert steps[0] == 10, "95 ms after the end of step 0"
    assert steps == planted(done, 0.095)
    assert 8 <= len(steps) <= 12
    assert simulated(clocked("1 h")).rows("write") == []


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("writers", ["rank_zero", "sharded"])
def test_ranks_that_draw_their_times_agree(every: int, writers: str) -> None:
    drawn = {"kind": "lognormal", "median": "10 ms", "sigma": 0.8}
    wanted = clocked(
        "80 ms", compute=drawn, checkpoint={"writers": writers}, train__sync={"kind": "barrier", "every": every}
    )
    done = simulated(wanted)
    marks = {rank: [row["step"] for row in done.rows("checkpoint", rank=rank)] for rank in range(4)}
    assert len(marks[0]) > 5
    if writers == "sharded":
        assert marks == dict.fromkeys(range(4), marks[0])
        assert {row["batch"] for row in done.rows("manifest")}
        assert len(done.rows("manifest")) == len(marks[0]), "every one is complete"
    assert all((step + 1) % every == 0 or step == 99 for step in marks[0]), "where all ranks meet"
    if every == 1:
        assert marks[0] == planted(done, 0.08)


def test_one_rank_alone_needs_nobody() -> None:
    done = simulated(clocked("95 ms", ranks=1, train__sync="none"))
    assert saved_after(done) == planted(done, 0.095)


def test_on_a_wall_clock_all_ranks_save_after_the_same_steps(tmp_path: Path) -> None:
    wanted = clocked(
        "30 ms", dataset__path="data", files=400, steps=40, dataset__sample_bytes="1 kB",
        compute={"kind": "uniform", "low": "1 ms", "high": "9 ms"},
        checkpoint={"writers": "sharded", "model": {"bytes": 4000}},
    )  # fmt: skip
    done = run(wanted, engine="local", root=tmp_path, out="run")
    spans = done.spans()
    marks = spans[spans.name == "checkpoint"].groupby("rank").step.apply(list)
    assert len(marks) == 4
    assert len({tuple(each) for each in marks}) == 1
    assert len(marks[0]) >= 2
    there = search(open_store(tmp_path / "ck"))
    assert (len(there.complete), there.passed) == (len(marks[0]), {})
    again = run(wanted, engine="local", root=tmp_path, out="again")
    assert again.result.ledger is not None
    assert again.result.ledger.even, "it replaces checkpoints of steps that nobody knew beforehand"
    assert search(open_store(tmp_path / "ck")).passed == {}


def test_a_restart_goes_on_from_such_a_checkpoint() -> None:
    wanted = clocked(
        "95 ms",
        failures={"events": [{"kind": "rank", "number": 1, "at": "400 ms"}], "restart": "10 ms", "detect": "1 ms"},
    )
    done = simulated(wanted)
    (first,) = {row["step"] for row in done.rows("restore")} or {None}
    assert first == -1, "restore is in no step"
    assert done.ledger.even
    loads = {row["step"] for row in done.rows("load")}
    assert len(loads) == 1
    assert loads <= {*saved_after(done)}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"train__sync": "none"}, "checkpoint.every={seconds: 95 ms}: ranks agree on a step where all of them meet"),
        ({"loader__drop_last": False, "files": 1601, "steps": None},
         "not yet: checkpoint.every={seconds: 95 ms} with loader.drop_last=false"),
    ],
)  # fmt: skip
def test_it_is_refused_where_ranks_cannot_agree(more: dict[str, Any], said: str) -> None:
    with pytest.raises(RayioError) as refused:
        checks.check(clocked("95 ms", **more))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_show_has_the_checkpoints_of_a_run_that_never_waits_and_waits_make_more() -> None:
    wanted = clocked("95 ms")
    assert derive.checkpoint_period(wanted) == 10
    quick = clocked("95 ms", checkpoint={"model": {"bytes": 1}})
    assert derive.num_checkpoints(wanted) == len(saved_after(simulated(quick))) == 10, "990 ms after the first step"
    assert len(saved_after(simulated(clocked("95 ms", loader__decode="30 ms", loader__num_workers=1)))) > 25
    assert derive.num_checkpoints(clocked("1 s")) == 0, "it ends 990 ms after the first step"
    (note,) = [note for note in checks.idle(clocked("1 h")) if "checkpoint" in note]
    assert note == (
        "checkpoint.every={seconds: 3600 s}: the compute of the whole run takes 1 s, so perhaps no checkpoint falls "
        "due; save more often, or set checkpoint=none"
    )


@given(
    period=st.integers(1, 50), times=st.lists(st.integers(0, 60), min_size=1, max_size=40),
    lost=st.sets(st.integers(1, 40)),
)  # fmt: skip
def test_a_rank_that_missed_a_meeting_agrees_again_with_the_others(
    period: int, times: list[int], lost: set[int]
) -> None:
    """Intervals are counted from one beginning, so a rank that heard nothing of some meetings is late once at most."""
    ends, now = [], 0
    for more in times:
        now += more
        ends.append(now)
    one, other = ByClock(period / 1e9), ByClock(period / 1e9)
    agreed = [one.is_due(end) for end in ends]
    seen = {place: other.is_due(end) for place, end in enumerate(ends) if place not in lost or place == 0}
    for place, is_due in seen.items():
        if place - 1 in seen and is_due != agreed[place]:
            pytest.fail(f"still apart at {place}")
    assert sum(agreed) <= (ends[-1] - ends[0]) // period
