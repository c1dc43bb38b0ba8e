"""Mounted file systems: the one of a path, its server, and how bytes read from it are counted."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

#: Source of a file system's bytes: ``device`` (the kernel counts bytes from block devices by thread), ``server`` (the
#: kernel counts by mount), ``memory`` (only the page cache), ``other`` (no counters; missing pages are observable),
#: ``network`` (object stores).
Source = Literal["device", "server", "memory", "other", "network"]

_DEVICE = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "jfs", "nilfs2", "reiserfs", "vfat", "exfat", "ntfs3", "overlay")
)
_SERVER = frozenset(("nfs", "nfs4", "lustre"))
_MEMORY = frozenset(("tmpfs", "ramfs", "hugetlbfs", "devtmpfs"))
#: Types whose device starts with a server: ``host:/export``, ``//host/share``.
_REMOTE = _SERVER | {"cifs", "smb3", "ceph", "fuse.glusterfs", "fuse.sshfs", "9p", "afs", "beegfs", "gpfs", "pvfs2"}

#: Text in place of values that may be secrets.
HIDDEN = "***"
_SECRET = re.compile("pass|secret|token|cred|key|auth", re.IGNORECASE)
#: Long options that do not affect speed: folders of an overlay.
_LONG = ("lowerdir=", "upperdir=", "workdir=")


@dataclass(frozen=True, slots=True)
class Mounted:
    """A line of ``/proc/self/mountinfo``, with possible secrets hidden."""

    point: str
    type: str
    device: str
    options: str

    @property
    def server(self) -> str | None:
        """The host that serves it; None for a local file system."""
        if self.type not in _REMOTE:
            return None
        if self.device.startswith("//"):
            return self.device[2:].partition("/")[0] or None
        host, colon, _ = self.device.rpartition(":/") if ":/" in self.device else self.device.partition(":")
        return host.rpartition("@")[2] if colon and self.type == "fuse.sshfs" else host if colon else None

    @property
    def source(self) -> Source:
        """The source of its bytes."""
        return source_of(self.type)


def source_of(type: str) -> Source:
    """Return the source of bytes of a file-system type.

    >>> source_of("ext4"), source_of("nfs4"), source_of("tmpfs"), source_of("fuse.s3fs")
    ('device', 'server', 'memory', 'other')
    """
    if type in _DEVICE:
        return "device"
    if type in _SERVER:
        return "server"
    return "memory" if type in _MEMORY else "other"


def parse_mountinfo(text: str) -> list[Mounted]:
    """Return the mounts in the text of ``/proc/self/mountinfo``; other lines are skipped.

    >>> parse_mountinfo("36 35 8:1 / /data rw,noatime shared:1 - ext4 /dev/sda1 rw,errors=continue")
    [Mounted(point='/data', type='ext4', device='/dev/sda1', options='rw,noatime,errors=continue')]
    """
    mounts = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields, about = before.split(" "), after.split(" ")
        if dash and len(fields) >= 6 and len(about) >= 2:
            options = [*fields[5].split(","), *(about[2].split(",") if len(about) > 2 else [])]
            mounts.append(
                Mounted(
                    unescaped(fields[4]), about[0], _without_password(unescaped(about[1])),
                    ",".join(_masked(unescaped(o)) for o in dict.fromkeys(options) if o and not o.startswith(_LONG)),
                )
            )  # fmt: skip
    return mounts


def mount_of(path: str | Path, mounts: Sequence[Mounted]) -> Mounted | None:
    """Return the mount of a path, which need not exist; the last mount at a point hides earlier ones."""
    real = os.path.realpath(path)
    deepest: Mounted | None = None
    for mount in mounts:
        inside = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
        if inside and (deepest is None or len(mount.point) >= len(deepest.point)):
            deepest = mount
    return deepest


def mounts_here() -> list[Mounted]:
    """Return the mounts that this process sees; empty if unknown."""
    with suppress(OSError):
        return parse_mountinfo(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    return []


def existing(path: str | Path) -> Path:
    """Return the path, or its nearest parent that exists."""
    nearest = Path(os.path.realpath(path))
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    return nearest


def unescaped(text: str) -> str:
    r"""Return text with the kernel's escapes, such as ``\040`` for a space, undone."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _masked(option: str) -> str:
    name, equals, _ = option.partition("=")
    return f"{name}={HIDDEN}" if equals and _SECRET.search(name) else _without_password(option)


def _without_password(text: str) -> str:
    return re.sub(r"(//[^/@:\s]*):[^/@\s]*@", rf"\1:{HIDDEN}@", text)
