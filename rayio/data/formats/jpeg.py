"""jpeg: a file is one image, or several one after the other (as in Motion JPEG). Pillow encodes it.

Its id and checksum are the first comment. Images have no metadata and no colour; the quality is 90.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.encoded import EncodedOptions
from rayio.data.formats.images import Encoder, saved
from rayio.data.formats.sample import HEADER

QUALITY = 90
#: Markers of the start of an image and of a comment; a comment's length has two bytes and counts them.
START, COMMENT, MOST_COMMENT = b"\xff\xd8", b"\xff\xfe", 65533
#: The first comment before its id and checksum.
LEAD = COMMENT + (HEADER.size + 2).to_bytes(2, "big")


class JpegOptions(EncodedOptions):
    """Options of jpeg: none."""

    least_bytes: ClassVar[int] = 400


class Jpeg(Encoder):
    """One open, one request for each run of images."""

    extension = ".jpeg"
    options = JpegOptions
    lead_at, lead_bytes, id_at, overhead = 2, 4 + HEADER.size, 4, 4 + HEADER.size
    empty_bytes, pixel_bits, block = 330, 3.76, 8

    def lead(self, sample: int, digest: int) -> bytes:
        """Return the comment with id and checksum."""
        return LEAD + HEADER.pack(sample, digest)

    def encoded(self, pixels: NDArray[np.uint8]) -> bytes:
        """Return an image of quality 90."""
        return saved(pixels, "JPEG", quality=QUALITY)

    def padded(self, image: bytes, num_bytes: int) -> list[bytes]:
        """Return an image with comments, and with fill bytes for what is shorter than one."""
        left = num_bytes - len(image) - self.lead_bytes
        pieces = [START, bytes(self.lead_bytes)]
        while left >= 4:
            comment = _comment(bytes(min(left - 4, MOST_COMMENT)))
            pieces.append(comment)
            left -= len(comment)
        return [*pieces, b"\xff" * left, image[len(START) :]]


def _comment(content: bytes) -> bytes:
    return COMMENT + (len(content) + 2).to_bytes(2, "big") + content
