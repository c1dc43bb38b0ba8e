"""Files: only regular ones are read, new ones appear complete or not at all, and JSON is strict."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

#: Names of files that are not regular.
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}

#: Flags of every open: opening a pipe does not wait for a writer, and a terminal stays another's.
OPENING = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

#: How often a folder is made that others remove because it is empty.
REMOVALS = 100

#: The most digits of a whole number in JSON; arithmetic ends at 308.
MOST_DIGITS = 40


class NotAFileError(OSError):
    """An error of a path that is not a regular file; ``strerror`` says what it is and what to do."""


class IsAFolderError(NotAFileError, IsADirectoryError):
    """An error of a path that is a folder."""


def _refusal(mode: int, path: str | Path) -> NotAFileError:
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    message = f"it is {kind}, not a file; put a regular file in its place"
    return (IsAFolderError if stat.S_ISDIR(mode) else NotAFileError)(errno.EINVAL, message, str(path))


def check_regular(path: str | Path) -> None:
    """Refuse a path that is not a regular file, without opening it; links are followed.

    Raises:
        NotAFileError: it is something else.
        OSError: it is missing, or the operating system refuses.
    """
    if not stat.S_ISREG(mode := Path(path).stat().st_mode):
        raise _refusal(mode, path)


def open_regular(path: str, flags: int) -> tuple[int, int]:
    """Open a regular file without waiting; return its descriptor and its size in bytes.

    Opening a pipe would wait for a writer, and reading a device may never end.

    Raises:
        NotAFileError: it is something else.
        OSError: it is missing, or the operating system refuses.
    """
    try:
        descriptor = os.open(path, flags | OPENING, 0o666)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):  # a socket, or a device that is missing
            check_regular(path)
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise _refusal(status.st_mode, path)
    return descriptor, status.st_size


def read_regular(path: str | Path, most: int = -1) -> bytes:
    """Return the content of a regular file, or its first ``most`` bytes.

    Raises:
        NotAFileError: it is something else.
        OSError: it is missing, or the operating system refuses.
    """
    with open(path, "rb", opener=lambda name, flags: open_regular(name, flags)[0]) as file:
        return file.read(most)


@contextmanager
def replacing(path: Path, partial: Path) -> Iterator[Path]:
    """Write a file under the name ``partial`` (in the same folder), and rename it to ``path`` when the block succeeds.

    If the block fails or is interrupted, ``partial`` is removed and ``path`` is unchanged.

    Raises:
        OSError: ``path`` is a device, a pipe or a link, such as ``/dev/stdout``, which a file would destroy.
    """
    with suppress(FileNotFoundError):  # one look: another process may remove the file at any time
        if stat.S_IFMT(path.lstat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            raise OSError(0, "it is a device, a pipe or a link, and would be replaced; give the name of a file")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def parse_json(content: bytes | str, *, any_number: bool = False) -> Any:
    """Return parsed JSON with only finite numbers; ``any_number`` also allows what Python reads, such as NaN.

    >>> parse_json('{"au": NaN}')
    Traceback (most recent call last):
    ValueError: it has NaN, which is not a number in JSON

    Raises:
        ValueError: not JSON (``json.JSONDecodeError`` says where), not UTF-8, a number that is not finite or has too
            many digits, or values nested too deeply.
    """
    try:
        if any_number:
            return json.loads(content)
        return json.loads(content, parse_constant=_no_number, parse_float=_finite, parse_int=_short)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"it has {name}, which is not a number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"it has {_shown(text)}, which is too large for a number")
    return number


def _short(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"it has {_shown(text)}, which is too large for a number")
    return int(text)


def _shown(text: str) -> str:
    return text if len(text) <= 20 else f"{text[:17]}..."


def make_folders(path: Path) -> list[Path]:
    """Make a folder and those above it that are missing; return those that this call made, the lowest first.

    One that another process removes meanwhile, because it is empty, is made again.

    Raises:
        OSError: the system refuses.
    """
    made = list[Path]()
    for _ in range(REMOVALS):
        missing = list(itertools.takewhile(lambda folder: not folder.exists(), (path, *path.parents)))
        try:
            for folder in reversed(missing):
                with suppress(FileExistsError):  # another process was first
                    folder.mkdir()
                    made.insert(0, folder)
        except FileNotFoundError:
            continue
        except OSError:
            remove_folders(made)
            raise
        break
    return made


def remove_folders(made: Sequence[Path]) -> None:
    """Remove folders that :func:`make_folders` made, up to one that is not empty."""
    with suppress(OSError):
        for folder in made:
            with suppress(FileNotFoundError):
                folder.rmdir()
