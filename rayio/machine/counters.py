"""The kernel's counters of bytes fetched: by thread from block devices, by mount from NFS and Lustre servers."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from rayio.machine.mounts import Mounted, unescaped

#: Folders of Lustre's counters of requests to its servers.
_LUSTRE = ("/proc/fs/lustre/osc", "/sys/kernel/debug/lustre/osc")


def parse_io(text: bytes) -> int | None:
    r"""Return the bytes fetched from block devices, from the text of ``/proc/<pid>/io``.

    >>> parse_io(b"rchar: 323640\nread_bytes: 4096\nwrite_bytes: 0\n")
    4096
    """
    match = re.search(rb"^read_bytes: (\d+)$", text, re.MULTILINE)
    return None if match is None else int(match[1])


def parse_mountstats(text: str) -> dict[str, int]:
    """Return the bytes that NFS servers sent, by mount point, from the text of ``/proc/self/mountstats``."""
    sent: dict[str, int] = {}
    point = None
    for line in text.splitlines():
        if line.startswith("device "):
            match = re.fullmatch(r"device .* mounted on (\S+) with fstype (\S+).*", line)
            point = unescaped(match[1]) if match is not None and match[2].startswith("nfs") else None
        elif point is not None and line.strip().startswith("bytes:"):
            numbers = line.split()[1:]
            if len(numbers) >= 5 and all(map(str.isdigit, numbers)):
                sent[point] = int(numbers[4])  # of reads, buffered or direct
    return sent


def parse_lustre_stats(text: str) -> dict[str, int]:
    """Return the sum of each byte counter in a ``stats`` file of Lustre, by name."""
    sums: dict[str, int] = {}
    for line in text.splitlines():
        match = re.match(r"(\w+)\s+\d+ samples \[bytes\]\s+\d+\s+\d+\s+(\d+)", line)
        if match is not None:
            sums[match[1]] = int(match[2])
    return sums


def lustre_read(mount: Mounted, stats: Mapping[str, str]) -> int | None:
    """Return the bytes that a Lustre mount's servers sent; ``stats`` has the text of the ``osc`` counters by target.

    The ``llite`` counters would include reads from the page cache.
    """
    name = mount.device.rpartition(":/")[2].partition("/")[0]
    of_mount = [parse_lustre_stats(text) for target, text in stats.items() if target.startswith(f"{name}-OST")]
    return sum(sums.get("read_bytes", 0) for sums in of_mount) if of_mount else None


def sent_by_servers(mounts: Iterable[Mounted]) -> dict[str, int]:
    """Return the bytes that servers sent to this host since mounting, by mount point; only of mounts with counters."""
    sent: dict[str, int] = {}
    nfs: dict[str, int] | None = None
    for mount in mounts:
        if mount.type.startswith("nfs"):
            if nfs is None:
                with suppress(OSError):
                    nfs = parse_mountstats(Path("/proc/self/mountstats").read_text(errors="replace"))
            if nfs and mount.point in nfs:
                sent[mount.point] = nfs[mount.point]
        elif mount.type == "lustre" and (number := lustre_read(mount, _lustre_stats())) is not None:
            sent[mount.point] = number
    return sent


def _lustre_stats() -> dict[str, str]:
    for folder in map(Path, _LUSTRE):
        with suppress(OSError):
            if texts := {file.parent.name: file.read_text(errors="replace") for file in folder.glob("*/stats")}:
                return texts
    return {}


class _OfThread:
    def __init__(self) -> None:
        self.process, self.descriptor = os.getpid(), -1
        with suppress(OSError):
            self.descriptor = os.open("/proc/thread-self/io", os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.descriptor >= 0 and self.process == os.getpid():
            with suppress(OSError):
                os.close(self.descriptor)


_threads = threading.local()


def fetched_by_this_thread() -> int | None:
    """Return the bytes that the calling thread fetched from block devices; None without such a counter."""
    counters: _OfThread | None = getattr(_threads, "counters", None)
    if counters is None or counters.process != os.getpid():  # a fork inherits its parent's
        counters = _threads.counters = _OfThread()
    if counters.descriptor < 0:
        return None
    try:
        return parse_io(os.pread(counters.descriptor, 512, 0))
    except OSError:
        return None
