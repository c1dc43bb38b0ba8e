"""Runs compared: keys, differences, and what is more than chance."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import handmade
import pytest
from pages import check

import rayio
from rayio import session
from rayio.analyze.compare import Compared, noise, noise_of_pairs, repeats, spread
from rayio.analyze.student import t_quantile
from rayio.cli import main
from rayio.records.comparison import Comparison, Repeated
from rayio.records.run_result import Evaluation, Percentiles, Statistics
from rayio.report.compare import compared as compare
from rayio.report.compare_page import page
from rayio.report.text.comparison import repeats_text, text
from rayio.session.result import Run
from scenarios import scenario


def a_run(label: str, au: float | None, scenario: dict[str, Any] | None = None, **result: Any) -> Compared:
    waits = Statistics(count=9, mean=0.1, p50=0.1, p90=0.2, p99=0.4, max=0.5)
    default = {"loader": {"num_workers": 2}, "train": {"epochs": 1}}
    return Compared(
        label,
        handmade.result(au=au, percentiles=Percentiles(data_wait=waits), **result),
        default if scenario is None else scenario,
        {"engine": "ray"},
    )


FOUR = {"loader": {"num_workers": 4}, "train": {"epochs": 1}}


def metric(comparison: Mapping[str, Any], name: str) -> dict[str, Any]:
    (row,) = [row for row in comparison["metrics"] if row["name"] == name]
    return dict(row)


def test_the_quantiles_of_student_are_those_of_the_tables() -> None:
    table = {1: 12.706, 2: 4.303, 5: 2.571, 10: 2.228, 30: 2.042, 40: 2.021, 60: 2.000, 120: 1.980, 10**6: 1.960}
    for freedom, quantile in table.items():
        assert t_quantile(freedom) == pytest.approx(quantile, abs=6e-4)
    assert t_quantile(2.9) == t_quantile(2)
    assert all(t_quantile(n) > t_quantile(n + 1) for n in range(1, 60))


def test_the_spread_of_repeats_by_hand() -> None:
    found = spread([1.0, 2.0, 3.0])
    assert (found.runs, found.mean, found.stdev) == (3, 2.0, 1.0)
    assert found.ci95 == pytest.approx(4.303 / 3**0.5)
    assert spread([1.0]) == (1, 1.0, None, None)


def test_an_interval_of_what_cannot_be_negative_begins_at_zero() -> None:
    name = "percentiles.read.p90"
    (_, line) = repeats_text([Repeated(name=name, **spread([0.001, 0.010])._asdict())])
    assert line.split("   ")[-1] == "0 s to 62.7 ms"


def test_the_noise_by_hand() -> None:
    assert noise([1.0], [2.0]) is None
    # Welch: both deviations 1, three runs each: sqrt(2/3), 4 degrees of freedom.
    assert noise([1, 2, 3], [11, 12, 13]) == pytest.approx(2.776 * (2 / 3) ** 0.5)
    # One side has repeats: its deviation stands for the other's.
    assert noise([1, 2, 3], [5]) == noise([5], [1, 2, 3]) == pytest.approx(4.303 * (1 / 3 + 1) ** 0.5)
    assert noise([1, 1], [2, 2]) == 0


def test_differences_without_a_cause_exceed_the_noise_in_about_one_case_in_twenty() -> None:
    draw = random.Random(4)
    cases = 2000
    beyond = 0
    for _ in range(cases):
        a, b = ([draw.gauss(0, 1) for _ in range(5)] for _ in range(2))
        bound = noise(a, b)
        assert bound is not None
        beyond += abs(sum(a) / 5 - sum(b) / 5) > bound
    assert 0.03 < beyond / cases < 0.06


def test_each_metric_has_its_difference_and_the_keys_are_named() -> None:
    comparison = compare([a_run("r1", 0.5), a_run("r2", 0.75, FOUR)])
    assert comparison["differing_keys"] == [{"key": "loader.num_workers", "values": ["2", "4"]}]
    (difference,) = metric(comparison, "au")["differences"]
    assert difference == {
        "absolute": 0.25, "percent": 50.0, "noise": None, "noise_percent": None, "exceeds_noise": None, "pairs": None,
    }  # fmt: skip
    names = [row["name"] for row in comparison["metrics"]]
    assert {f"percentiles.data_wait.{s}" for s in ("mean", "p50", "p90", "p99", "max")} <= {*names}
    assert any("repeat each side" in note for note in comparison["notes"])
    shown = text(comparison)
    assert "loader.num_workers                2 | 4" in shown
    assert "  AU                                50.00 %    75.00 %    +25.00 pt   +50.0 %" in shown
    assert "beyond noise" not in shown


def test_repeats_are_grouped_and_say_what_exceeds_the_noise() -> None:
    base = [a_run(f"a{n}", au, samples_per_second=10.0 + n) for n, au in enumerate([0.50, 0.51, 0.52])]
    other = [a_run(f"b{n}", au, FOUR, samples_per_second=10.1 + n) for n, au in enumerate([0.70, 0.71, 0.72])]
    mixed = [base[0], other[0], base[1], other[1], base[2], other[2]]
    comparison = compare(mixed)
    assert [group["runs"] for group in comparison["groups"]] == [["a0", "a1", "a2"], ["b0", "b1", "b2"]]
    assert metric(comparison, "au")["differences"][0]["exceeds_noise"] is True
    assert metric(comparison, "samples_per_second")["differences"][0]["exceeds_noise"] is False
    assert metric(comparison, "au")["groups"][0]["stdev"] == pytest.approx(0.01)
    shown = text(comparison)
    assert "beyond noise" in shown
    assert "yes (± 2.27 pt)" in shown


def test_runs_of_one_scenario_are_held_against_the_first_and_have_a_spread() -> None:
    comparison = compare([a_run("r1", 0.5), a_run("r2", 0.6)])
    assert [group["runs"] for group in comparison["groups"]] == [["r1"], ["r2"]]
    assert comparison["differing_keys"] == []
    assert comparison["repeats"][0]["stdev"] == pytest.approx(0.1 / 2**0.5)
    assert metric(comparison, "au")["differences"][0]["exceeds_noise"] is None
    assert "over 2 runs" in text(comparison)


def test_what_a_run_lacks_is_unknown_and_not_zero() -> None:
    comparison = compare([a_run("r1", 0.5), a_run("r2", None, FOUR, goodput=0.3)])
    assert metric(comparison, "au")["groups"][1] is None
    assert metric(comparison, "au")["differences"] == [None]
    assert "unknown" in text(comparison)
    assert comparison.verdicts[0].outcome == "no_metric"


def test_the_au_of_evaluation_is_a_percentage() -> None:
    counts: dict[str, Any] = {"rounds": 1, "steps": 9, "mean_seconds": 1.0, "data_wait_share": 0.5}
    runs = [
        a_run(name, 0.5, {"name": name}, evaluation=Evaluation(au=au, au_min=au, au_max=au, **counts))
        for name, au in (("a", 0.25), ("b", 0.5))
    ]
    (row,) = [line for line in text(compare(runs), everything=True).splitlines() if line.startswith("  evaluation.au ")]
    assert row.split()[1:6] == ["25.00", "%", "50.00", "%", "+25.00"]


def test_three_scenarios_are_each_held_against_the_first() -> None:
    eight = {"loader": {"num_workers": 8}, "seed": 3}
    comparison = compare([a_run("r1", 0.5), a_run("r2", 0.6, FOUR), a_run("r3", 0.0, eight, error="x", exit_code=3)])
    assert [d["absolute"] for d in metric(comparison, "au")["differences"]] == pytest.approx([0.1, -0.5])
    assert {row["key"]: row["values"] for row in comparison["differing_keys"]} == {
        "loader.num_workers": ["2", "4", "8"], "train.epochs": ["1", "1", None],
    }  # fmt: skip
    assert "r3 ended with exit code 3: x" in comparison["notes"]
    assert "wall times include unequal work: train.epochs differs" in comparison["notes"]
    assert "C - A" in text(comparison)


def test_runs_of_a_group_with_one_exit_code_share_a_note() -> None:
    failed = [
        a_run(f"r{n}", 0.5, scenario, error=f"x{n}", exit_code=3) for n, scenario in enumerate((None, None, FOUR))
    ]
    notes = compare(failed)["notes"]
    assert [note for note in notes if "exit code" in note] == [
        "A: 2 of 2 runs ended with exit code 3, such as r0: x0", "r2 ended with exit code 3: x2",
    ]  # fmt: skip


def test_a_list_is_written_as_scenarios_have_it() -> None:
    cached = FOUR | {"storage": {"cache": [{"tier": "ram", "bytes": "64 GB", "policy": "lru"}]}}
    comparison = compare([a_run("r1", 0.5, FOUR), a_run("r2", 0.6, cached)])
    written = "[{tier: ram, bytes: 64 GB, policy: lru}]"
    assert comparison["differing_keys"] == [{"key": "storage.cache", "values": [None, written]}]
    assert f"- | {written}" in text(comparison)


def test_no_cache_is_the_same_whether_it_is_written_or_left_out() -> None:
    written = FOUR | {"storage": {"cache": "none"}}
    comparison = compare([a_run("r1", 0.5, written), a_run("r2", 0.6, FOUR)])
    assert comparison["differing_keys"] == []
    assert comparison["repeats"] is not None


def test_runs_without_a_scenario_are_no_repeats() -> None:
    comparison = compare([a_run("r1", 0.5, {}), a_run("r2", 0.6, {})])
    assert len(comparison["groups"]) == 2
    assert "repeats" not in comparison
    assert "r1 has no scenario: its keys are not compared" in comparison["notes"]


def test_the_command_compares_run_directories(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session.simulate(scenario(), out=home / "r1")
    session.simulate(scenario(loader__num_workers=1, storage__model="s3"), out=home / "r2")

    def command(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["compare", *arguments])
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    code, out, err = command("r1", "r2", "--json")
    assert (code, err) == (0, "")
    first, second = (Run.open(home / name).result for name in ("r1", "r2"))
    (difference,) = metric(json.loads(out), "au")["differences"]
    assert difference["absolute"] == pytest.approx(second["au"] - first["au"])
    assert {row["key"] for row in json.loads(out)["differing_keys"]} == {"loader.num_workers", "storage.model"}
    assert "storage.model                     nvme | s3" in command("r1", "r2")[1]

    info = home / "r2" / "run.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"scenario": "[1"}))
    for arguments in (["r1"], ["r1", "nope"], ["r1", "r2"], ["r1", "./r1"]):
        code, out, err = command(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)


def test_repeats_are_runs_of_their_own_and_their_spread_is_printed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "x.yaml").write_text(
        "name: x\ndataset: {path: model://x, num_files: 24, sample_bytes: 1 kB}\n"
        "loader: {batch_size: 1, num_workers: 1}\ntrain: {compute: 1 ms}\nexpect: {au: '> 1'}\n"
    )
    command = ["run", "x.yaml", "--engine", "local", "--repeat", "3", "--out", "r"]
    with pytest.raises(SystemExit) as left:
        main(command)
    out = capsys.readouterr().out
    assert left.value.code == 3
    results = [Run.open(home / f"r-{number}").result for number in (1, 2, 3)]
    (row,) = [row for row in repeats(results) if row["name"] == "au"]
    assert row["runs"] == 3
    assert "over 3 runs" in out
    assert out.count(" on the local engine: 24 steps") == 3
    with pytest.raises(SystemExit) as left:
        main(command)
    assert left.value.code == 2
    assert "r-1 exists; choose another --out" in capsys.readouterr().err


def seeded(name: str, seed: int | None, rate: float, workers: int = 2, **result: Any) -> Compared:
    keys = {"loader": {"num_workers": workers}} | ({} if seed is None else {"seed": seed})
    return a_run(name, 0.5, keys, samples_per_second=rate, **result)


def sides(a: list[float], b: list[float], seeds: tuple[list[int], list[int]] | None = None) -> list[Compared]:
    of_a, of_b = seeds or ([*range(len(a))], [*range(len(b))])
    return [
        *(seeded(f"a{n}", seed, rate) for n, (seed, rate) in enumerate(zip(of_a, a, strict=True))),
        *(seeded(f"b{n}", seed, rate, 4) for n, (seed, rate) in enumerate(zip(of_b, b, strict=True))),
    ]


#: Five seeds whose runs vary by several percent, and a change that adds 1.4 %.
RATES = [100.0, 93.0, 107.0, 98.0, 103.0]
FASTER = [101.4, 94.2, 108.5, 99.3, 104.6]


def test_runs_with_other_seeds_are_repeats_and_equal_seeds_are_pairs() -> None:
    comparison = compare(sides(RATES, FASTER))
    assert [(group.runs[0], len(group.runs), group.seeds) for group in comparison.groups] == [
        ("a0", 5, (0, 1, 2, 3, 4)),
        ("b0", 5, (0, 1, 2, 3, 4)),
    ]
    assert [row.key for row in comparison.differing_keys] == ["loader.num_workers"]
    (verdict,) = comparison.verdicts
    differences = [b - a for a, b in zip(RATES, FASTER, strict=True)]
    assert (verdict.outcome, verdict.pairs, verdict.metric) == ("faster", 5, "samples_per_second")
    mean, half = spread(differences).mean, spread(differences).ci95 or 0.0
    assert verdict.percent == pytest.approx(100 * mean / (sum(RATES) / 5))
    assert verdict.noise_percent == pytest.approx(100 * half / (sum(RATES) / 5))
    assert verdict.sentence == "B is 1.4 % ± 0.2 % faster than A; more than noise (5 pairs of equal seeds)."
    assert text(comparison).startswith(verdict.sentence)


def test_a_difference_that_is_certain_and_tiny_is_said_to_be_too_small() -> None:
    (verdict,) = compare(sides(RATES, [rate * 1.0002 for rate in RATES])).verdicts
    assert verdict.outcome == "faster"
    assert verdict.sentence.endswith(
        "faster than A; more than noise, but too little to matter (5 pairs of equal seeds)."
    )
    (verdict,) = compare(sides(RATES, [rate * 1.006 for rate in RATES])).verdicts
    assert "too little" not in verdict.sentence


def test_without_equal_seeds_the_same_difference_is_noise_and_a_note_gives_the_remedy() -> None:
    comparison = compare(sides(RATES, FASTER, ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])))
    (verdict,) = comparison.verdicts
    assert (verdict.outcome, verdict.pairs) == ("no_difference", None)
    assert verdict.sentence == "No difference beyond noise: B is 1.4 % faster than A, and noise is ± 8.0 %."


@pytest.mark.parametrize(
    ("of_a", "of_b"),
    [([0, 1, 2], [0, 1, 3]), ([0, 0, 1], [0, 1, 2]), ([0, 1, 1], [0, 0, 1]), ([0, 1, 2], [0, 1])],
)
def test_pairs_need_the_same_seeds_each_once(of_a: list[int], of_b: list[int]) -> None:
    (verdict,) = compare(sides(RATES[: len(of_a)], FASTER[: len(of_b)], (of_a, of_b))).verdicts
    assert verdict.pairs is None


def test_the_order_of_pairs_is_that_of_seeds_and_not_of_runs() -> None:
    swapped = compare(sides(RATES, [*reversed(FASTER)], ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0])))
    assert swapped.verdicts[0].noise_percent == pytest.approx(compare(sides(RATES, FASTER)).verdicts[0].noise_percent)


def test_the_noise_of_pairs_by_hand() -> None:
    assert noise_of_pairs([(1, 2), (5, 7), (9, 12)]) == pytest.approx(4.303 / 3**0.5)
    assert noise_of_pairs([(1, 2), (5, 6)]) == 0


def test_equal_runs_have_no_difference_however_their_floats_are_rounded() -> None:
    (verdict,) = compare(sides([0.1 + 0.2, 0.3], [0.3, 0.1 + 0.2], ([0, 1], [0, 1]))).verdicts
    assert verdict.outcome == "no_difference"
    (verdict,) = compare(sides([0.3, 0.3], [0.1 + 0.2, 0.1 + 0.2])).verdicts
    assert verdict.outcome == "no_difference"


def test_runs_without_repeats_get_a_verdict_that_names_what_is_missing() -> None:
    comparison = compare(sides([100.0], [97.0]))
    (verdict,) = comparison.verdicts
    assert verdict.sentence == (
        "B is 3.0 % slower than A. Whether that is more than noise is unknown: there are no repeats."
    )
    assert (verdict.outcome, verdict.noise_percent) == ("unknown", None)
    (verdict,) = compare(sides([100.0], [100.04])).verdicts
    assert verdict.sentence == "B and A are equally fast. Whether repeats differ is unknown: there are none."


def test_a_large_difference_is_a_factor() -> None:
    (verdict,) = compare(sides(RATES, [4.2 * rate for rate in RATES])).verdicts
    assert verdict.percent == pytest.approx(320)
    assert verdict.sentence.startswith("B is 4.2 ± 0.")
    assert verdict.sentence.endswith(" times as fast as A; more than noise (5 pairs of equal seeds).")


def test_repeats_of_one_scenario_are_no_difference_and_show_their_spread() -> None:
    comparison = compare([seeded(f"r{n}", n, rate) for n, rate in enumerate(RATES)])
    (verdict,) = comparison.verdicts
    assert verdict.outcome == "repeats"
    assert verdict.percent == pytest.approx((spread(RATES).stdev or 0.0) / spread(RATES).mean * 100)
    shown = text(comparison)
    assert shown.startswith("No key differs: these are 5 repeats of one scenario. Throughput varies by 5.3 %")
    assert "B - A" not in shown
    assert "throughput, samples/s" in shown


def test_a_machine_or_a_version_that_differs_makes_another_group() -> None:
    here, there = seeded("a", 1, 10.0), seeded("b", 2, 11.0)
    other = Compared("b", there.result, there.scenario, {"engine": "ray", "cpus": 64})
    comparison = compare([here, other])
    assert [row.key for row in comparison.differing_keys] == ["run.cpus"]
    assert comparison.repeats is None


def test_five_metrics_come_first_in_their_units_and_the_others_are_folded() -> None:
    extra: dict[str, Any] = {"au_interval_low": 0.4, "au_interval_high": 0.6, "window_steps": 59, "wall_seconds": 61.0}
    runs = [seeded(f"{n}", n % 2, 10.0 + n, 2 + n // 2, **extra) for n in range(4)]
    comparison = compare(runs)
    assert len(comparison.main_metrics) <= 5
    assert comparison.main_metrics[:2] == ("samples_per_second", "au")
    shown, whole = text(comparison), text(comparison, everything=True)
    assert "more metrics: --all" in shown
    assert "window_steps" not in shown
    (row,) = [line for line in whole.splitlines() if line.startswith("  window_steps")]
    assert row.split()[1:4] == ["59", "59", "+0"]
    assert "au_interval" not in whole
    assert "--all" not in whole


def test_the_page_and_the_terminal_have_equal_numbers() -> None:
    comparison = compare(sides(RATES, FASTER))
    html = page(comparison)
    seen = check(html)
    shown = text(comparison, everything=True)
    assert comparison.verdicts[0].sentence in seen.words
    rows = [line.split("  ") for line in shown.splitlines() if "(±" in line]
    assert len(rows) > 5
    for row in rows:
        for cell in filter(None, map(str.strip, row)):
            assert cell in seen.words, cell


@pytest.mark.parametrize("name", ["</p><script>alert(1)</script>", "\x1b[31mred"])
def test_a_page_escapes_what_runs_are_called(name: str) -> None:
    runs = [Compared(name, each.result, each.scenario, each.info) for each in sides([1.0], [2.0])[:1]]
    html = page(compare([*runs, seeded("b", 1, 2.0, 4)]))
    assert "<script>alert" not in html
    check(html)


def test_simulate_repeats_with_the_seeds_that_follow_and_compare_pairs_them(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as left:
            main([*arguments])
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    decode = "loader.decode={kind: exponential, mean: 30 ms}"
    for workers in (1, 4):
        keys = [f"loader.num_workers={workers}", decode, "seed=7", "--no-report"]
        code, out, err = command("simulate", "unet3d-small", *keys, "--repeat", "3", "--out", f"w{workers}")
        assert (code, "over 3 runs" in out) == (0, True), err
    seeds = [Run.open(home / f"w1-{n}").directory.scenario for n in (1, 2, 3)]
    assert [f"seed: {seed}\n" in str(text) for seed, text in zip((7, 8, 9), seeds, strict=True)] == [True] * 3
    folders = [f"w{workers}-{n}" for workers in (1, 4) for n in (1, 2, 3)]
    code, out, err = command("compare", *folders, "--json", "--out", "c.html")
    found = json.loads(out)
    assert found["verdicts"][0]["outcome"] == "faster"
    assert found["verdicts"][0]["pairs"] == 3
    assert found["verdicts"][0]["sentence"] in check((home / "c.html").read_text()).words
    comparison = rayio.compare(*folders)
    assert comparison.as_json() == found
    assert isinstance(comparison, Comparison)
    (home / "mine.html").write_text("mine")
    assert command("compare", *folders, "--out", "mine.html")[0] == 2
    assert (home / "mine.html").read_text() == "mine"
    assert command("compare", *folders, "--out", "c.html")[0] == 0
