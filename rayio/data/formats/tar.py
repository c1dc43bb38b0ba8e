"""tar shards as WebDataset reads them: of each sample a member ``<id>.bin`` with its bytes and ``<id>.cls``, its label.

Headers are GNU tar's, without times and owners; files end as GNU tar's do, at a multiple of 10 KiB. Members have one
size in a file, so the start of any sample follows from its number.
"""

from __future__ import annotations

import tarfile
from contextlib import suppress
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.at_once import Frame
from rayio.data.formats.records import AGAIN, Records
from rayio.data.formats.sample import Place
from rayio.data.layout import Layout
from rayio.errors import DataError

#: Bytes of a block (headers are one, members whole ones), and of the multiple of which a file is.
BLOCK, FILE_BLOCK = tarfile.BLOCKSIZE, tarfile.RECORDSIZE
#: Digits of an id in names and labels: those of the largest.
DIGITS = 19
#: What follows a label in its block.
LABEL_END = bytes(BLOCK - DIGITS)
#: The place of the checksum in a header.
SUM = slice(148, 156)


class Tar(Records):
    """One open, one request for each run of samples, up to 8 MiB together, headers and labels included."""

    extension = ".tar"
    is_framed = True
    is_proposed = True
    before_bytes = BLOCK

    def after_bytes(self, nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes that fill the last block, then the label's header and block."""
        return -nbytes % BLOCK + 2 * BLOCK

    def tail_bytes(self, end: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return two empty blocks, and as many more as fill the last 10 KiB."""
        return 2 * BLOCK + -(end + 2 * BLOCK) % FILE_BLOCK

    def framing(self, layout: Layout) -> Frame:
        """Return a function to the header of the sample's member, what fills its last block, and its label."""

        def frame(sample: int, content: NDArray[np.uint8]) -> bytes:
            first, first_sum, second, filling, label_sum, last = _parts(len(content))
            key = b"%0*d" % (DIGITS, sample)
            total = sum(key)
            sums = b"%06o\0 " % (first_sum + total), b"%06o\0 " % (label_sum + total)
            return b"".join((key, first, sums[0], filling, key, second, sums[1], last, key, LABEL_END))

        return frame

    def wrong_frame(self, record: memoryview, nbytes: int, layout: Layout, place: Place) -> DataError:
        """Return the error for a record with other headers: of a member of another size, its size."""
        with suppress(tarfile.HeaderError):
            member = tarfile.TarInfo.frombuf(bytes(record[:BLOCK]), "ascii", "replace")
            name = f"{place.sample:0{DIGITS}d}.bin"
            if member.name == name and member.size != nbytes:
                return place.error(f"expected the member {name} of {nbytes} bytes, found one of {member.size}: {AGAIN}")
        return super().wrong_frame(record, nbytes, layout, place)


@lru_cache(maxsize=256)
def _parts(nbytes: int) -> tuple[bytes, int, bytes, bytes, int, bytes]:
    """Return what surrounds keys and checksums in the frame of a member of ``nbytes``; of its headers also the sums."""
    (member, member_sum), (label, label_sum) = _header(".bin", nbytes), _header(".cls", DIGITS)
    first, second = member[DIGITS : SUM.start], label[DIGITS : SUM.start]
    return first, member_sum, second, member[SUM.stop :] + bytes(-nbytes % BLOCK), label_sum, label[SUM.stop :]


@lru_cache(maxsize=256)
def _header(suffix: str, nbytes: int) -> tuple[bytes, int]:
    """Return the header of a member with an empty key, and the sum of its other bytes."""
    member = tarfile.TarInfo("0" * DIGITS + suffix)
    member.size = nbytes
    header = member.tobuf(tarfile.GNU_FORMAT)
    return header, sum(header[DIGITS : SUM.start]) + sum(b" " * 8) + sum(header[SUM.stop :])
