"""The hardware of this machine and the file systems that a run's paths are in, as a record."""

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

#: Limits above this are how kernels write that there is none.
_NO_LIMIT = 1 << 60


def describe(paths: Mapping[str, str | Path]) -> Host:
    """Describe this host; ``paths`` are those of the run in mounted file systems, by the key that names them."""
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


def parse_meminfo(text: str) -> int | None:
    r"""Read from ``/proc/meminfo`` how many bytes of memory there are.

    >>> parse_meminfo("MemTotal:       24669120 kB\nMemFree: 1 kB\n")
    25261178880
    """
    found = re.search(r"^MemTotal:\s+(\d+) kB$", text, re.MULTILINE)
    return None if found is None else int(found[1]) << 10


def parse_limit(text: str) -> int | None:
    r"""Read a memory limit of a control group; None of ``max`` and of numbers that mean as much.

    >>> parse_limit("8589934592\n"), parse_limit("max\n"), parse_limit("9223372036854771712\n")
    (8589934592, None, None)
    """
    number = text.strip()
    return int(number) if number.isdigit() and int(number) < _NO_LIMIT else None


def parse_groups(text: str) -> list[str]:
    r"""Read ``/proc/self/cgroup``: the files that may hold a memory limit, of the own group and those above it.

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
    r"""Read the speed (bit/s) of a network interface from its ``speed`` in ``/sys``, which has Mbit/s.

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
    place = existing(path)
    capacity = free = None
    with suppress(OSError):
        usage = shutil.disk_usage(place)
        capacity, free = usage.total, usage.free
    mount = mount_of(place, mounts) or Mounted("/", "unknown", "unknown", "")
    return Mount(
        key=key, point=mount.point, type=mount.type, device=mount.device, server=mount.server, options=mount.options,
        capacity_bytes=capacity, free_bytes=free,
    )  # fmt: skip


def _read(path: str | Path) -> str:
    with suppress(OSError):
        return Path(path).read_text(errors="replace")
    return ""
