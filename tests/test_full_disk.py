"""Commands whose folder is full or read-only: one line that says what to do, and nothing that was there is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rayio
from rayio.study.sweeps.sweep_directory import SweepDirectory

#: Runs every command of standard input, with standard error as its answer.
COMMANDS = """
import contextlib, io, json, sys
from rayio.cli import _exit_code
for command in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
        code = _exit_code(command)
    print(json.dumps([code, said.getvalue()]))
"""
#: Does so in a file system of 1 MiB of its own that holds what ``given`` holds, is then full, or read-only, and what is
#: in it at the end is in ``left``.
STORY = """
mkdir disk left && mount -t tmpfs -o size=1m tmpfs disk || exit 77
cp -r given/. disk/
{how}
{python} -c "$COMMANDS"
code=$?
rm -f disk/filler
cp -r disk/. left/
exit $code
"""
FULL = "cat /dev/zero > disk/filler 2> /dev/null; truncate -s -{room} disk/filler"
READ_ONLY = "mount -o remount,ro disk"
SWEEP = ["sweep", "unet3d-small", "dataset.path=model://x", "checkpoint=none", "loader.num_workers=1,2,3,4,5,6"]


def commands(home: Path, how: str, *asked: list[str]) -> list[tuple[int, str]]:
    """The exit code and the last line of each."""
    (home / "given").mkdir(exist_ok=True)
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", STORY.format(how=how, python=sys.executable)],
        env={"COMMANDS": COMMANDS, "HOME": str(home), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, cwd=home,
        input=json.dumps(asked), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no file system can be mounted here")
    assert done.returncode == 0, done.stderr
    answers: list[Any] = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(asked)
    assert not any("Traceback" in said or "our fault" in said for _, said in answers)
    return [(code, said.strip().splitlines()[-1]) for code, said in answers]


def before(home: Path) -> None:
    """A run, and files that commands are asked to replace."""
    rayio.run(
        "unet3d-small",
        ["dataset.path=model://x", "checkpoint=none", "train.epochs=2", "train.steps=6", "train.compute=1 ms"],
        engine="local", out=home / "run",
    )  # fmt: skip
    (home / "given").mkdir()
    for name in ("old.csv", "old.yaml", "old.html"):
        (home / "given" / name).write_text("old")


OTHERS = [
    ["export", "run", "--csv", "disk/old.csv", "--force"],
    ["calibrate", "run", "--out", "disk/old.yaml", "--force"],
    ["report", "run", "--out", "disk/old.html", "--force"],
]


def test_a_full_disk_is_one_line_with_what_to_do_and_loses_nothing(home: Path) -> None:
    before(home)
    (_, sweep), *answers = commands(home, FULL.format(room=12288), [*SWEEP, "--out", "disk/s"], *OTHERS)
    assert [code for code, _ in answers] == [2, 2, 2]
    for (_, said), name in zip(answers, ("old.csv", "old.yaml", "old.html"), strict=True):
        assert said.startswith(f"rayio: cannot write disk/{name}: no space left while writing"), said
        assert "free); free some, or choose another " in said
        assert (home / "left" / name).read_text() == "old"
    assert "/disk/s/points.jsonl: no space left while writing (" in sweep
    assert sweep.endswith("(finished runs are kept; give the same command to resume)")
    assert {path.name for path in (home / "left").iterdir()} == {"old.csv", "old.yaml", "old.html", "s"}
    assert {path.name for path in (home / "left/s").iterdir()} == {"points.jsonl", "sweep.json"}
    kept = (home / "left/s/points.jsonl").read_bytes()
    rows = [*SweepDirectory(home / "left/s").rows()]
    assert 1 <= len(rows) == kept.count(b"\n") < 6
    assert kept.endswith(b"\n")


def test_a_file_system_that_is_read_only_is_called_so(home: Path) -> None:
    before(home)
    answers = commands(home, READ_ONLY, *OTHERS, [*SWEEP, "--out", "disk/s"], ["report", "run", "--out", "disk/new"])
    for code, said in answers:
        assert code == 2
        assert said.startswith("rayio: cannot write "), said
        assert "the file system is read-only; choose another " in said
    assert {path.read_text() for path in (home / "left").iterdir()} == {"old"}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["export", "run", "--csv", "notes/x.csv"], "cannot write notes/x.csv: notes is not a folder"),
        (["calibrate", "run", "--out", "notes/x.yaml"], "cannot write notes/x.yaml: notes is not a folder"),
    ],
)
def test_a_file_in_the_place_of_a_folder_is_called_so(
    home: Path, command: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from rayio.cli import main

    before(home)
    (home / "notes").write_text("mine")
    with pytest.raises(SystemExit) as left:
        main(command)
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith(f"rayio: {said}")
    assert (home / "notes").read_text() == "mine"
