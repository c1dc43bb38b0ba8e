"""Options that name files on this machine."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
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


def check_folder(folder: Path, subject: str, refused: Callable[[str], Exception], named: str = "") -> None:
    """Refuse a folder that does not exist, or make it if the user at the terminal agrees.

    ``subject`` names it in the question, ``named`` in the refusal (the folder itself by default).

    Raises:
        typer.BadParameter: there is no such folder; or what ``refused`` makes of the message.
        typer.Abort: the user does not want it made.
    """
    named = named or str(folder)
    if folder.is_dir():
        return
    if os.path.lexists(folder):
        raise refused(f"{named} is not a folder")
    if sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty():
        raise refused(f"{named} does not exist; make it (mkdir -p {shlex.quote(named)}), or correct it")
    if not typer.confirm(f"rayio: {subject} does not exist. Make it?", err=True):
        raise typer.Abort
    folder.mkdir(parents=True)


def check_folder_of(file: Path) -> None:
    """Refuse a file in a folder that does not exist, or make the folder if the user at the terminal agrees.

    Raises:
        StorageError: there is no such folder.
        typer.Abort: the user does not want it made.
    """
    from rayio.errors import StorageError

    check_folder(file.parent, f"the folder of {file}", lambda why: StorageError(f"cannot write {file}: {why}"))


def check_replaced(target: str | Path, mark: re.Pattern[bytes], command: str, *, force: bool) -> None:
    """Refuse to replace a file that this command did not write; ``mark`` matches the content of files that it wrote.

    Raises:
        StorageError: its folder does not exist, or the file exists without the mark, and ``force`` is not set.
    """
    from rayio.errors import StorageError
    from rayio.storage.address import is_path, path_of

    if is_path(address := str(target)):
        check_folder_of(path_of(address))
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
