"""Files that are read are regular files: a pipe, a socket, a device or a folder in their place is refused, at once.

Opening a pipe waits until somebody writes into it, and reading a device may never end.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

#: What else can have a name in a file system.
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


class NotAFileError(OSError):
    """Something else is in the place of a file; ``strerror`` says what, and what to do."""


class IsAFolderError(NotAFileError, IsADirectoryError):
    """A folder is."""


def _refusal(mode: int, path: str | Path) -> NotAFileError:
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    said = f"it is {kind}, not a file; put a regular file in its place"
    return (IsAFolderError if stat.S_ISDIR(mode) else NotAFileError)(errno.EINVAL, said, str(path))


def check(path: str | Path) -> None:
    """Refuse what is no regular file, without opening it; links are followed.

    Raises:
        NotAFileError: it is something else.
        OSError: there is nothing, or the operating system refuses.
    """
    if not stat.S_ISREG(mode := Path(path).stat().st_mode):
        raise _refusal(mode, path)


def opener(path: str, flags: int) -> int:
    """Open a regular file without waiting for anybody; the ``opener`` of ``io.FileIO`` and ``open``.

    Raises:
        NotAFileError: it is something else.
        OSError: there is nothing, or the operating system refuses.
    """
    return sized(path, flags)[0]


def sized(path: str, flags: int) -> tuple[int, int]:
    """Open a regular file likewise; give its descriptor and its size in bytes.

    Raises:
        NotAFileError: it is something else.
        OSError: there is nothing, or the operating system refuses.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):  # what a socket says, or a device that is not there
            check(path)
        raise
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise _refusal(found.st_mode, path)
    return descriptor, found.st_size


def open_binary(path: str | Path) -> io.BufferedReader:
    """Open a regular file for reading bytes.

    Raises:
        NotAFileError: it is something else.
        OSError: there is nothing, or the operating system refuses.
    """
    return open(path, "rb", opener=opener)


def read_bytes(path: str | Path, most: int = -1) -> bytes:
    """Read a regular file, or its first ``most`` bytes.

    Raises:
        NotAFileError: it is something else.
        OSError: there is nothing, or the operating system refuses.
    """
    with open_binary(path) as file:
        return file.read(most)
