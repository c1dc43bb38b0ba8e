"""Local copies of files of another store: fetched once, and removed with the process."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from pathlib import Path
from typing import BinaryIO, cast

from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.opening import Fill, Store

#: Bytes fetched per request.
PIECE_BYTES = 16 << 20


class Mirror:
    """A temporary folder of copies from a store. Each file is fetched at most once, and not if it was written here.

    Files must never change once they are complete.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._folder: Path | None = None
        self._lock = threading.Lock()
        self._forget: weakref.finalize[[Path], Mirror] | None = None

    @property
    def folder(self) -> Path:
        """The temporary folder."""
        with self._lock:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="rayio-"))
                self._forget = weakref.finalize(self, shutil.rmtree, self._folder, True)
            return self._folder

    def path(self, name: str) -> Path:
        """Return a path with the file's content, fetched at first use.

        Raises:
            DataError: there is no such file.
            StorageError: the store refuses.
        """
        place = self.folder / name
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            unfinished = place.with_name(f"{place.name}.{threading.get_ident()}")
            with self.store.open(name, Traffic()) as source, unfinished.open("wb") as target:
                _copy(source, target)
            unfinished.replace(place)
        return place

    def write(self, name: str, fill: Fill, *, doing: str = "writing") -> Path:
        """Write a file to the store and keep a copy; return the copy's path."""
        place = self.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            with place.open("wb") as target:
                fill(target)

            def copy(target: BinaryIO) -> None:
                with place.open("rb") as source:
                    _copy(source, target)

            self.store.write(name, copy, doing=doing)
        except BaseException:
            place.unlink(missing_ok=True)
            raise
        return place

    def remove(self, name: str) -> None:
        """Remove a file from the store and its copy."""
        self.store.remove(name)
        (self.folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the temporary folder; it is recreated when needed."""
        if self._forget is not None:
            self._forget()
        self._folder = self._forget = None


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    piece = bytearray(PIECE_BYTES)
    while length := cast(int, source.readinto(piece)):  # type: ignore[attr-defined]
        target.write(memoryview(piece)[:length])
