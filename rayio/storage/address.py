"""Addresses of folders as text: a path, or ``scheme://...``. Pure functions."""

from __future__ import annotations

import re
from pathlib import Path

#: The scheme of plain paths: a folder of a mounted file system.
POSIX = "file"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def scheme_of(address: str) -> str:
    """Return the scheme of an address, in lower case; ``file`` for a plain path."""
    match = _SCHEME.match(address)
    return match[1].lower() if match else POSIX


def is_path(address: str) -> bool:
    """Return True if an address is a path of a mounted file system."""
    return scheme_of(address) == POSIX


def path_of(address: str | Path) -> Path:
    """Return the path of an address of a mounted file system."""
    text = str(address)
    return Path(text[len("file://") :] if text.lower().startswith("file://") else text)


def is_absolute(address: str) -> bool:
    """Return True if an address does not depend on the working directory."""
    return not is_path(address) or path_of(address).is_absolute()


def join(base: str, address: str) -> str:
    """Return ``address`` with relative paths resolved against ``base``; also joins names to a folder."""
    if is_absolute(address):
        return str(path_of(address)) if is_path(address) else address
    if is_path(base):
        return str(path_of(base) / address)
    above = base if base.endswith("://") else base.rstrip("/")  # keeps the slashes of a bare scheme
    below = "/".join(part for part in address.split("/") if part != ".")  # a store has no folder "."
    return f"{above}/{below}".rstrip("/")


def last_part(address: str) -> str:
    """Return the last part of an address, like a path's name."""
    if is_path(address):
        return path_of(address).absolute().name
    return address.rstrip("/").rpartition("/")[2]


def parent(address: str) -> str:
    """Return the address of a file's folder."""
    return str(path_of(address).parent) if is_path(address) else address.rstrip("/").rpartition("/")[0]


def shown(address: str) -> str:
    """Return an address that is usable from any working directory."""
    return str(path_of(address).absolute()) if is_path(address) else address


def not_utf8(address: str) -> str | None:
    r"""Return an address that is not UTF-8 with its other bytes escaped; None for any other.

    Python has such bytes of a path or an argument as surrogates, which no file of text can contain.

    >>> not_utf8("/data/a"), not_utf8("/data/a\udcff")
    (None, '/data/a\\xff')
    """
    try:
        address.encode()
    except UnicodeEncodeError:
        return address.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return None
