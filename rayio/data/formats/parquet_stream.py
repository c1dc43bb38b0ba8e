"""A file stream for pyarrow: it issues the planned requests in the caller's thread and explains damaged files."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.parquet_file import (
    MAGIC,
    PAGE_BYTES,
    PAGE_HEADER_BYTES,
    Shape,
    chunk_bytes,
    is_header_of,
    stored_bytes,
)
from rayio.data.formats.reads import read_into, scratch
from rayio.data.formats.sample import Place
from rayio.errors import RayioError

#: pyarrow reads this many bytes at the end of a file first; they usually contain the description.
TAIL_BYTES = 64 << 10
AGAIN = "truncated, corrupted or foreign; delete it and generate it again"


class Chunk(NamedTuple):
    """A column chunk to read: its column, the bytes of a cell, and its rows."""

    name: str
    width: int
    num_rows: int

    def pages(self) -> Iterator[tuple[int, int]]:
        """Yield rows and bytes of each page."""
        many = max(1, PAGE_BYTES // self.width)
        for top in range(0, self.num_rows, many):
            rows = min(many, self.num_rows - top)
            yield rows, rows * self.width


class Stream:
    """A file for pyarrow that issues the planned requests and no others.

    pyarrow reads neighbouring chunks together in its own threads. Here the caller's thread makes the same requests, so
    none is in flight when the file is closed.
    """

    closed = False

    def __init__(self, file: BinaryIO, place: Place, num_bytes: int, footer_bytes: int) -> None:
        self.file = file
        self.place = place
        tail_at, footer_at = max(0, num_bytes - TAIL_BYTES), num_bytes - len(MAGIC) - 4 - footer_bytes
        #: Offsets of planned requests, with their lengths.
        self._planned = {tail_at: num_bytes - tail_at} | ({footer_at: footer_bytes} if footer_at < tail_at else {})
        self._size = num_bytes
        self._chunks: list[tuple[int, Any]] = []
        self._position = 0
        #: The bytes of the last read, and their offset.
        self._window, self._window_at = memoryview(b""), 0
        self.error: BaseException | None = None

    def expect(
        self, place: Place, ranges: tuple[NDArray[np.int64], NDArray[np.int64]], chunks: list[Chunk], shape: Shape
    ) -> None:
        """Plan the requests for a row group: their offsets and lengths, and the chunks in them."""
        self.place = place
        self._planned = dict(zip(ranges[0].tolist(), ranges[1].tolist(), strict=True))
        self._window = memoryview(b"")  # pyarrow reads again what was in the file's end
        self._chunks = chunks_at(int(ranges[0][0]), chunks, shape)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return False."""
        return False

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position; no request."""
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        """Return the offset of the next read."""
        return self._position

    def close(self) -> None:
        """Do nothing: the caller closes the file."""

    def read(self, num_bytes: int = -1) -> Any:
        """Return bytes from the last read, or from a planned request."""
        try:
            return self._read(num_bytes)
        except BaseException as error:
            self.error = error
            raise

    read_buffer = read

    def _read(self, num_bytes: int) -> Any:
        import pyarrow as pa

        begin, end = self._position, self._position + num_bytes
        if not self._window_at <= begin <= end <= self._window_at + len(self._window):
            length = self._planned.get(begin, -1)
            if not 0 <= num_bytes <= length:
                raise self.place.error(
                    f"expected column chunks at their planned offsets, found {num_bytes} bytes at byte {begin}: {AGAIN}"
                )
            # pyarrow keeps all chunks of a row group until it has decoded them: together they need one window.
            window = scratch(length) if len(self._planned) == 1 else np.empty(length, np.uint8).data
            got = read_into(self.file, begin, window)
            if got < length:
                raise self.place.error(f"expected {length} bytes at byte {begin}, found {got}: the file is truncated")
            self._window, self._window_at = window, begin
            for offset, chunk in self._chunks:
                if begin <= offset < begin + length and (page := wrong_page(window, offset - begin, chunk)):
                    rows, start = page
                    raise self.place.error(
                        f"expected a page of {rows} rows of column {chunk.name} at byte {begin + start}, found none: "
                        f"{AGAIN}"
                    )
        self._position = end
        return pa.py_buffer(self._window[begin - self._window_at : end - self._window_at])


def chunks_at(offset: int, chunks: list[Chunk], shape: Shape) -> list[tuple[int, Chunk]]:
    """Return chunks that follow each other from ``offset`` on, ``id`` first, with the offset of each."""
    places = []
    for number, chunk in enumerate(chunks):
        places.append((offset, chunk))
        offset += chunk_bytes(shape, chunk.num_rows, chunk.width, number == 0)
    return places


def wrong_page(window: memoryview, start: int, chunk: Any) -> tuple[int, int] | None:
    """Return rows and place of the first page of impossible size of a chunk from ``start`` on, if there is one.

    It is called before memory is allocated for them.
    """
    for rows, plain in chunk.pages():
        header = bytes(window[start : start + PAGE_HEADER_BYTES])
        stored = stored_bytes(header)
        if not is_header_of(header, plain, rows) or not 0 < stored <= plain:
            return rows, start
        start += PAGE_HEADER_BYTES + stored
    return None


@contextmanager
def parquet_in(
    file: BinaryIO, place: Place, num_bytes: int, footer_bytes: int, kind: Callable[..., Any] = Stream
) -> Iterator[tuple[Any, Any]]:
    """Open a file with pyarrow; close it on every exit.

    Raises:
        DataError: it has the wrong length, or is no Parquet.
    """
    from pyarrow.parquet import ParquetFile

    size = file.seek(0, io.SEEK_END)
    if size != num_bytes:
        raise place.error(f"expected a parquet file of {num_bytes} bytes, found one of {size}: {AGAIN}")
    stream = kind(file, place, num_bytes, footer_bytes)
    try:
        parquet = ParquetFile(stream, pre_buffer=False)
        try:
            yield stream, parquet
        finally:
            parquet.close(force=True)
    except RayioError:
        raise
    except Exception as error:  # pyarrow raises half a dozen classes for invalid bytes
        if stream.error is not None:
            raise stream.error from error
        reason = " ".join(str(error).split())
        raise stream.place.error(f"expected a parquet file, found none ({reason}): {AGAIN}") from error
