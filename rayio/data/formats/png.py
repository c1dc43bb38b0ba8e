"""png: a file is one image, or several one after the other. Pillow encodes it.

Its id and checksum are a private chunk ``raYo`` after the header; a chunk ``raYp`` fills the size.
"""

from __future__ import annotations

import zlib
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.encoded import EncodedOptions
from rayio.data.formats.images import Encoder, saved
from rayio.data.formats.sample import HEADER

#: Bytes of the signature and the header's chunk, and of a chunk without content.
FRONT, CHUNK = 33, 12
#: Fast compression without a search for repetitions, of which noise has none: zlib's level 1 and Z_RLE.
LEVEL, STRATEGY = 1, 3
#: The chunk with id and checksum before them, and the checksum of its name.
LEAD = HEADER.size.to_bytes(4, "big") + b"raYo"
LEAD_SUM = zlib.crc32(b"raYo")


class PngOptions(EncodedOptions):
    """Options of png: none."""

    least_bytes: ClassVar[int] = 160


class Png(Encoder):
    """One open, one request for each run of images."""

    extension = ".png"
    options = PngOptions
    lead_at, lead_bytes, id_at, overhead = FRONT, CHUNK + HEADER.size, 8, 2 * CHUNK + HEADER.size
    empty_bytes, pixel_bits, block = 80, 6.8, 1

    def lead(self, sample: int, digest: int) -> bytes:
        """Return the chunk with id and checksum."""
        content = HEADER.pack(sample, digest)
        return LEAD + content + zlib.crc32(content, LEAD_SUM).to_bytes(4, "big")

    def encoded(self, pixels: NDArray[np.uint8]) -> bytes:
        """Return an image of zlib's fastest compression."""
        return saved(pixels, "PNG", compress_level=LEVEL, compress_type=STRATEGY)

    def padded(self, image: bytes, num_bytes: int) -> list[bytes]:
        """Return an image with a chunk that nobody reads."""
        filler = _chunk(b"raYp", bytes(num_bytes - len(image) - self.overhead))
        return [image[:FRONT], bytes(self.lead_bytes), filler, image[FRONT:]]


def _chunk(name: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(content, zlib.crc32(name))
    return len(content).to_bytes(4, "big") + name + content + checksum.to_bytes(4, "big")
