"""What a prediction lies between: held against runs whose costs are known."""

from __future__ import annotations

import json
from math import hypot
from pathlib import Path
from typing import Any

import pytest

import rayio
from rayio.errors import ScenarioError
from rayio.report.build import report
from scenarios import scenario

#: Two ranks whose batches keep processors busy for 24 ms, of which both have two cores.
CPU = {"sample": "8 ms", "queue": "5 ms", "rank": "3 ms", "at_least": 0.8, "at_most": 1.5}
RUN: dict[str, Any] = {
    "dataset__num_files": 400, "loader__num_workers": 4, "train__epochs": 1, "cluster__cores": 2,
}  # fmt: skip


def predicted(home: Path, number: int, **changes: Any) -> rayio.Run:
    return rayio.simulate(scenario(**RUN | changes), root=home, out=f"r{number}")


def test_a_run_whose_cores_are_busy_takes_as_much_longer_as_its_processors_do(tmp_path: Path) -> None:
    busy = {"train__compute": "1 ms", "costs": {"cpu": CPU, "error": 0.1}}
    found = predicted(tmp_path, 0, **busy).result.between
    assert found is not None
    low, high = with_error(0.8, 1.5, 0.1)
    assert found.time_low == pytest.approx(low, rel=0.02)
    assert found.time_high == pytest.approx(high, rel=0.02)
    # The change really made: the same run with costs that are so many times as large.
    usual, slower = (
        predicted(tmp_path, number, train__compute="1 ms", costs={"cpu": _longer(factor)}).result
        for number, factor in ((1, 1.0), (2, 1.5))
    )
    assert usual.between is None, "costs that say nothing of how sure they are"
    longer = (slower.wall_seconds or 0) / (usual.wall_seconds or 1)
    assert found.time_high == pytest.approx(with_error(1.0, longer, 0.1)[1], rel=1e-6)
    assert found.au_low is not None
    assert (slower.au or 0) / 1.1 < found.au_low < (slower.au or 0)


def with_error(least: float, most: float, error: float) -> tuple[float, float]:
    """Return both ends with an error that is independent of them: errors add in squares."""
    return 1 - hypot(1 - least, 1 - 1 / (1 + error)), 1 + hypot(most - 1, error)


def _longer(factor: float) -> dict[str, str]:
    return {name: f"{float(value.split()[0]) * factor} ms" for name, value in CPU.items() if isinstance(value, str)}


def test_decoding_takes_as_much_longer_as_other_work(tmp_path: Path) -> None:
    def run(number: int, factor: float, costs: dict[str, Any]) -> Any:
        decode = {"kind": "checksum", "rate": f"{1 / factor} MB/s", "per_sample": f"{4 * factor} ms"}
        keys = {"dataset__sample_bytes": "10 kB", "train__compute": "1 ms", "loader__decode": decode}
        return predicted(tmp_path, number, **keys, costs=costs).result

    found = run(0, 1.0, {"cpu": {"sample": "1 ms", "at_least": 0.8, "at_most": 1.5}})
    assert found.between is not None
    for number, factor, end in ((1, 0.8, found.between.time_low), (2, 1.5, found.between.time_high)):
        made = run(number, factor, {"cpu": {"sample": f"{factor} ms"}})
        assert made.wall_seconds / found.wall_seconds == pytest.approx(end, rel=1e-4)


def test_a_run_without_compute_has_an_interval_of_its_time(tmp_path: Path) -> None:
    idle = {"train__compute": 0, "costs": {"cpu": CPU, "error": 0.1}}
    done = predicted(tmp_path, 0, **idle)
    found = done.result.between
    assert found is not None
    assert (found.au_low, found.au_high) == (None, None), "its AU is 0 however long it takes"
    # The changes really made: the same run with costs that are so many times as large.
    usual, quicker, slower = (
        predicted(tmp_path, number, train__compute=0, costs={"cpu": _longer(factor)}).result.wall_seconds or 0.0
        for number, factor in ((1, 1.0), (2, 0.8), (3, 1.5))
    )
    low, high = with_error(quicker / usual, slower / usual, 0.1)
    assert found.time_low == pytest.approx(low, rel=1e-6)
    assert found.time_high == pytest.approx(high, rel=1e-6)
    line = next(line for line in done.summary().splitlines() if line.startswith("  between"))
    rate = done.result.samples_per_second or 0.0
    assert f"{rate / found.time_high:.1f} to {rate / found.time_low:.1f} samples/s" in line
    assert "samples/s, predicted between" in report(tmp_path / "r0", tmp_path / "page.html").read_text()


def test_idle_processors_leave_nothing_open_but_the_error(tmp_path: Path) -> None:
    found = predicted(tmp_path, 0, train__compute="100 ms", costs={"cpu": CPU, "error": 0.05}).result.between
    assert found is not None
    assert found.time_low == pytest.approx(1 / 1.05, rel=0.002)
    assert found.time_high == pytest.approx(1.05, rel=0.01)
    assert found.au_high == 1.0


def test_checkpoints_that_vary_leave_open_what_they_take(tmp_path: Path) -> None:
    saved = {"path": "saved", "every": {"steps": 10}, "model": {"bytes": "1 kB"}}
    usual = {"train__compute": "10 ms", "checkpoint": saved}
    costs = {"checkpoint": "50 ms", "checkpoint_less": "30 ms", "checkpoint_more": "200 ms", "error": 0.02}
    found = predicted(tmp_path, 0, **usual, costs=costs).result.between
    assert found is not None
    # The changes really made: the same run with checkpoints that take so long.
    usually, least, most = (
        predicted(tmp_path, number, **usual, costs={"checkpoint": f"{taken} ms"}).result.wall_seconds or 0.0
        for number, taken in ((1, 50), (2, 20), (3, 250))
    )
    assert most > 1.5 * usually
    low, high = with_error(least / usually, most / usually, 0.02)
    assert found.time_low == pytest.approx(low, rel=1e-6)
    assert found.time_high == pytest.approx(high, rel=1e-6)


def test_a_checkpoint_takes_no_less_than_nothing_and_none_leaves_nothing_open(tmp_path: Path) -> None:
    saved = {"path": "saved", "every": {"steps": 10}, "model": {"bytes": "1 kB"}}
    costs = {"checkpoint": "50 ms", "checkpoint_less": "90 ms"}
    found = predicted(tmp_path, 0, checkpoint=saved, costs=costs).result.between
    assert found is not None
    free = predicted(tmp_path, 1, checkpoint=saved).result.wall_seconds or 0.0
    usual = predicted(tmp_path, 2, checkpoint=saved, costs={"checkpoint": "50 ms"}).result.wall_seconds or 1.0
    assert found.time_low == pytest.approx(free / usual, rel=1e-6)
    assert found.time_high == 1.0
    assert predicted(tmp_path, 3, costs=costs).result.between is None


@pytest.mark.parametrize(("megabytes", "milliseconds"), [(1, 5), (10, 50), (100, 500)])
def test_of_other_sizes_nobody_knows_how_much_is_for_bytes(tmp_path: Path, megabytes: int, milliseconds: int) -> None:
    costs = {"checkpoint": "50 ms", "checkpoint_bytes": "10 MB"}
    saved = {"path": "saved", "every": {"steps": 10}, "model": {"bytes": f"{megabytes} MB"}}

    def seconds(number: int, **costs: str) -> float:
        return predicted(tmp_path, number, checkpoint=saved, costs=costs).result.wall_seconds or 0.0

    found = predicted(tmp_path, 0, checkpoint=saved, costs=costs).result
    alike, in_proportion = seconds(1, checkpoint="50 ms"), seconds(2, checkpoint=f"{milliseconds} ms")
    assert found.wall_seconds == pytest.approx(in_proportion, rel=1e-6)
    if megabytes == 10:
        assert found.between is None
    else:
        assert found.between is not None
        ends = sorted((alike / in_proportion, 1.0))
        assert [found.between.time_low, found.between.time_high] == pytest.approx(ends, rel=1e-6)


def test_a_long_run_is_as_sure_as_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = {"train__compute": "1 ms", "costs": {"cpu": CPU}}
    whole = predicted(tmp_path, 0, **busy).result.between
    monkeypatch.setattr("rayio.predict.replay.MOST_RANK_STEPS", 60)
    part = predicted(tmp_path, 1, **busy).result.between
    assert whole is not None
    assert part is not None
    assert whole != part
    assert part.time_high == pytest.approx(whole.time_high, rel=0.03)


def test_the_summary_and_the_file_say_it(tmp_path: Path) -> None:
    done = predicted(tmp_path, 0, train__compute="1 ms", costs={"cpu": CPU, "error": 0.1})
    line = next(line for line in done.summary().splitlines() if line.startswith("  between"))
    assert line.endswith("it may take 22 % less to 51 % more time: so sure are its costs")
    kept = json.loads((tmp_path / "r0" / "result.json").read_text())["between"]
    assert kept["time_high"] == pytest.approx(with_error(0.8, 1.5, 0.1)[1], rel=0.01)


def test_a_prediction_is_kept_where_quicker_processors_would_break_the_run_off(tmp_path: Path) -> None:
    slow = {"cpu": {"sample": "50 ms", "at_least": 0.1}}
    throttle = {"reads_per_second": 30}
    done = predicted(
        tmp_path, 0, dataset__num_files=100, dataset__format="tfrecord", train__compute="1 ms", cluster__cores=1,
        costs=slow, storage={"model": "memory", "throttle": throttle, "max_attempts": 2},
    )  # fmt: skip
    assert done.result.exit_code == 0
    assert done.result.between is None
    assert any("no prediction interval" in note and "503 SlowDown" in note for note in done.result.notes)
    assert (tmp_path / "r0" / "result.json").exists()


@pytest.mark.parametrize(
    ("costs", "says"),
    [
        ({"checkpoint_bytes": -1}, "costs.checkpoint_bytes=-1: bytes must be 0 or more"),
        ({"error": 2}, "costs.error=2: must be a number from 0 to 1"),
        ({"error": True}, "costs.error=true: must be a number from 0 to 1"),
        ({"cpu": {"at_most": 0.5}}, "costs.cpu.at_most=0.5: must be a number from 1 to 10"),
        ({"cpu": {"at_least": 1.5}}, "costs.cpu.at_least=1.5: must be a number from 0.1 to 1"),
    ],
)
def test_what_is_no_share_or_factor_is_refused(costs: dict[str, Any], says: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario(costs=costs)
    assert says in str(caught.value)
