"""Images that Pillow encodes: noise of 64 shades of grey, in files of exactly the wanted size.

Noise takes a known number of bits for a pixel, so the edges of an image follow from ``sample_bytes``. Its pixels are
drawn and encoded; what is left of the size, about 2 %, is a comment.
"""

from __future__ import annotations

import io
import math
from abc import abstractmethod
from types import ModuleType
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.data.formats.encoded import Encoded
from rayio.data.formats.sample import HEADER
from rayio.data.layout import Layout
from rayio.errors import DataError

MISSING = "images need Pillow, which is not installed here; run pip install 'rayio[images]'"
#: Pixels are 6 random bits each.
SHADES = np.uint64(0x3F3F3F3F3F3F3F3F)
#: Share of a file that the first attempt fills; a larger image than the file is made again, smaller.
FILLED, SMALLER = 0.985, 0.95


def pillow() -> ModuleType:
    """Return Pillow's module ``Image``.

    Raises:
        DataError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(MISSING) from error
    return Image


class Encoder(Encoded):
    """A format of images: how they are encoded, and how one becomes longer."""

    decoded_by = "image"
    #: Bytes of an image without pixels, and bits of a pixel of noise.
    empty_bytes: ClassVar[int]
    pixel_bits: ClassVar[float]
    #: Both edges are multiples of this.
    block: ClassVar[int]

    @abstractmethod
    def encoded(self, pixels: NDArray[np.uint8]) -> bytes:
        """Return an image of these pixels, of shape (height, width)."""

    @abstractmethod
    def padded(self, image: bytes, num_bytes: int) -> list[bytes]:
        """Return an image's bytes with room for the lead and a comment, together ``num_bytes``, in pieces."""

    def parse(self, lead: bytes) -> tuple[int, int]:
        """Return id and checksum."""
        sample, digest = HEADER.unpack(lead[self.id_at : self.id_at + HEADER.size])
        return sample, digest

    #: Offset of the id in the lead.
    id_at: ClassVar[int]

    def encode(self, out: NDArray[np.uint8], layout: Layout, sample: int) -> None:
        """Draw, encode and write an image."""
        start = 0
        for piece in self.padded(self._fitting(len(out) - self.overhead, layout.seed, sample), len(out)):
            out.data[start : start + len(piece)] = piece
            start += len(piece)

    #: Bytes of the lead and of an empty comment.
    overhead: ClassVar[int]

    def _fitting(self, most: int, seed: int, sample: int) -> bytes:
        """Return an image of at most ``most`` bytes, and little less."""
        stream = np.random.PCG64DXSM(seeds.key(seed, "payload", sample))
        target = FILLED * most
        while True:
            edge = max(self.block, int(math.sqrt(max(target - self.empty_bytes, 1) * 8 / self.pixel_bits)))
            width = -(-edge // self.block) * self.block
            height = int(max(target - self.empty_bytes, 1) * 8 / self.pixel_bits / width)
            height = max(self.block, height // self.block * self.block)
            words = np.asarray(stream.random_raw(-(-width * height // 8)), dtype="<u8")
            pixels = (words & SHADES).view(np.uint8)[: width * height].reshape(height, width)
            if len(image := self.encoded(pixels)) <= most:
                return image
            if width * height == self.block**2:
                return self.encoded(np.zeros((self.block, self.block), np.uint8))
            target *= SMALLER


def saved(pixels: NDArray[np.uint8], name: str, **options: object) -> bytes:
    """Return an image as Pillow encodes it."""
    written = io.BytesIO()
    pillow().fromarray(pixels).save(written, name, **options)
    return written.getvalue()
