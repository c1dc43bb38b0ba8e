"""Options that name files on this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

Force = Annotated[bool, typer.Option("--force", help="Replace a file that this command did not write.")]


def local_file(text: str) -> Path:
    """Return the path of an option's text, which may start with ``file://``.

    Raises:
        typer.BadParameter: the text is a store's address.
    """
    from rayio.storage.address import is_path, path_of

    if not is_path(text):
        raise typer.BadParameter(f"{text} is not on this machine; give a path, and copy the file yourself")
    return path_of(text)


def check_replaced(target: str | Path, mark: re.Pattern[bytes], command: str, *, force: bool) -> None:
    """Refuse to replace a file that this command did not write; ``mark`` matches the content of files that it wrote.

    Raises:
        StorageError: the file exists without the mark, and ``force`` is not set.
    """
    from rayio.errors import StorageError

    if force or (content := _content(target)) is None or mark.search(content):
        return
    raise StorageError(f"{target} exists, and rayio {command} did not write it; give another name, or use --force")


def _content(target: str | Path) -> bytes | None:
    """Return a file's content; None without a regular file (writing then refuses what is there)."""
    from rayio import storage
    from rayio.files import read_regular
    from rayio.storage.address import is_path, last_part, parent, path_of

    if not is_path(address := str(target)):
        return storage.open(parent(address)).read(last_part(address))
    path = path_of(address)
    if os.path.islink(path) or not os.path.isfile(path):  # noqa: PTH113, PTH114 (impossible names raise nothing)
        return None
    try:
        return read_regular(path)
    except OSError:  # unreadable, so of unknown origin
        return b""
