"""Spans of processes that start during a run: forks, spawned ones, any program, a DataLoader's workers."""

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

import packages
import pytest
from datasets import on_disk
from opentelemetry import trace

from rayio.data.formats import FORMATS
from rayio.trace.otel import children, spool
from rayio.trace.otel.children import PROVIDER, SPOOL, Children
from rayio.trace.otel.foreign import Here, during
from rayio.trace.otel.provider import Target, TracerProvider, capture
from rayio.trace.otel.spool import HELD, PREFIX
from rayio.trace.recorder import Recorder
from rayio.trace.span import FOREIGN_LANE
from scenarios import run_locally, scenario

ROOT = Path(__file__).parents[1]
FORK, SPAWN = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")

#: From Python 3.12 on: forking beside threads is what users' loaders do, and what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


class Family:
    """A process that records itself and its children, as an actor on node 2 does."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.anchor = time.time_ns() - time.perf_counter_ns()
        target = Target(self.recorder, self.recorder.register("reader", "0-1", 2), self.now, "r1", "reader-0/7")
        provider = capture(target)
        assert provider is not None
        self.provider = provider
        followed = children.follow(provider, self.recorder, 2, self.anchor)
        assert followed is not None
        self.children = followed
        self.folder = self.children.folder

    def now(self) -> int:
        return self.anchor + time.perf_counter_ns()

    def rows(self) -> list[dict[str, Any]]:
        self.children.collect()
        table = self.recorder.drain()
        assert self.recorder.drained == self.recorder.recorded
        return [] if table is None else [row | json.loads(row["attributes"]) for row in table.to_pylist()]

    def end(self) -> None:
        self.children.close()
        self.provider.target = None


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())  # a short path: the addresses of sockets in it must fit into 107 bytes
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    for name in (PROVIDER, SPOOL):
        monkeypatch.delenv(name, raising=False)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have new processes find this source as an installed package, with the entry points of its pyproject.toml."""
    site = packages.installed(tmp_path)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([site, str(ROOT), str(ROOT / "tests")]))


@pytest.fixture
def family(scratch: Path, installed: None) -> Iterator[Family]:
    one = Family()
    yield one
    one.end()
    assert list(scratch.iterdir()) == []


def work(names: list[str]) -> None:
    """Be a library: a span for each name, each in the one before."""
    if names:
        with trace.get_tracer("library", "1.2").start_as_current_span(names[0], attributes={"n": 1}):
            work(names[1:])


def ended(process: Any) -> Any:
    process.start()
    process.join()
    assert process.exitcode == 0
    return process


def test_a_fork_continues_its_parents_trace(family: Family) -> None:
    before = family.now()
    with trace.get_tracer("mine").start_as_current_span("outer") as outer:
        child = ended(FORK.Process(target=work, args=(["load", "decode"],)))
    rows = {row["name"]: row for row in family.rows()}
    assert {*rows} == {"outer", "load", "decode"}
    for row in (rows["load"], rows["decode"]):
        assert (row["role"], row["index"], row["node"], row["pid"]) == ("process", str(child.pid), 2, child.pid)
        assert (row["rank"], row["step"], row["scope"]) == (-1, -1, {"name": "library", "version": "1.2"})
        assert row["lane"] >= FOREIGN_LANE
        assert before <= row["start_ns"] <= row["start_ns"] + row["duration_ns"] <= family.now()
        assert row["trace"] == f"{outer.get_span_context().trace_id:032x}"
    assert (rows["outer"]["role"], rows["outer"]["pid"]) == ("reader", os.getpid())
    assert rows["load"]["parent"] == rows["outer"]["span"]
    assert rows["decode"]["parent"] == rows["load"]["span"]


def test_forks_and_their_forks_have_ids_of_their_own(family: Family) -> None:
    def parent() -> None:
        work(["first"])
        inner = FORK.Process(target=work, args=(["second"],))
        inner.start()
        inner.join()
        work(["third"])

    for _ in range(2):
        ended(FORK.Process(target=parent))
    rows = family.rows()
    assert sorted(row["name"] for row in rows) == ["first", "first", "second", "second", "third", "third"]
    assert len({row["span"] for row in rows}) == 6
    assert len({row["trace"] for row in rows}) == 6  # no parent: each is the root of its own
    assert len({row["pid"] for row in rows}) == 4


def test_a_fork_of_a_read_outlives_it_and_is_not_of_its_batch(family: Family) -> None:
    def read(_: None) -> None:
        ended(FORK.Process(target=work, args=(["worker"],)))

    during(Here(0, (3, 1, 5, 0)), read)(None)
    (row,) = family.rows()
    assert row["trace"].endswith(row["span"])  # a root of its own
    assert (row["role"], row["rank"], row["batch"]) == ("process", -1, -1)


def test_a_spawned_process_is_recorded(family: Family) -> None:
    child = ended(SPAWN.Process(target=work, args=(["load", "decode"],)))
    rows = family.rows()
    assert [(row["name"], row["pid"], row["role"]) for row in rows] == [
        ("decode", child.pid, "process"), ("load", child.pid, "process")
    ]  # fmt: skip
    assert rows[0]["parent"] == rows[1]["span"]


def test_any_program_is_recorded_and_so_are_its_forks(family: Family) -> None:
    program = (
        "import os\nfrom opentelemetry import trace\ntracer = trace.get_tracer('tool')\n"
        "with tracer.start_as_current_span('whole'):\n"
        "    if (child := os.fork()) == 0:\n        tracer.start_span('part').end()\n        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
    )
    before = family.now()
    subprocess.run([sys.executable, "-c", program], check=True)
    rows = {row["name"]: row for row in family.rows()}
    assert {*rows} == {"whole", "part"}
    assert rows["part"]["parent"] == rows["whole"]["span"]
    assert rows["part"]["pid"] != rows["whole"]["pid"]
    assert all(before <= row["start_ns"] <= family.now() for row in rows.values())


def test_a_span_that_a_fork_leaves_too_is_its_parents_alone(family: Family) -> None:
    program = (
        "import os\nfrom opentelemetry import trace\ntracer = trace.get_tracer('tool')\n"
        "with tracer.start_as_current_span('outer'):\n"
        "    child = os.fork()\n    tracer.start_span('inner').end()\n"
        "if child:\n    os.waitpid(child, 0)\ntracer.start_span('after').end()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    rows = family.rows()
    assert sorted(row["name"] for row in rows) == ["after", "after", "inner", "inner", "outer"]
    assert len({row["span"] for row in rows}) == 5


def test_who_sets_our_provider_before_the_run_has_its_libraries_recorded_too(family: Family) -> None:
    program = (
        "import subprocess, sys\nfrom opentelemetry import trace\nearly = trace.get_tracer('early')\n"
        "early.start_span('before').end()\nfrom test_otel_children import Family\none = Family()\n"
        "early.start_span('mine').end()\n"
        "code = 'from opentelemetry import trace; trace.get_tracer(str()).start_span(str(1)).end()'\n"
        "subprocess.run([sys.executable, '-c', code], check=True)\n"
        "print(*(row['name'] for row in one.rows()))\none.end()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != SPOOL} | {PROVIDER: "rayio"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["mine", "1"]


def test_a_child_that_is_killed_loses_no_span_that_ended(family: Family) -> None:
    def life(told: Any) -> None:
        for number in range(50):
            work([f"span {number}"])
        trace.get_tracer("library").start_span("never ends")
        told.send("done")
        signal.pause()

    ours, theirs = FORK.Pipe()
    child = FORK.Process(target=life, args=(theirs,))
    child.start()
    assert ours.recv() == "done"
    first = family.rows()
    assert len(list(family.folder.glob("*.jsonl"))) == 1
    child.kill()
    child.join()
    assert sorted(row["name"] for row in first) == sorted(f"span {number}" for number in range(50))
    assert family.rows() == []  # none of them again
    assert list(family.folder.glob("*.jsonl")) == []


def test_what_was_read_does_not_stay_on_disk(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "FILE_BYTES", 500)

    def life(told: Any) -> None:
        for _ in range(3):
            for _ in range(20):
                work(["span"])
            told.send("look")
            told.recv()

    ours, theirs = FORK.Pipe()
    child = FORK.Process(target=life, args=(theirs,))
    child.start()
    ids = []
    for _ in range(3):
        ours.recv()
        assert len(list(family.folder.glob("*.jsonl"))) > 5
        ids += [row["span"] for row in family.rows()]
        assert len(list(family.folder.glob("*.jsonl"))) == 1  # the one that is being written
        ours.send("go on")
    child.join()
    assert len(ids) == len({*ids}) == 60


def test_a_line_cut_short_costs_its_span_only(family: Family) -> None:
    ended(FORK.Process(target=work, args=(["a"],)))
    (path,) = family.folder.glob("*.jsonl")
    path.write_bytes(b'["cut", 12' + b"\n" + path.read_bytes() + b'["not yet')
    assert [row["name"] for row in family.rows()] == ["a"]


def test_a_child_goes_on_when_nothing_can_be_written(family: Family) -> None:
    def life() -> None:
        for path in family.folder.iterdir():
            path.unlink()
        family.folder.rmdir()
        work(["lost"])

    ended(FORK.Process(target=life))
    assert family.rows() == []


def test_a_fork_that_comes_back_to_its_parents_code_ends_nothing(family: Family) -> None:
    ended(FORK.Process(target=work, args=(["before"],)))
    ended(FORK.Process(target=family.rows))
    ended(FORK.Process(target=family.end))
    ended(FORK.Process(target=work, args=(["after"],)))
    assert sorted(row["name"] for row in family.rows()) == ["after", "before"]


def test_the_environment_is_as_it_was_and_later_children_are_not_recorded(scratch: Path, installed: None) -> None:
    one = Family()
    assert one.children.is_announced
    assert os.environ[PROVIDER] == "rayio"
    assert str(one.folder) in os.environ[SPOOL]
    one.end()
    assert PROVIDER not in os.environ
    assert SPOOL not in os.environ
    ended(FORK.Process(target=work, args=(["late"],)))
    assert one.recorder.recorded == 0
    assert list(scratch.iterdir()) == []


def test_a_provider_that_the_user_chose_for_new_processes_stays(
    scratch: Path, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROVIDER, "theirs")
    one = Family()
    assert not one.children.is_announced
    assert os.environ[PROVIDER] == "theirs"
    assert SPOOL not in os.environ
    one.end()
    assert os.environ[PROVIDER] == "theirs"


def test_where_new_processes_would_not_find_ours_they_are_not_told_of_it(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "NAME", "no such entry point")
    one = Family()
    assert not one.children.is_announced
    assert PROVIDER not in os.environ
    one.end()


def test_without_a_provider_of_ours_or_a_place_to_write_children_are_not_followed(
    scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    for provider in (None, TracerProvider()):
        assert children.follow(provider, recorder, 0, 0) is None
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    ours = TracerProvider(Target(recorder, 0, lambda: 0, "r1", "a"))
    assert children.follow(ours, recorder, 0, 0) is None
    assert PROVIDER not in os.environ
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("said", [None, "", "{", "[1]", "7"])
def test_outside_of_a_run_the_entry_point_gives_a_provider_that_keeps_nothing(
    said: str | None, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said is not None:
        monkeypatch.setenv(SPOOL, said)
    assert children.provider().target is None


def test_spools_of_processes_that_were_killed_are_removed_and_those_of_others_stay(family: Family) -> None:
    scratch = family.folder.parent
    (scratch / f"{PREFIX}dead").mkdir()
    (scratch / f"{PREFIX}dead" / f"parent{HELD}").touch()
    (scratch / f"{PREFIX}dead" / "1-2-0.jsonl").write_text("[]\n")
    (scratch / "other").mkdir()
    second = Children(
        TracerProvider(family.provider.target), Target(Recorder(), 0, family.now, "r2", "x"), Recorder(), 0, 0
    )
    assert {path.name for path in scratch.iterdir()} == {family.folder.name, second.folder.name, "other"}
    second.close()
    (scratch / "other").rmdir()


class Samples:
    """A data set as torch has it, instrumented."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> int:
        with trace.get_tracer("samples").start_as_current_span("sample", attributes={"at": at}):
            return at


@pytest.fixture
def during_a_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Have the first read of the npz format call a function, in the thread of that read."""
    npz = type(FORMATS["npz"])
    read: Callable[..., Any] = npz.read

    def arrange(function: Callable[[], None]) -> None:
        todo = [function]

        def reading(*arguments: Any) -> Any:
            if todo:
                todo.pop()()
            return read(*arguments)

        monkeypatch.setattr(npz, "read", reading)

    return arrange


def test_the_workers_of_a_data_loader_are_recorded(tmp_path: Path, scratch: Path, during_a_read: Any) -> None:
    data: Any = pytest.importorskip("torch.utils.data")
    loaded: list[int] = []

    def load() -> None:
        with trace.get_tracer("trainer").start_as_current_span("epoch"):
            loader = data.DataLoader(Samples(), num_workers=2, multiprocessing_context="fork", batch_size=2)
            loaded.extend(int(one) for batch in loader for one in batch)

    during_a_read(load)
    run = run_locally(on_disk(scenario(dataset__path="data", train__compute="1 ms"), tmp_path), tmp_path)
    assert sorted(loaded) == list(range(8))
    (epoch,) = run.rows("epoch")
    assert epoch["role"] == "reader"
    samples = run.rows("sample")
    said = [json.loads(row["attributes"]) for row in samples]
    assert sorted(one["attributes"]["at"] for one in said) == list(range(8))
    assert {row["role"] for row in samples} == {"process"}
    assert len({row["pid"] for row in samples} - {os.getpid()}) == 2
    mine = json.loads(epoch["attributes"])
    assert {(one["parent"], one["trace"]) for one in said} == {(mine["span"], mine["trace"])}
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("level", ["none", "step"])
def test_coarse_runs_have_no_spool(level: str, tmp_path: Path, scratch: Path, during_a_read: Any) -> None:
    seen: list[Any] = []

    def look() -> None:
        child = FORK.Process(target=work, args=(["hidden"],))
        child.start()
        child.join()  # with an error of Python's own, as after every fork from a thread of a pool
        seen.append((PROVIDER in os.environ, SPOOL in os.environ, list(scratch.iterdir())))

    during_a_read(look)
    wanted = on_disk(scenario(dataset__path="data", train__compute="1 ms", trace__level=level), tmp_path)
    run = run_locally(wanted, tmp_path)
    assert seen == [(False, False, [])]
    assert run.rows("hidden") == []
