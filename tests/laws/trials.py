"""Where a store of each scheme can be tried, and who else sees what it asks for: the kernel, or the server."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import pytest
from objects import Objects, first, s3_error, slow_down

from rayio import storage
from rayio.kinds import STORAGES
from rayio.scenario.s3 import S3Options
from rayio.storage.address import scheme_of
from rayio.storage.stores.opening import DEFAULTS, Settings, Store

#: Somebody who owns nothing, where tests are root's.
NOBODY = 65534


@dataclass
class Asked:
    """What a system was asked for, as somebody else counted it; None is what nobody but the store can see."""

    opens: int | None = 0
    requests: int = 0
    nbytes: int = 0
    syncs: int = 0
    #: The bytes that each file had when it was forced to the device, -1 for a folder.
    forced: list[int] | None = None


@contextmanager
def counted_by_the_kernel() -> Iterator[Asked]:
    """Count the calls of this thread that read and write, their bytes, files opened and those forced to the device."""
    asked = Asked(forced=[])
    opened, synced = os.open, os.fsync

    def count_open(path: Any, flags: int, *more: Any, **named: Any) -> int:
        assert asked.opens is not None
        asked.opens += not os.path.isdir(path)  # noqa: PTH112
        return opened(path, flags, *more, **named)

    def count_fsync(descriptor: int) -> None:
        assert asked.forced is not None
        forced = os.fstat(descriptor)
        asked.syncs += 1
        asked.forced.append(-1 if S_ISDIR(forced.st_mode) else forced.st_size)
        synced(descriptor)

    def look() -> tuple[int, int]:
        if not Path("/proc/thread-self/io").exists():
            pytest.skip("the kernel's own count is Linux's")
        found = dict(line.split(": ") for line in Path("/proc/thread-self/io").read_text().splitlines())
        return int(found["syscr"]) + int(found["syscw"]), int(found["rchar"]) + int(found["wchar"])

    calls, nbytes = ([*numbers] for numbers in zip(look(), look(), strict=True))  # what looking takes is in it
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", count_open)
        patch.setattr(os, "fsync", count_fsync)
        patch.setattr(os, "fdatasync", count_fsync)
        before = look()
        yield asked
        patch.undo()
        after = look()
    asked.requests = after[0] - before[0] - (calls[1] - calls[0])
    asked.nbytes = after[1] - before[1] - (nbytes[1] - nbytes[0])


@contextmanager
def full_for_files() -> Iterator[None]:
    """Have the kernel take no file of more than 5000 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Take all permissions to a folder away; root, who needs none, becomes somebody else."""
    folder.mkdir(parents=True, exist_ok=True)
    is_root = os.geteuid() == 0
    folder.chmod(0)
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o700)


@dataclass
class Trial:
    """A place where a store can be tried. By default it is one of files, which the kernel tells on."""

    address: str
    settings: Settings = DEFAULTS
    #: Counts what the system is asked for meanwhile.
    counted: Callable[[], AbstractContextManager[Asked]] = counted_by_the_kernel
    #: Has the system take no more, somewhere after the first 5000 bytes of a file.
    full: Callable[[], AbstractContextManager[None]] = full_for_files
    #: Has the system refuse everything for want of permission; None where that cannot be had.
    forbidden: Callable[[], AbstractContextManager[None]] | None = None
    #: Has so many requests for data fail such that another attempt may help; None where there are no such failures.
    failing: Callable[[int], AbstractContextManager[None]] | None = None
    #: Bytes from which on a file goes up in parts, where it does.
    part_bytes: int = 0

    def open(self, below: str = "") -> Store:
        """Open a store there, or beside it."""
        return storage.open(self.address + below, self.settings)


def folder(request: pytest.FixtureRequest, path: Path) -> Trial:
    """A folder of this machine."""
    return Trial(str(path / "tried"), forbidden=lambda: locked(path / "tried"))


def bucket(request: pytest.FixtureRequest, path: Path) -> Trial:
    """A bucket of a server on loopback, which says what it was asked."""
    from rayio.storage.stores.opening import PART_BYTES

    objects: Objects = request.getfixturevalue("objects")

    @contextmanager
    def counted() -> Iterator[Asked]:
        asked = Asked(opens=None)
        lengths: list[int] = []

        def look(environ: dict[str, Any]) -> None:
            begin, _, end = environ.get("HTTP_RANGE", "bytes=0--1").removeprefix("bytes=").partition("-")
            lengths.append(int(end) - int(begin) + 1)
            lengths.append(int(environ.get("CONTENT_LENGTH") or 0) * (environ["REQUEST_METHOD"] == "PUT"))

        objects.forget()
        with objects.misbehaving(look):
            yield asked
        asked.requests, asked.nbytes = len(objects.asked), sum(lengths)

    def forbidden() -> AbstractContextManager[None]:
        return objects.misbehaving(lambda _: s3_error("403 Forbidden", "AccessDenied"))

    def full() -> AbstractContextManager[None]:
        puts: list[int] = []

        def fault(environ: dict[str, Any]) -> Any:
            if environ["REQUEST_METHOD"] != "PUT":
                return None
            puts.append(1)
            is_first_part = "partNumber" in environ.get("QUERY_STRING", "") and len(puts) == 1
            return None if is_first_part else s3_error("403 Forbidden", "QuotaExceeded")

        return objects.misbehaving(fault)

    return Trial(
        request.getfixturevalue("place"), Settings({"s3": S3Options(max_attempts=3, timeout=30.0)}), counted, full,
        forbidden, lambda number: objects.misbehaving(first(number, slow_down)), PART_BYTES,
    )  # fmt: skip


#: How a scheme is tried. A scheme that is not here says it itself: by ``trial(folder)``, a context manager that gives
#: an address, or what has the fields of a :class:`Trial`.
TRIALS: dict[str, Callable[[pytest.FixtureRequest, Path], Trial]] = {"file": folder, "s3": bucket}


@contextmanager
def trial_of(scheme: str, request: pytest.FixtureRequest, path: Path) -> Iterator[Trial]:
    """Make the place where a scheme is tried."""
    if scheme in TRIALS:
        yield TRIALS[scheme](request, path)
        return
    own = getattr(STORAGES[scheme], "trial", None)
    if own is None:
        pytest.fail(
            f"no law can be tried on {scheme}://: give what STORAGES names a static method trial(folder), a context "
            "manager that gives an address below which files may be written, or add a line to TRIALS in tests/laws/"
            "trials.py"
        )
    with own(path) as told:
        tried = Trial(told) if isinstance(told, str) else told
        assert scheme_of(tried.address) == scheme, f"{tried.address} is no address of {scheme}://"
        yield tried
