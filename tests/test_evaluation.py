"""Evaluation: training pauses, another dataset is read to its last sample, and the books and the clock say so."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from datasets import on_disk
from handmade import Trace

from rayio.analyze.arrays import RunArrays
from rayio.analyze.metrics import measure
from rayio.analyze.shape import RunShape
from rayio.errors import DataError, ScenarioError
from rayio.model.planning import plan_of
from rayio.place import batch_id
from rayio.scenario import checks, derive
from rayio.scenario.evaluation import idle, num_evaluations, phase_of
from rayio.scenario.load import load
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.session import generate
from scenarios import Outcome, run_locally, scenario, simulated

#: Storage that takes no time, so that times can be worked out by hand.
FREE = {"first_byte": 0, "connection_bandwidth": "1000 PB/s", "bandwidth": "1000 PB/s"}


def evaluating(every: dict[str, int] | None = None, eval: dict[str, Any] | None = None, **overrides: Any) -> Scenario:
    """Give 48 training samples for 2 ranks, 12 steps of 10 ms an epoch; evaluations of 7 samples, 3 ms a step."""
    evaluate: dict[str, Any] = {"compute": "3 ms"} | ({} if every is None else {"every": every})
    evaluate |= {key: overrides.pop(key) for key in ("steps", "batch_size") if key in overrides}
    held_out = {"num_files": 7} | (eval or {})
    overrides.setdefault("storage__model", FREE)
    return scenario(train__evaluate=evaluate, dataset__eval=held_out, **overrides)


def pauses(run: Outcome, rank: int) -> list[tuple[int, int]]:
    return [(row["epoch"], row["step"]) for row in run.rows("evaluate", rank=rank)]


@pytest.mark.parametrize(
    ("every", "due"),
    [
        (None, [(0, 11), (1, 11)]),
        ({"epochs": 1}, [(0, 11), (1, 11)]),
        ({"epochs": 2}, [(1, 11)]),
        ({"steps": 5}, [(0, 4), (0, 9), (1, 2), (1, 7)]),
        ({"steps": 24}, [(1, 11)]),
    ],
)
def test_an_evaluation_follows_every_so_many_steps_or_epochs(
    every: dict[str, int] | None, due: list[tuple[int, int]]
) -> None:
    run = simulated(evaluating(every))
    assert num_evaluations(run.scenario) == len(due)
    assert pauses(run, 0) == pauses(run, 1) == due
    assert run.ledger.even
    assert run.ledger.delivered_samples == 2 * 48 + 7 * len(due)


def test_every_sample_is_tried_once_and_nothing_is_dropped() -> None:
    run = simulated(evaluating(loader__shuffle="global"))
    # 7 samples for 2 ranks are 3 and 4 of them, in batches of 2; evaluations go on from epoch 1
    tried = {rank: [row["link"] for row in run.rows("eval_data_wait", rank=rank)] for rank in (0, 1)}
    assert tried == {r: [batch_id(r, epoch, step) for epoch in (2, 3) for step in (0, 1)] for r in (0, 1)}
    assert run.plan.evaluation is not None
    samplers = run.plan.samplers()
    read = [s for rank in (0, 1) for step in (0, 1) for s in samplers.of(2).batch(2, rank, step).samples.tolist()]
    assert read == list(range(7)), "in file order, whatever the shuffle of training"
    waits = {rank: [row["bytes"] for row in run.rows("eval_data_wait", epoch=2, rank=rank)] for rank in (0, 1)}
    assert waits == {0: [2000, 1000], 1: [2000, 2000]}


def test_batches_and_steps_of_an_evaluation_are_its_own() -> None:
    whole = simulated(evaluating(batch_size=4))
    assert [len(whole.rows("eval_compute", rank=rank, epoch=2)) for rank in (0, 1)] == [1, 1]
    capped = simulated(evaluating(batch_size=1, steps=3))
    assert [len(capped.rows("eval_compute", rank=rank, epoch=2)) for rank in (0, 1)] == [3, 3]
    assert capped.ledger.planned_samples == 2 * 48 + 2 * 6
    everybody = simulated(evaluating(loader__partition="replicated"))
    assert everybody.ledger.planned_samples == 2 * 2 * 48 + 2 * 2 * 7


def test_the_time_of_an_evaluation_is_the_ranks_own_and_part_of_the_step_before() -> None:
    run = simulated(evaluating(loader__num_workers=1))
    for rank in (0, 1):
        spans = run.rows("evaluate", rank=rank)
        assert [span["duration_ns"] for span in spans] == [6_000_000] * 2
        (life,) = run.rows("life", rank=rank)
        assert life["duration_ns"] == 2 * (12 * 10_000_000 + 6_000_000)
    result = measure(RunArrays.of_spans(run.spans), RunShape.of(run.scenario))
    assert result["time"]["evaluate"] == pytest.approx(4 * 0.006)
    assert sum(result["time"].values()) == pytest.approx(2 * 0.252)
    # the window: 23 whole steps, and the pauses after two of them
    assert result["au"] == pytest.approx(0.23 / 0.242)
    assert result["evaluate_share"] == pytest.approx(0.012 / 0.242)
    assert result["au_dlio"] == pytest.approx(100), "a block of DLIO's ends where the evaluation begins"
    assert result["evaluation"] == {
        "au": 1.0, "au_min": 1.0, "au_max": 1.0, "data_wait_share": 0.0, "rounds": 2, "steps": 8, "mean_seconds": 0.006,
    }  # fmt: skip
    assert result["percentiles"]["evaluate"]["count"] == 4


def test_rates_and_read_times_of_training_leave_evaluations_out() -> None:
    run = simulated(evaluating({"steps": 5}, storage__model="s3", eval={"sample_bytes": "50 MB"}))
    assert len(run.rows("read", epoch=2)) == 4
    training = run.spans.filter(pc.less(run.spans["epoch"], 2))
    shape = RunShape.of(run.scenario)
    whole, alone = measure(RunArrays.of_spans(run.spans), shape), measure(RunArrays.of_spans(training), shape)
    assert whole["percentiles"]["read"] == alone["percentiles"]["read"]
    assert whole["mib_per_second"] == alone["mib_per_second"] > 0
    assert whole["samples_per_second"] == alone["samples_per_second"]


def test_in_the_middle_of_an_epoch_the_window_of_training_stays_full() -> None:
    run = simulated(evaluating({"steps": 5}, loader__decode="8 ms", cluster__ranks_per_node=1, train__epochs=1))
    around = run.rows("evaluate")[0]
    end = around["start_ns"] + around["duration_ns"]
    after = next(row for row in run.rows("data_wait") if row["start_ns"] >= end)
    assert (after["step"], after["duration_ns"]) == (5, 0), "read while the evaluation went on"
    reads = [row["batch"] for row in run.rows("read")]
    assert len(reads) == len(set(reads)), "nothing is read again"


def test_readers_are_the_same_and_do_one_thing_at_a_time() -> None:
    run = simulated(evaluating({"steps": 5}, loader__decode="8 ms"))
    assert {row["index"] for row in run.rows("read")} == {"0-0", "0-1", "1-0", "1-1"}
    for reader in ("0-0", "1-1"):
        spans = sorted(
            (row["start_ns"], row["start_ns"] + row["duration_ns"])
            for row in [*run.rows("read"), *run.rows("decode")]
            if row["index"] == reader
        )
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_evaluations_draw_times_of_their_own() -> None:
    noisy = {"kind": "normal", "mean": "10 ms", "stdev": "2 ms"}
    run = simulated(scenario(
        train__evaluate={"compute": noisy}, train__compute=noisy, dataset__eval={"num_files": 8},
    ))  # fmt: skip
    drawn = [row["duration_ns"] for row in [*run.rows("compute"), *run.rows("eval_compute")]]
    assert len(run.rows("eval_compute")) == 8
    assert len(set(drawn)) == len(drawn)


def test_the_datasets_have_folders_sizes_and_samples_of_their_own(tmp_path: Path) -> None:
    wanted = evaluating(
        eval={"samples_per_file": 2, "sample_bytes": "300 B"}, dataset__path="data", train__compute="100 us"
    )
    generate(wanted, root=tmp_path)
    assert len([*(tmp_path / "data").rglob("*.npz")]) == 48
    assert len([*(tmp_path / "data-eval").rglob("*.npz")]) == 7
    run = run_locally(wanted, tmp_path)
    assert run.ledger.even
    assert run.ledger.delivered_bytes == 2 * (48 * 1000 + 14 * 300)
    assert {row["bytes"] for row in run.rows("eval_data_wait")} == {600, 300}


def test_the_evaluation_dataset_can_be_elsewhere(tmp_path: Path) -> None:
    wanted = evaluating(eval={"path": "held/out"}, dataset__path="data", train__compute="100 us")
    generate(wanted, root=tmp_path)
    assert len([*(tmp_path / "held" / "out").rglob("*.npz")]) == 7
    assert run_locally(wanted, tmp_path).ledger.even


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_training_file_does_not_pass_for_one_of_the_evaluation(tmp_path: Path, num_workers: int) -> None:
    wanted = on_disk(
        evaluating(dataset__path="data", train__compute="100 us", loader__num_workers=num_workers), tmp_path
    )
    name = "000000/000000003.npz"
    (tmp_path / "data-eval" / name).write_bytes((tmp_path / "data" / name).read_bytes())
    with pytest.raises(DataError, match=r"data-eval.*sample 3 "):
        run_locally(wanted, tmp_path)


def test_where_two_windows_hold_batches_each_has_half_of_the_bytes() -> None:
    def bound(every: dict[str, int]) -> set[int | None]:
        plan = plan_of(evaluating(every, loader__max_bytes_in_flight=8000), modelled=True)
        return {plan.queue(rank, evaluating=which).max_bytes for rank in (0, 1) for which in (False, True)}

    assert bound({"steps": 5}) == {2000}
    assert bound({"epochs": 1}) == {4000}


def test_a_scenario_with_an_evaluation_is_written_and_read_again(tmp_path: Path) -> None:
    wanted = evaluating({"steps": 5}, eval={"path": "model://held", "sample_bytes": "10 kB"}, batch_size=3, steps=2)
    (tmp_path / "s.yaml").write_text(to_yaml(wanted))
    assert load(tmp_path / "s.yaml") == wanted


def test_the_phase_is_a_scenario_that_the_formulas_know() -> None:
    wanted = evaluating({"steps": 5}, eval={"samples_per_file": 3}, batch_size=4, steps=2)
    phase = phase_of(wanted)
    assert phase is not None
    assert (derive.num_samples(phase), derive.rank_steps(phase), derive.samples_read(phase)) == (21, (2, 2), 16)
    assert phase.train.epochs == num_evaluations(wanted) == 4
    table = checks.table(wanted)
    assert [table[f"evaluation_{name}"] for name in ("samples", "steps", "dataset_bytes")] == [16, 2, 21_000]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"eval": {"num_files": 0}}, "train.evaluate: there is nothing to evaluate on; give dataset.eval.num_files"),
        ({"eval": {"num_files": 1}}, "dataset.eval.num_files=1: too few for 2 ranks"),
        ({"eval": {"sample_bytes": 15}}, "dataset.eval.sample_bytes=15 B: must be at least 16 B"),
        ({"eval": {"path": "data"}}, "dataset.eval.path=data: must be modelled if and only if dataset.path=model://sm"),
        ({"eval": {"path": "d/"}, "dataset__path": "d"}, "dataset.eval.path=d/: is the folder of dataset.path=d;"),
        ({"every": {"steps": 1}, "train__epochs": 4000}, "48000 evaluations and train.epochs=4000 are 52000"),
    ],
)
def test_an_evaluation_that_cannot_be_is_refused(overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        evaluating(**overrides)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_has_nothing_to_do_is_said() -> None:
    assert idle(evaluating()) == []
    assert idle(scenario(dataset__eval={"num_files": 3})) == [
        "dataset.eval.num_files=3: nothing reads them without train.evaluate"
    ]
    sizes: dict[str, Any] = {"format": "npz", "num_files": 4, "samples_per_file": 1, "sample_bytes": 1000}
    assert idle(scenario(dataset={"path": "train", "external": True, **sizes, "eval": {"path": "valid"}})) == [
        "dataset.eval.path: nothing reads these files without train.evaluate"
    ]
    assert idle(evaluating({"epochs": 3})) == [
        "train.evaluate.every: none falls due, the first would be after 36 of 24 steps"
    ]
    assert idle(evaluating(steps=9)) == ["train.evaluate.steps=9: caps nothing, there are 2 steps"]


def test_the_au_of_evaluations_is_the_mean_over_ranks_of_finished_ones() -> None:
    trace = Trace()
    for rank, waited in ((0, 10), (1, 60)):
        now = trace.rank(rank, [("data_wait", 0), ("compute", 100), ("evaluate", 40 + waited)] * 2, life=False)
        for number in (0, 1):
            place = {"rank": rank, "epoch": 1 + number, "step": 0}
            trace.add("rank", "eval_data_wait", now, now + waited, 1, **place)
            trace.add("rank", "eval_compute", now, now + 40, 1, **place)
    trace.add("rank", "eval_compute", 900, 940, 1, rank=0, epoch=3, step=0)  # of one that was not finished
    result = measure(RunArrays.of_spans(trace.spans), RunShape(2, 1, 0, 1, 2))["evaluation"]
    assert (result["au_min"], result["au_max"]) == (pytest.approx(0.4), pytest.approx(0.8))
    assert result["au"] == pytest.approx(0.6)
    assert (result["rounds"], result["steps"]) == (2, 4)
    assert result["data_wait_share"] == pytest.approx(140 / 300)
    assert result["mean_seconds"] == pytest.approx(75e-9)


def test_without_evaluation_there_are_no_numbers_of_it() -> None:
    assert measure(RunArrays.of_spans(simulated().spans), RunShape.of(scenario()))["evaluation"] is None
