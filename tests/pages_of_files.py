"""Files on a real block device whose pages are where a test wants them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rayio.machine import mounts, pages
from rayio.session.result import Run


def skip_unless_on_a_device(folder: Path) -> None:
    """Skip a test where its folder is not on a block device that counts what threads fetch, or pages cannot be seen."""
    mount = mounts.mount_of(folder, mounts.mounts_here())
    if mount is None or mount.source != "device":
        pytest.skip(f"{folder} is on {mount.type if mount else 'nothing'}, not on a block device")
    with (folder / "probe").open("w+b") as probe:
        probe.write(bytes(1 << 16))
        probe.flush()
        if (left := pages.evict(probe.fileno())) != 0:
            pytest.skip(f"{mount.type} here keeps {left} of 65536 bytes in its page cache")
    (folder / "probe").unlink()


def on_a_device(folder: Path, nbytes: int) -> Path:
    """Make a file of random bytes that is on the device and not in memory."""
    skip_unless_on_a_device(folder)
    file = folder / "file"
    file.write_bytes(os.urandom(nbytes))
    forget(file)
    return file


def forget(*files: Path) -> None:
    """Have files' pages leave the page cache, as the kernel confirms by mincore(2)."""
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert pages.by_mincore(opened.fileno()) == 0


def remember(*files: Path) -> None:
    """Have files' pages in the page cache, as the kernel confirms by mincore(2)."""
    for file in files:
        file.read_bytes()
        with file.open("rb") as opened:
            assert (pages.by_mincore(opened.fileno()) or 0) >= file.stat().st_size


def came_from_the_device(run: Run) -> None:
    """Hold what a run with ``page_cache: drop`` says of its bytes against what its ranks got; its host is this one."""
    found = run.result.fetched
    assert found is not None
    assert found.read_bytes == run.spans().query("name == 'read'")["bytes"].sum()
    assert found.delivered_bytes == run.result["ledger"]["delivered_bytes"]
    assert run.result.hosts is not None
    (host,) = run.result.hosts
    assert host.name == os.uname().nodename
    assert "dataset.path" in {mount.key for mount in host.mounts}
    if found.source == "device":
        assert found.fetched_bytes is not None
        assert found.fetched_bytes > 0  # how much, differs: readers of one file find what another has just read
