"""Each doubt speaks where its cause is planted, and not close by; the advice that it makes invalid is not given."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayio.analyze import gate
from rayio.analyze.compare import Compared
from rayio.cli import main
from rayio.kinds import STORAGE_MODELS
from rayio.machine import speed
from rayio.predict.calibrate import calibrate
from rayio.records.doubts import ADVICE, CAPACITY, COMPARISON, LIMIT, PREDICTION, Doubt, blocking
from rayio.records.hosts import Fetched
from rayio.records.run_result import RunResult
from rayio.report.compare import compared
from rayio.report.explain import explain
from rayio.report.text.advice import text as advice_text
from rayio.report.text.comparison import text as comparison_text
from rayio.report.text.doubts import TITLES, worded
from rayio.report.text.explanation import text
from rayio.reporter import SILENT
from rayio.scenario.model import Costs
from rayio.scenario.write import to_yaml
from rayio.session import run, simulate
from rayio.session.conclude import in_memory
from rayio.study.sizing.advise import advise
from rayio.study.sizing.doubts import of_capacity
from rayio.study.sizing.trials import Trial, Trials
from rayio.study.sweeps.sweep_directory import SweepDirectory
from rayio.study.sweeps.sweep_rows import Row
from scenarios import scenario

LONG = 800


def codes(doubts: tuple[Doubt, ...] | None) -> list[str]:
    return [doubt.code for doubt in doubts or ()]


def one_by_one(steps: int, workers: int = 1, **more: Any) -> Any:
    """Two ranks whose workers take 32 steps' compute to decode a batch: each worker gives AU 1 / 32."""
    return scenario(
        dataset__num_files=2 * 2 * steps, loader__num_workers=workers, loader__prefetch_factor=2,
        loader__decode={"kind": "constant", "value": 0.8}, train__compute=0.05, train__epochs=1, dataset__path="model://ram",
        storage__model={"first_byte": 0, "connection_bandwidth": "1 TB/s", "bandwidth": "1 TB/s"}, **more,
    )  # fmt: skip


# run too short ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [12, LONG])
def test_more_workers_are_predicted_only_where_the_run_is_long_enough_for_them(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 workers read all of 12 steps at once; of a long run they give half of what the ranks take."""
    found = explain(simulate(one_by_one(steps), out=tmp_path / "run").path)
    made = in_memory(one_by_one(steps, workers=16)).au
    doubts = [doubt for doubt in found.doubts if doubt.names.get("change")]
    assert found.verdict.au == pytest.approx(1 / 32, abs=0.005), "the run itself is steady"
    if steps == LONG:
        assert not found.doubts
        assert found.prediction is not None
        assert found.prediction.workers == 16
        assert found.prediction.au == pytest.approx(made, abs=0.01)
        assert made == pytest.approx(0.5, abs=0.02)
        monkeypatch.setattr("rayio.predict.replay.MOST_RANK_STEPS", 2 * 12)
        cut = explain(tmp_path / "run")
        assert cut.sentence.endswith("No prediction: only first steps are simulated.")
        assert any("use rayio explain --whole" in doubt.sentence for doubt in cut.doubts if doubt.names.get("change"))
    else:
        assert made == 1.0, "twice what it is in the long run"
        assert codes((*doubts,)) == ["short_run"]
        assert found.prediction is None
        assert found.sentence.endswith("No prediction: run too short.")


def test_the_run_that_the_doubt_asks_for_is_predicted(tmp_path: Path) -> None:
    short = explain(simulate(one_by_one(12), out=tmp_path / "short").path)
    steps = int(short.doubts[0].numbers["steps"])
    found = explain(simulate(one_by_one(steps), out=tmp_path / "long").path)
    assert (found.doubts, found.prediction is not None) == ((), True)


def test_a_change_that_the_run_is_too_short_for_has_no_au_in_the_table(tmp_path: Path) -> None:
    """Twice 8 workers, in an epoch that they read at once."""
    found = explain(simulate(one_by_one(16, workers=8), out=tmp_path / "run").path)
    assert found.simulated is not None
    row = next(row for row in found.simulated.changes if row.change == "workers × 2")
    line = next(line for line in text(found).splitlines() if line.startswith("  workers × 2"))
    assert row.is_short
    assert row.au is not None
    assert "too short" in line
    assert f"{row.au:.3f}" not in line
    assert f"{100 * (row.time_saved or 0):.1f} %" in line, "that run is as much shorter"


# overhead -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """The result of a short run in real time."""
    wanted = scenario(dataset__path="model://ram", train__compute="5 ms", train__epochs=1)
    return run(wanted, engine="local", out=tmp_path_factory.mktemp("runs") / "run").result


@pytest.mark.parametrize(("share", "is_doubted"), [(0.13, True), (0.021, True), (0.019, False), (0.0, False)])
def test_overhead_above_two_percent_of_step_time_is_a_doubt(
    measured: RunResult, share: float, is_doubted: bool
) -> None:
    result = replace(measured, other_share=share, au=0.8, doubts=None)
    doubt = gate.overhead(result)
    assert (doubt is not None) == is_doubted
    assert codes(gate.of_result(result)) == ["overhead"] * is_doubted, "also of results without a list of doubts"
    if doubt is not None:
        assert {LIMIT, COMPARISON} <= {*doubt.invalidates}
        assert f"AU 80.0 % would be up to {100 * (0.8 + share):.1f} % without it" in worded([doubt])[0].sentence


def test_the_overhead_of_one_of_several_runs_names_itself_and_the_au_of_that_run(measured: RunResult) -> None:
    """The answer has the mean of the runs, AU 88 %: 84 + 9 must not be taken for 88 + 9."""
    runs = [replace(measured, au=au, other_share=share, doubts=None) for au, share in ((0.92, 0.03), (0.84, 0.09))]
    (doubt,) = worded(gate.of_runs(runs))
    assert doubt.sentence.startswith("In the worst of 2 runs, rayio's own overhead is 9.0 % of step time")
    assert "AU 84.0 % would be up to 93.0 % without it" in doubt.sentence
    (alone,) = worded(gate.of_runs(runs[1:]))
    assert alone.sentence.startswith("rayio's own overhead is 9.0 % of step time")


def test_the_steps_that_the_overhead_asks_for_have_less_of_it(measured: RunResult) -> None:
    steps = measured.percentiles.step_time
    assert steps is not None
    of_100_ms = replace(measured.percentiles, step_time=replace(steps, mean=0.1))
    doubt = gate.overhead(replace(measured, other_share=0.1, percentiles=of_100_ms))
    assert doubt is not None
    assert "steps of at least 500 ms" in worded([doubt])[0].sentence, "10 ms a step are 2 % of 500 ms"


def test_time_beyond_spans_on_the_virtual_clock_is_no_overhead() -> None:
    result = in_memory(one_by_one(64, costs={"step": "200 ms"}))
    assert result.other_share is not None
    assert result.other_share > 0.05, "it is charged by costs, as the loader that is modelled takes it"
    assert not result.doubts


# the model does not give the run: see also test_explain.py -----------------------------------------------------------


def test_a_model_that_gives_another_au_predicts_nothing() -> None:
    far, near = gate.not_reproduced(0.70, 0.76), gate.not_reproduced(0.72, 0.76)
    assert near is None
    assert far is not None
    assert blocking([far], PREDICTION) == (far,)
    assert gate.not_reproduced(0.01, 0.02) is not None, "half the time, though AU differs by a point"
    assert gate.not_reproduced(0.010, 0.012) is None


@pytest.mark.parametrize(("simulated", "is_doubted"), [(0.109, False), (0.091, False), (0.12, True), (0.085, True)])
def test_costs_with_which_steps_take_another_time_are_a_doubt(simulated: float, is_doubted: bool) -> None:
    doubt = gate.other_steps(simulated, 0.1)
    assert (doubt is not None) == is_doubted
    if doubt is not None:
        assert "took 100 ms. Calibrate a longer run" in worded([doubt])[0].sentence


@pytest.mark.parametrize("model", [name for name in STORAGE_MODELS if name != "memory"])
def test_a_run_on_each_storage_model_is_given_back_by_its_replay(model: str, tmp_path: Path) -> None:
    """Also where the model makes one request of ranges that are close: npz samples have three."""
    wanted = scenario(
        dataset__path="model://any", dataset__num_files=64, dataset__sample_bytes="4 MiB", storage__model=model,
        train__compute="1 ms", train__epochs=1,
    )  # fmt: skip
    found = explain(simulate(wanted, out=tmp_path / "run").path)
    assert found.simulated is not None
    assert found.simulated.au == pytest.approx(found.verdict.au, abs=1e-6)


# speed of the machine -------------------------------------------------------------------------------------------------


def test_fixed_work_takes_a_few_milliseconds_and_is_stored_with_a_run(measured: RunResult, tmp_path: Path) -> None:
    made = run(scenario(dataset__path="model://ram", train__compute="5 ms"), engine="local", out=tmp_path / "run")
    times = gate.fixed_work_of(made.directory.info)
    assert len(times) == 2
    assert all(0.001 < time < 10 for time in times)
    assert not gate.fixed_work_of(simulate(one_by_one(12), out=tmp_path / "virtual").directory.info)
    assert speed.GROUPS * speed.PARTS * speed.AT_A_TIME <= 0.1 * speed.ADDITIONS, (
        "a part of the work that it stands for"
    )


@pytest.mark.parametrize(("until", "known", "is_slow"), [(0.02, 9.0, False), (0.5, 0.05, False), (60, 0.05, True)])
def test_fixed_work_is_that_of_a_machine_whose_neighbours_are_busy_for_a_while(
    until: float, known: float, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work takes 40 ms, and 72 ms ``until`` some second. One part is counted too short, as clocks do."""
    now = [0.0]

    def part() -> float:
        took = (0.072 if now[0] < until else 0.04) * speed.AT_A_TIME / speed.ADDITIONS
        now[0] += took
        return took if now[0] > took else took / 2

    monkeypatch.setattr(speed, "_part", part)
    monkeypatch.setattr("rayio.machine.timers.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    assert speed.fixed_work(gate.as_fast(known)) == pytest.approx(0.072 if is_slow else 0.04)
    assert now[0] < 3, "it ends on a machine that stays slow"


@pytest.mark.parametrize(("now", "is_doubted"), [(0.05, False), (0.04, False), (0.08, True), (0.025, True)])
def test_a_calibration_of_another_speed_is_said_and_gives_no_interval(
    now: float, is_doubted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rayio.session.conclude.fixed_work_once", lambda _: now)
    learned = Costs(fixed_work=0.045, error=0.05)
    made = simulate(one_by_one(64, costs=learned.model_dump()), out=tmp_path / "run")
    assert codes(made.result.doubts) == ["machine_speed"] * is_doubted
    assert (made.result.between is None) == is_doubted
    assert codes(explain(made.path, simulate=False).doubts) == codes(made.result.doubts)
    assert ("warning: This machine has another speed than that of the costs" in made.summary()) == is_doubted


def test_costs_of_unknown_speed_are_no_doubt() -> None:
    assert not in_memory(one_by_one(64, costs={"step": "1 ms"})).doubts


def test_a_calibration_has_the_speed_of_its_run_and_says_where_that_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = scenario(dataset__num_files=120, dataset__path="model://ram", train__compute="2 ms", train__epochs=2)
    path = run(wanted, engine="local", out=tmp_path / "run").path
    told = path / "run.json"
    info = json.loads(told.read_text())
    monkeypatch.setattr("rayio.predict.learnable.fixed_work_once", lambda _: 0.041)
    for times, expected in (([0.04, 0.042], []), ([0.04, 0.08], ["run"]), ([0.08, 0.08], ["calibration"])):
        told.write_text(json.dumps(info | {"fixed_work_seconds": times}))
        learned = calibrate(path)
        assert learned.scenario.charges.fixed_work == pytest.approx(sum(times) / 2)
        assert [doubt.names["of"] for doubt in learned.doubts] == expected, times
    told.write_text(json.dumps(info | {"fixed_work_seconds": [0.08, 0.08], "host": "another"}))
    assert not calibrate(path).doubts, "another machine may be slower"
    told.write_text(json.dumps(info | {"fixed_work_seconds": [0.08, 0.08]}))
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["calibrate", str(path), "--out", str(tmp_path / "learned.yaml")])
    assert "rayio: warning: This machine has another speed than that of the costs" in capsys.readouterr().err


def test_runs_of_machines_of_another_speed_are_not_calibrated_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = scenario(dataset__num_files=120, dataset__path="model://ram", train__compute="2 ms", train__epochs=2)
    for name, time in (("one", 0.04), ("other", 0.06)):
        told = run(wanted, engine="local", out=tmp_path / name).path / "run.json"
        told.write_text(json.dumps(json.loads(told.read_text()) | {"fixed_work_seconds": [time, time]}))
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["calibrate", str(tmp_path / "one"), str(tmp_path / "other")])
    assert "fixed work took 40 ms in one and 60 ms in the other" in capsys.readouterr().err


# page cache -----------------------------------------------------------------------------------------------------------


def fetched(share: float | None, source: str = "device", how: str = "use") -> Fetched:
    return Fetched(
        delivered_bytes=100, read_bytes=100, fetched_bytes=None, page_cache_share=share, source=source, how="counted",
        page_cache=how,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sources", "remedy"),
    [
        (fetched(0.06), "storage.page_cache=drop"),
        (fetched(1.0, how="drop"), "a larger dataset"),
        (fetched(None, "memory"), "a dataset.path on the storage"),
        (fetched(0.04), None),
        (fetched(None), None),
        (fetched(0.9, "model"), None),  # a modelled cache is what was asked about
        (None, None),
    ],
)
def test_bytes_from_memory_in_place_of_storage_are_a_doubt(sources: Fetched | None, remedy: str | None) -> None:
    doubt = gate.page_cache(sources)
    assert (doubt is None) == (remedy is None)
    if doubt is not None and remedy is not None:
        assert blocking([doubt], CAPACITY)
        assert remedy in worded([doubt])[0].sentence


def test_files_that_were_just_written_are_read_from_memory_and_the_summary_says_it(tmp_path: Path) -> None:
    made = run(
        scenario(train__compute="2 ms", dataset__path=str(tmp_path / "data")), engine="local", out=tmp_path / "run"
    )
    assert made.result.fetched is not None
    if made.result.fetched.page_cache_share is None and made.result.fetched.source != "memory":
        pytest.skip("this kernel does not say where bytes came from")
    assert "page_cache" in codes(made.result.doubts)
    assert "measures" in made.summary()


# comparison, capacity and advice: what a doubt leaves of them -------------------------------------------------------


def runs(measured: RunResult, rate: float, overhead: float, times: list[float]) -> list[Compared]:
    """Three runs of about the same throughput (samples/s), with the overhead and the fixed work of their machine."""
    results = [
        replace(measured, au=0.8, other_share=overhead, samples_per_second=rate * factor, doubts=None)
        for factor in (0.999, 1.0, 1.001)
    ]
    content = {"name": "of", "train": {"compute": rate}}
    return [Compared(f"{rate}-{n}", each, content, {"fixed_work_seconds": times}) for n, each in enumerate(results)]


@pytest.mark.parametrize(
    ("rates", "overheads", "times", "outcome"),
    [
        ((100.0, 110.0), (0.01, 0.01), (0.04, 0.04), "faster"),
        ((100.0, 110.0), (0.13, 0.13), (0.04, 0.04), "faster"),  # the same part of both
        ((100.0, 110.0), (0.13, 0.04), (0.04, 0.04), "in_doubt"),  # without it 100 / 0.87 against 110 / 0.96
        ((100.0, 110.0), (0.04, 0.13), (0.04, 0.04), "in_doubt"),
        ((100.0, 150.0), (0.13, 0.04), (0.04, 0.04), "faster"),
        ((100.0, 110.0), (0.01, 0.01), (0.04, 0.08), "in_doubt"),
        ((100.0, 110.0), (0.01, 0.01), (0.04, 0.045), "faster"),
    ],
)
def test_a_difference_that_the_emulator_or_the_machine_may_have_made_gets_no_verdict(
    measured: RunResult, rates: tuple[float, float], overheads: tuple[float, float], times: tuple[float, float],
    outcome: str,
) -> None:  # fmt: skip
    sides = zip(rates, overheads, times, strict=True)
    comparison = compared([run for rate, share, time in sides for run in runs(measured, rate, share, [time, time])])
    (verdict,) = comparison.verdicts
    assert verdict.outcome == outcome
    assert bool(comparison.doubts) == (outcome == "in_doubt")
    assert verdict.sentence.startswith("No verdict on B and A (") == (outcome == "in_doubt")
    if comparison.doubts:
        assert f"  warning: {comparison.doubts[0].sentence}" in comparison_text(comparison)


@pytest.mark.parametrize(("overhead", "answer"), [(0.01, "2 "), (0.05, "at least 2 ")])
def test_a_point_that_misses_its_target_by_the_overhead_is_no_limit(
    overhead: float, answer: str, measured: RunResult
) -> None:
    """AU 0.88 and 5 % of overhead are 0.93 without: whether a third accelerator is fed is not known."""
    wanted = one_by_one(12)
    trials = {
        n: Trial(n, wanted, [Row((n,), 0, "done", result=replace(measured, au=au, other_share=overhead, doubts=None))])
        for n, au in ((2, 0.95), (3, 0.88))
    }
    doubts = of_capacity(trials[2], trials[3], 0.9, "au")
    assert bool(blocking(doubts, LIMIT)) == answer.startswith("at least")
    assert not blocking(doubts, CAPACITY)
    assert not of_capacity(trials[2], trials[3], 0.95, "au"), "that it would miss even so"


def test_advice_from_settings_that_are_too_short_is_not_given(tmp_path: Path) -> None:
    """In the 12 steps that are allowed each of 16 workers makes one batch; they sustain AU 0.5."""
    found = advise(
        _written(one_by_one(12, train__steps=12), tmp_path), vary="loader.num_workers=16", reach="au=0.9",
        out=tmp_path / "short",
    )  # fmt: skip
    assert found.tried[0].au == 1.0
    assert found.advice is None
    assert advice_text(found, 100).startswith("no advice which setting reaches AU ≥ 90 % (run too short)")
    longer = advise(
        _written(one_by_one(12), tmp_path), vary="loader.num_workers=16|40", reach="au=0.9", out=tmp_path / "long"
    )
    assert longer.advice is not None
    assert longer.advice.values == (40,)
    assert not longer.doubts


def _written(wanted: Any, folder: Path) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(to_yaml(wanted))
    return path


# all of them ----------------------------------------------------------------------------------------------------------

EACH = (
    gate.short_run(given=1, took=2, au=0.4, epochs=3, steps=100, prefetched=4),
    gate.short_run(given=1, took=2, au=0.4, epochs=3, steps=100, prefetched=4, change="workers × 2"),
    gate.not_reproduced(0.5, 0.9),
    gate.first_steps(12, 50, 3, 9, 0.5, 0.5),
    gate.first_steps(12, 50, 0, 9, 0.5, 0.6),
    gate.contradiction("read", 0.6, "read = 0", 0.01),
    gate.other_steps(0.2, 0.1),
    gate.page_cache(fetched(1.0)),
    gate.busy_machine(0.95),
    gate.speed_of_calibration(0.04, 0.08),
    gate.speed_of_run({"fixed_work_seconds": [0.04, 0.08]}),
    gate.speed_of_runs([{"fixed_work_seconds": [0.04, 0.04]}, {"fixed_work_seconds": [0.08, 0.08]}]),
)


@pytest.mark.parametrize("doubt", EACH, ids=lambda doubt: doubt.code)
def test_each_doubt_has_a_title_a_sentence_and_advice_that_it_makes_invalid(doubt: Doubt) -> None:
    assert doubt.code in TITLES
    assert doubt.invalidates
    assert {*doubt.invalidates} <= {*ADVICE}
    (with_sentence,) = worded([doubt])
    assert len(with_sentence.sentence.split()) > 8
    assert Doubt.of_json(json.loads(json.dumps(with_sentence.as_json()))) == with_sentence


def test_doubts_of_another_version_keep_their_sentence() -> None:
    foreign = Doubt(code="later", numbers={}, names={}, invalidates=("prediction",), sentence="Something is wrong")
    assert worded([foreign]) == (foreign,)


def test_the_report_and_the_summary_say_what_explain_says(tmp_path: Path) -> None:
    made = simulate(one_by_one(12), out=tmp_path / "run")
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["report", str(made.path)])
    page = (made.path / "report.html").read_text()
    (doubt,) = explain(made.path).doubts
    assert f'<span class="badge missed">{TITLES[doubt.code]}</span>' in page
    assert doubt.sentence.split(";")[0].replace("×", "×") in page
    assert "predicted AU" not in page


def test_a_sweep_has_a_knee_where_short_runs_cannot_move_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Workers sustain AU 0.12, 0.23, 0.41, 0.56, 1 in epochs of 36 steps, so that diminishing returns begin earlier."""
    texts = {}
    for steps in (36, 60, LONG):
        path = tmp_path / f"{steps}.yaml"
        path.write_text(to_yaml(one_by_one(steps)))
        with pytest.raises(SystemExit, match=r"^0$"):
            main(["sweep", str(path), "loader.num_workers=4,8,16,32,64", "--out", str(tmp_path / f"sweep-{steps}")])
        texts[steps] = capsys.readouterr().out
    assert "knee:" not in texts[36]
    assert "warning: 4 points (most of all num_workers=32): Run too short" in texts[36]
    assert "knee: num_workers=32" in texts[60]
    assert "warning: " in texts[60]
    assert "knee: num_workers=32" in texts[LONG]
    assert "warning" not in texts[LONG]


def test_the_bottleneck_of_a_capacity_is_that_of_the_run_whose_overhead_its_doubt_names(
    measured: RunResult, tmp_path: Path
) -> None:
    trials = Trials(SweepDirectory(tmp_path), engine="local", target=0.9, reporter=SILENT)
    rows = [
        Row((3,), repeat, "done", result=replace(measured, au=0.88, other_share=share, doubts=None))
        for repeat, share in enumerate((0.03, 0.08, 0.05))
    ]
    trials.tried[3] = trial = Trial(3, one_by_one(12), rows)
    (doubt,) = of_capacity(None, trial, 0.9, "au")
    assert doubt.numbers["overhead"] == 0.08
    for repeat, name in enumerate(("00003-0", "00003-1", "00003-1")):
        (tmp_path / "runs" / f"00003-{repeat}").mkdir(parents=True)
        assert Path(trials.run_in_doubt(3) or "").name == name, "the last one where it was removed"
