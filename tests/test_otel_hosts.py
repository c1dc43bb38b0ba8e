"""Spans of processes that are no children: one actor of each host takes them in, and when it is killed another."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rayio.trace.otel import children, hosts
from rayio.trace.otel.children import PROVIDER, SPOOL
from rayio.trace.otel.hosts import RUN, HostSpool, name_of
from rayio.trace.otel.provider import Target, TracerProvider
from rayio.trace.otel.spool import PREFIX, Spool, sweep
from rayio.trace.recorder import Recorder

FORK = multiprocessing.get_context("fork")
RUN_ID = "rayio-my run $HOME/..-1"

#: From Python 3.12 on: forking beside threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())  # a short path: the addresses of sockets in it must fit into 107 bytes
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    for name in (PROVIDER, SPOOL, RUN):
        monkeypatch.delenv(name, raising=False)
    yield folder
    shutil.rmtree(folder)


class Actor:
    """An actor of the run on this host."""

    def __init__(self, node: int = 0, run: str = RUN_ID) -> None:
        self.recorder = Recorder()
        self.anchor = time.time_ns() - time.perf_counter_ns()
        self.spool = HostSpool(run, self.recorder, node, self.anchor)

    def names(self) -> list[str]:
        return [row["name"] for row in self.rows()]

    def rows(self) -> list[dict[str, Any]]:
        self.spool.collect()
        return self.recorded()

    def recorded(self) -> list[dict[str, Any]]:
        table = self.recorder.drain()
        assert self.recorder.drained == self.recorder.recorded
        return [] if table is None else [row | json.loads(row["attributes"]) for row in table.to_pylist()]

    def is_killed(self) -> None:
        self.spool.leave()


class Worker:
    """A process of the run, as far as its spans go: in this process, so that it can be looked at between them."""

    def __init__(self) -> None:
        self.tracer = TracerProvider(hosts.find().target()).get_tracer("library", "1.2")

    def do(self, *names: str) -> None:
        for name in names:
            self.tracer.start_span(name).end()


@pytest.fixture
def told(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in children.variables(RUN_ID).items():
        monkeypatch.setenv(name, value)


def test_a_program_that_is_told_of_the_run_is_recorded_with_all_that_it_says(scratch: Path, told: None) -> None:
    program = (
        "import os\nfrom rayio.trace.otel.children import provider\ntracer = provider().get_tracer('library', '1.2')\n"
        "with tracer.start_as_current_span('task', attributes={'n': 1}):\n"
        "    with tracer.start_as_current_span('part') as part:\n        part.add_event('half', {'of': 2})\n"
        "    if (child := os.fork()) == 0:\n"
        "        tracer.start_span('fork').end()\n        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
    )
    actor = Actor(node=3)
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", program]) as process:
        assert process.wait() == 0
    rows = {row["name"]: row for row in actor.rows()}
    assert {*rows} == {"task", "part", "fork"}
    for name in ("task", "part"):
        assert (rows[name]["role"], rows[name]["index"], rows[name]["pid"]) == (
            "process",
            str(process.pid),
            process.pid,
        )
        assert (rows[name]["node"], rows[name]["rank"], rows[name]["scope"]) == (
            3,
            -1,
            {"name": "library", "version": "1.2"},
        )
    assert rows["fork"]["pid"] != process.pid
    assert rows["task"]["attributes"] == {"n": 1}
    assert [event["name"] for event in rows["part"]["events"]] == ["half"]
    assert rows["part"]["parent"] == rows["fork"]["parent"] == rows["task"]["span"]
    assert len({row["trace"] for row in rows.values()}) == 1
    assert abs(rows["task"]["start_ns"] - time.time_ns()) < 60e9
    actor.spool.close()
    assert list(scratch.iterdir()) == []


def test_one_actor_takes_each_span_once_and_the_next_goes_on_where_a_killed_one_stopped(told: None) -> None:
    first, second, third = Actor(node=0), Actor(node=1), Actor(node=2)
    worker = Worker()
    worker.do("a", "b")
    assert second.names() == []
    assert first.names() == ["a", "b"]
    worker.do("c")
    first.is_killed()
    worker.do("d")
    (c, d) = second.rows()
    assert (c["name"], d["name"]) == ("c", "d")
    assert c["node"] == 0  # of the same process as those before, however it came here
    assert third.names() == []
    worker.do("e")
    second.is_killed()
    assert Actor().names() == ["e"]


def test_an_actor_that_is_not_eager_takes_in_only_what_others_do_not(told: None) -> None:
    rank = HostSpool(RUN_ID, Recorder(), 1, 0, is_eager=False)
    Worker().do("a")  # finds what it needs, though nobody takes anything in yet
    reader = Actor()
    rank.collect()
    assert reader.names() == ["a"]
    reader.is_killed()
    Worker().do("b")
    rank.collect()
    assert rank.is_owner()
    rank.leave()


def test_an_actor_that_is_killed_while_it_takes_in_leaves_the_rest_to_others(scratch: Path, told: None) -> None:
    def life(ours: Any) -> None:
        actor = Actor()
        ours.send(actor.names())
        signal.pause()

    ours, theirs = FORK.Pipe()
    keeper = Actor(run="another")
    process = FORK.Process(target=life, args=(theirs,))
    process.start()
    assert ours.recv() == []
    second = Actor()
    assert not second.spool.is_owner()
    Worker().do("a")
    process.kill()
    process.join()
    assert second.names() == ["a"]
    second.spool.close()
    keeper.spool.close()
    assert list(scratch.iterdir()) == []


def test_a_fork_of_the_owner_does_not_keep_the_lock_when_the_owner_is_gone(told: None) -> None:
    first, second = Actor(), Actor()
    ours, theirs = FORK.Pipe()

    def life() -> None:
        first.spool.collect()
        first.spool.close()  # as by code of its parent that it comes back to
        theirs.send("done")
        signal.pause()

    fork = FORK.Process(target=life)
    fork.start()
    assert ours.recv() == "done"
    Worker().do("a")
    assert first.names() == ["a"]
    assert not second.spool.is_owner()
    first.is_killed()
    assert second.spool.is_owner()
    fork.kill()
    fork.join()


def test_the_last_lines_are_taken_in_at_the_end_whoever_ends_first(scratch: Path, told: None) -> None:
    owner, other, late = Actor(), Actor(), Actor()
    worker = Worker()
    worker.do("a")
    other.spool.close()
    assert other.recorded() == []
    owner.is_killed()
    worker.do("b")
    late.spool.close()  # nobody has looked since the owner died
    assert [row["name"] for row in late.recorded()] == ["a", "b"]
    assert list(scratch.iterdir()) == []
    worker.do("c")  # goes on, unheard
    late.spool.close()
    assert late.names() == owner.names() == []


def test_who_ends_after_the_owner_leaves_the_next_folder_of_that_name_alone(scratch: Path, told: None) -> None:
    owner, other = Actor(), Actor()
    owner.spool.close()
    restarted = Actor()
    assert not other.spool.is_owner()
    Worker().do("a")
    other.spool.close()
    assert other.recorded() == []
    assert restarted.names() == ["a"]
    restarted.spool.close()
    assert list(scratch.iterdir()) == []


def test_what_a_process_of_a_killed_task_has_written_is_taken_in_and_removed(told: None) -> None:
    def life(ours: Any) -> None:
        worker = Worker()
        worker.do(*(f"span {number}" for number in range(30)))
        worker.tracer.start_span("never ends")
        ours.send("done")
        signal.pause()

    ours, theirs = FORK.Pipe()
    actor = Actor()
    process = FORK.Process(target=life, args=(theirs,))
    process.start()
    assert ours.recv() == "done"
    process.kill()
    process.join()
    rows = actor.rows()
    assert [row["name"] for row in rows] == [f"span {number}" for number in range(30)]
    assert {row["pid"] for row in rows} == {process.pid}
    assert list(actor.spool.folder.glob("*.jsonl")) == []
    assert actor.names() == []


def test_a_spool_that_some_actor_shares_in_is_not_swept_though_its_owner_was_killed(scratch: Path, told: None) -> None:
    owner, other = Actor(), Actor()
    owner.is_killed()
    sweep()
    assert other.spool.folder.exists()
    other.is_killed()
    sweep()
    assert list(scratch.iterdir()) == []


def test_a_spool_that_is_only_being_made_is_not_swept(scratch: Path) -> None:
    (scratch / f"{PREFIX}new").mkdir()
    (scratch / f"{PREFIX}new" / "spool.json").touch()
    sweep()
    assert [path.name for path in scratch.iterdir()] == [f"{PREFIX}new"]


def _of_nobody(folder: Path) -> None:
    """There is no such folder."""


def _put_there(folder: Path) -> None:
    (folder.parent / "theirs").mkdir()
    (folder.parent / "theirs" / "spool.json").write_text(json.dumps([Spool(str(folder), "x", "x", 0), 0]))
    folder.symlink_to(folder.parent / "theirs")


def _unreadable(folder: Path) -> None:
    folder.mkdir()
    (folder / "spool.json").write_text("[1")


@pytest.mark.parametrize("make", [_of_nobody, _put_there, _unreadable])
def test_a_process_that_finds_no_spool_of_its_run_keeps_nothing(
    make: Callable[[Path], None], scratch: Path, told: None
) -> None:
    actor = Actor()
    actor.spool.close()
    make(actor.spool.folder)
    before = sorted(scratch.rglob("*"))
    assert children.provider().target is None
    assert sorted(scratch.rglob("*")) == before


def test_another_users_folder_is_not_used(told: None, monkeypatch: pytest.MonkeyPatch) -> None:
    actor, ours = Actor(), os.getuid()
    with monkeypatch.context() as another:
        another.setattr(os, "getuid", lambda: ours + 1)
        assert children.provider().target is None
        assert hosts.share(RUN_ID, Recorder(), 0, 0) is None
    assert hosts.find().run == RUN_ID
    actor.spool.close()


def test_a_folder_that_somebody_has_put_in_the_way_is_not_used(scratch: Path, told: None) -> None:
    actor = Actor()
    actor.spool.close()
    _put_there(actor.spool.folder)
    assert hosts.share(RUN_ID, Recorder(), 0, 0) is None
    another = hosts.share("another", Recorder(), 0, 0)
    assert another is not None
    another.close()


def test_a_child_of_an_actor_writes_for_its_parent_though_it_is_told_of_the_run(
    scratch: Path, told: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = Actor()
    mine = scratch / "mine"
    mine.mkdir()
    monkeypatch.setenv(SPOOL, json.dumps(Spool(str(mine), RUN_ID, "reader-0/1", 0)))
    monkeypatch.setattr(children, "_joined", None)
    provider = children.provider()
    assert isinstance(provider, TracerProvider)
    provider.get_tracer("library").start_span("child").end()
    assert isinstance(provider.target, Target)
    assert len(list(mine.glob(f"{os.getpid()}-*.jsonl"))) == 1
    assert actor.names() == []


def test_the_name_by_which_a_run_is_found_is_plain_whatever_the_run_is_called() -> None:
    assert name_of(RUN_ID).isalnum()
    assert name_of(RUN_ID) == name_of(RUN_ID) != name_of(RUN_ID + "x")
    assert len(name_of("x" * 1000)) == len(name_of("x")) < 50
