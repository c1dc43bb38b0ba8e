"""``train.device_copy`` and pipeline bubbles: time between a batch and its compute, charged once, on every engine."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from rayio.analyze.stalls import attribute
from rayio.errors import ScenarioError
from rayio.place import Start
from rayio.report.explain import explain
from rayio.scenario import checks
from rayio.session import simulate
from scenarios import Outcome, run_locally, scenario, simulated

#: Two ranks with 10 steps an epoch; a batch of 2 kB takes 2 ms to copy at 1 MB/s.
TWO: dict[str, Any] = {"dataset__num_files": 40, "storage__model": "memory"}
IN_LINE = {"bandwidth": "1 MB/s"}
AHEAD = {**IN_LINE, "overlap": True}


def steps_of(run: Outcome, rank: int, epoch: int = 1) -> list[int]:
    """The length of each step but the first, from one compute's begin to the next."""
    begins = [row["start_ns"] for row in run.rows("compute", rank=rank, epoch=epoch)]
    return [after - before for before, after in itertools.pairwise(begins)]


def test_a_copy_in_line_takes_the_bytes_over_the_bandwidth_before_the_compute() -> None:
    run = simulated(scenario(**TWO, train__device_copy=IN_LINE))
    copies = run.rows("device_copy")
    assert len(copies) == len(run.rows("compute")) == 2 * 2 * 10
    assert {(row["duration_ns"], row["bytes"]) for row in copies} == {(2_000_000, 2000)}
    assert steps_of(run, 0)[1:] == pytest.approx([12e6] * 8, abs=1e5)
    assert run.ledger.even


def test_a_copy_ahead_is_hidden_behind_the_compute_of_the_step_before() -> None:
    run = simulated(scenario(**TWO, train__device_copy=AHEAD))
    assert [row["step"] for row in run.rows("device_copy", rank=0)] == [0, 0], "the first of each epoch"
    assert len(run.rows("copy_ahead")) == 2 * 2 * 9
    assert steps_of(run, 0) == [10_000_000] * 9
    assert run.ledger.even


def test_a_copy_that_is_longer_than_the_compute_shows_the_rest() -> None:
    run = simulated(scenario(**TWO, train__device_copy=AHEAD | {"bandwidth": "160 kB/s"}))  # 12.5 ms a batch
    assert {row["duration_ns"] for row in run.rows("device_copy") if row["step"]} == {2_500_000}
    assert steps_of(run, 0) == [12_500_000] * 9


@pytest.mark.parametrize(
    ("keys", "milliseconds"),
    [
        ({}, 10), ({"train__device_copy": IN_LINE}, 12), ({"train__device_copy": AHEAD}, 10),
        ({"train__device_copy": AHEAD | {"bandwidth": "100 kB/s"}}, 20),
        ({"train__parallelism": {"pipeline": 2, "microbatches": 2}}, 15),
    ],
)  # fmt: skip
def test_what_a_rank_needs_to_never_wait_follows_from_its_whole_step(
    tmp_path: Path, keys: dict[str, Any], milliseconds: float
) -> None:
    wanted = scenario(**TWO | {"dataset__num_files": 240}, **keys)
    assert checks.table(wanted)["read_demand"] == pytest.approx(2000 / milliseconds * 1e3)
    capacity = explain(simulate(wanted, root=tmp_path).path).capacity
    assert capacity.demand == pytest.approx(2 / milliseconds * 1e3, rel=0.02)


def test_a_batch_that_comes_late_is_copied_when_it_is_there() -> None:
    slow = {"first_byte": "40 ms", "connection_bandwidth": "1 GB/s", "bandwidth": "1 TB/s"}
    keys = TWO | {"storage__model": slow, "loader__num_workers": 1}
    run = simulated(scenario(**keys, train__device_copy=AHEAD))
    late = [row for row in run.rows("data_wait", rank=0, epoch=1) if row["step"] > 2]
    assert min(row["duration_ns"] for row in late) > 20e6
    assert {row["duration_ns"] for row in run.rows("device_copy")} == {2_000_000}


@pytest.mark.parametrize("copy", [IN_LINE, AHEAD])
def test_the_wall_clock_does_the_same(copy: dict[str, Any]) -> None:
    wanted = scenario(**TWO, train__device_copy=copy, train__compute="5 ms")
    here, there = simulated(wanted), run_locally(wanted, Path(), modelled=True)
    for rank in (0, 1):
        assert here.delivered(rank) == there.delivered(rank)
    assert there.ledger.even
    for name in ("device_copy",) if copy is IN_LINE else ("copy_ahead",):
        ours, theirs = ({row["batch"]: row["duration_ns"] for row in run.rows(name)} for run in (here, there))
        assert ours == theirs


@pytest.mark.parametrize("copy", [IN_LINE, AHEAD])
def test_a_run_that_begins_later_delivers_the_tail(copy: dict[str, Any]) -> None:
    wanted = scenario(**TWO, train__device_copy=copy)
    whole, tail = simulated(wanted), simulated(wanted, Start(1, 3, attempt=1))
    assert whole.delivered(0)[-len(tail.delivered(0)) :] == tail.delivered(0)
    assert len(tail.delivered(0)) == 7
    assert tail.ledger.even


def test_evaluations_between_steps_leave_the_batch_that_was_copied_ahead() -> None:
    evaluated = {"every": {"steps": 3}, "compute": "1 ms"}
    run = simulated(scenario(**TWO, train__device_copy=AHEAD, train__evaluate=evaluated, dataset__eval__num_files=8))
    assert run.ledger.even
    assert [row["step"] for row in run.rows("data_wait", rank=0, epoch=0)] == [*range(10)]


@pytest.mark.parametrize(("stages", "parts"), [(2, 1), (2, 4), (4, 4), (4, 16), (8, 8)])
def test_a_bubble_is_its_closed_form_of_each_step(stages: int, parts: int) -> None:
    """(p - 1) / (m + p - 1) of a step, as GPipe and Megatron-LM have it."""
    keys = TWO | {
        "cluster__ranks_per_node": 8, "dataset__num_files": 1280, "loader__batch_size": 16,
        "train__parallelism": {"pipeline": stages, "microbatches": parts},
        "train__compute": {"kind": "normal", "mean": "10 ms", "stdev": "2 ms"},
    }  # fmt: skip
    run = simulated(scenario(**keys))
    bubbles = {(row["rank"], row["batch"]): row["duration_ns"] for row in run.rows("bubble")}
    computes = {(row["rank"], row["batch"]): row["duration_ns"] for row in run.rows("compute")}
    assert bubbles.keys() == computes.keys()
    shares = [bubbles[key] / (bubbles[key] + computes[key]) for key in bubbles]
    assert shares == pytest.approx([(stages - 1) / (parts + stages - 1)] * len(shares), rel=1e-6)


@pytest.mark.parametrize("keys", [
    {"train__device_copy": IN_LINE}, {"train__device_copy": AHEAD | {"bandwidth": "100 kB/s"}},
    {"train__parallelism": {"pipeline": 2, "microbatches": 2}, "train__device_copy": IN_LINE, "train__accumulate": 3},
])  # fmt: skip
def test_every_loss_is_charged_once(keys: dict[str, Any]) -> None:
    slow = {"ranks": [1], "factor": 1.5}
    run = simulated(scenario(**TWO, **keys, train__stragglers=slow))
    charged = attribute(run.spans, meetings=run.plan.meetings)
    steps = charged.steps
    assert (sum(charged.lost.values()) + steps.parts["compute"] == steps.duration).all()
    for name in ("device_copy", "bubble"):
        own = steps.parts[name]
        if own.any():
            assert (charged.lost[name] >= own).all()


def test_a_rank_that_waits_for_anothers_copy_charges_the_copy() -> None:
    """Ranks compute alike; rank 1's batches are larger, so its copies take longer and rank 0 waits for them."""
    keys = TWO | {"dataset__sample_bytes": {"kind": "uniform", "low": 100, "high": 3000}}
    run = simulated(scenario(**keys, train__device_copy=IN_LINE))
    charged = attribute(run.spans)
    waited = charged.steps.parts["sync"] > 1e5
    assert waited.any()
    assert charged.lost_by_sync["device_copy"][waited] == pytest.approx(charged.steps.parts["sync"][waited], rel=0.05)


def test_explain_names_the_copy_and_what_hides_it(tmp_path: Path) -> None:
    keys = TWO | {"dataset__num_files": 480, "train__device_copy": {"bandwidth": "500 kB/s"}}
    found = explain(simulate(scenario(**keys), root=tmp_path).path)
    assert found.verdict.bound == "device-copy"
    assert found.verdict.cause == "device_copy"
    share = next(row.share for row in found.verdict.table if row.cause == "device_copy")
    assert share == pytest.approx(4 / 14, abs=0.01)
    assert found.simulated is not None
    changes = {row.change: row for row in found.simulated.changes}
    for change in ("device_copy = 0", "copies overlapped"):
        assert changes[change].time_saved == pytest.approx(4 / 14, abs=0.02)
    assert "train.device_copy.overlap=true" in found.sentence
    really = simulate(scenario(**keys | {"train__device_copy": {"bandwidth": "500 kB/s", "overlap": True}}),
                      root=tmp_path)  # fmt: skip
    assert really.result.au == pytest.approx(changes["copies overlapped"].au, abs=0.01)


def test_explain_names_the_bubble_and_more_microbatches(tmp_path: Path) -> None:
    keys = TWO | {"dataset__num_files": 960, "loader__batch_size": 8}
    divided = {"pipeline": 2, "microbatches": 2}
    found = explain(simulate(scenario(**keys, train__parallelism=divided), root=tmp_path).path)
    assert found.verdict.bound == "pipeline"
    assert found.simulated is not None
    changes = {row.change: row for row in found.simulated.changes}
    assert changes["bubble = 0"].time_saved == pytest.approx(1 / 3, abs=0.02)
    assert changes["microbatches × 2"].time_saved == pytest.approx(1 - 12.5 / 15, abs=0.02)


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"train__device_copy": {"overlap": True}}, "train.device_copy.bandwidth: is required and missing"),
        ({"train__device_copy": {"bandwidth": 0}}, "train.device_copy.bandwidth=0: must be greater than 0"),
        ({"train__device_copy": AHEAD, "loader__num_workers": 0}, "train.device_copy.overlap=true: with loader.num_w"),
        ({"train__device_copy": AHEAD, "loader__kind": "torch"}, "not yet: train.device_copy.overlap=true with loader"),
        ({"train__parallelism": {"microbatches": 0}}, "train.parallelism.microbatches=0: must be a whole number"),
        ({"train__parallelism": {"pipeline": 2, "microbatches": 3}}, "train.parallelism.microbatches=3: loader.batch"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(keys: dict[str, Any], line: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario(**TWO | keys)
    assert line in str(refused.value)


def test_microbatches_without_a_pipeline_are_named() -> None:
    notes = checks.idle(scenario(**TWO, train__parallelism={"microbatches": 2}))
    assert "train.parallelism.microbatches=2: there is no pipeline" in notes
