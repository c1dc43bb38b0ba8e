"""Calls in other processes: the same answers, in the order of the calls, whichever ends first."""

from __future__ import annotations

import importlib
import operator
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rayio
from rayio.errors import RunError, ScenarioError
from rayio.machine import calls
from rayio.reporter import Reporter
from rayio.scenario.load import load
from rayio.study.sizing.knee import changes_at
from scenarios import scenario

RUN: dict[str, Any] = {
    "dataset.num_files": 64, "train.epochs": 1, "loader.num_workers": 1, "storage.model": "s3", "cluster.cores": 4,
    "cluster.ranks_per_node": 2,
}  # fmt: skip


class Heard(Reporter):
    """A receiver of what is shown live."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def live(self, text: str, share: float | None = None) -> None:
        """Keep the text."""
        self.texts.append(text)


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "WORTH_SECONDS", 0.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def test_short_calls_are_made_here_and_long_ones_in_processes_that_end_with_them() -> None:
    asked: list[Callable[[], object]] = [
        os.getpid,
        partial(load, "no-such-scenario"),
        os.getpid,
        partial(operator.truediv, 1, 0),
    ]
    here, refused, again = calls.in_order(asked[:3], calls.WORTH_SECONDS / 4)
    assert here == again == os.getpid()
    assert isinstance(refused, ScenarioError)
    seen: list[int] = []
    first, there, last, broken = calls.in_order(asked, calls.WORTH_SECONDS, seen.append)
    assert str(there) == str(refused)
    assert isinstance(broken, RunError)
    assert "ZeroDivisionError: division by zero (calls.py" in str(broken)
    assert seen == [0, 1, 2, 3, 4]
    assert os.getpid() not in (first, last)
    assert not any(Path(f"/proc/{number}").exists() for number in (first, last))


def test_a_process_that_dies_is_one_line() -> None:
    died = [partial(signal.raise_signal, signal.SIGKILL)] * 2
    with pytest.raises(RunError, match=r"a simulating process died .*give the same command again"):
        [*calls.answers(died, calls.WORTH_SECONDS, processes=2)]


def test_processes_find_the_modules_that_a_script_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_by_a_script.py").write_text("def one():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    one = importlib.import_module("found_by_a_script").one
    assert dict(calls.answers([one, one], calls.WORTH_SECONDS, processes=2)) == {0: 1, 1: 1}
    monkeypatch.delitem(sys.modules, "found_by_a_script")


def test_what_would_help_is_the_same_from_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in ("virtual", "local"):
        keys = (
            RUN if engine == "virtual" else {"dataset.num_files": 56, "dataset.sample_bytes": 1000, "train.epochs": 1}
        )
        run = rayio.run("unet3d-small", keys, engine=engine, root=tmp_path, out=engine)
        here = rayio.explain(run)
        with monkeypatch.context() as patch:
            elsewhere(patch)
            assert rayio.explain(run) == here
        assert here.simulated is not None
        assert len(here.simulated.changes) > 4


def test_changes_at_the_end_of_a_capacity_are_the_same_from_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, heard = scenario(**{key.replace(".", "__"): value for key, value in RUN.items()}), Heard()
    here = changes_at(wanted, "au", 0.9, heard)
    elsewhere(monkeypatch)
    there = changes_at(wanted, "au", 0.9, heard)
    assert [(entry.change.name, entry.au, entry.without, entry.is_pair) for entry in there] == [
        (entry.change.name, entry.au, entry.without, entry.is_pair) for entry in here
    ]
    assert len(here) > 1
    assert heard.texts[0].startswith("finding what would help: 0 of ")
