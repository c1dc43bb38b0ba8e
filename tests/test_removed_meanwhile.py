"""Files of checkpoints that another process or rank removes or completes between two calls, planted one by one."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_books import Books, until
from test_restore import FIRST, LAST, saved, wanted

from rayio.engines.in_process import InProcess
from rayio.engines.ray.actors.writers import CheckpointWriter
from rayio.errors import StorageError
from rayio.files import replacing
from rayio.model import completing as completing_module
from rayio.model import manifest, roles
from rayio.model.completing import Completion
from rayio.model.env import Env, Shard
from rayio.model.kernel import WallKernel
from rayio.model.manifest import NAME, Link
from rayio.model.planning import plan_of
from rayio.model.wiring import Wiring
from rayio.place import Where
from rayio.session.execute import run
from rayio.storage import open as open_store
from rayio.storage.base import Served
from rayio.storage.stores.posix import PosixStore
from rayio.trace.recorder import Recorder

__all__ = ["saved"]


@pytest.fixture
def root(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "copy")


def after_listing(folder: str, change: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Change a folder once, as soon as a store has listed it; return where that was noted."""
    listed, done = PosixStore.sizes, list[str]()

    def sizes(store: PosixStore, of: str = "") -> dict[str, int]:
        there = listed(store, of)
        if of == folder and not done:
            done.append(of)
            change()
        return there

    monkeypatch.setattr(PosixStore, "sizes", sizes)
    return done


def test_a_folder_that_goes_while_it_is_made_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``mkdir`` says that it exists, and when that is looked at it does not: two ranks were there in between."""
    mkdir, refused = os.mkdir, list[str]()

    def unlucky(path: Any, *mode: Any, **named: Any) -> None:
        if Path(path).name == "b" and len(refused) < 2:
            refused.append(str(path))
            raise FileExistsError(17, "File exists", str(path))
        mkdir(path, *mode, **named)

    (tmp_path / "a").mkdir()
    monkeypatch.setattr(os, "mkdir", unlucky)
    PosixStore(tmp_path).write("a/b/shard", lambda file: file.write(b"12"))
    assert len(refused) == 2
    assert (tmp_path / "a/b/shard").read_bytes() == b"12"


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(StorageError, match="a/shard"):
        PosixStore(tmp_path).write("a/shard", lambda file: file.write(b"12"))


def test_a_file_that_goes_before_it_is_replaced_is_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, looks = tmp_path / "shard", list[str]()
    place.write_bytes(b"old")

    def seeing(look: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def seen(path: Any, **options: Any) -> os.stat_result:
            status = look(path, **options)
            if str(path) == str(place) and not looks:
                looks.append(str(path))
                os.unlink(path)  # noqa: PTH108
            return status

        return seen

    for name in ("stat", "lstat"):
        monkeypatch.setattr(os, name, seeing(getattr(os, name)))
    with replacing(place, tmp_path / "shard.partial") as unfinished:
        unfinished.write_bytes(b"new")
    assert looks
    assert place.read_bytes() == b"new"


def test_a_file_that_goes_while_its_folder_is_listed_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(b"12")
    scandir = os.scandir

    @contextmanager
    def unlucky(place: Any) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(place) as entries:
            listed = [*entries]
        (tmp_path / "one").unlink()
        yield listed

    monkeypatch.setattr(os, "scandir", unlucky)
    assert PosixStore(tmp_path).sizes() == {"two": 2}


def test_a_file_that_an_ending_run_removes_is_no_foreign_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors of a killed driver live on for a moment: they may remove an old checkpoint as the next run looks."""
    done = after_listing(FIRST, (root / "kept" / FIRST / "shard-00000.bin").unlink, monkeypatch)
    run(wanted(), engine="local", root=root, out="again")
    assert done


def test_a_manifest_that_an_ending_run_writes_is_no_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, aside = root / "kept" / FIRST / NAME, root / "aside"
    place.rename(aside)
    done = after_listing(FIRST, lambda: aside.rename(place), monkeypatch)
    run(wanted(), engine="local", root=root, out="again")
    assert done


def test_the_newest_checkpoint_is_looked_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run may remove it after it was found: reading it then names the file that is missing."""
    search, store = manifest.search, open_store(root / "kept")

    def unlucky(*stores: Any) -> manifest.Search:
        there = search(*stores)
        manifest.remove(store, there.complete[0])
        return there

    saved = plan_of(wanted(), modelled=False).checkpointing
    assert saved is not None
    monkeypatch.setattr(manifest, "search", unlucky)
    restored, _ = manifest.chosen(store, "newest", saved.identity, saved.files)
    assert restored.folder == LAST


def test_an_attempt_begins_once_nothing_of_the_one_before_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks may write what a slow removal would take away; what the one before had not begun stays."""
    plan = plan_of(wanted(every={"steps": 1}, keep=1), modelled=False)
    checkpointing, kernel = plan.checkpointing, WallKernel(threads=2)
    assert checkpointing is not None
    removed, is_allowed, remove = list[str](), threading.Event(), manifest.remove

    def slow(store: Any, old: manifest.Manifest) -> None:
        removed.append(old.folder)
        is_allowed.wait()
        remove(store, old)

    monkeypatch.setattr(completing_module, "remove", slow)

    async def again() -> None:
        recorder, books = Recorder(), Books()
        world = InProcess(plan, kernel, recorder, [])
        env = Wiring(plan, kernel, recorder, tmp_path, world, num_ranks=2).writer(0)
        completion, reports = Completion(env, checkpointing, "run", roles.complete, books), []
        for step in range(3):
            link = Link(0, step)
            (tmp_path / "kept" / link.folder).mkdir(parents=True)
            for name, size in checkpointing.parts.items():
                (tmp_path / "kept" / link.folder / name).write_bytes(bytes(size))
            reports.append(asyncio.create_task(completion.report({link: [*checkpointing.parts]}, Where(0, 0, step))))
            await until((tmp_path / "kept" / link.folder / NAME).exists)
        books.named = (0, 1, 2)
        await until(lambda: bool(removed))
        begun = asyncio.create_task(completion.report({}, Where(0, attempt=1)))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not begun.done(), "a rank begins while an old checkpoint is removed"
        is_allowed.set()
        await asyncio.gather(begun, *reports)

    try:
        asyncio.run(again())
    finally:
        is_allowed.set()
    assert len(removed) == 1, "the attempt was over"


def test_a_tier_is_cleared_once_the_file_of_a_dead_rank_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer outlives its rank: what it was writing would be left in the tier, or lose its folder before fsync."""
    calls, is_allowed = list[str](), asyncio.Event()

    async def write_shard(env: Env, shard: Shard, at: Where) -> None:
        calls.append("writes")
        await is_allowed.wait()
        calls.append("wrote")

    async def clear_tier(env: Env, names: Any, kept: Any) -> None:
        calls.append("cleared")

    monkeypatch.setattr(roles, "write_shard", write_shard)
    monkeypatch.setattr(roles, "clear_tier", clear_tier)
    writer: Any = object.__new__(CheckpointWriter)
    writer.begin, writer.plan = lambda: None, plan_of(wanted(), modelled=False)
    writer._envs, writer._attempt = {0: None}, 0

    async def restarted() -> None:
        writer._busy, writer._draining = {0: asyncio.Lock()}, {0: asyncio.Lock()}
        written = asyncio.create_task(writer.write(0, None, Where(0)))
        await until(lambda: bool(calls))
        cleared = asyncio.create_task(writer.clear(0, (), Where(0, attempt=1)))
        for _ in range(100):
            await asyncio.sleep(0)
        is_allowed.set()
        await asyncio.gather(written, cleared)

    asyncio.run(restarted())
    assert calls == ["writes", "wrote", "cleared"]


def test_each_rank_asks_before_it_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported, wrote, calls = Completion.report, roles.write_shard, list[tuple[str, int]]()

    async def report(completion: Completion, durable: Mapping[Link, Any], at: Where, *tier: bool) -> list[Link]:
        if at.attempt and not durable:
            calls.append(("asks", at.rank))
        return await reported(completion, durable, at, *tier)

    async def write_shard(env: Env, shard: Shard, at: Where) -> Served[None]:
        if at.attempt:
            calls.append(("writes", at.rank))
        return await wrote(env, shard, at)

    monkeypatch.setattr(Completion, "report", report)
    monkeypatch.setattr(roles, "write_shard", write_shard)
    failing = wanted().model_dump(mode="json", exclude_none=True)
    failing["failures"] = {"events": [{"kind": "rank", "number": 0, "at_step": 3}], "detect": "0 s", "restart": "0 s"}
    run(failing, engine="local", root=tmp_path, out="run")
    for rank in (0, 1):
        assert calls.index(("asks", rank)) < calls.index(("writes", rank))
