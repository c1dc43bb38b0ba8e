from __future__ import annotations

import asyncio
import errno
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from rayio.errors import DataError, MissingError, StorageError
from rayio.storage.base import Opener, Requests, Served
from rayio.storage.real import RealStorage
from rayio.storage.stores.counted import WINDOW_BYTES, Traffic
from rayio.storage.stores.posix import PosixStore
from rayio.storage.stores.refusals import refusal, write_refusal

T = TypeVar("T")
NOTHING = Requests((0, 0, 0), 0, np.zeros(0, np.int64))


async def inline(function: Callable[[], T]) -> T:
    return function()


def read(root: Path, load: Callable[[Opener], T]) -> Served[T | None]:
    return asyncio.run(RealStorage(PosixStore(root), inline).read(NOTHING, load))


def write(root: Path, path: str, num_bytes: int, request_bytes: int = 1000, *, fsync: bool = False) -> Served[None]:
    storage = RealStorage(PosixStore(root), inline)
    return asyncio.run(storage.write(path, num_bytes, request_bytes, fsync=fsync))._replace(waits_ns=(0, 0))


def files_in(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_small_reads_share_a_request_and_large_ones_are_their_own(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(range(256)) * 256)

    def load(opener: Opener) -> bytes:
        with opener("f") as file:
            file.seek(-22, io.SEEK_END)
            end = file.read(22) + file.read(1)
            file.seek(-200, io.SEEK_END)
            end += file.read(100)
            file.seek(0)
            start = file.read(10) + file.read(20) + file.read(100)
            assert len(file.read(10_000)) == 10_000
            return end + start

    served = read(tmp_path, load)
    assert served.value is not None
    assert len(served.value) == 22 + 100 + 130
    assert (served.opens, served.requests, served.nbytes) == (1, 3, 2 * WINDOW_BYTES + 10_000)


def test_what_was_written_is_there_in_the_requests_asked_for(tmp_path: Path) -> None:
    assert write(tmp_path, "a/b/shard", 2500, 1000) == Served(None, 1, 3, 2500, 0)
    content = (tmp_path / "a/b/shard").read_bytes()
    assert len(content) == 2500
    assert len(set(content[:1000])) > 200
    assert files_in(tmp_path) == ["a/b/shard"]
    with pytest.raises(ValueError, match="requests of 0"):
        write(tmp_path, "x", 10, 0)


@pytest.mark.parametrize("is_counted", [False, True])
def test_a_folder_removed_before_its_file_is_opened_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_counted: bool
) -> None:
    """Removing an old checkpoint removes its folder if that is empty: another rank may have just made it."""
    made, mkdir = list[Path](), Path.mkdir

    def unlucky(self: Path, *args: Any, **named: Any) -> None:
        mkdir(self, *args, **named)
        if self.name == "b" and self.is_dir() and len(made) < 3:
            made.append(self)
            self.rmdir()

    monkeypatch.setattr(Path, "mkdir", unlucky)
    PosixStore(tmp_path).write("a/b/shard", lambda file: file.write(b"12"), traffic=Traffic() if is_counted else None)
    assert len(made) == 3
    assert (tmp_path / "a/b/shard").read_bytes() == b"12"


def test_a_store_that_vanished_is_not_made_by_a_write(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="gone"):
        PosixStore(tmp_path / "gone").write("a/shard", lambda file: file.write(b"12"))
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(("num_bytes", "requests"), [(0, 0), (1, 1), (1000, 1), (1001, 2)])
def test_the_last_request_is_the_rest(tmp_path: Path, num_bytes: int, requests: int) -> None:
    assert write(tmp_path, "shard", num_bytes, 1000) == Served(None, 1, requests, num_bytes, 0)
    assert (tmp_path / "shard").stat().st_size == num_bytes


def test_fsync_is_called_on_the_file_and_its_folder_and_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append("folder" if os.path.isdir(f"/dev/fd/{descriptor}/") else "file")  # noqa: PTH112
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert write(tmp_path, "shard", 10).syncs == 0
    assert synced == []
    assert write(tmp_path, "shard", 10, fsync=True).syncs == 2
    assert synced == ["file", "folder"]


def test_a_file_in_the_place_of_a_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(StorageError, match=r"checkpoints/shard: a part of this path is a file"):
        write(tmp_path, "checkpoints/shard", 10)


def test_a_folder_in_the_place_of_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "shard").mkdir()
    with pytest.raises(StorageError, match="a folder is in the place of this file"):
        write(tmp_path, "shard", 10)
    assert files_in(tmp_path) == []


def test_an_error_of_the_reader_passes_through(tmp_path: Path) -> None:
    def load(opener: Opener) -> None:
        raise DataError("sample 3 is broken")

    with pytest.raises(DataError, match="sample 3 is broken"):
        read(tmp_path, load)


@pytest.mark.parametrize(
    ("number", "kind", "says"),
    [
        (errno.EACCES, StorageError, "no permission for reading"),
        (errno.EPERM, StorageError, "no permission for reading"),
        (errno.ENOSPC, StorageError, r"no space left while reading \(.* free\)"),
        (errno.EDQUOT, StorageError, "no space left"),
        (errno.EROFS, StorageError, "read-only"),
        (errno.EIO, StorageError, "Input/output error while reading"),
        (errno.ENOENT, MissingError, "missing"),
    ],
)
def test_what_the_operating_system_refuses_is_one_line_with_the_path(
    number: int, kind: type[Exception], says: str, tmp_path: Path
) -> None:
    error = refusal(OSError(number, os.strerror(number)), tmp_path / "some" / "file", "reading")
    assert type(error) is kind
    assert str(error).startswith(f"{tmp_path / 'some' / 'file'}: ")
    assert "\n" not in str(error)
    with pytest.raises(kind, match=says):
        raise error


def test_an_absolute_path_is_taken_as_it_is(tmp_path: Path) -> None:
    write(tmp_path / "root", str(tmp_path / "elsewhere" / "shard"), 10)
    assert files_in(tmp_path) == ["elsewhere/shard"]
    shutil.rmtree(tmp_path / "elsewhere")


def test_a_file_that_cannot_be_made_names_the_folder_that_is_missing(tmp_path: Path) -> None:
    """Not "vanished": it may never have been there."""
    missing = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    text = str(write_refusal(missing, tmp_path / "no" / "file", "writing"))
    assert f"the folder {tmp_path / 'no'} does not exist; make it, or choose another path" in text
    text = str(write_refusal(missing, Path("/proc/x"), "writing"))
    assert text == "/proc/x: nothing can be made in /proc; choose another path"
