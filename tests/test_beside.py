"""The suite's own rules: who runs beside whom, and that what a test leaves behind is found."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import beside
import left
import pytest
from left import Before


class Marked:
    """As much of a test as the rules look at."""

    def __init__(self, *marks: str, fixture: str = "home", file: str = "test_marked") -> None:
        self.nodeid = "-".join((*marks, fixture))
        self.marks = marks
        self.path = Path(f"{file}.py")
        self.fixturenames = [fixture]

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None


def marked(*marks: str, fixture: str = "home", file: str = "test_marked") -> pytest.Item:
    return cast(pytest.Item, Marked(*marks, fixture=fixture, file=file))


def test_tests_on_ray_come_first_and_share_one_as_do_those_with_a_costly_fixture() -> None:
    plain, other, clock = marked("slow"), marked("ray"), marked("ray", "clock", file="test_ray")
    s3, s3_on_ray = marked(fixture="s3_server"), marked("ray", fixture="s3_server")
    items = [plain, s3, other, clock, s3_on_ray]
    assert beside.arrange(items) == {
        "ray-clock-home": "ray", "ray-home": "ray", "ray-s3_server": "ray", "s3_server": "s3_server",
    }  # fmt: skip
    assert items == [other, clock, s3_on_ray, s3, plain]


def test_tests_that_share_what_their_file_makes_once_are_one_process_s() -> None:
    def item(name: str, scope: str, file: str) -> Any:
        one: Any = marked(fixture=name)
        one.nodeid = f"tests/test_a.py::{name}"
        made = SimpleNamespace(scope=scope, baseid=file)
        one._fixtureinfo = SimpleNamespace(name2fixturedefs={name: [made]})
        return one

    items = [item("each", "function", "tests/test_a.py"), item("here", "module", "tests/test_a.py"),
             item("elsewhere", "module", "tests")]  # fmt: skip
    assert beside.arrange(items) == {"tests/test_a.py::here": "tests/test_a.py, shared"}
    assert items[0].nodeid == "tests/test_a.py::here"


def leave_a_process(home: Path) -> Callable[[], object]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    return lambda: process.communicate(b"\n")


def leave_a_thread(home: Path) -> Callable[[], object]:
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="forgotten")
    thread.start()

    def undo() -> None:
        over.set()
        thread.join()

    return undo


def leave_a_file(home: Path) -> Callable[[], object]:
    (home / "notes").mkdir()
    return lambda: None


def leave_a_folder(home: Path) -> Callable[[], object]:
    os.chdir(home.parent)
    return lambda: None


def leave_a_variable(home: Path) -> Callable[[], object]:
    os.environ["FORGOTTEN"] = "1"
    return lambda: os.environ.pop("FORGOTTEN")


@pytest.mark.parametrize(
    ("leave", "said"),
    [
        (leave_a_process, "the process "),
        (leave_a_thread, "the thread forgotten"),
        (leave_a_file, "notes in HOME"),
        (leave_a_folder, "the working directory "),
        (leave_a_variable, "the variable FORGOTTEN"),
    ],
)
def test_what_is_left_behind_is_found(leave: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left, "GRACE", 0.1)
    home = tmp_path / "home"
    home.mkdir()
    before = Before.look()
    assert before.left(home) == []
    undo = leave(home)
    found = before.left(home)
    undo()
    assert len(found) == 1
    assert found[0].startswith(said)
    assert before.left(home) == []
