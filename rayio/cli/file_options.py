"""Files that commands read and write on this machine, by their options."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

Force = Annotated[bool, typer.Option("--force", help="Replace a file that another wrote.")]


def local_file(text: str) -> Path:
    """The path that an option's text means; ``file://`` may stand before it.

    Raises:
        typer.BadParameter: it is an address of a store: as a path it would be a folder named for its scheme.
    """
    from rayio.storage.address import is_path, path_of

    if not is_path(text):
        raise typer.BadParameter(f"{text} is not on this machine; give a path, and copy the file from there")
    return path_of(text)


def check_replaced(target: str | Path, mark: re.Pattern[bytes], command: str, *, force: bool) -> None:
    """Refuse to replace a file that has not the mark of what this command writes.

    Raises:
        StorageError: such a file is there, and ``force`` is not set.
    """
    from rayio.errors import StorageError

    if force or (content := _content(target)) is None or mark.search(content):
        return
    raise StorageError(f"{target} exists, and no rayio {command} wrote it; give another name, or --force replaces it")


def _content(target: str | Path) -> bytes | None:
    """What a file holds; None where there is none. What is no file is refused as it is written."""
    from rayio import regular, storage
    from rayio.storage.address import is_path, last_part, parent, path_of

    if not is_path(address := str(target)):
        return storage.open(parent(address)).read(last_part(address))
    path = path_of(address)
    if os.path.islink(path) or not os.path.isfile(path):  # noqa: PTH113, PTH114 (a name that no file can have is none)
        return None
    try:
        return regular.read_bytes(path)
    except OSError:  # nobody may read it, so nobody knows whose it is
        return b""
