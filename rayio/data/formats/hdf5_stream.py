"""A file as HDF5 reads it through Python: short reads of metadata come from windows, and no error is raised into C."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from rayio.data.formats.hdf5_description import library
from rayio.data.formats.reads import read_into
from rayio.storage.stores.counted import WINDOW_BYTES

#: Requests allowed to read a file's description; more indicate damage. Files of rayio take 10.
METADATA_READS = 1000


class Stream:
    """The file as HDF5 reads it: short reads of metadata come from windows, and no error is raised into C.

    An error is kept, and HDF5 continues with zeros so that it can close its file. It also gets zeros after more
    requests than any file needs: a damaged file could send it in circles.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.error: BaseException | None = None
        #: Requests that may still be made.
        self.allowed = METADATA_READS
        self.is_described = False
        self.missing = ""
        self._position = 0
        #: The last window of metadata, and its offset.
        self._window, self._window_at = b"", 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, without a request where possible."""
        self._position = offset if whence == io.SEEK_SET else self._try(self.file.seek, offset, whence)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, with zeros after the end or an error."""
        view = memoryview(buffer)
        self.allowed -= 1
        begin = self._position - self._window_at
        end = begin + len(view)
        if begin >= 0 and end <= len(self._window) and self.allowed >= 0 and not self.is_described:
            view[:] = self._window[begin:end]
            self._position += len(view)
            return len(view)
        got = self._try(self._fill, view) if self.allowed >= 0 else 0
        if got < len(view):
            view[got:] = bytes(len(view) - got)
            self.missing = self.missing or (
                f"expected {len(view)} bytes at byte {self._position}, found {got}: the file is truncated"
                if self.allowed >= 0
                else "expected a file that is read in a few requests, found no end of them: the file is corrupted"
            )
        self._position += len(view)
        return len(view)

    def begins_with(self, content: bytes) -> bool:
        """Return True if the last window of metadata is the file's beginning, and begins with these bytes."""
        return self._window_at == 0 and self._window.startswith(content)

    def _fill(self, view: memoryview) -> int:
        if self.is_described or len(view) >= WINDOW_BYTES:
            return read_into(self.file, self._position, view)
        self.file.seek(self._position)
        part = self.file.read(len(view))
        view[: len(part)] = part
        if part and (find := getattr(self.file, "window", None)) is not None:
            self._window_at, self._window = find(self._position, len(part))
        return len(part)

    def _try(self, call: Any, *arguments: Any) -> int:
        if self.error is None:
            try:
                return int(call(*arguments))
            except BaseException as error:  # an interrupt, too, would be lost in C
                self.error = error
        return 0


@contextmanager
def opened_by_hdf5(stream: Stream) -> Iterator[Any]:
    """Open a stream with HDF5 and close it on every exit; the stream's error has priority over HDF5's."""
    import h5py

    try:
        with library(stream) as access:
            h5 = h5py.h5f.open(b"rayio", h5py.h5f.ACC_RDONLY, access)
            try:
                yield h5
            finally:
                h5.close()
    except Exception:
        if stream.error is None:
            raise
    error, stream.error = stream.error, None
    if error is not None:
        raise error
