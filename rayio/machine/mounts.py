"""Mounted file systems: which one a path is in, from where it is mounted, and how what is read there can be counted."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

#: Where the bytes that a file system gives come from, and how that is known: ``device`` (the kernel counts what each
#: thread fetches from block devices), ``server`` (the kernel counts for each mount), ``memory`` (nothing is below the
#: page cache), ``other`` (nothing is counted; what the page cache lacked can be seen), ``network`` (object stores).
Source = Literal["device", "server", "memory", "other", "network"]

_DEVICE = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "jfs", "nilfs2", "reiserfs", "vfat", "exfat", "ntfs3", "overlay")
)
_SERVER = frozenset(("nfs", "nfs4", "lustre"))
_MEMORY = frozenset(("tmpfs", "ramfs", "hugetlbfs", "devtmpfs"))
#: Types whose device begins with a server: ``host:/export``, ``//host/share``.
_REMOTE = _SERVER | {"cifs", "smb3", "ceph", "fuse.glusterfs", "fuse.sshfs", "9p", "afs", "beegfs", "gpfs", "pvfs2"}

#: What stands for a value that may be a secret, or tell where one is.
HIDDEN = "***"
_SECRET = re.compile("pass|secret|token|cred|key|auth", re.IGNORECASE)
#: Options that say nothing of how fast a file system is, and are long: the folders that an overlay is made of.
_LONG = ("lowerdir=", "upperdir=", "workdir=")


@dataclass(frozen=True, slots=True)
class Mounted:
    """A line of ``/proc/self/mountinfo``; values of options that may be secrets are hidden."""

    point: str
    type: str
    device: str
    options: str

    @property
    def server(self) -> str | None:
        """The host that serves it; None of a file system of this machine."""
        if self.type not in _REMOTE:
            return None
        if self.device.startswith("//"):
            return self.device[2:].partition("/")[0] or None
        host, colon, _ = self.device.rpartition(":/") if ":/" in self.device else self.device.partition(":")
        return host.rpartition("@")[2] if colon and self.type == "fuse.sshfs" else host if colon else None

    @property
    def source(self) -> Source:
        """Where what is read there comes from, and how that can be counted."""
        return source_of(self.type)


def source_of(type: str) -> Source:
    """Where what is read comes from in a file system of some type.

    >>> source_of("ext4"), source_of("nfs4"), source_of("tmpfs"), source_of("fuse.s3fs")
    ('device', 'server', 'memory', 'other')
    """
    if type in _DEVICE:
        return "device"
    if type in _SERVER:
        return "server"
    return "memory" if type in _MEMORY else "other"


def parse_mountinfo(text: str) -> list[Mounted]:
    """Read ``/proc/self/mountinfo``; lines that are none are passed over.

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
    """Find the mount that a path is in, whether it is there or not; the last one mounted at a place hides others."""
    real = os.path.realpath(path)
    found: Mounted | None = None
    for mount in mounts:
        inside = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
        if inside and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def mounts_here() -> list[Mounted]:
    """Every mount that this process sees; none where the kernel does not say."""
    with suppress(OSError):
        return parse_mountinfo(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    return []


def existing(path: str | Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    place = Path(os.path.realpath(path))
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def unescaped(text: str) -> str:
    r"""Undo how the kernel writes spaces and the like: ``\040``."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _masked(option: str) -> str:
    name, equals, _ = option.partition("=")
    return f"{name}={HIDDEN}" if equals and _SECRET.search(name) else _without_password(option)


def _without_password(text: str) -> str:
    """Hide what stands between a user's name and the host."""
    return re.sub(r"(//[^/@:\s]*):[^/@\s]*@", rf"\1:{HIDDEN}@", text)
