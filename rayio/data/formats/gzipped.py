"""Records in gzip, as TensorFlow's ``TFRecordOptions("GZIP")`` writes and reads them: a file is one stream.

No record can be found without those before it, so a batch reads whole files and inflates them up to the last record
that it needs. Each record is a gzip member of a fixed length, filled up in its header, so sizes are known beforehand.
Other members of the same records are read too.
"""

from __future__ import annotations

import struct
import zlib
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

LEVEL = 6
#: A member's header with an extra field, whose length is in two bytes; and its end, checksum and length.
HEAD, END = struct.Struct("<4sIBBH"), struct.Struct("<II")
MAGIC = b"\x1f\x8b\x08\x04"
MAX_EXTRA = (1 << 16) - 1
#: The deflated nothing.
EMPTY = b"\x03\x00"
#: Bytes of a member around what is deflated, and of an empty one.
AROUND, LEAST = HEAD.size + END.size, HEAD.size + END.size + len(EMPTY)
#: Input inflated at a time.
PIECE_BYTES = 1 << 18


def slot(nbytes: NDArray[np.int64], compressibility: float) -> NDArray[np.int64]:
    """Return the bytes of members of records of ``nbytes``: a bound of what zlib makes of them."""
    # zlib's own bound for what does not shrink, and 6 % more than is expected of what does.
    bound = nbytes + (nbytes >> 12) + (nbytes >> 14) + (nbytes >> 25) + 13
    expected = np.ceil(1.06 * nbytes / compressibility).astype(np.int64) + 512
    members: NDArray[np.int64] = AROUND + LEAST + np.minimum(bound, expected)
    return members


def write_member(file: BinaryIO, record: NDArray[np.uint8], num_bytes: int) -> None:
    """Write a record as members of ``num_bytes`` together: its own, and empty ones that fill them."""
    deflating = zlib.compressobj(LEVEL, zlib.DEFLATED, -15)
    deflated = deflating.compress(record.data) + deflating.flush()
    left = num_bytes - AROUND - len(deflated)
    if left < LEAST:
        raise AssertionError(f"a record of {len(record)} bytes is deflated to {len(deflated)}, which are too many")
    extra = left if left <= MAX_EXTRA else MAX_EXTRA - LEAST
    file.write(HEAD.pack(MAGIC, 0, 0, 255, extra) + bytes(extra))
    file.write(deflated + END.pack(zlib.crc32(record.data), len(record) & 0xFFFFFFFF))
    left -= extra
    while left:
        extra = left - LEAST if left - LEAST <= MAX_EXTRA else MAX_EXTRA - LEAST
        file.write(HEAD.pack(MAGIC, 0, 0, 255, extra) + bytes(extra) + EMPTY + END.pack(0, 0))
        left -= LEAST + extra


class Inflated:
    """The bytes of a gzip stream of several members, from its beginning."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._at = 0
        self._inflating = zlib.decompressobj(31)
        self._tail = b""

    def read(self, num_bytes: int) -> bytes:
        """Return the next bytes; fewer at the end.

        Raises:
            zlib.error: no gzip stream, or a checksum that is not right.
        """
        pieces: list[bytes] = []
        missing = num_bytes
        while missing:
            if self._inflating.eof:
                self._tail = self._inflating.unused_data
                self._inflating = zlib.decompressobj(31)
            if not self._tail:
                self._tail = bytes(self._content[self._at : self._at + PIECE_BYTES])
                self._at += len(self._tail)
                if not self._tail:
                    break
            piece = self._inflating.decompress(self._tail, missing)
            self._tail = self._inflating.unconsumed_tail
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)
