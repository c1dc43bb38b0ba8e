"""Files that appear whole or not at all: written under another name, then renamed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path, partial: Path) -> Iterator[Path]:
    """Give the name to write under, in the same folder: it becomes ``path`` when the block ends well.

    When the block fails, or is interrupted, nothing is left of it, and what had the name ``path`` is there still.
    """
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
