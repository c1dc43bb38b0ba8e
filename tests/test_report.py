"""The page: complete and in order for every kind of run, and the commands that write it."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pages import Page, check

import rayio
from rayio.cli import main
from rayio.errors import StorageError
from rayio.records.metric_names import lookup
from rayio.report.build import report, stretch
from rayio.report.definitions import TERMS, term
from rayio.scenario.write import to_yaml
from rayio.trace.run_directory import RunDirectory
from scenarios import scenario


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    code = left.value.code
    assert isinstance(code, int)
    return code


def simulated(root: Path, **overrides: Any) -> rayio.Run:
    return rayio.simulate(scenario(**overrides), out="r", root=root)


def written(run: rayio.Run, **how: Any) -> Page:
    return check(report(run.path, **how).read_text(encoding="utf-8"))


def shown(text: str) -> float:
    """Read a number of a tile in the unit of result.json."""
    number = float(re.sub(r"[^0-9.eE+-]", "", text))
    unit = text.lstrip("0123456789.,- ")
    return number * {"%": 0.01, "ms": 1e-3, "us": 1e-6, "min": 60.0}.get(unit, 1.0)


def test_the_numbers_are_those_of_the_result(tmp_path: Path) -> None:
    run = simulated(
        tmp_path, train__evaluate={"every": {"epochs": 1}, "compute": "5 ms"}, dataset__eval={"num_files": 8}
    )
    page = written(run)
    assert {"au", "goodput", "wall_seconds", "data_wait_share", "evaluation.au"} <= {*page.numbers}
    for key, text in page.numbers.items():
        value = lookup(run.result, key)
        assert value is not None
        factor = 0.01 if key.endswith("dlio") else 1.0
        rounding = 0.051 if key.endswith("per_second") else 5.1e-4
        assert shown(text) == pytest.approx(value * factor, rel=5e-3, abs=rounding), key
    for section in ("loss", "time", "timeline-section", "steps", "ranks", "stages", "access", "definitions"):
        assert section in page.ids


def test_the_waterfall_is_the_whole(tmp_path: Path) -> None:
    run = simulated(tmp_path, loader__decode="20 ms")
    text = report(run.path).read_text(encoding="utf-8")
    bars = re.findall(r'class="fall" data-cause="(\w+)".*?left:([\d.]+)%;width:([\d.]+)%', text)
    assert bars[0][0] == "compute"
    assert float(bars[0][2]) == pytest.approx(100 * (run.au or 0), abs=1e-3)
    end = 0.0
    for _, begin, width in bars:
        assert float(begin) == pytest.approx(end, abs=2e-3)
        end = float(begin) + float(width)
    assert end == pytest.approx(100, abs=1e-2)
    assert "Input-bound" in text
    assert bars[1][0] == "decode"


KINDS: dict[str, dict[str, Any]] = {
    "one rank": {"cluster__ranks_per_node": 1},
    "one step": {"cluster__ranks_per_node": 1, "dataset__num_files": 2, "train__epochs": 1, "train__warmup_steps": 0},
    "no step in the window": {"dataset__num_files": 4, "train__epochs": 1},
    "reads itself": {"loader__num_workers": 0},
    "no barrier": {"train__sync": "none"},
    "ragged": {"loader__drop_last": False, "dataset__num_files": 51},
    "level none": {"trace__level": "none"},
    "level step": {"trace__level": "step"},
    "level io": {"trace__level": "io"},
    "checkpoints": {"checkpoint": {"every": {"steps": 5}, "path": "ck", "model": {"bytes": "1 MB"}}},
    "evaluations": {"train__evaluate": {"every": {"epochs": 1}, "compute": "5 ms"}, "dataset__eval": {"num_files": 8}},
    "many ranks": {"cluster__ranks_per_node": 70, "dataset__num_files": 1400, "train__epochs": 1},
    "no time at all": {"train__compute": "0 s"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_of_every_kind_of_run_is_whole(kind: str, tmp_path: Path) -> None:
    page = written(simulated(tmp_path, **KINDS[kind]))
    has_steps = kind != "level none"
    assert ("time" in page.ids) == has_steps
    assert ("slices" in page.ids) == has_steps
    assert ("heat-pace" in page.ids) == (has_steps and kind not in ("one rank", "one step"))
    if kind == "level none":
        assert "trace.level is none" in page.words
    if kind == "level io":
        assert "requests by size" in page.words
        assert "sequential" in page.words
    elif has_steps and kind != "level step":
        assert "need trace.level=io" in page.words


def test_a_window_of_a_run_is_shown_as_asked(tmp_path: Path) -> None:
    run = simulated(tmp_path)
    text = report(run.path, window=(0.05, 0.1)).read_text(encoding="utf-8")
    data = json.loads(re.findall(r'id="slices">(.*?)</script>', text)[0])
    assert data["windows"][0] == {"name": "as asked for", "from": 50_000, "to": 100_000}


@pytest.mark.parametrize("text", ["12", "3s..1s", "a..b", "1s..1s"])
def test_a_window_that_is_none_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError):
        stretch(text)
    run = simulated(tmp_path)
    capsys.readouterr()
    assert command("report", run.path, "--window", text) == 2
    assert "--window" in capsys.readouterr().err


def test_a_window_after_the_end_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = simulated(tmp_path)
    assert command("report", run.path, "--window", "5 min..6 min") == 2
    printed = capsys.readouterr()
    assert "--window begins at 300 s; the run lasts 0." in printed.err
    assert not printed.out, "the error is all that is printed"
    assert not (run.path / "report.html").exists()


def test_a_simulation_that_fails_leaves_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = simulated(tmp_path)

    def refused(*_: object, **how: object) -> dict[str, Any]:
        raise StorageError("planted")

    monkeypatch.setattr("rayio.predict.explain.counterfactuals", refused)
    page = written(run)
    assert "The run cannot be simulated: planted" in page.words
    assert "loss" in page.ids


def test_an_interrupted_run_is_reported(tmp_path: Path) -> None:
    run = simulated(tmp_path)
    assert run.result.ledger is not None
    ledger = replace(run.result.ledger, even=None, differences=())
    run.directory.write_result(replace(run.result, exit_code=130, error="interrupted", ledger=ledger))
    page = written(run)
    assert "The run ended with exit code 130: interrupted" in page.words
    assert "run incomplete" in page.words


def test_a_stretch_has_units() -> None:
    assert stretch("500ms..2 min") == (0.5, 120.0)


def test_what_would_change_it_is_there_when_asked_for(tmp_path: Path) -> None:
    run = simulated(tmp_path, loader__decode="20 ms")
    assert "decode = 0" in written(run).words
    assert "decode = 0" not in written(run, simulate=False).words


def test_a_run_that_broke_off_has_a_page_of_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = simulated(tmp_path)
    (run.path / "result.json").unlink()
    page = written(run)
    assert "has no result.json: it broke off, or is still under way" in page.words
    assert page.words.count("broke off") == 1, "said once"
    assert "au" in page.numbers, "worked out from the spans"
    assert "timeline" in page.ids
    capsys.readouterr()
    assert command("report", run.path) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "report.html" in said.err
    assert "the run failed" in said.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"au": "x"}, 'au is "x", expected a number or null'),
        ({"exit_code": None}, "exit_code is null, expected a number"),
        ({"percentiles": [1]}, "percentiles is [1], expected an object"),
        ({"notes": 3}, "notes is 3, expected a list"),
    ],
)
def test_a_result_of_other_types_is_named(
    change: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = simulated(tmp_path)
    (run.path / "result.json").write_text(json.dumps(run.result.as_json() | change))
    for arguments in (["report", run.path], ["compare", run.path, simulated(tmp_path / "other").path]):
        assert command(*arguments) == 2
        assert capsys.readouterr().err == f"rayio: {run.path}/result.json is damaged: {said}\n"
    (run.path / "result.json").write_text('{"version": 1}')
    assert command("report", run.path) == 2
    assert "it has no exit_code" in capsys.readouterr().err


def test_a_run_that_failed_says_so_first(tmp_path: Path) -> None:
    run = simulated(tmp_path)
    run.directory.write_result(replace(run.result, exit_code=2, error="reader 0-1: <file> is damaged"))
    page = written(run)
    assert "The run ended with exit code 2: reader 0-1: <file> is damaged" in page.words
    assert page.words.count("exit code 2") == 1


def test_lost_span_files_are_named(tmp_path: Path) -> None:
    run = simulated(tmp_path)
    (part,) = (run.path / "spans").iterdir()
    part.write_bytes(part.read_bytes()[:-100])
    page = written(run)
    assert part.name in page.words
    assert "The run has no spans of ranks" in page.words
    assert page.numbers["au"] != "unknown", "the numbers are those of the run"


def test_a_run_without_a_scenario_has_its_figures(tmp_path: Path) -> None:
    run = simulated(tmp_path)
    (run.path / "scenario.yaml").unlink()
    run.directory.write_info(run.directory.info | {"scenario": None})
    page = written(run)
    assert "has no scenario.yaml" in page.words
    assert "time" in page.ids
    assert "loss" not in page.ids


def test_a_run_that_recorded_nothing_has_a_page(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "r", {"engine": "ray"})
    assert "nothing to draw" in check(report(directory.path).read_text(encoding="utf-8")).words
    directory.write_scenario(to_yaml(scenario()))
    assert "nothing to draw" in check(report(directory.path).read_text(encoding="utf-8")).words


def test_what_others_wrote_cannot_break_the_page(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>\"'&<img src=x>"
    run = simulated(tmp_path, dataset__path="model://x")
    run.directory.write_result(replace(run.result, scenario=evil, notes=(evil,)))
    run.directory.write_info(run.directory.info | {"platform": evil})
    text = report(run.path).read_text(encoding="utf-8")
    page = check(text)
    assert "<script>alert" not in text
    assert "<img" not in text
    assert evil in page.words


def test_passwords_in_addresses_are_left_out(tmp_path: Path) -> None:
    run = simulated(tmp_path)
    shown_scenario = (run.directory.scenario or "") + "\n# s3://user:hunter2@host/bucket\n"
    run.directory.write_info(run.directory.info | {"scenario": shown_scenario})
    text = report(run.path).read_text(encoding="utf-8")
    assert "hunter2" not in text
    assert "s3://…@host/bucket" in text


def test_a_term_without_a_definition_is_a_defect() -> None:
    with pytest.raises(KeyError):
        term("nonsense", "nonsense")
    assert all(title and text for title, text in TERMS.values())


def test_the_command_prints_the_numbers_and_says_where_the_page_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = simulated(tmp_path)
    capsys.readouterr()
    assert command("report", run.path) == 0
    said = capsys.readouterr()
    assert said.out.rstrip() == run.summary().rstrip()
    assert said.err == f"rayio: report: {run.path / 'report.html'}\n"
    assert command("report", run.path, "--out", tmp_path / "page.html", "--no-simulate") == 0
    check((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert not (tmp_path / "page.html.tmp").exists()


def test_no_page_is_written_when_none_is_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = simulated(tmp_path)
    assert command("report", run.path, "--no-html") == 0
    assert not (run.path / "report.html").exists()
    assert run.summary().strip() in capsys.readouterr().out


def test_a_run_directory_that_cannot_be_written_still_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = simulated(tmp_path)
    (run.path / "report.html").mkdir()  # nothing can be written under this name, not even by root
    capsys.readouterr()
    assert command("report", run.path) == 0
    said = capsys.readouterr()
    assert run.summary().strip() in said.out
    assert said.err.startswith("rayio: no report: cannot write ")
    assert "choose another --out" in said.err


def test_a_page_that_was_asked_for_elsewhere_and_cannot_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = simulated(tmp_path)
    assert command("report", run.path, "--out", "/dev/null/page.html") == 2
    assert command("report", run.path, "--out", tmp_path / "new/page.html") == 2
    (tmp_path / "new").mkdir()
    assert command("report", run.path, "--out", tmp_path / "new/page.html") == 0
    assert (tmp_path / "new/page.html").is_file()
    assert command("report", run.path, "--out", tmp_path) == 2
    assert command("report", run.path, "--out", tmp_path / ("x" * 300)) == 2
    with pytest.raises(StorageError, match="is a folder"):
        report(run.path, tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match=r"pipe: it is a device, a pipe or a link.*choose another --out"):
        report(run.path, tmp_path / "pipe")


def test_a_run_leaves_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "small.yaml"
    source.write_text(to_yaml(scenario(train__compute="1 ms")))
    assert command("run", source, "--engine", "local", "--out", "r") == 0
    assert f"report: {tmp_path / 'r/report.html'}" in capsys.readouterr().err
    check((tmp_path / "r/report.html").read_text(encoding="utf-8"))


def test_a_simulation_leaves_its_report_unless_it_is_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "small.yaml"
    source.write_text(to_yaml(scenario(train__compute="1 ms")))
    assert command("simulate", source, "--out", "r") == 0
    assert f"report: {tmp_path / 'r/report.html'}" in capsys.readouterr().err
    check((tmp_path / "r/report.html").read_text(encoding="utf-8"))
    assert command("simulate", source, "--out", "json", "--json") == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(tmp_path / "json/report.html")
    assert command("simulate", source, "--out", "none", "--no-report") == 0
    assert command("run", source, "--engine", "local", "--out", "local", "--no-report") == 0
    assert not list(tmp_path.glob("[nl]o*/report.html"))
    monkeypatch.setattr("rayio.cli.runs.MOST_SPANS", 10)
    capsys.readouterr()
    assert command("simulate", source, "--out", "large") == 0
    assert f"is slow; write it with rayio report {tmp_path / 'large'}" in capsys.readouterr().err
    assert not (tmp_path / "large/report.html").exists()
    assert command("simulate", source, "--out", "asked", "--report") == 0
    assert (tmp_path / "asked/report.html").exists()


def test_a_run_is_well_without_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "small.yaml"
    source.write_text(to_yaml(scenario(train__compute="1 ms")))

    def broken(*_: object) -> str:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("rayio.report.build.page", broken)
    assert command("run", source, "--engine", "local", "--out", "r") == 0
    assert "no report, our fault: ZeroDivisionError: planted" in capsys.readouterr().err


def test_a_run_directory_that_was_moved_is_reported_where_it_is(tmp_path: Path) -> None:
    run = simulated(tmp_path)
    shutil.move(run.path, tmp_path / "elsewhere")
    assert report(tmp_path / "elsewhere") == tmp_path / "elsewhere/report.html"
