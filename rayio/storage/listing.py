"""The files of a dataset that another program wrote: names and sizes, files once by listing its folder."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

import numpy as np
import xxhash
from numpy.typing import NDArray

from rayio.errors import DataError
from rayio.storage.address import join
from rayio.storage.stores.opening import Settings, open

#: Most files of a listing: a plan carries their names and sizes.
MAX_FILES = 1 << 21
#: Folders below each other that are listed.
MAX_DEPTH = 4
#: Names of the parts into which DLIO and others divide a dataset.
PARTS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class Listing:
    """Files by name, relative to the dataset's folder, and their sizes in bytes. Pickled it takes a few bytes a file.

    Listings with equal names and sizes are equal.
    """

    names: tuple[str, ...]
    sizes: NDArray[np.int64]

    @cached_property
    def digest(self) -> int:
        """A hash of names and sizes."""
        return xxhash.xxh3_64_intdigest("\0".join(self.names).encode() + b"\0" + self.sizes.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Listing) and self.digest == other.digest

    def __hash__(self) -> int:
        return self.digest

    def __len__(self) -> int:
        return len(self.names)

    def __reduce__(self) -> tuple[Callable[[bytes, bytes], Listing], tuple[bytes, bytes]]:
        return _unpacked, (zlib.compress("\0".join(self.names).encode()), zlib.compress(self.sizes.tobytes()))

    def first(self, number: int) -> Listing:
        """Return the first files."""
        return self if number >= len(self) else Listing(self.names[:number], self.sizes[:number].copy())

    def change(self, now: Listing) -> str:
        """Return in words what differs from a later listing of the same folder; empty if nothing does."""
        sizes = dict(zip(now.names, now.sizes.tolist(), strict=True))
        for name, size in zip(self.names, self.sizes.tolist(), strict=True):
            if name not in sizes:
                return f"{name}: the file is missing"
            if sizes[name] != size:
                return f"{name}: expected a file of {size} bytes, found {sizes[name]}"
        return ""


def _unpacked(names: bytes, sizes: bytes) -> Listing:
    return Listing(tuple(zlib.decompress(names).decode().split("\0")), np.frombuffer(zlib.decompress(sizes), np.int64))


def listed(address: str, settings: Settings, extensions: Collection[str]) -> Listing | None:
    """Return the files with these extensions below an address, by name; None if there is no such folder.

    Hidden files, and those that begin with an underscore, are left out.

    Raises:
        DataError: there are none of these extensions, an empty one, or too many.
        StorageError: the system refuses.
    """
    store = open(address, settings)
    if store.is_file:
        raise DataError(f"{store.address}: dataset.path is a file; give the folder of the files")
    if not store.exists:
        return None
    files: dict[str, int] = {}
    others: set[str] = set()
    for name, size in _walk(address, settings, "", MAX_DEPTH, set()):
        extension = PurePosixPath(name).suffix.lower()
        if extension not in extensions:
            others.add(extension or PurePosixPath(name).name)
        elif not size:
            raise DataError(f"{store.full(name)}: the file is empty; write it again, or remove it")
        else:
            files[name] = size
        if len(files) > MAX_FILES:
            raise DataError(f"{store.address}: more than {MAX_FILES} files; not yet possible with dataset.external")
    if not files:
        there = f"; there are {', '.join(sorted(others)[:5])}" if others else "; the folder is empty"
        raise DataError(f"{store.address}: no {' or '.join(extensions)} files{there}")
    parts = [part for part in PARTS if any(name.startswith(f"{part}/") for name in files)]
    if len(parts) > 1:
        raise DataError(
            f"{store.address}: the folder has {' and '.join(f'{part}/' for part in parts)}; give one of them, "
            f"dataset.path={join(store.address, parts[0])}, and another as dataset.eval.path"
        )
    names = sorted(files)
    return Listing(tuple(names), np.array([files[name] for name in names], np.int64))


def _walk(address: str, settings: Settings, folder: str, depth: int, walked: set[str]) -> Iterator[tuple[str, int]]:
    """Yield name and size of the files below a folder of an address; links to a folder that was ``walked`` are not."""
    store = open(join(address, folder) if folder else address, settings)
    if store.is_local:
        if (place := os.path.realpath(store.full(""))) in walked:
            return
        walked.add(place)
    sizes = store.sizes()
    for name, size in sizes.items():
        if not name.startswith((".", "_")):
            yield f"{folder}{name}", size
    for name in sorted(set(store.entries()) - set(sizes)):
        if depth and not name.startswith((".", "_")) and not name.endswith(".partial"):
            yield from _walk(address, settings, f"{folder}{name}/", depth - 1, walked)
