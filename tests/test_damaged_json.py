"""JSON that is read back: what Python would let through and nobody can count with is one line, in whatever file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rayio.cli import main
from rayio.data.generate import prepare
from rayio.data.layout import Layout
from rayio.errors import RayioError
from rayio.files import parse_json
from rayio.report.build import report
from rayio.schema.distribution import Constant
from rayio.session.execute import simulate
from rayio.study.sweeps.sweep_directory import SweepDirectory
from rayio.trace.run_directory import RunDirectory

DEEP = "[" * 100_000
HOSTILE = {
    "NaN": '{"version": 1, "complete": NaN}',
    "-Infinity": '{"version": 1, "au": -Infinity}',
    "1e999": '{"version": 1, "au": 1e999}',
    "99999999": '{"version": 1, "epochs": ' + "9" * 5000 + "}",
    "nested too deeply": DEEP,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    simulate("unet3d-small", ["dataset.num_files=28", "train.epochs=1", "dataset.path=model://x"], root=root, out="run")
    return root / "run"


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.mark.parametrize("said", HOSTILE)
def test_json_that_nobody_can_count_with_is_no_json(said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_json(HOSTILE[said])


def test_what_python_writes_is_read_as_it_was() -> None:
    value = {"a": [1, -2.5, 1e308, 5e-324, None, True, "NaN"], "b": {"c": 2**63}}
    assert parse_json(json.dumps(value)) == value


def of_run(name: str) -> Callable[[Path, str], object]:
    def read(folder: Path, text: str) -> object:
        made = RunDirectory.create(folder)
        (folder / name).write_text(text)
        return RunDirectory.open(made.address).result

    return read


def of_dataset(folder: Path, text: str) -> object:
    layout = Layout(2, 1, Constant(value=300), 5, ".npz")
    prepare(layout, "npz", folder, threads=1)
    (folder / "rayio-dataset.json").write_text(text)
    return prepare(layout, "npz", folder, threads=1)


def of_sweep(folder: Path, text: str) -> object:
    SweepDirectory.open(folder, {})
    (folder / "sweep.json").write_text(text)
    return SweepDirectory.open(folder, {})


READERS: dict[str, Callable[[Path, str], object]] = {
    "run.json": of_run("run.json"),
    "result.json": of_run("result.json"),
    "rayio-dataset.json": of_dataset,
    "sweep.json": of_sweep,
}


@pytest.mark.parametrize("said", HOSTILE)
@pytest.mark.parametrize("name", READERS)
def test_a_file_of_such_json_is_named_in_one_line(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(RayioError) as told:
        READERS[name](tmp_path / "there", HOSTILE[said])
    assert str(tmp_path / "there" / name) in str(told.value)
    assert said in str(told.value)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 400


def test_a_result_with_nan_is_one_line_in_every_command(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (copied / "result.json").read_text()
    other = shutil.copytree(copied, copied.with_name("other"))
    (copied / "result.json").write_text(text.replace('"au": ', '"au": NaN, "was": ', 1))
    for command in (["compare", str(copied), str(other)], ["report", str(copied)], ["explain", str(copied)]):
        assert main_code(command) == 2
        said = capsys.readouterr().err
        assert "result.json is not JSON" in said
        assert "NaN" in said
        assert said.count("\n") == 1


def main_code(command: list[str]) -> object:
    with pytest.raises(SystemExit) as end:
        main(command)
    return end.value.code


def without(copied: Path) -> None:
    shutil.rmtree(copied / "spans")


def emptied(copied: Path) -> None:
    shutil.rmtree(copied / "spans")
    (copied / "spans").mkdir()


def circling(copied: Path) -> None:
    """No user, not even root, can look into a link that leads to itself."""
    shutil.rmtree(copied / "spans")
    (copied / "spans").symlink_to("spans")


def a_file(copied: Path) -> None:
    shutil.rmtree(copied / "spans")
    (copied / "spans").write_text("")


def damaged(copied: Path) -> None:
    for path in (copied / "spans").iterdir():
        path.write_bytes(path.read_bytes()[:-9])


LOSSES = (without, emptied, circling, a_file, damaged)
each_loss = pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)


@each_loss
def test_a_report_that_is_there_is_never_replaced_by_an_empty_one(lose: Callable[[Path], None], copied: Path) -> None:
    report(copied, simulate=False)
    good = (copied / "report.html").read_bytes()
    lose(copied)
    with pytest.raises(RayioError, match="spans"):
        report(copied, simulate=False)
    assert (copied / "report.html").read_bytes() == good
    assert not [*copied.glob("*.partial")]


@each_loss
def test_spans_that_are_gone_are_never_zero_spans(
    lose: Callable[[Path], None], copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lose(copied)
    assert main_code(["query", str(copied), "select count(*) from spans"]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert str(copied / "spans") in said.err
    if lose is not damaged:  # these two then say which files they had to do without
        assert main_code(["explain", str(copied)]) == 2
        assert main_code(["report", str(copied)]) == 2


def test_a_run_that_broke_off_before_its_first_span_has_none(tmp_path: Path) -> None:
    made = RunDirectory.create(tmp_path / "run")
    assert len(RunDirectory.open(made.address).spans()) == 0
