"""This machine's hardware and a run's file systems, as a record."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rayio.machine.mounts import Mounted, existing, mount_of, mounts_here
from rayio.records.hosts import Host, Interface, Mount

#: Kernels write limits above this for "no limit".
_NO_LIMIT = 1 << 60


def describe(paths: Mapping[str, str | Path]) -> Host:
    """Return a description of this host; ``paths`` are the run's paths by scenario key."""
    mounts = mounts_here()
    return Host(
        name=socket.gethostname(),
        boot_id=_read("/proc/sys/kernel/random/boot_id").strip(),
        kernel=f"{platform.system()} {platform.release()}",
        cores=os.cpu_count(),
        memory_bytes=parse_meminfo(_read("/proc/meminfo")),
        memory_limit_bytes=_limit(),
        interfaces=_interfaces(),
        mounts=tuple(_mount(key, path, mounts) for key, path in paths.items()),
    )


def memory_bytes() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def parse_meminfo(text: str) -> int | None:
    r"""Return the bytes of memory, from the text of ``/proc/meminfo``.

    >>> parse_meminfo("MemTotal:       24669120 kB\nMemFree: 1 kB\n")
    25261178880
    """
    match = re.search(r"^MemTotal:\s+(\d+) kB$", text, re.MULTILINE)
    return None if match is None else int(match[1]) << 10


def parse_limit(text: str) -> int | None:
    r"""Return a control group's memory limit in bytes; None for ``max`` and numbers that mean the same.

    >>> parse_limit("8589934592\n"), parse_limit("max\n"), parse_limit("9223372036854771712\n")
    (8589934592, None, None)
    """
    number = text.strip()
    return int(number) if number.isdigit() and int(number) < _NO_LIMIT else None


def parse_groups(text: str) -> list[str]:
    r"""Return the files that may hold a memory limit, of the own group and its parents, from ``/proc/self/cgroup``.

    >>> parse_groups("0::/pod/box\n")[0]
    '/sys/fs/cgroup/pod/box/memory.max'
    """
    files = []
    for line in text.splitlines():
        _, controllers, group = ([*line.split(":", 2), "", ""])[:3]
        if controllers == "":
            base, name = "/sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in group.split("/") if part not in ("", "..")]
        files += ["/".join((base, *parts[:depth], name)) for depth in range(len(parts), -1, -1)]
    return files


def parse_speed(text: str) -> int | None:
    r"""Return a network interface's speed in bit/s, from its ``speed`` in ``/sys`` (Mbit/s).

    >>> parse_speed("25000\n"), parse_speed("-1\n"), parse_speed("")
    (25000000000, None, None)
    """
    number = text.strip()
    return int(number) * 1_000_000 if number.isdigit() and int(number) > 0 else None


def _limit() -> int | None:
    limits = [parse_limit(_read(file)) for file in parse_groups(_read("/proc/self/cgroup"))]
    return min((limit for limit in limits if limit is not None), default=None)


def _interfaces() -> tuple[Interface, ...]:
    folders: list[Path] = []
    with suppress(OSError):
        folders = sorted(Path("/sys/class/net").iterdir())
    return tuple(
        Interface(name=folder.name, bits_per_second=parse_speed(_read(folder / "speed")))
        for folder in folders
        if folder.name != "lo" and _read(folder / "operstate").strip() != "down"
    )


def _mount(key: str, path: str | Path, mounts: list[Mounted]) -> Mount:
    folder = existing(path)
    capacity = free = None
    with suppress(OSError):
        usage = shutil.disk_usage(folder)
        capacity, free = usage.total, usage.free
    mount = mount_of(folder, mounts) or Mounted("/", "unknown", "unknown", "")
    return Mount(
        key=key, point=mount.point, type=mount.type, device=mount.device, server=mount.server, options=mount.options,
        capacity_bytes=capacity, free_bytes=free,
    )  # fmt: skip


def _read(path: str | Path) -> str:
    with suppress(OSError):
        return Path(path).read_text(errors="replace")
    return ""
