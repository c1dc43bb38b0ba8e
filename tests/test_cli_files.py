from __future__ import annotations

from pathlib import Path

import pytest

import rayio
from rayio.cli import main


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "run", "--csv", "s3://b/x.csv"],
        ["export", "run", "--perfetto", "s3://b/x.pftrace"],
        ["export", "run", "--otlp-json", "s3://b/x.json"],
        ["calibrate", "run", "--out", "s3://b/x.yaml"],
        ["sweep", "unet3d-small", "--points", "s3://b/x.csv"],
        ["import", "dlio-results", "s3://b/x"],
    ],
    ids=" ".join,
)
def test_a_file_of_this_machine_is_no_address(
    arguments: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "s3://b/x" in said
    assert "is not on this machine" in said
    assert not [*home.iterdir()]


def test_what_is_no_run_directory_is_called_what_it_is(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(path: str) -> str:
        with pytest.raises(SystemExit) as left:
            main(["explain", path])
        assert left.value.code == 2
        return capsys.readouterr().err.removeprefix(f"rayio: {path} is not a run directory: ").strip()

    rayio.simulate("unet3d-small", ["dataset.path=model://x", "train.steps=2"], out="runs/one")
    rayio.sweep("unet3d-small", ["loader.num_workers=1,2", "train.steps=2"], out="swept")
    (home / "theirs").mkdir()
    (home / "theirs/summary.json").write_text("{}")
    assert said("runs/ome") == "no such path; did you mean runs/one?"
    (home / "runs/ones").write_text("a file is no run")
    assert said("runs/onese") == "no such path; did you mean runs/one?"
    (home / "runs/ones").unlink()
    assert said("runs") == "it has no run.json; name a run in it: runs/one"
    assert said("swept") == "it contains a sweep: see its sweep.html"
    (home / "runs").rename(home / "swept/runs")
    assert said("swept") == "it contains a sweep: see its sweep.html, or name a run of it: swept/runs/one"
    assert said("theirs") == "it contains results of DLIO: rayio import dlio-results makes a run of them"


def test_a_file_that_another_wrote_is_replaced_only_when_forced(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def code(*arguments: str) -> int:
        with pytest.raises(SystemExit) as left:
            main([*arguments])
        return int(str(left.value.code or 0))

    model = ["dataset.path=model://x", "train.steps=8", "train.epochs=2", "train.compute=1 ms", "checkpoint=none"]
    rayio.run("unet3d-small", model, engine="local", out="one")
    rayio.sweep("unet3d-small", ["loader.num_workers=1,2", "train.steps=2", "dataset.path=model://x"], out="swept")
    swept = Path("swept/sweep.html").read_text()
    theirs = {"calibrate": ["name: mine\n", "# mine\nname: x\n", ""], "report": ["notes", "<!doctype html>", swept]}
    for command, texts in theirs.items():
        for text in texts:
            Path("file").write_text(text)
            capsys.readouterr()
            assert code(command, "one", "--out", "file") == 2
            said = capsys.readouterr()
            why = f"file exists, and rayio {command} did not write it; give another name, or use --force"
            assert (said.out, said.err) == ("", f"rayio: {why}\n")
            assert Path("file").read_text() == text
        assert code(command, "one", "--out", "file", "--force") == 0
        written = Path("file").read_text()
        Path("file").write_text(f"{written}# changed")
        assert code(command, "one", "--out", "file") == 0, "its own is replaced"
        assert not Path("file").read_text().endswith("# changed")


@pytest.mark.parametrize("option", [["--out", "x.html"], ["--window", "1s..2s"]])
def test_a_report_that_is_not_wanted_has_no_place(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["report", "runs/one", "--no-html", *option])
    assert left.value.code == 2
    assert "remove --no-html" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("export", "r", "--csv"), ("export", "r", "--perfetto"), ("export", "r", "--otlp-json"),
        ("report", "r", "--out"), ("compare", "r", "r", "--out"), ("calibrate", "r", "--out"),
        ("import", "dlio", "workload.yaml", "--out"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_file_in_a_folder_that_does_not_exist_is_refused_and_the_folder_not_made(
    words: tuple[str, ...], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "r").mkdir()
    (home / "r/run.json").write_text("{}")
    with pytest.raises(SystemExit) as left:
        main([*words, "typo/mine.out"])
    assert left.value.code == 2
    folder = "typo does not exist; make it (mkdir -p typo), or correct it"
    assert capsys.readouterr().err == f"rayio: cannot write typo/mine.out: {folder}\n"
    assert not (home / "typo").exists()
