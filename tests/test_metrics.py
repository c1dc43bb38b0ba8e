from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from handmade import Trace, measure
from hypothesis import given
from hypothesis import strategies as st

from rayio.analyze.arrays import RunArrays
from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import timeline
from rayio.records.draining import Draining
from rayio.records.hosts import Fetched
from rayio.records.metric_names import HEADLINE, METRICS, SPLIT, lookup
from rayio.records.run_result import RunResult
from rayio.records.transfers import Transfers
from rayio.scenario.load import load
from rayio.scenario.meetings import Meetings
from scenarios import scenario

#: Virtual times begin small, wall times at the Unix epoch: both must be exact.
#: Phases of a step in which the hand-made ranks spend time.
PHASES = ("data_wait", "compute", "sync", "checkpoint", "evaluate")
UNIX = 1_754_000_000_000_000_000


def two_ranks(origin: int = 0) -> pa.Table:
    trace = Trace(origin)
    trace.rank(0, [
        ("startup", 100),
        ("data_wait", 40), ("compute", 50), ("sync", 10),  # to 200
        ("data_wait", 10), ("compute", 50), ("sync", 5), ("gap", 5),  # to 270
        ("data_wait", 0), ("compute", 50), ("sync", 10), ("checkpoint", 70), ("gap", 10),  # to 410
    ])  # fmt: skip
    trace.rank(1, [
        ("startup", 120),
        ("data_wait", 30), ("compute", 50),  # to 200
        ("data_wait", 5), ("compute", 60), ("gap", 5),  # to 270
        ("data_wait", 10), ("compute", 50), ("gap", 5),  # to 335
    ])  # fmt: skip
    for end, rank, step, nbytes in (
        (199, 0, 1, 1 << 20),
        (200, 0, 0, 1 << 30),
        (334, 1, 2, 2 << 20),
        (335, 1, 0, 1 << 30),
    ):
        trace.add("reader", "read", end - 7, end, rank=rank, epoch=0, step=step, nbytes=nbytes)
    trace.add("checkpoint_writer", "write", 331, 399, rank=0, nbytes=1 << 20)
    return trace.spans


SHAPE = RunShape(world_size=2, batch_size=4, warmup_steps=1, epochs=1, steps_per_epoch=3)


@pytest.mark.parametrize("origin", [0, UNIX])
def test_the_window_runs_from_the_last_rank_warm_to_the_end_of_the_last_pause(origin: int) -> None:
    result = measure(RunArrays.of_spans(two_ranks(origin)), SHAPE)
    assert result["window_seconds"] == (410 - 200) / 1e9
    assert (result["window_steps"], result["window_epochs"]) == (2, 1)
    assert any("only 2 whole steps per rank in the window" in note for note in result["notes"])


@pytest.mark.parametrize("origin", [0, UNIX])
def test_au_is_requested_compute_over_step_time_of_whole_steps_in_the_window(origin: int) -> None:
    result = measure(RunArrays.of_spans(two_ranks(origin)), SHAPE)
    by_rank = [100 / 210, 110 / 210]  # rank 1 waits for rank 0's checkpoint
    assert [rank["au"] for rank in result["ranks"]] == by_rank
    assert (result["au"], result["au_min"], result["au_max"]) == (sum(by_rank) / 2, *by_rank)


@pytest.mark.parametrize("origin", [0, UNIX])
def test_rates_count_what_arrived_in_the_window_and_what_was_read_for_it_whenever_that_was(origin: int) -> None:
    result = measure(RunArrays.of_spans(two_ranks(origin)), SHAPE)
    assert result["samples_per_second"] == 4 * 4 / (210 / 1e9)
    assert result["mib_per_second"] == 3 / (210 / 1e9)


@pytest.mark.parametrize("origin", [0, UNIX])
def test_each_ranks_life_is_split_to_the_nanosecond(origin: int) -> None:
    lives, _ = timeline(two_ranks(origin))
    assert {name: lives.split[name].tolist() for name in SPLIT if name != "ended"} == {
        "startup": [100, 120],
        "restore": [0, 0],
        "gap": [0, 0],
        "data_wait": [50, 45],
        "device_copy": [0, 0],
        "bubble": [0, 0],
        "drain_wait": [0, 0],
        "compute": [150, 160],
        "sync": [25, 0],
        "checkpoint": [70, 0],
        "evaluate": [0, 0],
        "restart": [0, 0],
        "other": [15, 10],
    }
    assert (lives.end - lives.begin).tolist() == [410, 335]
    assert (lives.wall, lives.whole["ended"].tolist()) == (410, [0, 75])
    result = measure(RunArrays.of_spans(two_ranks(origin)), SHAPE)
    assert result["time"]["data_wait"] == 95 / 1e9
    assert result["share"]["compute"] == 310 / 820
    assert result["ranks"][0]["checkpoint"] == 70 / 1e9
    assert result["wall_seconds"] == 410 / 1e9


def test_what_is_lost_in_the_window_is_split_rank_by_rank_so_that_it_sums_to_one_with_au() -> None:
    result = measure(RunArrays.of_spans(two_ranks()), SHAPE)
    shares = [result[f"{name}_share"] for name in ("data_wait", "sync", "checkpoint", "evaluate", "other")]
    data_wait, sync, checkpoint, other = (10 + 15) / 420, (15 + 75) / 420, 70 / 420, (15 + 10) / 420
    assert shares == pytest.approx([data_wait, sync, checkpoint, 0, other], rel=1e-12)
    assert sum(shares) + result["au"] == pytest.approx(1, abs=1e-12)


def test_goodput_is_compute_over_the_wall_time_of_the_planned_ranks() -> None:
    assert measure(RunArrays.of_spans(two_ranks()), SHAPE)["goodput"] == 310 / (410 * 2)


def test_start_up_skew_is_between_the_first_and_the_last_first_ask() -> None:
    assert measure(RunArrays.of_spans(two_ranks()), SHAPE)["startup_skew_seconds"] == 20 / 1e9


def test_percentiles_are_times_that_occurred() -> None:
    trace = Trace()
    story = [("startup", 1), *(p for n in range(1, 102) for p in (("data_wait", n), ("compute", 1000)))]
    trace.rank(0, story)
    # 101 waits of 1..101 ns, the first of them before the window.
    row = measure(RunArrays.of_spans(trace.spans), RunShape(1, 1, 1, 1, 101))["percentiles"]["data_wait"]
    assert row == {
        "count": 100,
        "mean": 51.5 / 1e9,
        "p50": 51 / 1e9,
        "p90": 91 / 1e9,
        "p99": 100 / 1e9,
        "max": 101 / 1e9,
    }


def test_percentiles_of_reads_are_of_the_window_and_those_of_checkpoints_of_the_run() -> None:
    table = measure(RunArrays.of_spans(two_ranks()), SHAPE)["percentiles"]
    assert (table["read"]["count"], table["read"]["max"]) == (3, 7 / 1e9)
    assert (table["checkpoint"]["count"], table["checkpoint"]["max"]) == (1, 70 / 1e9)
    assert (table["write"]["count"], table["write"]["p50"]) == (1, 68 / 1e9)
    assert table["step_time"]["count"] == 4
    assert table["decode"] is None


def test_without_warm_up_the_window_begins_when_the_last_rank_asks() -> None:
    result = measure(RunArrays.of_spans(two_ranks()), RunShape(2, 4, 0, 1, 3))
    assert result["window_seconds"] == (410 - 120) / 1e9


def test_a_rank_that_reads_by_itself_does_so_inside_its_wait() -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 30), ("compute", 70)] * 12)
    for step in range(12):
        trace.add("rank", "read", 100 * step, 100 * step + 20, 1, rank=0, epoch=0, step=step, nbytes=1 << 20)
    result = measure(RunArrays.of_spans(trace.spans), RunShape(1, 1, 1, 1, 12))
    assert (result["au"], result["data_wait_share"], result["other_share"]) == (0.7, 0.3, 0)
    assert result["percentiles"]["read"]["count"] == 11
    assert result["mib_per_second"] == 11 / (1100 / 1e9)
    assert result["notes"] == []


@pytest.mark.parametrize(("steps", "notes"), [(9, 1), (10, 0)])
def test_fewer_than_ten_measured_steps_are_said(steps: int, notes: int) -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 10), ("compute", 90)] * (1 + steps))
    result = measure(RunArrays.of_spans(trace.spans), RunShape(1, 1, 1, 1, 1 + steps))
    assert result["window_steps"] == steps
    assert len(result["notes"]) == notes


def test_overshoot_is_our_own_time() -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 10), ("compute", 80), ("overshoot", 10)] * 12)
    result = measure(RunArrays.of_spans(trace.spans), RunShape(1, 1, 1, 1, 12))
    assert (result["au"], result["other_share"]) == (0.8, 0.1)
    assert result["time"]["other"] == 120 / 1e9


def restarted() -> pa.Table:
    trace = Trace()
    trace.rank(
        0,
        [("startup", 10), ("data_wait", 10), ("compute", 10), ("data_wait", 10), ("compute", 10), ("data_wait", 5)],
        life=False,  # killed at 55
    )
    again = [("startup", 10), ("data_wait", 10), ("compute", 10), ("data_wait", 10), ("compute", 10)]
    trace.rank(0, again, begin=100, attempt=1, step=1)  # from the checkpoint after the first step
    return trace.spans


def test_what_a_failure_cost_is_restart_and_each_step_counts_once() -> None:
    lives, steps = timeline(restarted())
    assert {name: int(ns[0]) for name, ns in lives.split.items()} == {
        "startup": 10,
        "restore": 0,
        "gap": 0,
        "data_wait": 30,
        "device_copy": 0,
        "bubble": 0,
        "drain_wait": 0,
        "compute": 30,
        "sync": 0,
        "checkpoint": 0,
        "evaluate": 0,
        "restart": 20 + 5 + 45 + 10,
        "other": 0,
    }
    assert list(zip(steps.step.tolist(), steps.attempt.tolist(), strict=True)) == [(0, 0), (1, 1), (2, 1)]
    assert (steps.start.tolist(), steps.end.tolist()) == ([10, 110, 130], [30, 130, 150])
    result = measure(RunArrays.of_spans(restarted()), RunShape(1, 1, 1, 1, 3))
    assert result["goodput"] == 30 / 150
    assert result["au"] == 0.5


def test_a_run_without_spans_has_no_numbers_and_says_why() -> None:
    result = measure(RunArrays.of_spans(two_ranks().slice(0, 0)), SHAPE)
    assert {lookup(result, name) for name in HEADLINE if name not in ("wall_seconds", "steps")} == {None}
    assert (result["wall_seconds"], result["steps"], result["ranks"]) == (0, 0, [])
    assert result["notes"][0] == "2 of 2 ranks recorded nothing"


def test_a_run_of_only_warm_up_has_no_window() -> None:
    trace = Trace()
    trace.rank(0, [("startup", 5), ("data_wait", 5), ("compute", 5)])
    result = measure(RunArrays.of_spans(trace.spans), RunShape(1, 1, 1, 1, 1))
    assert (result["au"], result["samples_per_second"], result["window_steps"]) == (None, None, None)
    assert result["time"]["compute"] == 5 / 1e9
    assert "no window: a rank has no step after its 1 warm-up steps" in result["notes"]


def test_a_window_that_ends_before_it_begins_is_none() -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 1), ("compute", 1)] * 2)
    trace.rank(1, [("data_wait", 1), ("compute", 1)] * 2, begin=1_000)
    result = measure(RunArrays.of_spans(trace.spans), RunShape(2, 1, 1, 1, 2))
    assert (result["au"], result["window_seconds"]) == (None, None)
    assert "no window: a rank was done before another was warm" in result["notes"]


def test_a_run_that_broke_off_keeps_the_numbers_it_has() -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 10), ("compute", 90)] * 3 + [("data_wait", 40)], life=False)
    trace.rank(1, [("data_wait", 20), ("compute", 80)] * 4, life=False)
    result = measure(RunArrays.of_spans(trace.spans), RunShape(2, 1, 1, 1, 10))
    assert (result["steps"], result["au"]) == (7, pytest.approx((0.9 + 0.8) / 2))
    assert result["ranks"][0]["data_wait"] == 70 / 1e9
    assert result["notes"][0] == "2 of 2 ranks did not finish their 10 steps: the run broke off"
    assert result["au_dlio"] is None


def test_a_rank_that_recorded_nothing_is_said_and_the_rest_is_split() -> None:
    trace = Trace()
    trace.rank(1, [("data_wait", 10), ("compute", 90)] * 3)
    result = measure(RunArrays.of_spans(trace.spans), RunShape(3, 1, 1, 1, 3))
    assert result["notes"][0] == "2 of 3 ranks recorded nothing"
    assert (result["au"], result["time"]["compute"]) == (None, 270 / 1e9)
    assert result["goodput"] == 270 / (300 * 3)


def test_of_many_ranks_the_first_are_listed() -> None:
    trace = Trace()
    for rank in range(70):
        trace.rank(rank, [("data_wait", 10), ("compute", 90)] * 11)
    result = measure(RunArrays.of_spans(trace.spans), RunShape(70, 1, 1, 1, 11))
    assert [rank["rank"] for rank in result["ranks"]] == list(range(64))
    assert result["notes"] == ["64 of 70 ranks are listed one by one in result.json"]
    assert result["au"] == pytest.approx(0.9)


def test_every_metric_that_may_be_expected_has_a_number_in_a_full_result() -> None:
    trace = Trace()
    step = [("data_wait", 10), ("compute", 80), ("sync", 5), ("checkpoint", 5), ("evaluate", 10)]
    trace.rank(0, [("startup", 10), *step * 12])
    for name in ("eval_data_wait", "eval_compute"):
        trace.add("rank", name, 110, 115, 1, rank=0, epoch=1, step=0)
    for name in ("read", "decode", "write", "fsync"):
        trace.add("reader", name, 300, 305, rank=0)
    measured = measure(RunArrays.of_spans(trace.spans), RunShape(1, 1, 1, 1, 12))
    # Blocks of one step: DLIO's formula has nothing to say. Spans know neither the device nor what costs charge.
    fetched = Fetched(
        delivered_bytes=8, read_bytes=10, fetched_bytes=2, page_cache_share=0.8, source="device", how="counted",
        page_cache="drop", unevicted_bytes=0,
    )  # fmt: skip
    moved = Transfers(
        checkpoints=1, files=1, bytes=8, seconds=1.0, mib_per_second=1.0, slowest_rank=1.0,
        mean_rank=1.0, fastest_rank=1.0,
    )  # fmt: skip
    drained = Draining(
        checkpoints=1, files=1, bytes=8, mean_seconds=1.0, mean_lag=1.0, longest_lag=1.0, most_bytes=8, end_seconds=0.0
    )
    result = replace(
        measured, au_dlio=0.0, au_dlio_stdev=0.0, loader_share=0.0, fetched=fetched, saved=moved, restored=moved,
        drained=drained, device_copy_share=0.0, bubble_share=0.0, drain_wait_share=0.0,
    )  # fmt: skip
    assert [name for name in METRICS if lookup(result, name) is None] == []
    assert RunResult.of_json(json.loads(json.dumps(result.as_json(), allow_nan=False))) == result


def test_the_shape_follows_from_the_scenario(tmp_path: Any) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: s\ncluster: {nodes: 2, ranks_per_node: 2}\nloader: {batch_size: 3}\n"
        "dataset: {path: d, num_files: 64, sample_bytes: 1 KiB}\ntrain: {epochs: 5, compute: 1 ms, warmup_steps: 2}\n"
    )
    assert RunShape.of(load(path)) == RunShape(
        4, 3, 2, 5, 5, prefetched=8, workers=4, meetings=Meetings(ranks=4, epochs=5, steps=5)
    )


def test_without_drop_last_the_shape_says_what_every_rank_has() -> None:
    wanted = scenario(dataset__num_files=25, loader__batch_size=4, loader__drop_last=False, train__epochs=3)
    shape = RunShape.of(wanted)
    assert (shape.steps_of, shape.samples_of, shape.steps_per_epoch) == ((3, 4), (12, 13), 4)
    ranks, steps = np.array([0, 0, 1, 1]), np.array([0, 2, 2, 3])
    assert shape.samples(ranks, steps).tolist() == [4, 4, 4, 1]
    assert shape.steps(np.array([1, 0])).tolist() == [4, 3]


def test_a_smaller_last_batch_counts_as_the_samples_that_it_holds() -> None:
    trace = Trace()
    story = [("data_wait", 0), ("compute", 1_000_000_000)]
    trace.rank(0, story * 6, per_epoch=3)
    trace.rank(1, story * 8, per_epoch=4)
    shape = RunShape(2, 4, 0, 2, 4, steps_of=(3, 4), samples_of=(11, 13))
    result = measure(RunArrays.of_spans(trace.spans), shape)
    # eight seconds: two epochs of rank 0 are 22 samples, those of rank 1 26
    assert result["samples_per_second"] == pytest.approx((22 + 26) / 8)
    assert not any("broke off" in note for note in result["notes"])
    # DLIO counts batches: per rank and epoch (n - 2) / (n - 1) seconds of 4 samples
    assert result["samples_per_second_dlio"] == pytest.approx(4 * (1 / 2 + 2 / 3))
    assert result["au_dlio"] == pytest.approx(100)
    left_off = measure(RunArrays.of_spans(_cut(story)), shape)
    assert any("1 of 2 ranks did not finish their 8 steps" in note for note in left_off["notes"])


def _cut(story: list[tuple[str, int]]) -> Any:
    trace = Trace()
    trace.rank(0, story * 6, per_epoch=3)
    trace.rank(1, story * 7, per_epoch=4)
    return trace.spans


@pytest.mark.parametrize("seed", range(5))
def test_steps_that_take_no_time_are_steps(seed: int) -> None:
    trace = Trace()
    trace.rank(0, [("startup", 0), *[("data_wait", 0), ("compute", 0), ("sync", 0)] * 6], per_epoch=3)
    spans = trace.spans
    _, steps = timeline(spans.take(np.random.default_rng(seed).permutation(spans.num_rows)))
    assert list(zip(steps.epoch.tolist(), steps.step.tolist(), strict=True)) == [
        (epoch, step) for epoch in range(2) for step in range(3)
    ]


length = st.integers(0, 40)
a_step = st.tuples(length, length, length, length, length, length)
a_rank = st.tuples(length, length, st.lists(a_step, max_size=6))


@given(ranks=st.lists(a_rank, min_size=1, max_size=4), origin=st.sampled_from([0, UNIX]), seed=st.integers(0, 99))
def test_every_nanosecond_of_every_life_is_accounted_for(
    ranks: list[tuple[int, int, list[tuple[int, ...]]]], origin: int, seed: int
) -> None:
    trace = Trace(origin)
    phases = (*PHASES, "gap")
    for number, (begin, startup, steps) in enumerate(ranks):
        story = [("startup", startup), *(pair for step in steps for pair in zip(phases, step, strict=True))]
        trace.rank(number, story, begin=begin, per_epoch=2)
    spans = trace.spans
    shuffled = spans.take(np.random.default_rng(seed).permutation(spans.num_rows))
    lives, got = timeline(shuffled)

    assert lives.split["startup"].tolist() == [startup for _, startup, _ in ranks]
    for place, name in enumerate((*PHASES, "other")):
        assert lives.split[name].tolist() == [sum(step[place] for step in steps) for _, _, steps in ranks]
    assert np.sum([*lives.split.values()], axis=0).tolist() == (lives.end - lives.begin).tolist()
    assert np.sum([lives.whole[name] for name in SPLIT], axis=0).tolist() == [lives.wall] * len(ranks)
    assert got.duration.tolist() == [sum(step) for _, _, steps in ranks for step in steps]
    assert_one_denominator(shuffled, len(ranks))
    assert got.parts["compute"].tolist() == [step[1] for _, _, steps in ranks for step in steps]
    assert (got.arrived - got.start).tolist() == [step[0] for _, _, steps in ranks for step in steps]


def assert_one_denominator(spans: pa.Table, ranks: int) -> None:
    """The parts of the ranks' time sum to the run's length for each rank, and every share is of that time."""
    run = RunArrays.of_spans(spans)
    result = measure(run, RunShape(ranks, 1, 0, 1, 6))
    wall = result.wall_seconds
    for rank in result.ranks:
        assert sum(rank[name] for name in SPLIT) == pytest.approx(wall, abs=1e-15)
        assert rank.wall == pytest.approx((wall or 0.0) - (rank.ended or 0.0), abs=1e-15)
    if wall:
        assert sum(result.time.values()) == pytest.approx(ranks * wall)
        assert dict(result.share) == pytest.approx({name: time / ranks / wall for name, time in result.time.items()})
        assert result.goodput == pytest.approx(result.share.compute)


@given(ranks=st.lists(a_rank, min_size=1, max_size=4), warmup=st.integers(0, 2))
def test_au_and_window_are_those_of_a_plain_loop(
    ranks: list[tuple[int, int, list[tuple[int, ...]]]], warmup: int
) -> None:
    trace, plain = Trace(), []
    for number, (begin, startup, steps) in enumerate(ranks):
        story = [("startup", startup), *(p for s in steps for p in zip((*PHASES, "gap"), s, strict=True))]
        trace.rank(number, story, begin=begin)
        now, rows = begin + startup, []
        for index, step in enumerate(steps):
            rows.append((now, now + sum(step), step[1], now + step[0] + step[1], index))
            now += sum(step)
        plain.append(rows)
    most = max(len(s) for _, _, s in ranks)
    result = measure(RunArrays.of_spans(trace.spans), RunShape(len(ranks), 1, warmup, 1, most))
    if any(len(rows) <= warmup for rows in plain):
        assert result["window_seconds"] is None
        return
    is_whole = all(len(rows) == most for rows in plain)
    shared = min(len(rows) for rows in plain) - 1
    warm = max(rows[warmup - 1][3] if warmup else rows[0][0] for rows in plain)
    if warm >= min(rows[-1][1] for rows in plain):
        assert result["window_seconds"] is None
        return
    counted = [row for rows in plain for row in rows[warmup : shared + 1] if row[0] >= warm]
    if not counted:
        assert result["window_seconds"] is None
        return
    begin, end = min(row[0] for row in counted), max(row[1] for row in counted)
    assert result["window_seconds"] == (end - begin) / 1e9
    if is_whole:  # a rank that is done waits for the others
        plain = [[*rows[:-1], (rows[-1][0], end, *rows[-1][2:])] for rows in plain]
    inside = [[row for row in rows if row[0] >= begin and row[1] <= end] for rows in plain]
    assert result["window_steps"] == min(len(rows) for rows in inside)
    au = [sum(r[2] for r in rows) / sum(r[1] - r[0] for r in rows) for rows in inside if any(r[1] > r[0] for r in rows)]
    assert result["au"] == (pytest.approx(sum(au) / len(au)) if len(au) == len(ranks) else None)


@pytest.mark.parametrize(("first", "others", "said"), [(60, 1, True), (6, 6, False), (1, 0, False)])
def test_waiting_at_the_first_step_of_epochs_is_pointed_out(first: int, others: int, said: bool) -> None:
    trace = Trace()
    epoch = [("data_wait", first), ("compute", 100), *[("data_wait", others), ("compute", 100)] * 9]
    trace.rank(0, epoch * 3, per_epoch=10)
    notes = measure(RunArrays.of_spans(trace.spans), RunShape(1, 1, 1, 3, 10))["notes"]
    assert any("at the first step of an epoch" in note for note in notes) == said
