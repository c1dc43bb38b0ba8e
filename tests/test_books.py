"""The books of a run (``resume.json``) name a checkpoint that is there, whenever the run is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from test_restore import wanted

from rayio.engines.in_process import InProcess
from rayio.engines.ray.actors.collector import Collector
from rayio.errors import StorageError
from rayio.model import completing as completing_module
from rayio.model import resuming, roles
from rayio.model.completing import Completion
from rayio.model.kernel import WallKernel
from rayio.model.ledger import Tally
from rayio.model.manifest import Link, search
from rayio.model.marks import Mark
from rayio.model.planning import plan_of
from rayio.model.resuming import Keeper
from rayio.model.wiring import Wiring
from rayio.place import Where, checkpoint_folder
from rayio.session.execute import run
from rayio.storage import open as open_store
from rayio.storage.stores.opening import DEFAULTS
from rayio.trace.clocks import Anchor
from rayio.trace.recorder import Recorder
from rayio.trace.run_directory import RESUME, RunDirectory


def folders(root: Path) -> list[str]:
    return [manifest.folder for manifest in reversed(search(open_store(root / "kept")).complete)]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def completing(root: Path, steps: int, books: Any, keep: int | None = 1) -> None:
    """Have the first ``steps`` checkpoints of a run completed, with books of the test's own."""
    plan = plan_of(wanted(every={"steps": 1}, keep=keep), modelled=False)
    saved, kernel = plan.checkpointing, WallKernel()
    assert saved is not None

    async def complete() -> None:
        recorder = Recorder()
        env = Wiring(plan, kernel, recorder, root, InProcess(plan, kernel, recorder, []), num_ranks=2).writer(0)
        completion = Completion(env, saved, "run", roles.complete, books)
        reports = []
        for step in range(steps):
            folder = checkpoint_folder(0, step)
            for name, size in saved.parts.items():
                (root / "kept" / folder).mkdir(parents=True, exist_ok=True)
                (root / "kept" / folder / name).write_bytes(bytes(size))
            reports.append(asyncio.create_task(completion.report({Link(0, step): [*saved.parts]}, Where(0, 0, step))))
            await until(lambda: len(folders(root)) > 0 and folders(root)[-1] == checkpoint_folder(0, len(reports) - 1))
        await books.look(root, reports)
        await asyncio.gather(*reports)

    asyncio.run(complete())


class Books:
    """Books that name nothing until they are let."""

    named: Collection[int] | None = ()

    def __init__(self) -> None:
        self.asked: list[tuple[int, bool]] = []

    async def __call__(self, number: int, is_needed: bool) -> Collection[int] | None:
        self.asked.append((number, is_needed))
        return self.named

    async def look(self, root: Path, reports: list[asyncio.Task[Any]]) -> None:
        """Hold the state against what a run that is killed now could go on from."""


def test_an_old_checkpoint_goes_only_after_the_new_manifest_and_its_books(tmp_path: Path) -> None:
    """A run that is killed between a manifest and its books goes on from what the books name: it must be there."""

    class Late(Books):
        async def look(self, root: Path, reports: list[asyncio.Task[Any]]) -> None:
            assert folders(root) == [checkpoint_folder(0, step) for step in range(3)]
            self.named = (0, 1)
            await until(lambda: len(folders(root)) < 3 or len(self.asked) > 20)
            assert folders(root) == [checkpoint_folder(0, step) for step in range(3)], "the newest is not named"
            assert not all(report.done() for report in reports), "the run's end waits for it"
            self.named = (0, 1, 2)

    books = Late()
    completing(tmp_path, 3, books)
    assert folders(tmp_path) == [checkpoint_folder(0, 2)]
    assert not any(is_needed for _, is_needed in books.asked), "small ones wait for the next write"


def test_of_several_that_stay_one_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class One(Books):
        named = (1,)

    books = One()
    monkeypatch.setattr(completing_module, "MUCH_BYTES", 10_000)
    completing(tmp_path, 3, books, keep=2)
    assert books.asked == [(2, True)]
    assert folders(tmp_path) == [checkpoint_folder(0, 1), checkpoint_folder(0, 2)]


def test_books_that_cannot_be_written_keep_every_checkpoint(tmp_path: Path) -> None:
    class Full(Books):
        named = None

    completing(tmp_path, 3, Full())
    assert folders(tmp_path) == [checkpoint_folder(0, step) for step in range(3)]


def test_books_follow_each_manifest_without_a_limit_too(tmp_path: Path) -> None:
    books = Books()
    completing(tmp_path, 2, books, keep=None)
    assert books.asked == [(0, False), (1, False)]


def directory(root: Path) -> RunDirectory:
    made = RunDirectory.create(root / "run")
    made.write_scenario("name: small")
    return made


def named_in(root: Path) -> list[int]:
    content = json.loads((root / "run" / "resume.json").read_text())
    return [each["number"] for each in content["checkpoints"]]


def test_checkpoints_without_a_manifest_never_push_out_the_one_with(tmp_path: Path) -> None:
    keeper = Keeper(directory(tmp_path), 1)
    for number in range(8):
        keeper.keep(Mark(number, (Tally(0),)))
        if number == 3:
            assert keeper.must_write(3, is_needed=True)
            keeper.write()
            assert not keeper.lacks(3)
    keeper.write()
    assert named_in(tmp_path) == [3, 5, 6, 7]
    assert keeper.must_write(9, is_needed=True) is False, "not every rank has passed it"


def test_a_checkpoint_of_an_older_chain_stays_named(tmp_path: Path) -> None:
    """If a file of the full checkpoint is gone, no increment since it can be restored."""
    keeper = Keeper(directory(tmp_path), 1)
    for number in range(8):
        full = number - number % 4
        keeper.keep(Mark(number, (Tally(0, chain=(*range(full, number + 1),)),)))
    keeper.write()
    assert named_in(tmp_path) == [3, 5, 6, 7]
    (newest, *_), _ = resuming.read(keeper.directory, 1)
    assert newest.tallies[0].chain == (4, 5, 6, 7)


def test_a_write_that_is_needed_does_not_wait_for_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "PAUSE_WRITES", 1 << 40)
    keeper = Keeper(directory(tmp_path), 1)
    for number in (0, 1):
        keeper.keep(Mark(number, (Tally(0),)))
        if not number:
            keeper.write()
    assert not keeper.must_write(1, is_needed=False)
    assert keeper.must_write(1, is_needed=True)


def test_the_collector_names_a_checkpoint_once_every_rank_has_passed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(resuming, "PAUSE_WRITES", 1 << 40)
    directory(tmp_path)
    collector = Collector(str(tmp_path / "run"), DEFAULTS, Anchor.new(), world_size=2)
    for number in (0, 1):
        collector.saved(number, Tally(0), in_burst=False)
        assert number not in (collector.booked(number, True) or ())
        collector.saved(number, Tally(1), in_burst=False)
        named = collector.booked(number, True)
        assert named is not None
        assert number in named
        assert named_in(tmp_path)[-1] == number
    monkeypatch.setattr(RunDirectory, "write", full)
    for rank in (0, 1):
        collector.saved(2, Tally(rank), in_burst=False)
    assert collector.booked(2, False) == {0, 1}, "not yet due"
    assert collector.booked(2, True) is None, "it cannot be written"


def test_the_collector_of_a_killed_driver_keeps_every_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lives on for seconds, in which the run may be resumed from a checkpoint that it would replace."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    directory(tmp_path)
    driver = subprocess.Popen(["sleep", "1000"])
    collector = Collector(str(tmp_path / "run"), DEFAULTS, Anchor.new(), driver=driver.pid)
    collector.saved(0, Tally(0), in_burst=False)
    assert collector.booked(0, True) == {0}
    driver.kill()
    os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOWAIT)
    collector.saved(1, Tally(0), in_burst=False)
    assert collector.booked(1, True) is None
    driver.wait()
    assert collector.booked(1, True) is None
    assert named_in(tmp_path) == [0]


def full(*_: object) -> None:
    raise StorageError("no space left")


def test_a_run_directory_that_is_full_keeps_every_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The books cannot be written, so what they name stays; the run itself goes on to its end."""
    write = RunDirectory.write

    def refused(self: RunDirectory, name: str, content: bytes) -> None:
        (full if name == RESUME else write)(self, name, content)

    monkeypatch.setattr(RunDirectory, "write", refused)
    with pytest.raises(StorageError, match="no space left"):
        run(wanted(every={"steps": 1}, keep=1), engine="local", root=tmp_path, out="run")
    assert len(folders(tmp_path)) == 4
