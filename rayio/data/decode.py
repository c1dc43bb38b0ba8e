"""Decoding that a processor really does: checksums over a batch's samples, or zlib data inflated in their place.

Both run in C and outside Python's lock for all but small samples, so the threads of a worker work side by side.
"""

from __future__ import annotations

import hashlib
import zlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rayio.scenario.decode import Checksum, Decompress, Work

#: What one piece of scratch data inflates to; it stays in the processor's cache, as a decoder's buffers do.
PLAIN_BYTES = 1 << 18
#: Repeated data repeats pieces of this many bytes, from at most so many pieces before: within zlib's 32 KiB.
PIECE, REACH = 64, 400


class Decoding:
    """What ``loader.decode`` asks for, as a function of a batch's bytes."""

    def __init__(self, work: Work) -> None:
        self.work = work
        if isinstance(work, Decompress):
            compressed(work.ratio)  # made now: in the middle of a run it would pass for decoding

    def __call__(self, samples: NDArray[np.uint8], nbytes: NDArray[np.int64]) -> int:
        """Decode samples that lie one after the other, each with its length; give the bytes that came out of it."""
        match self.work:
            case Checksum(algorithm=algorithm, passes=passes):
                return _checksums(samples.data, nbytes.tolist(), algorithm, passes)
            case Decompress(ratio=ratio):
                return sum(_inflate(compressed(ratio), size) for size in nbytes.tolist())
        raise TypeError(f"no decoding of kind {self.work!r}")


def _checksums(samples: memoryview, sizes: list[int], algorithm: str, passes: int) -> int:
    """Run every sample through the checksum, so many times; give the bytes that went through."""
    start = 0
    for size in sizes:
        sample = samples[start : start + size]
        for _ in range(passes):
            if algorithm == "crc32":
                zlib.crc32(sample)
            else:
                hashlib.sha256(sample).digest()
        start += size
    return start * passes


def _inflate(data: bytes, size: int) -> int:
    """Inflate ``data`` again and again until ``size`` bytes of it are used up; give the bytes that came out."""
    whole, rest = divmod(size, len(data))
    made = sum(len(zlib.decompress(data, bufsize=PLAIN_BYTES)) for _ in range(whole))
    return made + len(zlib.decompressobj().decompress(data[:rest]))


@lru_cache(maxsize=4)
def compressed(ratio: float) -> bytes:
    """Make zlib data that inflate to ``ratio`` times their size, within one percent; always the same ones.

    Random pieces, of which enough are repeated; how many, is found by halving.
    """
    low, high = 0.0, 1.0
    while True:
        fresh = (low + high) / 2 if ratio > 1 else 1.0
        data = zlib.compress(_pieces(fresh), 6)
        found = PLAIN_BYTES / len(data)
        if abs(found / ratio - 1) <= 0.01:
            return data
        low, high = (low, fresh) if found < ratio else (fresh, high)


def _pieces(fresh: float) -> bytes:
    """Make random bytes of which a share ``fresh`` is new and the rest repeats what came shortly before."""
    number = PLAIN_BYTES // PIECE
    stream = np.random.Generator(np.random.PCG64DXSM(7))
    pieces = stream.integers(0, 256, (number, PIECE), np.uint8)
    back = stream.integers(1, REACH, number)
    counted = np.floor(np.arange(number + 1) * fresh)
    for place in np.flatnonzero(counted[1:] == counted[:-1]).tolist():
        if place:
            pieces[place] = pieces[place - min(int(back[place]), place)]
    return pieces.tobytes()
