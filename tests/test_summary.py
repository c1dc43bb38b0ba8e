from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from handmade import Trace, measure, result
from pages import Page

import rayio
from rayio.analyze.arrays import RunArrays
from rayio.analyze.shape import RunShape
from rayio.records.run_result import Books, RunResult
from rayio.report.build import report
from rayio.report.text.summary import check_expectations, summary
from rayio.scenario.expect import Condition

MS = 1_000_000
LEDGER = Books(
    planned_steps=24,
    planned_samples=168,
    delivered_steps=24,
    delivered_samples=168,
    delivered_bytes=24 << 20,
    even=True,
)


def a_result() -> RunResult:
    trace = Trace()
    story = [("startup", 500 * MS), *[("data_wait", 4 * MS), ("compute", 95 * MS), ("gap", 1 * MS)] * 12]
    for rank in range(2):
        trace.rank(rank, story)
    found = measure(RunArrays.of_spans(trace.spans), RunShape(2, 7, 1, 1, 12))
    return replace(found, scenario="unet3d-small", engine="ray", ledger=LEDGER)


def test_the_summary_is_one_screen_with_units_and_where_the_run_is() -> None:
    unread = replace(a_result(), dropped_samples_per_epoch=5, capped_samples_per_epoch=14)
    text = summary(unread, run=Path("runs/try1"))
    assert (
        text
        == """\
unet3d-small, measured on the ray engine: 24 steps of 2 ranks together, 1.70 s

  AU                    95.0 %  min 95.0 %, max 95.0 % over ranks; measured over 11 steps per rank, 1.10 s
  within               ± 0.0 %  in 95 of 100 cases, from these steps of 1 epoch
  throughput   140.0 samples/s
  data loading           4.0 %  of step time, exposed: prefetching did not hide it
  overhead              1.00 %  of step time (rayio's own)
  goodput               67.1 %  of wall time was compute that counts
  as DLIO               94.9 %  AU by DLIO's formula, 127.2 samples/s

  where the ranks' time went (all ranks together)
  startup              1 s    29.4 %  until the first batch was asked for
  data_wait          96 ms     2.8 %  exposed data loading: waiting for a batch
  compute           2.28 s    67.1 %  computing, as requested
  sync                 0 s     0.0 %  waiting for slower ranks, all-reduce
  checkpoint           0 s     0.0 %  blocked by checkpoints
  other              24 ms     0.7 %  rayio's own overhead

  time of one    count       mean        p50        p90        p99        max
  step_time         22     100 ms     100 ms     100 ms     100 ms     100 ms
  data_wait         22       4 ms       4 ms       4 ms       4 ms       4 ms
  compute           22      95 ms      95 ms      95 ms      95 ms      95 ms

  all 168 samples delivered exactly once (24 MiB)
  drop_last dropped 5 samples per epoch: they fill no whole batch on every rank
  train.steps left 14 samples per epoch unread

  run directory  runs/try1
"""
    )


def test_a_full_summary_fits_on_one_screen() -> None:
    trace = Trace()
    step = [("data_wait", 4 * MS), ("compute", 95 * MS), ("sync", 2 * MS), ("checkpoint", MS), ("gap", MS)]
    trace.rank(0, [("startup", MS), *step * 12])
    for name in ("read", "decode", "write"):
        trace.add("reader", name, 300 * MS, 305 * MS, rank=0)
    found = measure(RunArrays.of_spans(trace.spans), RunShape(1, 1, 1, 1, 12))
    text = summary(replace(found, ledger=LEDGER, dropped_samples_per_epoch=1), run=Path("r"))
    assert len(text.splitlines()) <= 40
    shares = {"AU": 95, "data loading": 4, "sync": 2}  # ms of steps of 103 ms
    assert all(re.search(rf"(?m)^  {name} +{100 * of / 103:.1f} %  ", text) for name, of in shares.items())
    assert "of 1 rank," in text
    assert all(name in text for name in ("read  ", "decode  ", "write  ", "checkpoint  "))


def test_an_uneven_ledger_is_shouted_with_its_first_differences() -> None:
    differences = tuple(f"rank {n}: lost" for n in range(9))
    uneven = replace(LEDGER, even=False, delivered_samples=161, differences=differences)
    text = summary(replace(a_result(), ledger=uneven))
    assert "NOT ALL SAMPLES DELIVERED EXACTLY ONCE: 161 of 168" in text
    assert "rank 2: lost" in text
    assert "rank 3: lost" not in text


def test_a_run_that_broke_off_before_any_span_has_a_summary() -> None:
    text = summary(measure(RunArrays.of_spans(Trace().spans), RunShape(2, 7, 1, 1, 12)))
    assert "AU              not measured" in text
    assert "note: 2 of 2 ranks recorded nothing" in text
    assert "as DLIO" not in text


def test_an_empty_result_has_a_summary() -> None:
    assert summary(result()).startswith("run on the unknown engine: 0 steps")


def test_time_lost_to_failures_is_shown_when_there_is_some() -> None:
    whole = a_result()
    assert "lost to failures" not in summary(whole)
    lost = replace(whole, time=replace(whole.time, restart=3.0), share=replace(whole.share, restart=0.4))
    assert "lost to failures" in summary(lost)


def test_conditions_that_hold_say_nothing() -> None:
    expect = {"au": Condition(">=", 0.95), "percentiles.data_wait.p99": Condition("<", 0.005)}
    assert check_expectations(expect, a_result()) == []


@pytest.mark.parametrize(
    ("name", "condition", "message"),
    [
        ("au", Condition(">=", 0.96), "au 0.95 is not >= 0.96"),
        ("time.compute", Condition("<", 2.28), "time.compute 2.28 is not < 2.28"),
        ("percentiles.read.p50", Condition("<", 1.0), "percentiles.read.p50 is not known, so it is not < 1"),
    ],
)
def test_a_condition_that_does_not_hold_is_one_line(name: str, condition: Condition, message: str) -> None:
    assert check_expectations({name: condition}, a_result()) == [message]


def test_a_near_miss_is_written_with_enough_digits_to_show_it() -> None:
    assert check_expectations({"au": Condition(">=", 0.9)}, result(au=0.89996)) == ["au 0.89996 is not >= 0.9"]


def test_an_evaluation_has_a_line_of_its_own_and_a_part_of_the_time() -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 0), ("compute", 90 * MS), ("evaluate", 10 * MS)] * 12)
    trace.add("rank", "eval_compute", 0, 84 * MS, 1, rank=0, epoch=1, step=0)
    text = summary(measure(RunArrays.of_spans(trace.spans), RunShape(1, 1, 1, 1, 12)))
    assert "evaluation            70.0 %  AU of evaluation, min 70.0 %, max 70.0 % over ranks; 12 of 10 ms each" in text
    assert "  evaluate          120 ms    10.0 %  evaluating\n" in text
    assert "evaluat" not in summary(a_result())


def test_a_run_without_a_measured_step_says_so_once_and_lists_nothing_unknown(tmp_path: Path) -> None:
    run = rayio.simulate("unet3d-small", {"train.epochs": 1, "train.steps": 1}, out=tmp_path / "run")
    assert run.au is None
    assert [line for line in run.summary().splitlines() if line.startswith("  AU ")] == [
        "  AU              not measured  no step after the warm-up was completed by every rank"
    ]
    assert "unknown" not in run.summary()
    assert "no step measured" in repr(run)
    words = " ".join(Page(Path(report(run.path)).read_text()).words.split())
    assert "AU not measured" in words
    assert not re.findall(r"(?:AU|throughput|read|overhead|sync) unknown", words)
