"""Files are written whatever becomes of standard output: its reader has gone (``| head``), or its disk is full."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from rayio import cli
from rayio.cli.output import escaped_streams

FEW = ["dataset.num_files=64", "dataset.sample_bytes=1 kB", "train.epochs=1", "train.compute=1 ms"]
SMALL = [*FEW, "loader.batch_size=4"]
SCENARIO = "unet3d-small"


def on_closed(monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], *names: str) -> int:
    """Return the exit code of a command that writes to pipes which nobody reads."""
    with ExitStack() as stack:
        for name in names:
            reads, writes = os.pipe()
            os.close(reads)
            stack.enter_context(suppress(BrokenPipeError))  # when it closes, where nothing discards its text
            stream = stack.enter_context(os.fdopen(writes, "w"))
            monkeypatch.setattr(sys, name, stream)
        with escaped_streams():
            return cli._exit_code(arguments)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run directory with a result."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("one", "two"):
        assert cli._exit_code(["simulate", SCENARIO, *SMALL, "--root", str(folder), "--out", name, "--no-report"]) == 0
    return folder / "one"


WRITTEN = [
    (["simulate", SCENARIO, *SMALL, "--root", ".", "--out", "new"], "new/report.html"),
    (["simulate", SCENARIO, *SMALL, "--root", ".", "--out", "new", "--repeat", "2"], "new-2/report.html"),
    (["run", SCENARIO, *SMALL, "--engine", "local", "--root", ".", "--out", "new"], "new/report.html"),
    (["report", "RUN", "--out", "page.html"], "page.html"),
    (["report", "RUN", "--mlperf", "folder"], "folder/summary.json"),
    (["compare", "RUN", "OTHER", "--out", "page.html"], "page.html"),
    (["sweep", SCENARIO, *SMALL, "loader.num_workers=1,2", "--root", ".", "--out", "new"], "new/sweep.html"),
    (["capacity", SCENARIO, *FEW, "--max", "2", "--root", ".", "--out", "new"], "new/capacity.html"),
    (["advise", SCENARIO, *FEW, "--root", ".", "--out", "new"], "new/advice.html"),
    (["export", "RUN", "--csv", "spans.csv", "--perfetto", "spans.pftrace.gz"], "spans.csv"),
]


@pytest.mark.parametrize(("arguments", "file"), WRITTEN, ids=[" ".join(row[0][:1] + row[0][-2:]) for row in WRITTEN])
def test_a_command_writes_its_files_when_nobody_reads_its_output(
    arguments: list[str], file: str, simulated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = {"RUN": str(simulated), "OTHER": str(simulated.with_name("two"))}
    arguments = [runs.get(each, each) for each in arguments]
    assert on_closed(monkeypatch, arguments, "stdout", "stderr") == 0
    assert (tmp_path / file).stat().st_size > 0


def test_the_exit_code_is_the_command_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A goal that is not reached is reported to scripts that read only the beginning of the output."""
    arguments = ["simulate", SCENARIO, *SMALL, "expect.wall_seconds=< 0.001", "--root", str(tmp_path), "--no-report"]
    assert on_closed(monkeypatch, arguments, "stdout") == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_behind_the_output_is_one_line_after_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with suppress(OSError), Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with escaped_streams():
            code = cli._exit_code(["simulate", SCENARIO, *SMALL, "--root", str(tmp_path), "--out", "new"])
    assert code == 2
    assert "no space left for the output" in capfd.readouterr().err
    assert (tmp_path / "new/report.html").exists()
