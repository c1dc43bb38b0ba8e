"""Entries of a mounted folder that other processes may change at any time: finished files, and unfinished ones."""

from __future__ import annotations

import errno
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from rayio.errors import StorageError
from rayio.files import check_regular

#: Suffix of files that are being written.
PARTIAL = ".partial"
#: What a system says that has no hard links.
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
#: Distinguishes this process's unfinished files from those of an earlier process with the same number.
TOKEN = uuid4().hex[:12]


def unfinished_of(path: Path) -> Path:
    """Return the path of a file while this thread writes it."""
    return path.with_name(f"{path.name}+{threading.get_ident()}+{socket.gethostname()}+{os.getpid()}+{TOKEN}{PARTIAL}")


def link_new(unfinished: Path, path: Path) -> bool:
    """Give a finished file its name; return False if there is another one, and move nothing then.

    Where there are no hard links the file is made new and filled, so that it is empty for an instant.

    Raises:
        OSError: the system refuses.
    """
    try:
        try:
            os.link(unfinished, path)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            with path.open("xb") as file:
                file.write(unfinished.read_bytes())
    except FileExistsError:
        return False
    return True


def size_of(entry: os.DirEntry[str]) -> int | None:
    """Return the bytes of a file in a listed folder; None for a folder, and for a file removed since.

    Raises:
        OSError: it is neither, or cannot be looked at.
        StorageError: it is a link to what is missing.
    """
    try:
        if entry.is_dir():
            return None
        if not entry.is_file():
            check_regular(entry.path)
        return entry.stat().st_size
    except FileNotFoundError as error:
        if entry.is_symlink():
            why = "is a link to what is missing; remove the link, or bring back what it leads to"
            raise StorageError(f"{entry.path}: {why}") from error
        return None


def remove_orphan(unfinished: Path) -> None:
    """Remove an unfinished file unless its writer, on this host or another, may still be running."""
    _, _, host, pid, token = (unfinished.name.removesuffix(PARTIAL).split("+") + [""] * 4)[:5]
    if host != socket.gethostname() or not pid.isdigit() or token == TOKEN:
        return
    if int(pid) != os.getpid():
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            pass
        except OSError:
            return
        else:
            return
    with suppress(OSError):
        unfinished.unlink()
