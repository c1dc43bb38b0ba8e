"""Epochs, and runs with failures, that are too short for their numbers: held against the long ones, and theory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import rayio
from rayio.analyze.gate import FEW_FAILURES, SHORT_EPOCHS
from rayio.errors import RunError, ScenarioError
from rayio.records.run_result import Between, RunResult
from rayio.records.sizing import Advised, Bottleneck
from rayio.report.text.between import between_words
from rayio.report.text.doubts import title
from rayio.reporter import Reporter
from rayio.scenario.write import to_yaml
from rayio.session.busy_runs import calibrated
from rayio.session.conclude import in_memory
from rayio.study.sizing.capacity import capacity
from rayio.study.sizing.doubts import of_capacity
from rayio.study.sizing.trials import Trial
from rayio.study.sweeps.sweep_rows import Row
from scenarios import scenario

LATE = {"first_byte": "150 ms", "connection_bandwidth": "1 TB/s", "bandwidth": "1 TB/s"}


def of_late_storage(steps: int, epochs: int = 4, **more: Any) -> RunResult:
    """Two ranks of 50 ms steps, whose batches arrive 300 ms after they are requested, of workers that are enough."""
    keys = {"dataset__num_files": 2 * 2 * steps, "loader__num_workers": 16, "loader__prefetch_factor": 2}
    return in_memory(
        scenario(**keys | {"train__compute": "50 ms", "train__epochs": epochs, "storage__model": LATE} | more)
    )


@pytest.mark.parametrize(
    ("sync", "workers", "steps", "au"), [("barrier", 16, 3, 0.97), ("none", 16, 3, 0.97), ("barrier", 10, 24, 0.82)]
)
def test_short_epochs_are_told_with_the_au_of_long_ones(sync: str, workers: int, steps: int, au: float) -> None:
    """A batch takes 0.6 s, so ten workers make 0.83 of what a rank takes."""
    more: dict[str, Any] = {"train__sync": sync, "loader__num_workers": workers}
    short, long = (of_late_storage(steps, **more) for steps in (steps, 300))
    assert long.au == pytest.approx(au, abs=0.01)
    doubt = next(d for d in short.doubts or () if d.code == SHORT_EPOCHS)
    assert title(doubt) == "Short epochs"
    assert doubt.numbers["without"] == pytest.approx(au, abs=0.04)
    assert doubt.numbers["au"] == pytest.approx(short.au, abs=0.005)
    assert not long.doubts
    enough = of_late_storage(int(doubt.numbers["enough"]), **more)
    assert enough.au == pytest.approx(0.95 * doubt.numbers["without"], abs=0.03), "their first steps take a twentieth"
    assert f"{100 * doubt.numbers['au']:.1f} %, from at most {100 * doubt.numbers['without']:.1f} %" in doubt.sentence


def test_short_epochs_of_storage_that_is_full_are_no_doubt() -> None:
    """Storage gives a third of what both ranks take in epochs of any length."""
    full = {"first_byte": 0, "connection_bandwidth": "1 GB/s", "bandwidth": 2 * 2 * 1000 / 0.15, "scope": "cluster"}
    short = of_late_storage(6, loader__num_workers=4, dataset__format="tfrecord", storage__model=full)
    assert short.au == pytest.approx(1 / 3, abs=0.05)
    assert SHORT_EPOCHS not in [doubt.code for doubt in short.doubts or ()]


def test_a_number_that_only_short_epochs_keep_from_its_target_is_no_limit() -> None:
    short = of_late_storage(3)
    failing = Trial(2, scenario(), [Row((2,), 0, "done", result=short)])
    without = next(d.numbers["without"] for d in short.doubts or () if d.code == SHORT_EPOCHS)
    assert [d.code for d in of_capacity(None, failing, without - 0.01, "au")] == [SHORT_EPOCHS]
    assert of_capacity(None, failing, without + 0.01, "au") == ()


@pytest.mark.parametrize(("spread", "is_limit"), [("0 ms", True), ("25 ms", False)])
def test_storage_that_is_not_the_limit_feeds_at_least_what_was_found(
    spread: str, is_limit: bool, tmp_path: Path
) -> None:
    """Ranks of unequal compute wait for each other, with any storage."""
    model = {"first_byte": 0, "connection_bandwidth": "1 GB/s", "bandwidth": "100 kB/s", "scope": "cluster"}
    keys: dict[str, Any] = {
        "train.compute": {"kind": "normal", "mean": "50 ms", "stdev": spread},
        "storage.model": model if is_limit else {**model, "bandwidth": "1 GB/s"},
    }
    (tmp_path / "s.yaml").write_text(to_yaml(scenario()))
    found = capacity(tmp_path / "s.yaml", keys, out=tmp_path / "capacity", most=64)
    assert isinstance(found.bottleneck, Bottleneck)
    assert found.is_at_least is not is_limit
    assert ("feeds at least" in str(found.as_text())) is not is_limit
    assert ("not the storage" in str(found.as_text())) is not is_limit


def sweep_of(folder: Path, steps: int, intervals: list[int], **how: Any) -> rayio.Sweep:
    """Sweep the interval of checkpoints of 1 s, in a run of steps of 1 s whose only node fails every 100 s."""
    model = {"first_byte": 0, "connection_bandwidth": "1 GB/s", "bandwidth": "1 GB/s"}
    saved = {"every": {"steps": 1}, "path": "ck", "model": {"bytes": "1 GB"}, "request_bytes": "1 GB", "fsync": False}
    wanted = scenario(
        cluster__ranks_per_node=1, dataset__num_files=steps, loader__batch_size=1, loader__num_workers=0,
        train__compute="1 s", train__epochs=1, storage__model=model, checkpoint=saved, trace__level="step",
        failures={"mtbf": "100 s", "detect": 0, "restart": 0},
    )  # fmt: skip
    file = folder / f"{steps}.yaml"
    file.write_text(to_yaml(wanted))
    return rayio.sweep(file, {"checkpoint.every.steps": intervals}, processes=1, out=folder / f"sweep-{steps}", **how)


def test_an_interval_is_the_best_one_only_after_enough_failures(tmp_path: Path) -> None:
    """Young (1974): √(2·C·M) = 14 s between checkpoints. A run of 50 s has none or one failure."""
    young = round(math.sqrt(2 * 1 * 100))
    intervals = [2, young, 100]
    short = sweep_of(tmp_path, 50, intervals)
    assert "most goodput" not in str(short)
    assert (short.front, short.knee) == ([], None)
    (warned,) = short.table.warnings
    assert (warned.doubt.code, warned.number) == (FEW_FAILURES, 3)
    epochs = int(warned.doubt.numbers["epochs"])
    assert f"(train.epochs={epochs}) for 20 failures" in str(short)
    assert 20 * 100 / 50 <= epochs <= 1.1 * 20 * 100 / 50

    long = sweep_of(tmp_path, 50 * epochs, intervals)
    assert f"most goodput: steps={young}, " in str(long)
    assert long.table.warnings == ()
    assert long.front


def test_failures_of_all_repeats_count_together(tmp_path: Path) -> None:
    found = sweep_of(tmp_path, 600, [14, 28], repeat=4)
    results = found.points[0].measured
    numbers = [0 if result.failures is None else result.failures.restarts for result in results]
    assert any(number < 10 for number in numbers)
    assert sum(numbers) >= 10
    assert found.table.warnings == ()


def test_a_run_that_is_too_short_to_learn_from_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy run on Ray takes a minute."""
    wanted = scenario(dataset__path="model://ram", train__epochs=1, dataset__num_files=24, train__compute="1 ms")
    short = rayio.run(wanted, engine="local", out=tmp_path / "short")
    monkeypatch.setattr("rayio.session.busy_runs._refusal", lambda runs: None)
    monkeypatch.setattr("rayio.session.busy_runs._used_by_others", lambda: pytest.fail("the machine was probed"))
    with pytest.raises(RunError, match="short has 5 steps per rank after its 1 warm-up steps; calibrating needs at"):
        calibrated(short.path)


def test_an_empty_list_of_values_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"loader.num_workers: has no value; give at least one"):
        rayio.sweep("unet3d-small", {"loader.num_workers": []}, out=tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def test_bounds_that_round_to_nothing_are_not_shown() -> None:
    assert between_words(Between(time_low=1.0, time_high=1.004, au_low=0.72, au_high=0.72)) == ""
    assert between_words(Between(time_low=1.0, time_high=1.02, au_low=0.7, au_high=0.72)).startswith("it may take 0 % ")


def test_an_interrupted_first_setting_is_neither_simulated_nor_undecided(tmp_path: Path) -> None:
    class Interrupts(Reporter):
        def live(self, text: str, share: float | None = None) -> None:
            raise KeyboardInterrupt

    (tmp_path / "s.yaml").write_text(to_yaml(scenario()))
    how: dict[str, Any] = {"vary": "loader.num_workers=1..4", "out": tmp_path / "advice"}
    advised = rayio.advise(tmp_path / "s.yaml", reporter=Interrupts(), **how)
    assert isinstance(advised, Advised)
    assert (advised.tried, advised.simulations, advised.is_finished) == ((), 0, False)
    assert not any("undecided" in note for note in advised.notes)
    assert advised.as_text() == "interrupted before the first setting was over: nothing is known yet"


def test_epochs_that_are_too_short_refuse_no_target(tmp_path: Path) -> None:
    """With 3 steps an epoch no setting reaches AU 90 %; of epochs without that bound 16 workers do."""
    keys: dict[str, Any] = {"loader__num_workers": 16, "train__compute": "50 ms", "storage__model": LATE}
    for steps, headline in ((3, "no advice which setting reaches AU ≥ 90 % (short epochs)"), (None, "16 workers: the")):
        wanted = scenario(**keys, dataset__num_files=12, train__epochs=4, train__steps=steps)
        (tmp_path / "s.yaml").write_text(to_yaml(wanted))
        advised = rayio.advise(
            tmp_path / "s.yaml", vary="loader.num_workers=16", reach="au=0.9", out=tmp_path / f"a{steps}"
        )
        assert str(advised.as_text()).startswith(headline)
        assert [doubt.code for doubt in advised.doubts] == [SHORT_EPOCHS] * (steps == 3)
        found = capacity(tmp_path / "s.yaml", {}, target_au=0.9, most=2, out=tmp_path / f"c{steps}")
        assert ("no answer whether it feeds one accelerator at AU ≥ 90 %" in str(found.as_text())) == (steps == 3)
    full = scenario(**keys | {"loader__num_workers": 1}, dataset__num_files=12, train__epochs=4, train__steps=3)
    (tmp_path / "s.yaml").write_text(to_yaml(full))
    few = rayio.advise(tmp_path / "s.yaml", vary="loader.num_workers=1", reach="au=0.9", out=tmp_path / "few")
    assert few.as_text().startswith("no setting reaches AU ≥ 90 %"), "that one worker misses in long epochs, too"
