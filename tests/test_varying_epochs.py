"""Epochs with different numbers of steps: held against counting, equal numbers, and runs of one epoch."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from datasets import on_disk
from handmade import measure
from hypothesis import given
from hypothesis import strategies as st
from test_start import is_tail

from rayio.analyze.arrays import RunArrays
from rayio.analyze.shape import RunShape
from rayio.errors import ScenarioError
from rayio.model.planning import plan_of
from rayio.place import BEGINNING, Start
from rayio.predict.replay import cut
from rayio.scenario import checks, derive, evaluation
from rayio.scenario.load import build
from rayio.scenario.meetings import ALL, Meetings
from rayio.scenario.schedule import EpochSteps, Schedule
from rayio.scenario.write import to_yaml
from rayio.study.sizing.knee import shortened
from scenarios import Outcome, run_locally, scenario, simulated

SAVED = {"every": {"steps": 3}, "path": "ck", "model": {"bytes": 1000}, "fsync": False}
TRIED = {"every": {"epochs": 2}, "compute": "1 ms"}
HELD_OUT = {"num_files": 4}


def varying(*steps: int, **more: Any) -> dict[str, Any]:
    """Give keys of a run whose epochs have these steps."""
    return {"train__epochs": len(steps), "train__steps": [*steps], **more}


def steps_of(run: Outcome, rank: int) -> list[tuple[int, int]]:
    return [(row["epoch"], row["step"]) for row in run.rows("compute", rank=rank)]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(1, 9), st.booleans(), st.data())
def test_events_are_those_counted_step_by_step(
    each: list[int], period: int, of_epochs: bool, data: st.DataObject
) -> None:
    steps = EpochSteps(len(each), tuple(each))
    places = [(epoch, step) for epoch, number in enumerate(each) for step in range(number)]
    assert steps.total == len(places)
    assert [steps.place(number) for number in range(len(places))] == places
    ends = [sum(each[: epoch + 1]) - 1 for epoch in range(len(each))]
    after = ends[period - 1 :: period] if of_epochs else [*range(len(places))][period - 1 :: period]
    schedule = Schedule(period, steps, of_epochs)
    assert [*schedule.places()] == [places[number] for number in after]
    assert schedule.number == len(after)
    epoch = data.draw(st.integers(0, len(each) - 1))
    mine = data.draw(st.integers(1, each[epoch]))  # of a rank with fewer steps
    due: dict[int, list[int]] = {step: [] for step in range(mine)}
    for number, (of, step) in enumerate(places[at] for at in after):
        if of == epoch:
            due[min(step, mine - 1)].append(number)
    assert {step: [*schedule.due(epoch, step, mine)] for step in range(mine)} == due
    for step in range(mine):
        with_event = [later for later in range(step, mine) if due[later]]
        found = schedule.next_step(epoch, step, mine)
        assert found == with_event[0] if with_event else found >= mine
        earlier = sum(of < epoch for of, _ in (places[at] for at in after)) + sum(
            len(due[past]) for past in range(step)
        )
        assert schedule.number_before(epoch, step, mine) == earlier


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"checkpoint": SAVED | {"every": {"epochs": 2}}, "train__sync": {"kind": "barrier", "every": 4}},
        {"train__evaluate": TRIED, "dataset__eval": HELD_OUT, "loader__drop_last": False, "dataset__num_files": 51},
        {"checkpoint": SAVED, "failures": {"events": [{"kind": "rank", "number": 1, "at_step": 11}]}},
    ],
    ids=lambda keys: ",".join(keys) or "plain",
)
def test_a_list_of_equal_numbers_gives_the_spans_of_the_number(keys: dict[str, Any]) -> None:
    listed, plain = simulated(**varying(7, 7, 7, **keys)), simulated(**varying(7, 7, 7, **keys) | {"train__steps": 7})
    assert listed.spans.equals(plain.spans)
    assert checks.table(listed.scenario) == checks.table(plain.scenario)


@pytest.mark.parametrize(
    "loader", [{}, {"partition": "strided", "drop_last": False}, {"assignment": "dynamic"}], ids=str
)
def test_an_epoch_has_the_first_steps_of_the_whole_one(loader: dict[str, Any]) -> None:
    keys = {f"loader__{key}": value for key, value in loader.items()} | {"dataset__num_files": 51}
    run, whole = simulated(**varying(3, 20, 5, **keys)), simulated(**varying(99, 99, 99, **keys))
    caps = (3, 20, 5)
    for rank in range(2):
        firsts = [batch for batch in whole.delivered(rank) if (batch & ((1 << 30) - 1)) < caps[batch >> 30 & 0xFFF]]
        assert run.delivered(rank) == firsts
    assert run.ledger.even
    assert run.plan.steps == tuple(min(cap, most) for cap, most in zip(caps, whole.plan.steps, strict=True))
    assert [(t.steps, t.samples) for t in run.tallies] == [(t.steps, t.samples) for t in run.plan.planned_numbers()]


def test_the_numbers_shown_are_those_of_the_run(tmp_path: Path) -> None:
    keys = varying(
        4, 9, 2, 6, checkpoint=SAVED | {"every": {"epochs": 2}}, train__evaluate=TRIED, dataset__eval=HELD_OUT
    )
    wanted = on_disk(scenario(**keys, dataset__path="data", train__compute="100 us"), tmp_path)
    run, real = simulated(wanted), run_locally(wanted, tmp_path)
    numbers = checks.table(wanted)
    for each in (run, real):
        assert len(each.rows("compute", rank=0)) == numbers["total_steps"] == 21
        assert {(row["epoch"], row["step"]) for row in each.rows("write")} == {(1, 8), (3, 5)}
        assert {(row["epoch"], row["step"]) for row in each.rows("evaluate", rank=1)} == {(1, 8), (3, 5)}
        assert each.ledger.even
    assert numbers["num_checkpoints"] == numbers["num_evaluations"] == 2
    assert sorted(path.name for path in (tmp_path / "ck").iterdir()) == [
        "epoch-0001-step-00000008", "epoch-0003-step-00000005"
    ]  # fmt: skip
    assert numbers["steps_per_epoch"] == 9
    assert numbers["capped_samples"] == 48 - round(2 * 2 * 21 / 4)
    assert derive.total_rank_steps(wanted) == 42


def test_checkpoints_by_steps_are_counted_over_unequal_epochs() -> None:
    run = simulated(**varying(4, 9, 2, 6, checkpoint=SAVED | {"every": {"steps": 5}}))
    assert {(row["epoch"], row["step"]) for row in run.rows("write")} == {(1, 0), (1, 5), (2, 1), (3, 4)}
    assert steps_of(run, 0) == [(epoch, step) for epoch, number in enumerate((4, 9, 2, 6)) for step in range(number)]


def test_all_ranks_meet_after_the_last_step_of_every_epoch() -> None:
    meetings = Meetings(ranks=2, epochs=3, steps=(5, 2, 3), every=4)
    met = [
        (epoch, step) for epoch, n in enumerate((5, 2, 3)) for step in range(n) if meetings.group(0, epoch, step) == ALL
    ]
    assert met == [(0, 3), (0, 4), (1, 1), (2, 2)]
    places = [(epoch, step) for epoch, number in enumerate((5, 2, 3)) for step in range(number)]
    epoch, step = np.array(places).T
    groups = meetings.groups(np.zeros(10, np.int64), epoch, step)
    assert [*zip(epoch[groups == ALL].tolist(), step[groups == ALL].tolist(), strict=True)] == met
    assert [meetings.parties(1, step) for step in range(3)] == [2, 2, 0]
    slow = {"ranks": [1], "factor": 2.0}
    run = simulated(**varying(5, 2, 3, train__sync={"kind": "barrier", "every": 4}, train__stragglers=slow))
    waited = {(row["epoch"], row["step"]) for row in run.rows("sync", rank=0) if row["duration_ns"]}
    assert waited == {*met}, "rank 0 waits for the slower one where they meet"
    assert run.ledger.even


@pytest.mark.parametrize("start", [Start(0, 3, 1), Start(1, 0, 1), Start(1, 7, 2), Start(2, 1, 1), Start(3, 5, 1)])
def test_it_can_begin_anywhere(start: Start) -> None:
    wanted = scenario(**varying(4, 9, 2, 6, checkpoint=SAVED, train__evaluate=TRIED, dataset__eval=HELD_OUT))
    is_tail(simulated(wanted, start), simulated(wanted, BEGINNING))


@pytest.mark.parametrize("at_step", [2, 4, 8, 13, 20])
def test_a_run_that_lost_a_rank_delivers_the_same(at_step: int, tmp_path: Path) -> None:
    events = [{"kind": "rank", "number": 1, "at_step": at_step}]
    keys = varying(4, 9, 2, 6, checkpoint=SAVED, failures={"events": events, "detect": 0, "restart": 0})
    wanted = on_disk(scenario(**keys, dataset__path="data", train__compute="100 us"), tmp_path)
    whole = simulated(**varying(4, 9, 2, 6))
    for run in (simulated(wanted), run_locally(wanted, tmp_path)):
        assert run.ledger.even
        assert [(t.steps, t.samples, t.digest) for t in run.tallies] == [
            (t.steps, t.samples, t.digest) for t in whole.tallies
        ]
        assert {row["attempt"] for row in run.rows("compute")} == {0, 1}
        firsts = [*accumulate((0, 4, 9, 2))]
        again = [firsts[epoch] + step for epoch, step in steps_of(run, 1)]
        assert sorted({*again}) == [*range(21)]
        assert len(again) == 21 + at_step - at_step // 3 * 3, "redone from the newest checkpoint on, every 3 steps"


def test_metrics_and_dlio_s_formulas_count_each_epoch_by_its_steps() -> None:
    caps = (5, 9, 2, 7)
    wanted = scenario(
        **varying(*caps, train__compute="10 ms", train__warmup_steps=0), storage__model="memory", cluster={}
    )
    found = measure(RunArrays.of_spans(simulated(wanted).spans), RunShape.of(wanted))
    assert found.window_steps == sum(caps)
    assert RunShape.of(wanted).planned(np.zeros(1, np.int64)).tolist() == [sum(caps)]
    assert not [remark for remark in found.notes if "did not" in remark]
    # without any wait: (n - 2) steps of 2 samples in the time of n - 1 steps; an epoch of 2 steps does not count
    rates = [(n - 2) / (n - 1) * 2 / 0.010 for n in caps if n > 2]
    assert found.samples_per_second_dlio == pytest.approx(sum(rates) / len(rates), rel=0.01)


def test_shorter_copies_of_the_run_are_valid() -> None:
    wanted = scenario(**varying(4, 9, 2, 6, checkpoint=SAVED | {"every": {"epochs": 1}}))
    for most in (8, 9, 30, 60):
        train = cut(wanted, most)
        short = wanted.model_copy(update={"train": wanted.train.model_copy(update=train)})
        assert sum(plan_of(short, modelled=True).steps) <= 21
        assert simulated(short).ledger.even
    assert simulated(shortened(wanted)).ledger.even
    assert wanted.train.caps(6) == (4, 9, 2, 6, 4, 9)


def test_a_list_is_written_as_it_was_read() -> None:
    wanted = scenario(**varying(4, 9))
    assert yaml.safe_load(to_yaml(wanted))["train"]["steps"] == [4, 9]
    assert build(yaml.safe_load(to_yaml(wanted))) == wanted
    assert evaluation.num_evaluations(wanted) == 0


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"train__steps": [3]},
            r"train.steps=\[3\]: its length is 1; give one number for each epoch \(train.epochs=2\)",
        ),
        ({"train__steps": [3, 0]}, "must have a whole number from 1 to 1073741824 for each epoch"),
        ({"train__steps": []}, "must have a whole number from 1 to"),
        ({"train__steps": [True, 3]}, "must have a whole number from 1 to"),
        (varying(3, 4, failures={"events": [{"kind": "rank", "at_step": 7}]}), "the run has 7 steps; use at most 6"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said) as refused:
        scenario(**keys)
    assert len(str(refused.value).splitlines()) == 1


def test_caps_without_effect_are_said() -> None:
    assert "train.steps=[3, 99]: 99 caps nothing, an epoch has 12 steps" in checks.idle(scenario(**varying(3, 99)))
    assert not [note for note in checks.idle(scenario(**varying(3, 9))) if "train.steps" in note]
