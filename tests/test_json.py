"""What commands print with --json: JSON alone, as its published schema has it, with the numbers of the text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
from collectors import http
from exports import told

from rayio.cli import _chosen, application
from rayio.cli.scenarios import DESCRIBED
from rayio.records.answers import SCHEMAS, answer_schema
from rayio.records.record import Json
from rayio.scenario.load import load, packaged
from rayio.trace.run_directory import RunDirectory
from scenarios import latest

#: A training of a moment.
QUICK = ("unet3d-small", "train.epochs=1", "dataset.num_files=56", "train.compute=1 ms", "checkpoint=none")


def asked(capsys: pytest.CaptureFixture[str], schema: str, *arguments: object, code: int = 0) -> Any:
    """Run a command with --json; hold what it prints against its schema and give it."""
    got, out, err = told(capsys, *arguments, "--json")
    assert got == code, err
    found = json.loads(out)
    jsonschema.Draft202012Validator(answer_schema(schema)).validate(found)
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import rayio

    folder = tmp_path_factory.mktemp("json") / "run"
    rayio.simulate(QUICK[0], QUICK[1:], out=folder)
    return folder


def test_every_command_that_prints_numbers_has_json() -> None:
    group = typer.main.get_command(application())
    commands = dict(getattr(group, "commands", {}))
    imports = commands.pop("import")
    commands |= {f"import {name}": one for name, one in imports.commands.items()}
    without = {name for name, one in commands.items() if not any("--json" in param.opts for param in one.params)}
    assert without == {"schema", "completion", "view", "k8s", "stop"}, "schema is JSON, and the others print no numbers"


def test_only_the_command_that_is_called_is_made() -> None:
    every = dict(getattr(typer.main.get_command(application()), "commands", {}))
    for name in every:
        first = name.split()[0]
        made = getattr(typer.main.get_command(_chosen(name.split())), "commands", {})
        assert {*made} == {other for other in every if other.split()[0] == first}
    for words in ([], ["-v"], ["--help"], ["nothing"]):
        assert {*getattr(typer.main.get_command(_chosen(words)), "commands", {})} == {*every}


def test_the_command_names_the_schemas_that_there_are() -> None:
    assert [*DESCRIBED] == ["scenario", *SCHEMAS]


def test_every_schema_is_valid_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    ids = set()
    for name in ("scenario", *SCHEMAS):
        code, out, _ = told(capsys, "schema", name)
        schema = json.loads(out)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert code == 0
        ids.add(schema["$id"])
        for described in _objects(schema):
            assert described.get("description"), f"{name}: {described}"
    assert len(ids) == len(SCHEMAS) + 1


def _objects(schema: Json) -> list[Json]:
    found = [*schema.get("properties", {}).values()] if "$ref" not in schema else []
    for definition in schema.get("$defs", {}).values():
        found += [one for one in definition.get("properties", {}).values() if "$ref" not in one]
    return [one for one in found if isinstance(one, dict) and "$ref" not in one and "anyOf" not in one]


def test_what_is_only_looked_at(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    checked = asked(capsys, "validate", "validate", "unet3d-small", "loader.batch_size=3", "train.steps=4")
    assert (checked["ranks"], checked["steps"], checked["most_steps"]) == (2, 20, 20)
    assert checked["capped_samples_per_epoch"] == 168 - 2 * 3 * 4
    shown = asked(capsys, "show", "show", "unet3d-small", "loader.batch_size=3")
    assert shown["derived"]["world_size"] == 2
    (home / "again.yaml").write_text(json.dumps(shown["scenario"]))
    assert load("again.yaml") == load("unet3d-small", ["loader.batch_size=3"])
    named = asked(capsys, "scenarios", "scenarios")["scenarios"]
    assert {one["name"]: one["description"] for one in named} == packaged()
    code, out, err = told(capsys, "validate", "unet3d-small", "loader.batch_size=x", "--json")
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_runs_and_reports(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    made = asked(capsys, "run", "simulate", *QUICK, "--out", "one")
    assert made["result"] == json.loads((home / "one" / "result.json").read_text())
    assert Path(made["directory"]).resolve() == home / "one"
    assert Path(made["report"]).resolve() == home / "one" / "report.html"
    page = asked(capsys, "run", "report", "one")
    assert page["result"] == made["result"]
    assert Path(page["report"]).resolve() == home / "one" / "report.html"
    assert asked(capsys, "run", "report", "one", "--no-html")["report"] is None
    unmet = asked(capsys, "run", "simulate", *QUICK, "expect.au=> 1", "--out", "two", code=3)
    assert unmet["result"]["exit_code"] == 3
    local = asked(capsys, "repeats", "run", *QUICK, "--engine", "local", "--repeat", "2", "--out", "three")
    assert [Path(one["directory"]).name for one in local["runs"]] == ["three-1", "three-2"]
    (au,) = (row for row in local["metrics"] if row["name"] == "au")
    assert au["mean"] == pytest.approx(sum(one["result"]["au"] for one in local["runs"]) / 2)


def test_a_dataset_is_counted(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    (first,) = asked(capsys, "generate", "generate", *QUICK)["datasets"]
    (again,) = asked(capsys, "generate", "generate", *QUICK)["datasets"]
    on_disk = [path.stat().st_size for path in Path(first["path"]).rglob("*.npz")]
    assert (first["written_files"], first["reused_files"]) == (again["reused_files"], again["written_files"]) == (56, 0)
    assert len(on_disk) == 56
    assert first["written_bytes"] <= sum(on_disk)


def test_a_sweep(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    found = asked(capsys, "sweep", "sweep", *QUICK, "loader.num_workers=1,2", "--out", "s")
    assert found["swept"] == ["loader.num_workers"]
    assert [one["point"] for one in found["runs"]] == [[1], [2]]
    assert all(one["result"]["au"] > 0 for one in found["runs"])
    assert found["front"]
    compute = asked(
        capsys,
        "sweep",
        "sweep",
        *QUICK[:3],
        "checkpoint=none",
        "train.compute=1 ms,{kind: normal, mean: 2 ms, stdev: 1 ms}",
        "--out",
        "t",
    )
    assert compute["runs"][1]["point"] == ["{kind: normal, mean: 2 ms, stdev: 1 ms}"]


def test_a_query(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    (row,) = asked(capsys, "query", "query", run, "select count(*) n from spans")
    assert row == {"n": RunDirectory.open(run).stored}


def test_an_export(capsys: pytest.CaptureFixture[str], run: Path, tmp_path: Path) -> None:
    stored = RunDirectory.open(run).stored
    found = asked(capsys, "export", "export", run, "--csv", tmp_path / "a.csv", "--otlp-json", tmp_path / "a.jsonl")
    assert [(Path(one["path"]).name, one["spans"]) for one in found["files"]] == [
        ("a.jsonl", stored),
        ("a.csv", stored),
    ]
    assert found["recorded"] == found["stored"] == stored
    with http() as collector:
        (sent,) = asked(capsys, "export", "export", run, "--otlp", collector.url, "--select", "all")["collectors"]
    assert (sent["spans"], sent["spans"] + sent["roots"]) == (stored, len(collector.spans))


def test_a_calibration(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    told(capsys, "run", *latest(*QUICK, "dataset.num_files=280"), "--engine", "local", "--out", "made")
    found = asked(capsys, "calibrate", "calibrate", "made", "--out", "learned.yaml")
    (home / "again.yaml").write_text(json.dumps(found["scenario"]))
    assert load("again.yaml") == load("learned.yaml")
    assert found["file"] == "learned.yaml"
    assert found["notes"]


def test_whatever_a_library_prints_does_not_reach_the_json() -> None:
    program = """
import os, subprocess, sys
from rayio.cli.output import only_json, print_json
with only_json(True):
    print("a library")
    os.write(1, b"a library in C\\n")
    subprocess.run(["echo", "a child"])
print_json({"au": 1})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == {"au": 1}
    assert {*done.stderr.splitlines()} == {"a library", "a library in C", "a child"}
