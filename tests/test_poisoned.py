"""Every text of every file that is read back is poisoned: no page has it as HTML, no command prints it as it is."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from test_architecture import FILES, named
from test_import_reduced import results

import rayio
from rayio.cli import main
from rayio.records.printed import escaped
from rayio.session.execute import simulate

__all__ = ["results"]  # a fixture

#: A tag, an end of an attribute, and sequences that a terminal obeys: its escape, its 8-bit form, one to go back.
POISON = "<script>evil</script>\"'><b evil>\x1b[31mred\x9b2J\x07\r\x1b]0;title\x07"
#: What must be nowhere.
TAGS = ("<script>evil", "<b evil")
SEQUENCES = ("\x1b", "\x9b", "\x07", "\r", "\u202e")

SMALL = """
name: small
dataset: {path: "model://small", num_files: 48, sample_bytes: 1 MB}
storage: {model: {first_byte: 1 ms, connection_bandwidth: 60 MB/s, bandwidth: 1 GB/s}}
loader: {batch_size: 2, num_workers: 1}
train: {epochs: 1, compute: 10 ms}
"""


def poisoned(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every text in a value, a key of a mapping by names too, with the value in which that text is poisoned."""
    if isinstance(value, str):
        yield place, value + POISON
    elif isinstance(value, dict):
        for key, item in value.items():
            for where, changed in poisoned(item, (*place, key)):
                yield where, value | {key: changed}
    elif isinstance(value, list):
        for number, item in enumerate(value[:2]):
            for where, changed in poisoned(item, (*place, number)):
                yield where, [*value[:number], changed, *value[number + 1 :]]


def filled(content: dict[str, Any]) -> dict[str, Any]:
    """A result with a text where it may have one and has none."""
    return content | {"error": "it broke", "exit_code": 2, "notes": ["one"]}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a second one, and a sweep, a capacity and an advice that another command resumes."""
    root = tmp_path_factory.mktemp("home")
    (root / "small.yaml").write_text(SMALL)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(root)
        for name in ("run", "other"):
            simulate("small.yaml", ["trace.level=io"], out=name)
            file = root / name / "result.json"
            file.write_text(json.dumps(filled(json.loads(file.read_text()))))
        for resumed in RESUMED:
            command(*resumed)
    return root


RESUMED = (
    ("sweep", "small.yaml", "loader.num_workers=1,2", "--out", "swept", "--processes", "1"),
    ("capacity", "small.yaml", "--max", "2", "--out", "capacity"),
    ("advise", "small.yaml", "--reach", "au=0.4", "--vary", "loader.num_workers=1..2", "--out", "advice"),
)
READ = (
    ("report", "run"), ("explain", "run", "--no-simulate"), ("explain", "run", "--no-simulate", "--json"),
    ("compare", "run", "other", "--all", "--out", "compare.html"), ("compare", "run", "other", "--json"),
    ("top", "run", "--once"), ("top", "run", "--once", "--json"), ("calibrate", "run"),
    ("export", "run", "--perfetto", "out.pf", "--force"),
)  # fmt: skip


#: One of each way in which what a run says is shown: a page, text and JSON.
BRIEF = (("report", "run"), ("explain", "run", "--no-simulate"), ("top", "run", "--once", "--json"))


def command(*arguments: str) -> object:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code


def check(home: Path, where: object, said: str) -> None:
    assert "our fault" not in said, (where, said)
    for sequence in SEQUENCES:
        assert sequence not in said, (where, said)
    for page in home.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for tag in TAGS:
            assert tag not in text, (where, page.name, text[max(text.index(tag) - 200, 0) :][:300])


@pytest.mark.parametrize("name", ["result.json", "run.json", "live.json"])
def test_a_poisoned_file_of_a_run_harms_no_page_and_no_terminal(
    name: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All texts at once, and some alone: a text that is refused hides the others."""
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    if name == "live.json":
        Path("run/result.json").unlink()
        text = dict.fromkeys(("state", "run", "scenario", "engine", "started", "updated", "boot_id", "error"), "x")
        number = dict.fromkeys(("pid", "ranks", "planned_steps"), 1)
        Path("run/live.json").write_text(json.dumps(text | number | {"time": {}, "waits": {}}))
    file = Path("run", name)
    good = json.loads(file.read_text())
    everything = good
    for place, _ in [*poisoned(good)]:
        everything = next(changed for where, changed in poisoned(everything) if where == place)
    alone = [changed for where, changed in poisoned(good) if where[-1] in ("started", "kind", "engine", "cause")]
    for content in (everything, *alone):
        file.write_text(json.dumps(content))
        for arguments in READ if content is everything else BRIEF:
            command(*arguments)
            check(tmp_path, arguments, "".join(capsys.readouterr()))
    file.write_text(json.dumps(good))


def test_what_python_prints_of_a_poisoned_run_is_escaped(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    file = Path("run/result.json")
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"scenario": content["scenario"] + POISON}))
    run = rayio.Run.open("run")
    explained, compared = rayio.explain("run", simulate=False), rayio.compare("run", "other")
    shown = [explained._repr_mimebundle_()["text/plain"], compared._repr_mimebundle_()["text/plain"]]
    for said in (repr(run), str(run.result), str(explained), str(compared), *shown):
        check(tmp_path, said[:40], said)


@pytest.mark.parametrize("line", [f"# {POISON}", f"name: {json.dumps(POISON)}", "# <script>evil</script><b evil>"])
def test_a_poisoned_scenario_of_a_run_harms_no_page_and_no_terminal(
    line: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    file = Path("run/scenario.yaml")
    good = [text for text in file.read_text().splitlines() if not (line[0] == "n" and text.startswith("name:"))]
    file.write_text(poisoned := "\n".join([*good, line]) + "\n")
    info = Path("run/run.json")
    info.write_text(json.dumps(json.loads(info.read_text()) | {"scenario": poisoned}))
    for arguments in (*READ, ("validate", "run/scenario.yaml"), ("show", "run/scenario.yaml")):
        command(*arguments)
        check(tmp_path, arguments, "".join(capsys.readouterr()))


@pytest.mark.parametrize("resumed", RESUMED, ids=lambda arguments: arguments[0])
def test_a_poisoned_sweep_harms_no_page_and_no_terminal(
    resumed: tuple[str, ...],
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for file in Path(resumed[resumed.index("--out") + 1]).glob("points.jsonl"):
        lines = file.read_text().splitlines()
        content = json.loads(lines[0])
        for place, _ in [*poisoned(content)]:
            if place[0] == "result":
                content = next(changed for where, changed in poisoned(content) if where == place)
        other = content | {"values": [POISON], "error": POISON}  # a point that this command does not repeat
        for some in (content, other, other | {"status": "failed"}, other | {"status": "unmet"}):
            file.write_text("\n".join([*lines, json.dumps(some)]) + "\n")
            command(*resumed)
            check(tmp_path, resumed, "".join(capsys.readouterr()))


@pytest.mark.parametrize("column", ["name", "role", "index", "status", "file", "attributes"])
def test_poisoned_spans_harm_no_page_and_no_terminal(
    column: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    path = min(Path("run/spans").iterdir())
    table = pq.read_table(path)
    values = [text + POISON for text in table[column].to_pylist()]
    changed = table.set_column(table.schema.get_field_index(column), column, pa.array(values))
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), path)
    sql = ("query", "run", f'select "{column}", count(*) as "{POISON.replace(chr(34), "")}" from spans group by 1')
    read = READ if column in ("name", "attributes") else (*BRIEF, READ[-1])
    for arguments in (*read, sql, (*sql, "--csv"), (*sql, "--json")):
        command(*arguments)
        said = capsys.readouterr()
        check(tmp_path, arguments, said.out + said.err)
        if "--json" in arguments and said.out:
            json.loads(said.out)


@pytest.mark.parametrize("name", ["summary.json", "per_epoch_stats.json", "configs/config.yaml"])
def test_a_poisoned_import_harms_no_page_and_no_terminal(
    name: str, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = results / name
    good = yaml.safe_load(file.read_text())  # JSON is YAML, too
    alone = [changed for _, changed in poisoned(good)]
    for number, content in enumerate([good, *alone]):
        file.write_text(json.dumps(content))
        command("import", "dlio-results", str(results), "--out", f"run-{number}")
        check(tmp_path, name, "".join(capsys.readouterr()))
        if Path(f"run-{number}").exists():
            command("report", f"run-{number}")
            check(tmp_path, name, "".join(capsys.readouterr()))
    assert len(alone) >= 3


def test_what_a_terminal_would_obey_is_written_out_in_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(sequence for sequence in SEQUENCES)
    assert json.loads(f'"{escaped(text)}"') == text
    assert escaped("a\tb\nä → ±") == "a\tb\nä → ±"


def test_only_three_places_write_to_a_terminal_as_it_is() -> None:
    users = {
        named(path)
        for path in FILES
        if named(path).startswith("cli/")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "raw"
    }
    assert users == {"cli/results.py", "cli/terminal.py", "cli/top.py"}
