"""A Parquet file as pyarrow sees it: planned requests in the caller's thread, and one line for what is wrong in it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.parquet_file import (
    MAGIC,
    PAGE_BYTES,
    PAGE_HEADER_BYTES,
    Shape,
    is_header_of,
    stored_bytes,
)
from rayio.data.formats.reads import read_into
from rayio.data.formats.sample import Place
from rayio.errors import RayioError

#: What pyarrow reads of a file's end in the hope that the description is in it.
TAIL_BYTES = 64 << 10
AGAIN = "truncated, corrupted or foreign; delete it and generate it again"


class Chunk(NamedTuple):
    """A column chunk that is read: its column, the bytes of a cell, and its rows."""

    name: str
    width: int
    num_rows: int


class Stream:
    """The file as pyarrow sees it: the requests that were planned, and no others.

    pyarrow reads neighbouring chunks together in threads of its own; here the same requests are made in the caller's,
    so that none is under way when the file is closed.
    """

    closed = False

    def __init__(self, file: BinaryIO, place: Place, num_bytes: int, footer_bytes: int) -> None:
        self.file = file
        self.place = place
        tail_at, footer_at = max(0, num_bytes - TAIL_BYTES), num_bytes - len(MAGIC) - 4 - footer_bytes
        #: Where planned requests begin, and how long they are.
        self._planned = {tail_at: num_bytes - tail_at} | ({footer_at: footer_bytes} if footer_at < tail_at else {})
        self._size = num_bytes
        self._chunks: list[tuple[int, Chunk]] = []
        self._position = 0
        #: What was read last, and where it begins.
        self._window, self._window_at = memoryview(b""), 0
        self.error: BaseException | None = None

    def expect(
        self, place: Place, ranges: tuple[NDArray[np.int64], NDArray[np.int64]], chunks: list[Chunk], shape: Shape
    ) -> None:
        """Plan the requests for a row group: where they begin, how long they are, and the chunks in them."""
        self.place = place
        self._planned = dict(zip(ranges[0].tolist(), ranges[1].tolist(), strict=True))
        self._window = memoryview(b"")  # pyarrow asks again for what was in the file's end
        at, self._chunks = int(ranges[0][0]), []
        for number, chunk in enumerate(chunks):
            self._chunks.append((at, chunk))
            at += int(shape.chunk(chunk.num_rows, np.array([chunk.width]), is_id=number == 0)[0])

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def writable(self) -> bool:
        """Say no."""
        return False

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move, within this object alone."""
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        """The position of the next read, in bytes from the file's start."""
        return self._position

    def close(self) -> None:
        """Leave the file to whoever opened it."""

    def read(self, num_bytes: int = -1) -> Any:
        """Read the bytes asked for: from what was read last, or by a planned request."""
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
                    f"expected chunks of columns where they should be, found one of {num_bytes} bytes at byte {begin}: "
                    f"{AGAIN}"
                )
            window = np.empty(length, np.uint8).data
            got = read_into(self.file, begin, window)
            if got < length:
                raise self.place.error(f"expected {length} bytes at byte {begin}, found {got}: the file is truncated")
            self._window, self._window_at = window, begin
            for at, chunk in self._chunks:
                if begin <= at < begin + length:
                    self._check_pages(at, chunk)
        self._position = end
        return pa.py_buffer(self._window[begin - self._window_at : end - self._window_at])

    def _check_pages(self, at: int, chunk: Chunk) -> None:
        """Refuse pages that say they are larger than they can be, before memory is taken for them."""
        many = max(1, PAGE_BYTES // chunk.width)
        for top in range(0, chunk.num_rows, many):
            rows = min(many, chunk.num_rows - top)
            start = at - self._window_at
            header = bytes(self._window[start : start + PAGE_HEADER_BYTES])
            stored, plain = stored_bytes(header), rows * chunk.width
            if not is_header_of(header, plain, rows) or not 0 < stored <= plain:
                raise self.place.error(
                    f"expected a page of {rows} rows of column {chunk.name} at byte {at}, found none: {AGAIN}"
                )
            at += PAGE_HEADER_BYTES + stored


@contextmanager
def parquet_in(file: BinaryIO, place: Place, num_bytes: int, footer_bytes: int) -> Iterator[tuple[Stream, Any]]:
    """Open a file with pyarrow and close it whatever happens.

    Raises:
        DataError: it is not as long as it should be, or no Parquet.
    """
    from pyarrow.parquet import ParquetFile

    found = file.seek(0, io.SEEK_END)
    if found != num_bytes:
        raise place.error(f"expected a parquet file of {num_bytes} bytes, found one of {found}: {AGAIN}")
    stream = Stream(file, place, num_bytes, footer_bytes)
    try:
        parquet = ParquetFile(stream, pre_buffer=False)
        try:
            yield stream, parquet
        finally:
            parquet.close(force=True)
    except RayioError:
        raise
    except Exception as error:  # pyarrow raises half a dozen kinds for bytes that are no Parquet
        if stream.error is not None:
            raise stream.error from error
        reason = " ".join(str(error).split())
        raise stream.place.error(f"expected a parquet file, found none ({reason}): {AGAIN}") from error
