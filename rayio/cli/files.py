"""Files that commands read and write on this machine, by their options."""

from __future__ import annotations

from pathlib import Path

import typer


def local_file(text: str) -> Path:
    """The path that an option's text means; ``file://`` may stand before it.

    Raises:
        typer.BadParameter: it is an address of a store: as a path it would be a folder named for its scheme.
    """
    from rayio.storage.address import is_path, path_of

    if not is_path(text):
        raise typer.BadParameter(f"{text} is not on this machine; give a path, and copy the file from there")
    return path_of(text)
