"""The type of paths and addresses in a scenario: a folder, or an address whose scheme names a kind of storage."""

from __future__ import annotations

import re
from typing import Annotated, Any

from rayio.errors import RayioError
from rayio.kinds import STORAGES
from rayio.schema.fields import NotYetError, Reads, RefusedError
from rayio.storage.address import POSIX, scheme_of

#: A dataset path with this prefix has no bytes: only the storage model serves it.
MODEL = "model"
MODELLED = f"{MODEL}://"
#: An address that lacks a slash.
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/(?!/)")
#: The most bytes of a folder's path, and of a part of it, without the names of files in it.
MAX_PATH, MAX_PART = 3000, 255


def _path(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise RefusedError("must be a path, not empty")
    scheme = scheme_of(value)
    if (slip := _ONE_SLASH.match(value)) and (meant := slip[1].lower()) in (*STORAGES, *STORAGES.later, MODEL):
        begin = f"{meant}://" if meant == POSIX else f"{meant}:/"
        raise RefusedError(f"did you mean {begin}{value[len(meant) + 1 :]}? With one slash it is a folder's name")
    if "\0" in value:
        raise RefusedError("has a character that no path can have")
    if len(value.encode()) > MAX_PATH or any(len(part.encode()) > MAX_PART for part in value.split("/")):
        raise RefusedError(f"is too long: {MAX_PART} bytes are the most of a folder's name, {MAX_PATH} of all")
    if value.startswith(MODELLED):
        return value
    if scheme in STORAGES.later:
        raise NotYetError(value)
    if scheme not in STORAGES:
        known = "".join(f", {name}://..." for name in STORAGES if name != POSIX)
        raise RefusedError(f"unknown scheme {scheme}://; give a path or {MODELLED}<name>{known}")
    try:
        if check := getattr(STORAGES[scheme], "check", None):
            check(value)
    except RayioError as error:
        raise RefusedError(str(error)) from None
    return value


Path = Annotated[str, Reads(_path, {"type": "string"})]
