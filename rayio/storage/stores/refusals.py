"""Messages for refusals of the operating system: the path, the reason and the remedy."""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from rayio.errors import DataError, MissingError, RayioError, StorageError
from rayio.files import NotAFileError, replacing
from rayio.storage.stores.opening import with_option
from rayio.units import format_bytes


def refusal(error: OSError, path: Path | str, doing: str) -> RayioError:
    """Return an error with the path, the system's reason and the remedy."""
    if isinstance(error, NotAFileError):
        return DataError(f"{path}: {error.strerror}")
    match error.errno:
        case errno.ENOENT:
            return MissingError(f"{path}: the file is missing")
        case errno.ENOSPC | errno.EDQUOT:
            free = format_bytes(_free_bytes(Path(path)))
            return StorageError(f"{path}: no space left while {doing} ({free} free); free some, or choose another path")
        case errno.EACCES | errno.EPERM:
            return StorageError(f"{path}: no permission for {doing}; change the permissions, or choose another path")
        case errno.EROFS:
            return StorageError(f"{path}: no {doing}, the file system is read-only; choose another path")
        case errno.ENOTDIR | errno.EEXIST:
            for place in (Path(path), *Path(path).parents):
                if place.is_symlink() and not place.exists():
                    return StorageError(f"{place}: this symbolic link leads nowhere; remove it, or choose another path")
            return StorageError(f"{path}: a part of this path is a file, not a folder; choose another path")
        case errno.EISDIR:
            return StorageError(f"{path}: a folder is in the place of this file; remove it, or choose another path")
        case errno.ELOOP:
            return StorageError(f"{path}: this symbolic link leads back to itself; remove it, or choose another path")
    return StorageError(f"{path}: {error.strerror or error} while {doing}")


def write_refusal(error: OSError, path: Path, doing: str) -> RayioError:
    """Return an error for a file that could not be written: a missing file then means its folder."""
    if error.errno == errno.ENOENT:
        folder = Path(path).parent
        if folder.is_dir():
            return StorageError(f"{path}: nothing can be made in {folder}; choose another path")
        return StorageError(f"{path}: the folder {folder} does not exist; make it, or choose another path")
    return refusal(error, path, doing)


def unwritten(error: OSError, path: Path, option: str) -> StorageError:
    """Return an error for a command's file that could not be written, with the option that chooses another place.

    >>> str(unwritten(FileExistsError(17, "File exists"), Path("notes.txt/m.yaml"), "--out"))
    'cannot write notes.txt/m.yaml: a part of this path is a file, not a folder; choose another --out'
    """
    if not error.errno:  # rayio's refusal, already worded
        return StorageError(f"cannot write {path}: {error.strerror or error}")
    return with_option(StorageError(str(write_refusal(error, path, "writing"))), "cannot write", option)


def write_text(path: Path, text: str, option: str = "--out") -> None:
    """Write a command's text file, whole or not at all; one that is there is replaced.

    Raises:
        StorageError: it cannot be written there; ``option`` chooses another place.
    """
    if path.is_dir():
        raise StorageError(f"cannot write {path}: it is a folder; give {option} a file name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, path.with_name(f".{path.name}.{uuid4().hex[:8]}.partial")) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise unwritten(error, path, option) from None


def _free_bytes(path: Path) -> int:
    while not path.exists() and path != path.parent:
        path = path.parent
    with suppress(OSError):
        return shutil.disk_usage(path).free
    return 0
