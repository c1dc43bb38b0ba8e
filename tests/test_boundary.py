"""What is read back is checked as it comes in: a wrong value is one line with its file and column, never our fault."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayio.cli import main
from rayio.errors import StorageError
from rayio.session.execute import simulate
from rayio.trace.span import COLUMNS, LEAST
from rayio.trace.span_files import SpanFile

SWEEP = [
    "sweep", "unet3d-small", "dataset.num_files=28", "dataset.path=model://x", "train.epochs=1",
    "loader.num_workers=1,2", "--out", "s", "--processes", "1",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    keys = ["dataset.num_files=28", "train.epochs=12", "dataset.path=model://x", "trace.level=io"]
    simulate("unet3d-small", keys, root=root, out="run")
    info = json.loads((root / "run" / "run.json").read_text())
    (root / "run" / "run.json").write_text(json.dumps(info | {"engine": "local"}))  # so that it can be calibrated
    return root / "run"


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


def told(capsys: pytest.CaptureFixture[str], *command: str) -> tuple[object, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(command)
    return end.value.code, capsys.readouterr().err


def readers(copied: Path) -> list[list[str]]:
    name, out = str(copied), str(copied.parent / "out")
    return [
        ["report", name], ["explain", name, "--no-simulate"], ["calibrate", name, "--out", f"{out}.yaml", "--force"],
        ["export", name, "--otlp-json", f"{out}.json", "--force"], ["export", name, "--csv", f"{out}.csv", "--force"],
        ["export", name, "--perfetto", f"{out}.pf", "--force"],
    ]  # fmt: skip


def none(_: Any) -> None:
    return None


def negative(_: Any) -> int:
    return -5


def spoiled(copied: Path, column: str, spoil: Callable[[Any], Any]) -> Path:
    """Give the first span of the first file another value in one column."""
    path = min((copied / "spans").iterdir())
    table = pq.read_table(path)
    stored = next(name for name in (column.replace("_ns", "_us"), column) if name in table.column_names)
    values = table[stored].to_pylist()
    values[0] = spoil(values[0])
    kind = table.schema.field(stored).type
    kind = pa.string() if pa.types.is_dictionary(kind) else kind
    changed = table.set_column(table.schema.get_field_index(stored), stored, pa.array(values, kind))
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), path)
    return path


NUMBERS = [name for name, kind in COLUMNS.items() if kind != "text"]


@pytest.mark.parametrize(
    ("column", "spoil"),
    [(name, none) for name in COLUMNS] + [(name, negative) for name in NUMBERS],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_column_of_spans_that_cannot_be_is_one_line(
    column: str, spoil: Callable[[Any], Any], copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = spoiled(copied, column, spoil)
    commands = readers(copied)
    if spoil is none or column in LEAST:
        with pytest.raises(StorageError, match=f"column {column} "):
            SpanFile(path).read()
        commands = commands if column == "end_ns" else commands[:1]  # they read spans by the same code
    for command in commands:
        code, said = told(capsys, *command)
        assert code in (0, 2), (command, said)
        assert "our fault" not in said, (command, said)
        if code:
            assert (str(path) in said, column in said, said.count("\n")) == (True, True, 1), (command, said)


#: Values of other types than the keys of the files have.
WRONG: tuple[Any, ...] = (None, True, -5, 1.5, "text", [None], {"a": 1})


def swept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit):
        main(SWEEP)
    return folder / "s" / "points.jsonl"


@pytest.fixture(scope="module")
def a_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as monkeypatch:
        return swept(tmp_path_factory.mktemp("sweep"), monkeypatch)


@pytest.mark.parametrize(
    "key", ["values", "repeat", "status", "error", "readers", "window_bytes", "result", "epochs", "busy_share"]
)
def test_a_point_of_another_type_is_one_line(
    key: str, a_sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(a_sweep.parent.parent)
    good = a_sweep.read_text()
    first, *others = good.splitlines(keepends=True)
    for wrong in WRONG:
        a_sweep.write_text(json.dumps(json.loads(first) | {key: wrong}) + "\n" + "".join(others))
        code, said = told(capsys, *SWEEP)
        assert code in (0, 2), (wrong, said)
        assert "our fault" not in said, (wrong, said)
        if code:
            assert f"{a_sweep}:1 " in said, said
            assert key in said or "has version None" in said, said
            assert said.count("\n") == 1
        a_sweep.write_text(good)


@pytest.mark.parametrize(
    ("key", "kind", "wrongs"),
    [
        *((key, "list of objects", (True, 1.5, "text", [None], {"a": 1})) for key in ("nodes", "actors", "restarts")),
        *((key, "text", (["a"], 1.5, {})) for key in ("engine", "root", "run_id")),
    ],
)
def test_an_entry_of_run_json_of_another_type_is_one_line(
    key: str, kind: str, wrongs: tuple[Any, ...], copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = copied / "run.json"
    info = json.loads(file.read_text())
    for number, wrong in enumerate(wrongs):
        file.write_text(json.dumps(info | {key: wrong}))
        for command in readers(copied)[: 1 if number else None]:
            code, said = told(capsys, *command)
            assert (code, said) == (2, f"rayio: {file}: {key} is no {kind}: the file is damaged\n"), command
