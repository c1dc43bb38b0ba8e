"""Addresses of folders as text: a path, or ``scheme://...``. Pure; nothing is opened here."""

from __future__ import annotations

import re
from pathlib import Path

#: The scheme of what has none: a folder of a mounted file system.
POSIX = "file"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def scheme_of(address: str) -> str:
    """Name the scheme of an address, in lower case; a plain path has that of ``file://``."""
    found = _SCHEME.match(address)
    return found[1].lower() if found else POSIX


def is_path(address: str) -> bool:
    """Whether an address is a path of a mounted file system."""
    return scheme_of(address) == POSIX


def path_of(address: str | Path) -> Path:
    """The path that an address of a mounted file system means."""
    text = str(address)
    return Path(text[len("file://") :] if text.lower().startswith("file://") else text)


def is_absolute(address: str) -> bool:
    """Whether an address means the same wherever it is read."""
    return not is_path(address) or path_of(address).is_absolute()


def join(base: str, address: str) -> str:
    """The address that ``address`` means where relative paths start from ``base``; names below a folder join alike."""
    if is_absolute(address):
        return str(path_of(address)) if is_path(address) else address
    if is_path(base):
        return str(path_of(base) / address)
    above = base if base.endswith("://") else base.rstrip("/")  # of nothing but a scheme, the slashes are no part
    below = "/".join(part for part in address.split("/") if part != ".")  # a store has no folder "."
    return f"{above}/{below}".rstrip("/")


def last_part(address: str) -> str:
    """The last part of an address, as a folder's name is of its path."""
    if is_path(address):
        return path_of(address).absolute().name
    return address.rstrip("/").rpartition("/")[2]


def parent(address: str) -> str:
    """The address of the folder that holds a file."""
    return str(path_of(address).parent) if is_path(address) else address.rstrip("/").rpartition("/")[0]


def shown(address: str) -> str:
    """An address as people can use it from anywhere."""
    return str(path_of(address).absolute()) if is_path(address) else address
