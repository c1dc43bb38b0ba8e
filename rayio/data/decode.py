"""Decoding that a processor really does: checksums over a batch's samples, or zlib data inflated in their place.

Both run in C and outside Python's lock for all but small samples, so the threads of a worker work side by side.
"""

from __future__ import annotations

import hashlib
import zlib
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rayio.scenario.decode import Work
from rayio.schema.fields import Positive, Reads, RefusedError, choice

#: What one piece of scratch data inflates to; it stays in the processor's cache, as a decoder's buffers do.
PLAIN_BYTES = 1 << 18
#: Repeated data repeats pieces of this many bytes, from at most so many pieces before: within zlib's 32 KiB.
PIECE, REACH = 64, 400


#: Beyond this zlib's matches, not the data, decide how long inflating takes.
MAX_RATIO = 16


def _ratio(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= MAX_RATIO:
        raise RefusedError(f"must be a number from 1 to {MAX_RATIO}")
    return float(value)


class Checksum(Work):
    """Every byte of every sample goes through a checksum, ``passes`` times."""

    kind: Literal["checksum"] = "checksum"
    algorithm: Annotated[Literal["crc32", "sha256"], choice("crc32", "sha256")] = Field(
        "sha256", description="Which checksum."
    )
    passes: Positive = Field(1, description="Times that each sample goes through it.")

    def __call__(self, samples: NDArray[np.uint8], nbytes: NDArray[np.int64]) -> int:
        """Run every sample through it; give the bytes that went through."""
        return _checksums(samples.data, nbytes.tolist(), self.algorithm, self.passes)


class Decompress(Work):
    """For every sample as many bytes of zlib data are inflated as it has, to ``ratio`` times that.

    A sample's own bytes are random and do not compress, so that no storage can cheat; in their place stand data made
    for the ratio.
    """

    kind: Literal["decompress"] = "decompress"
    ratio: Annotated[float, Reads(_ratio, {"type": "number", "minimum": 1, "maximum": MAX_RATIO})] = Field(
        2.0, description="Bytes that come out for each byte that goes in."
    )

    def prepare(self) -> None:
        """Make the data that are inflated."""
        compressed(self.ratio)

    def __call__(self, samples: NDArray[np.uint8], nbytes: NDArray[np.int64]) -> int:
        """Inflate as many bytes as the samples have; give the bytes that came out."""
        return sum(_inflate(compressed(self.ratio), size) for size in nbytes.tolist())


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
