"""What the figures of a report show, on spans made by hand with exact answers, and against result.json."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import Trace
from hypothesis import given
from hypothesis import strategies as st

from rayio.analyze.arrays import RunArrays
from rayio.analyze.metrics import measure
from rayio.analyze.passes import summed
from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import PHASES, Lives, Steps, timeline
from rayio.analyze.window import find_window
from rayio.place import batch_id
from rayio.report import axes, figures, tracks
from rayio.report.bins import Bins
from rayio.report.build import report
from rayio.session.execute import run
from rayio.trace.slices import Slices
from scenarios import scenario, simulated

#: Two ranks, three steps each; rank 1 computes twice as long, and rank 0 waits for it.
STORY = [("startup", 100), *[("data_wait", 50), ("compute", 100), ("sync", 150)] * 3]
SLOW = [("startup", 100), *[("data_wait", 100), ("compute", 200)] * 3]


def shape(ranks: int = 2, steps: int = 3) -> RunShape:
    return RunShape(world_size=ranks, batch_size=4, warmup_steps=1, epochs=1, steps_per_epoch=steps)


def traced(*stories: list[tuple[str, int]]) -> tuple[Any, Lives, Steps]:
    trace = Trace(origin=5000)
    for rank, story in enumerate(stories):
        trace.rank(rank, story)
    spans = trace.spans.unify_dictionaries()
    return spans, *timeline(spans)


def test_bins_cover_a_stretch_with_whole_nanoseconds() -> None:
    assert Bins.over(10, 110, 4) == Bins(10, 25, 4)
    assert Bins.over(0, 10, 3) == Bins(0, 4, 3)
    assert Bins.over(7, 7, 5) == Bins(7, 1, 1)


def test_an_interval_is_cut_at_the_edges_of_bins() -> None:
    row, start, end = np.array([0, 0, 1]), np.array([5, 8, 0]), np.array([25, 12, 40])
    covered = Bins(0, 10, 4).covered(row, 2, start, end)
    assert covered.tolist() == [[5 + 2, 10 + 2, 5, 0], [10, 10, 10, 10]]


def test_what_lies_outside_of_the_bins_is_left_out() -> None:
    covered = Bins(100, 10, 2).covered(np.zeros(3, int), 1, np.array([0, 115, 300]), np.array([105, 500, 400]))
    assert covered.tolist() == [[5, 5]]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1000), st.integers(0, 1000))),
    st.integers(1, 40),
)
def test_what_bins_cover_sums_to_the_intervals(intervals: list[tuple[int, int, int]], most: int) -> None:
    row, start, length = (np.array([each[n] for each in intervals], np.int64) for n in range(3))
    bins = Bins.over(0, 2000, most)
    covered = bins.covered(row, 3, start, start + length)
    assert (covered >= 0).all()
    assert covered.sum(axis=1).tolist() == [int(length[row == one].sum()) for one in range(3)]
    assert (covered <= bins.width * np.bincount(row, minlength=3)[:, None]).all()


def test_the_split_over_time_is_exact() -> None:
    spans, lives, steps = traced(STORY, SLOW)
    found = summed(spans, figures.Split(lives, steps, shape(), Bins(5000, 250, 4))).result()
    assert found.alive.tolist() == [500, 500, 500, 500]
    assert found.split["startup"].tolist() == [200, 0, 0, 0]
    assert found.split["data_wait"].tolist() == [50 + 100, 50 + 100, 50 + 50, 50]
    assert found.split["compute"].tolist() == [100 + 50, 50 + 150, 100 + 150, 50 + 200 + 50]
    assert found.split["other"].tolist() == [0, 0, 0, 0]
    assert found.au.tolist() == [0.3, 0.4, 0.5, 0.6]
    # A step lasts 300 ns and has 4 samples; the first bin has half of both first ones.
    assert found.samples.tolist() == pytest.approx([4, 20 / 3, 20 / 3, 20 / 3])
    assert found.samples.sum() == pytest.approx(24)


@pytest.mark.parametrize("overrides", [{}, {"loader__num_workers": 0}, {"train__sync": "none"}], ids=str)
def test_figures_sum_to_the_numbers_of_the_result(overrides: dict[str, Any]) -> None:
    outcome = simulated(**overrides)
    wanted = RunShape.of(outcome.scenario)
    spans = outcome.spans.unify_dictionaries()
    lives, steps = timeline(spans)
    result = measure(RunArrays.of_spans(spans), wanted)
    found = summed(spans, figures.Split(lives, steps, wanted, figures.time_bins(lives, steps))).result()
    for name in (*PHASES, "other"):
        assert int(found.split[name].sum()) / 1e9 == pytest.approx(result["time"][name], abs=1e-12)
    assert found.alive.sum() == (lives.end - lives.begin).sum()
    assert found.samples.sum() == pytest.approx(result["steps"] * wanted.batch_size)
    window = find_window(lives, steps, wanted)[0]
    distribution = figures.histogram(figures.step_times(steps, window, wanted))
    assert distribution is not None
    assert distribution.counts.sum() + distribution.beyond == result["percentiles"]["step_time"]["count"]


def test_failures_are_no_overhead_and_leave_no_batches_in_queues() -> None:
    deaths = {"events": [{"kind": "node", "at": "205 ms"}, {"kind": "rank", "at": "1.5 s"}], "policy": "from_start"}
    wanted = scenario(failures={**deaths, "detect": "300 ms", "restart": "500 ms"}, dataset__num_files=240)
    spans = simulated(wanted).spans.unify_dictionaries()
    lives, steps = timeline(spans)
    bins = figures.time_bins(lives, steps)
    found = summed(spans, figures.Split(lives, steps, RunShape.of(wanted), bins)).result()
    # Two ranks, two deaths of 0.8 s each; what a rank was doing as it died was not recorded: 15 ms at most each time.
    assert int(found.split["restart"].sum()) / 1e9 == pytest.approx(2 * 2 * 0.8, abs=2 * 2 * 0.015)
    assert int(found.split["other"].sum()) == 0
    queues = summed(spans, figures.Depths(Slices.of(spans), lives, bins)).result()
    assert queues is not None
    window = wanted.loader.max_workers * wanted.loader.prefetch_factor
    assert (queues.depth(queues.ready) + queues.depth(queues.reading)).max() <= window


def test_a_batch_is_being_read_then_ready_then_taken() -> None:
    trace = Trace()
    trace.rank(0, [("startup", 10), ("data_wait", 30), ("compute", 100), ("data_wait", 10), ("compute", 50)])
    for step, begin, end in ((0, 10, 35), (1, 20, 100)):
        place = {"rank": 0, "epoch": 0, "step": step}
        writer = trace.recorder.register("queue", "0", 0)
        trace.recorder.add(writer, "lease", begin, end, 1, 0, 0, step)
        assert trace.recorder.batch_id(**place) == batch_id(**place)
    spans = trace.spans.unify_dictionaries()
    found = summed(spans, figures.Depths(Slices.of(spans), timeline(spans)[0], Bins(0, 50, 4))).result()
    assert found is not None
    assert found.queues == 1
    assert found.reading.tolist() == [25 + 30, 50, 0, 0]
    assert found.ready.tolist() == [5, 0, 50, 0]  # step 0 waits 5 ns for its rank, step 1 from 100 to 150
    assert found.depth(found.reading).tolist() == [1.1, 1.0, 0.0, 0.0]


def test_a_batch_that_nobody_took_stays_ready_to_the_end() -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 10), ("compute", 90)])
    trace.recorder.add(trace.recorder.register("queue", "0", 0), "lease", 0, 40, 1, 0, 0, 7)
    spans = trace.spans.unify_dictionaries()
    found = summed(spans, figures.Depths(Slices.of(spans), timeline(spans)[0], Bins(0, 50, 2))).result()
    assert found is not None
    assert found.ready.tolist() == [10, 50]


def test_there_is_no_queue_without_leases() -> None:
    spans, lives, _ = traced(STORY)
    assert summed(spans, figures.Depths(Slices.of(spans), lives, Bins(0, 1, 1))).result() is None


def test_a_straggler_stands_out_in_its_row() -> None:
    _, lives, steps = traced(STORY, STORY, SLOW)
    found = figures.heat_map(lives, steps, Bins(5100, 300, 3))
    assert found is not None
    assert found.ranks == [(0, 0), (1, 1), (2, 2)]
    # Own time of a step: 150 of the quick ones, 300 of the slow one; the median is 150.
    assert np.allclose(found.pace, [[1, 1, 1], [1, 1, 1], [2, 2, 2]])
    assert np.allclose(found.sync, [[0.5], [0.5], [0.0]])
    assert np.allclose(found.data_wait, [[1 / 6], [1 / 6], [1 / 3]])


def test_rows_that_ranks_share_show_the_highest_of_them() -> None:
    _, lives, steps = traced(STORY, SLOW, STORY)
    found = figures.heat_map(lives, steps, Bins(5100, 300, 3), rows=2)
    assert found is not None
    assert found.ranks == [(0, 1), (2, 2)]
    assert np.allclose(found.pace, [[2, 2, 2], [1, 1, 1]])


def test_a_bin_without_a_step_of_a_rank_is_empty() -> None:
    _, lives, steps = traced(STORY, SLOW[:-4])
    found = figures.heat_map(lives, steps, Bins(5100, 300, 3))
    assert found is not None
    assert np.isnan(found.pace[1]).tolist() == [False, True, True]
    assert found.pace[0, 1:].tolist() == [1, 1]


def test_of_two_ranks_the_quicker_one_is_the_measure() -> None:
    _, lives, steps = traced(STORY, SLOW)
    found = figures.heat_map(lives, steps, Bins(5100, 300, 3))
    assert found is not None
    assert np.allclose(found.pace, [[1], [2]])


def test_one_rank_is_compared_with_nobody() -> None:
    _, lives, steps = traced(STORY)
    assert figures.heat_map(lives, steps, Bins(5000, 250, 4)) is None


@pytest.mark.parametrize(
    ("durations", "is_log"), [([100, 110, 120], False), ([100, 900], True), ([100], False), ([0, 0], False)]
)
def test_a_histogram_counts_everything(durations: list[int], is_log: bool) -> None:
    found = figures.histogram(np.array(durations))
    assert found is not None
    assert found.counts.sum() == len(durations)
    assert found.is_log == is_log
    assert (np.diff(found.edges) > 0).all()
    assert len(found.edges) == len(found.counts) + 1
    assert found.beyond == 0


def test_a_few_very_long_times_do_not_squeeze_the_others() -> None:
    found = figures.histogram(np.array([*range(1000, 1100), 50_000]))
    assert found is not None
    assert found.beyond == 1
    assert found.counts.sum() == 100
    assert (found.counts > 0).sum() > 10


def test_there_is_no_histogram_of_nothing() -> None:
    assert figures.histogram(np.array([], np.int64)) is None


def unpacked(level: dict[str, Any]) -> list[list[tuple[int, int, int]]]:
    """Give the slices of each track as (start, end, kind), as the page's script works them out."""
    rows = []
    for packed in level["rows"]:
        now, row = 0, []
        for gap, length, kind, _, _ in zip(*(iter(packed),) * 5, strict=True):
            row.append((now + gap, now + gap + length, kind))
            now += gap + length
        rows.append(row)
    return rows


def test_a_short_run_is_on_the_timeline_whole() -> None:
    trace = Trace(origin=1_000_000)
    trace.rank(0, [(name, 1000 * length) for name, length in STORY])
    spans = trace.spans.unify_dictionaries()
    found = summed(spans, tracks.Drawn(*timeline(spans))).result()
    assert found is not None
    data = tracks.packed(found)
    assert data["tracks"] == ["rank 0"]
    assert not data["coarse"]
    (level,) = data["levels"]
    (row,) = unpacked(level)
    assert row[:3] == [(0, 100, data["kinds"].index("startup")), (100, 150, data["kinds"].index("data_wait")),
                       (150, 250, data["kinds"].index("compute"))]  # fmt: skip
    assert row[-1][1] == level["to"] == 1000
    assert all(before[1] <= after[0] for before, after in pairwise(row))


def test_a_long_run_is_coarse_with_exact_windows() -> None:
    spans, lives, steps = traced(*[[(name, 1000 * length) for name, length in STORY * 40]] * 2)
    found = summed(spans, tracks.Drawn(lives, steps)).result(most=200)
    assert found is not None
    assert found.is_coarse
    assert len(found.levels) == 1 + len(found.windows)
    assert len(found.levels[0][2].track) <= 2 * tracks.COARSE
    for (_, low, high), (begin, end, slices) in zip(found.windows, found.levels[1:], strict=True):
        assert (begin, end) == (low, high)
        mine = slices.track == 0
        covered = np.minimum(slices.end[mine], high) - np.maximum(slices.start[mine], low)
        assert covered.sum() == high - low  # a rank's spans tile its life


def test_a_coarse_slice_says_what_took_most() -> None:
    spans, lives, steps = traced([("startup", 3000), ("data_wait", 1000), ("compute", 2000), ("gap", 6000)])
    whole = summed(spans, tracks.Drawn(lives, steps)).result(most=0)
    assert whole is not None
    (_, _, slices) = whole.levels[0]
    named = [
        (tracks.KINDS[kind], int(a), int(b)) for kind, a, b in zip(slices.kind, slices.start, slices.end, strict=True)
    ]
    assert named == [("startup", 5000, 8000), ("data_wait", 8000, 9000), ("compute", 9000, 11000)]


def test_a_stretch_that_was_asked_for_comes_first() -> None:
    spans, lives, steps = traced(STORY, SLOW)
    found = summed(spans, tracks.Drawn(lives, steps, (5200, 5600))).result()
    assert found is not None
    assert found.windows[0] == ("as asked for", 5200, 5600)


def test_a_stretch_that_is_too_long_is_cut_and_says_so() -> None:
    spans, lives, steps = traced(*[STORY * 40] * 2)
    found = summed(spans, tracks.Drawn(lives, steps, (5000, 17_000))).result(most=100)
    assert found is not None
    name, low, high = found.windows[0]
    assert name == "as asked for, its beginning"
    assert low == 5000
    assert high < 17_000
    assert len(found.levels[1][2].track) <= 100


def test_what_a_killed_reader_lost_is_on_its_track() -> None:
    trace = Trace()
    trace.rank(0, [(name, 1000 * length) for name, length in STORY])
    for index, begin in (("0-1", 2000), ("7-0", 3000)):  # the second one serves a rank that is not there
        trace.recorder.add(trace.recorder.register("reader", index, 0), "lost", begin, begin + 5000, 1)
    spans = trace.spans.unify_dictionaries()
    found = summed(spans, tracks.Drawn(*timeline(spans))).result()
    assert found is not None
    assert found.names == ["rank 0", "reader 0-1"]
    (_, _, slices) = found.levels[0]
    (lost,) = np.flatnonzero(slices.track == 1)
    assert (slices.start[lost], slices.end[lost]) == (2000, 7000)
    assert tracks.KINDS[slices.kind[lost]] == "lost"


def test_of_many_ranks_the_slowest_have_tracks() -> None:
    stories = [STORY] * 30
    stories[17] = SLOW
    _, lives, steps = traced(*stories)
    ranks = tracks.shown_ranks(lives, steps)
    assert len(ranks) == tracks.MOST_RANKS
    assert 17 in ranks


def test_a_rank_that_reads_itself_has_a_second_track() -> None:
    outcome = simulated(loader__num_workers=0)
    spans = outcome.spans.unify_dictionaries()
    found = summed(spans, tracks.Drawn(*timeline(spans))).result()
    assert found is not None
    assert found.names == ["rank 0", "rank 0 inside", "rank 1", "rank 1 inside"]


def test_tracks_stand_beside_those_they_belong_to() -> None:
    outcome = simulated()
    spans = outcome.spans.unify_dictionaries()
    found = summed(spans, tracks.Drawn(*timeline(spans))).result()
    assert found is not None
    assert found.names == ["rank 0", "reader 0-0", "reader 0-1", "rank 1", "reader 1-0", "reader 1-1"]


@pytest.mark.parametrize("high", [1e-9, 0.003, 1.0, 7.3, 59.0, 1234.5, 1e6, 3e9])
def test_ticks_lie_on_their_axis_and_are_round(high: float) -> None:
    for ticks in (axes.linear(high), axes.time(high), axes.linear(axes.roof(high))):
        assert 2 <= len(ticks) <= 25
        assert all(0 <= at <= 1 + 1e-9 for at, _ in ticks)
        assert len({text for _, text in ticks}) == len(ticks)
    assert axes.roof(high) >= high


@pytest.mark.parametrize("ends", [(25.2, 29.1), (-1.65, 0.1), (12345.1, 12345.3), (0.0991, 0.0994)])
def test_a_tick_lies_where_its_value_does(ends: tuple[float, float]) -> None:
    low, high = axes.around(ends)
    ticks = axes.ranged(low, high)
    assert len({text for _, text in ticks}) == len(ticks) >= 2
    for place, text in ticks:
        assert low + place * (high - low) == pytest.approx(float(text.replace(",", "")), abs=1e-6 * abs(high))


def test_labels_of_time_have_one_unit() -> None:
    assert [text for _, text in axes.time(13.1)] == ["0 s", "2 s", "4 s", "6 s", "8 s", "10 s", "12 s"]
    assert [text for _, text in axes.time(600)][:3] == ["0 min", "2 min", "4 min"]
    assert [text for _, text in axes.logarithmic(0.09, 1.1)] == ["100 ms", "200 ms", "500 ms", "1 s"]


@pytest.mark.filterwarnings("error")
def test_steps_that_take_no_time_have_a_figure(tmp_path: Path) -> None:
    """Most steps take 0 ns: the axis is logarithmic, so it has no 0, and their percentiles stand at its begin."""
    model = {"first_byte": "100 ms", "connection_bandwidth": "1 GB/s", "bandwidth": "9 GB/s"}
    wanted = scenario(train__compute="0 s", loader__batch_size=1, loader__num_workers=8, storage__model=model)
    done = run(wanted, engine="virtual", root=tmp_path, out="run")
    taken = done.result.percentiles.step_time
    assert taken is not None
    assert taken["p50"] == 0 < taken["max"]
    assert "distribution of step times" in report(tmp_path / "run").read_text()


@pytest.mark.parametrize(("epochs", "every"), [(2, {"epochs": 5}), (1, {"steps": 60})])
def test_typical_steps_are_neither_the_first_of_an_epoch_nor_those_with_a_checkpoint(
    epochs: int, every: dict[str, int]
) -> None:
    """The middle of both runs is one of these."""
    saved = {"every": every, "path": "ck", "model": {"bytes": "100 MB"}}
    wanted = scenario(train__epochs=epochs, dataset__num_files=2 * 2 * 120 // epochs, checkpoint=saved)
    spans = simulated(wanted).spans
    run = RunArrays.of_spans(spans)
    (name, low, high), *_ = tracks.suggested(run.lives, run.steps, run.lives.rank)
    assert name == "typical steps"
    inside = (run.steps.end > low) & (run.steps.start < high)
    assert inside.sum() > 4
    assert not (run.steps.step[inside] == 0).any()
    assert not run.steps.parts["checkpoint"][inside].any()
    middle = (int(run.lives.begin.min()) + int(run.lives.end.max())) // 2
    assert abs((low + high) // 2 - middle) < 0.2 * middle
