"""The measured part of a run, by arithmetic: pauses count, and identical ranks have identical numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from handmade import Trace, measure

from rayio.analyze.arrays import RunArrays
from rayio.analyze.shape import RunShape
from rayio.analyze.stalls import attribute
from rayio.analyze.verdict import judge
from rayio.records.run_result import READABLE, RunResult, read_result
from scenarios import scenario, simulated

#: Storage that takes no time but for what is planted.
QUICK: dict[str, Any] = {"first_byte": 0, "connection_bandwidth": "1 PB/s", "bandwidth": "1 PB/s"}

#: What pauses training at the end of an epoch, and for how long (s).
PAUSES: dict[str, tuple[dict[str, Any], float]] = {
    # 10 steps of 50 ms on each rank.
    "evaluate": (
        {
            "dataset__eval": {"num_files": 20},
            "train__evaluate": {"every": {"epochs": 1}, "compute": "50 ms", "batch_size": 1},
        },
        0.5,
    ),
    # Rank 0 writes 1 MB at 1 MB/s; rank 1 waits for it, after the last epoch as after the others.
    "checkpoint": (
        {
            "checkpoint": {
                "every": {"epochs": 1}, "path": "c", "model": {"bytes": 1_000_000}, "request_bytes": 1_000_000,
            },
            "storage__model": {**QUICK, "connection_bandwidth": "1 MB/s"},
        },
        1.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("epochs", [3, 5, 10])
@pytest.mark.parametrize("pause", PAUSES)
def test_a_pause_at_the_end_of_every_epoch_counts_in_the_last_one_too(pause: str, epochs: int) -> None:
    keys, seconds = PAUSES[pause]
    # 20 steps of 50 ms an epoch, of which the first of all is warm-up.
    base: dict[str, Any] = {
        "dataset__num_files": 80, "dataset__sample_bytes": "16 B", "dataset__format": "tfrecord",
        "train__epochs": epochs, "train__compute": "50 ms", "loader__num_workers": 4, "storage__model": QUICK,
    }  # fmt: skip
    wanted = scenario(**(base | keys))
    run = simulated(wanted)
    result = measure(RunArrays.of_spans(run.spans), RunShape.of(wanted))
    assert result.au is not None
    computed = (20 * epochs - 1) * 0.05
    assert result.au == pytest.approx(computed / (computed + epochs * seconds), abs=0.001)
    assert result.ranks[0].au == pytest.approx(result.ranks[1].au, abs=1e-9)
    assert (result.window_steps, result.window_epochs) == (20 * epochs - 1, epochs)
    assert result.window_seconds == pytest.approx(computed + epochs * seconds, abs=0.005)
    assert result.samples_per_second == pytest.approx((20 * epochs - 1) * 4 / (computed + epochs * seconds), rel=0.002)
    assert result.au_interval_low == pytest.approx(result.au, abs=0.001)
    assert result.au_interval_high == pytest.approx(result.au, abs=0.001)
    verdict = judge(attribute(run.spans), RunShape.of(wanted)).verdict
    assert verdict.au == pytest.approx(result.au, abs=1e-12)
    table = {row.cause: row.share or 0.0 for row in verdict.table}
    assert table[pause] == pytest.approx(1 - result.au, abs=0.001)
    assert (verdict.au or 0.0) + sum(table.values()) == pytest.approx(1, abs=1e-12)


def test_a_rank_that_is_done_waits_for_the_pause_of_another_until_the_window_ends() -> None:
    trace, shape = Trace(), RunShape(2, 1, 1, 1, 3)
    trace.rank(0, [("data_wait", 0), ("compute", 100), ("checkpoint", 50)] * 3)
    trace.rank(1, [("data_wait", 0), ("compute", 100), *[("data_wait", 0), ("compute", 100), ("sync", 50)] * 2])
    spans = trace.spans
    charged, result = attribute(spans), measure(RunArrays.of_spans(spans), shape)
    # Rank 1's second step begins with the second compute, at 100; both ranks' last steps end at 450.
    assert (result.window_steps, result.window_seconds) == (2, 350 / 1e9)
    assert [rank.au for rank in result.ranks] == [pytest.approx(200 / 300), pytest.approx(200 / 350)]
    found = judge(charged, shape).verdict
    assert found.au == pytest.approx(result.au)
    lost = {row.cause: row.seconds * 1e9 for row in found.table if row.seconds}
    assert lost == {"checkpoint": pytest.approx(250)}
    assert charged.losses[-1].sum() == 50, "as recorded, nothing is added"


@pytest.mark.parametrize("meets", [True, False])
def test_ranks_that_do_not_meet_do_not_wait_at_the_end(meets: bool) -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 0), ("compute", 100)] * 12)
    trace.rank(1, [("data_wait", 0), ("compute", 200)] * 12)
    result = measure(RunArrays.of_spans(trace.spans), RunShape(2, 1, 1, 1, 12, meets=meets))
    # The faster rank begins its second step at 100, when the slower one is not warm; at 200 both are.
    assert result.ranks[1].au == 1
    assert result.ranks[0].au == pytest.approx(1000 / 2200 if meets else 1)


def test_few_steps_have_no_interval_and_no_verdict() -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 90), ("compute", 10)] * 10)
    spans = trace.spans
    result = measure(RunArrays.of_spans(spans), RunShape(1, 1, 1, 1, 10))
    assert (result.window_steps, result.au, result.au_interval_low) == (9, 0.1, None)
    found = judge(attribute(spans), RunShape(1, 1, 1, 1, 10)).verdict
    assert (found.bound, found.au) == (None, 0.1)
    assert any("a verdict takes 10" in note for note in result.notes)


def test_the_interval_covers_the_mean_of_other_seeds() -> None:
    # Exponential compute on two ranks that meet: noise in every step. 19 of 20 are expected.
    results = []
    for seed in range(20):
        wanted = scenario(
            seed=seed, dataset__num_files=160, train__epochs=3, storage__model=QUICK,
            train__compute={"kind": "exponential", "mean": "10 ms"},
            loader__decode={"kind": "exponential", "mean": "9 ms"},
        )  # fmt: skip
        results.append(measure(RunArrays.of_spans(simulated(wanted).spans), RunShape.of(wanted)))
    mean = float(np.mean([result.au for result in results]))
    covered = sum((r.au_interval_low or 1) <= mean <= (r.au_interval_high or 0) for r in results)
    widths = [(r.au_interval_high or 1) - (r.au_interval_low or 0) for r in results]
    assert covered >= 16
    assert np.mean(widths) < 8 * np.std([result.au or 0 for result in results])


def test_a_result_of_version_1_keeps_its_numbers() -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 10), ("compute", 90)] * 12)
    content = measure(RunArrays.of_spans(trace.spans), RunShape(1, 1, 1, 1, 12)).as_json()
    old = {**content, "version": 1, "au": 0.7}
    for key in ("au_interval_low", "au_interval_high", "window_epochs"):
        del old[key]
    read = read_result(old, "result.json")
    assert isinstance(read, RunResult)
    assert (read.version, read.au, read.window_epochs) == (1, 0.7, None)
    assert RunResult.of_json(content).version == max(READABLE)
