"""Files that appear whole or not at all: written under another name, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path, partial: Path) -> Iterator[Path]:
    """Write under the name ``partial``, in the same folder; it becomes ``path`` when the block ends well.

    When the block fails, or is interrupted, nothing is left of it, and what had the name ``path`` is there still.

    Raises:
        OSError: ``path`` is a device, a pipe or a link, such as ``/dev/stdout``: a file in its place would be its end.
    """
    if os.path.lexists(path) and (path.is_symlink() or not (path.is_file() or path.is_dir())):
        raise OSError(0, "it is a device, a pipe or a link, and would be replaced; give the name of a file")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
