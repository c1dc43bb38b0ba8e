"""Text from a sample's random bytes: each byte is replaced by a character of an alphabet."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.data.formats.sample import CHUNK_BYTES

#: Characters of running text that JSON writes as they are: 64, so that each takes 6 of a byte's 8 bits.
LETTERS = b" .etaoinshrdlcumwfgypbvkjxqzETAOINSHRDLCUMWFGYPBVKJXQZ0123456789"
DIGITS = b"0123456789"


def table(alphabet: bytes) -> bytes:
    """Return the character for each of the 256 values of a byte."""
    return bytes(alphabet[value % len(alphabet)] for value in range(256))


def write_text(out: NDArray[np.uint8], seed: int, sample: int, characters: bytes) -> None:
    """Fill ``out`` with the text of a sample; ``characters`` is a :func:`table`."""
    stream = np.random.PCG64DXSM(seeds.key(seed, "payload", sample))
    for start in range(0, len(out), CHUNK_BYTES):
        part = out[start : start + CHUNK_BYTES]
        words = np.asarray(stream.random_raw(-(-len(part) // 8)), dtype="<u8")
        part.data[:] = words.tobytes()[: len(part)].translate(characters)
