"""storage.page_cache: files read and written through the page cache, with their pages evicted, or past it."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from pages_of_files import forget, on_a_device, remember, skip_unless_on_a_device
from tries import tried_again

from rayio.errors import StorageError
from rayio.machine import pages
from rayio.machine.mounts import mount_of, mounts_here
from rayio.storage.base import Moved, Opener, Requests, Served
from rayio.storage.real import RealStorage
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.opening import PageCache, Settings
from rayio.storage.stores.posix import PosixStore

T = TypeVar("T")
NOTHING = Requests((0, 0, 0), 0, np.zeros(0, np.int64))
#: What may be fetched besides: pages of programs, when they are first needed.
A_LITTLE = 1 << 20


async def inline(function: Callable[[], T]) -> T:
    return function()


def storage(root: Path, page_cache: PageCache) -> RealStorage:
    return RealStorage(PosixStore(root, settings=Settings(page_cache=page_cache)), inline)


def read(root: Path, page_cache: PageCache, load: Callable[[Opener], T]) -> Served[T | None]:
    return asyncio.run(storage(root, page_cache).read(NOTHING, load))


def whole(opener: Opener) -> bytes:
    with opener("file") as file:
        return file.read()


def moved(served: Served[T | None]) -> Moved:
    assert served.moved is not None
    return served.moved


def resident(file: Path) -> int | None:
    with file.open("rb") as opened:
        return pages.by_mincore(opened.fileno())


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder of a file system in memory."""
    folder = Path("/dev/shm")
    mount = mount_of(folder, mounts_here())
    if mount is None or mount.source != "memory" or not os.access(folder, os.W_OK):
        pytest.skip("/dev/shm is no file system in memory here")
    own = folder / f"rayio-{tmp_path.name}-{os.getpid()}"
    own.mkdir()
    (own / "file").write_bytes(os.urandom(1 << 20))
    yield own
    (own / "file").unlink()
    own.rmdir()


@tried_again
def test_what_is_read_comes_from_the_device_once_and_then_from_the_page_cache(tmp_path: Path) -> None:
    file = on_a_device(tmp_path, 6 << 20)
    served = read(tmp_path, "use", whole)
    assert served.value == file.read_bytes()
    asked, fetched, unevicted = moved(served)
    assert asked == 6 << 20
    assert fetched is not None
    assert 6 << 20 <= fetched < (6 << 20) + A_LITTLE
    assert unevicted == 0
    remember(file)
    asked, fetched, _ = moved(read(tmp_path, "use", whole))
    assert asked == 6 << 20
    assert fetched is not None
    assert fetched < A_LITTLE


@pytest.mark.parametrize("page_cache", ["drop", "direct"])
@pytest.mark.parametrize("is_warm", [True, False])
@tried_again
def test_without_the_page_cache_everything_comes_from_the_device(
    tmp_path: Path, page_cache: PageCache, is_warm: bool
) -> None:
    file = on_a_device(tmp_path, (6 << 20) + 5)
    content = file.read_bytes()
    (remember if is_warm and page_cache == "drop" else forget)(file)
    served = read(tmp_path, page_cache, whole)
    assert served.value == content
    asked, fetched, unevicted = moved(served)
    assert asked == (6 << 20) + 5
    assert fetched is not None
    assert 6 << 20 < fetched < (6 << 20) + A_LITTLE
    assert unevicted == 0
    assert resident(file) == 0


def test_direct_reads_give_the_same_bytes_from_every_place(tmp_path: Path) -> None:
    file = on_a_device(tmp_path, 40_000)
    content = file.read_bytes()

    def pick(opener: Opener) -> list[bytes]:
        found = []
        with opener("file") as opened:
            for start in (0, 1, 4095, 4096, 8191, 30_000, 39_999, 40_000, 50_000):
                for length in (1, 4096, 5000, 100_000):
                    buffer = bytearray(length)
                    opened.seek(start)
                    found.append(bytes(buffer[: opened.readinto(buffer)]))  # type: ignore[attr-defined]
                    assert found[-1] == content[start : start + length]
        return found

    assert len(read(tmp_path, "direct", pick).value or []) == 36


@pytest.mark.parametrize("size", [0, 1, 4096, 5000, 12_288, 100_001])
@pytest.mark.parametrize("request_bytes", [1, 4096, 10_000, 1 << 20])
def test_direct_writes_leave_the_bytes_that_buffered_ones_leave(tmp_path: Path, size: int, request_bytes: int) -> None:
    if request_bytes == 1 and size > 5000:
        return
    skip_unless_on_a_device(tmp_path)
    asyncio.run(storage(tmp_path, "use").write("buffered", size, request_bytes, fsync=False))
    served = asyncio.run(storage(tmp_path, "direct").write("direct", size, request_bytes, fsync=False))
    assert (tmp_path / "direct").read_bytes() == (tmp_path / "buffered").read_bytes()
    assert served.requests == -(-size // request_bytes)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["buffered", "direct"]


@pytest.mark.parametrize("fsync", [True, False])
@tried_again
def test_what_was_written_is_on_the_device_and_not_in_memory(tmp_path: Path, fsync: bool) -> None:
    skip_unless_on_a_device(tmp_path)
    for page_cache in ("use", "drop", "direct"):
        served = asyncio.run(storage(tmp_path, page_cache).write(page_cache, 1 << 20, 1 << 16, fsync=fsync))
        assert served.syncs == (2 if fsync or page_cache == "drop" else 0)
    assert resident(tmp_path / "use") == 1 << 20
    assert resident(tmp_path / "drop") == resident(tmp_path / "direct") == 0


@tried_again
def test_pages_that_another_program_maps_stay_and_are_counted(tmp_path: Path) -> None:
    file = on_a_device(tmp_path, 1 << 20)
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        assert sum(mapped[start] for start in range(0, 1 << 20, 4096)) >= 0  # every page is in use now
        assert (moved(read(tmp_path, "drop", whole)).unevicted or 0) >= 1 << 20


def test_a_file_system_in_memory_fetches_nothing_and_drops_nothing(in_memory: Path) -> None:
    assert moved(read(in_memory, "use", whole)) == (1 << 20, 0, 0)
    assert moved(read(in_memory, "drop", whole)) == (1 << 20, 0, 2 << 20)


@tried_again
def test_a_file_system_that_counts_nothing_is_watched(tmp_path: Path) -> None:
    """What no counter says is seen from what reads add to the page cache."""
    file = on_a_device(tmp_path, 6 << 20)
    store = PosixStore(tmp_path)
    store.source = "other"
    real = RealStorage(store, inline)

    def parts(opener: Opener) -> int:
        with opener("file") as opened:
            return sum(len(opened.read(100_000)) for _ in range(63))

    def fetched() -> int:
        served: Served[int | None] = asyncio.run(real.read(NOTHING, parts))
        requested, from_device, unevicted = moved(served)
        assert (requested, unevicted) == (6 << 20, 0)
        assert from_device is not None
        return from_device

    few = 1 << 20  # a machine short of memory drops pages, and fetches them again
    assert 6 << 20 <= fetched() < (6 << 20) + few
    assert fetched() < few
    forget(file)
    with file.open("rb") as opened:
        opened.read(1 << 20)
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        there = pages.resident(opened.fileno())  # pages on their way count for the read that asked for them
    assert there is not None
    assert 0 < there < 6 << 20
    assert 0 <= fetched() - ((6 << 20) - there) < few


def test_what_a_server_sends_is_not_known_by_a_thread(tmp_path: Path) -> None:
    on_a_device(tmp_path, 4096)
    store = PosixStore(tmp_path)
    store.source = "server"
    assert moved(asyncio.run(RealStorage(store, inline).read(NOTHING, whole))) == (4096, None, 0)


def test_direct_is_refused_in_one_line_where_the_system_has_it_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.open

    def refuse(path: str, flags: int, *args: int, **more: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return really(path, flags, *args, **more)

    (tmp_path / "file").write_bytes(b"x")
    store = PosixStore(tmp_path, settings=Settings(page_cache="direct"))
    monkeypatch.setattr(os, "open", refuse)
    for call in (
        lambda: store.open("file", Traffic()),
        lambda: store.write("new", lambda file: file.write(b"x"), traffic=Traffic()),
    ):
        with pytest.raises(StorageError, match=r"storage.page_cache=direct: this file system \(.*\) has no direct I/O"):
            call()
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
