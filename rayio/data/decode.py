"""Decoding done by a CPU: checksums over a batch's samples, or zlib data inflated in their place.

Both run in C and release Python's lock for all but small samples, so a worker's threads run in parallel.
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

#: Inflated size of one piece of scratch data; it fits the processor's cache, as a decoder's buffers do.
PLAIN_BYTES = 1 << 18
#: Repeated data repeats pieces of this many bytes, from at most REACH pieces before: within zlib's 32 KiB.
PIECE, REACH = 64, 400


#: zlib's time for an inflated byte as a share of that for a compressed byte: fits ratios of 1.5 to 16 within 5 %. Data
#: of ratio 1 is stored, and copied in the share ``STORED`` of the time.
OF_INFLATED, STORED_RATIO, STORED = 0.09, 1.01, 0.07
#: The ratio whose bytes ``rate`` counts.
USUAL_RATIO = 2.0
#: Beyond this ratio zlib's matches, not the data, determine the time.
MAX_RATIO = 16


def _ratio(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= MAX_RATIO:
        raise RefusedError(f"must be a number from 1 to {MAX_RATIO}")
    return float(value)


class Checksum(Work):
    """A checksum over every byte of every sample, ``passes`` times."""

    kind: Literal["checksum"] = "checksum"
    algorithm: Annotated[Literal["crc32", "sha256"], choice("crc32", "sha256")] = Field(
        "sha256", description="Checksum to compute."
    )
    passes: Positive = Field(1, description="Checksums computed of each sample.")

    @property
    def work_per_byte(self) -> float:
        """Return the number of passes."""
        return float(self.passes)

    def __call__(self, samples: NDArray[np.uint8], nbytes: NDArray[np.int64]) -> int:
        """Compute the checksums; return the bytes processed."""
        return _checksums(samples.data, nbytes.tolist(), self.algorithm, self.passes)


class Decompress(Work):
    """Inflation of zlib data: for each sample as many compressed bytes as it has, to ``ratio`` times as many.

    The data is generated for the ratio, because a sample's bytes are random and do not compress.
    """

    kind: Literal["decompress"] = "decompress"
    ratio: Annotated[float, Reads(_ratio, {"type": "number", "minimum": 1, "maximum": MAX_RATIO})] = Field(
        2.0, description="Output bytes per input byte."
    )

    @property
    def work_per_byte(self) -> float:
        """Return the work of a compressed byte relative to one of ratio 2: zlib's time is mostly that of its input."""
        if self.ratio <= STORED_RATIO:
            return STORED
        return (1 + OF_INFLATED * self.ratio) / (1 + OF_INFLATED * USUAL_RATIO)

    def prepare(self) -> None:
        """Generate the compressed data."""
        compressed(self.ratio)

    def __call__(self, samples: NDArray[np.uint8], nbytes: NDArray[np.int64]) -> int:
        """Inflate as many bytes as the samples have; return the bytes of output."""
        return sum(_inflate(compressed(self.ratio), size) for size in nbytes.tolist())


def _checksums(samples: memoryview, sizes: list[int], algorithm: str, passes: int) -> int:
    """Compute each sample's checksum ``passes`` times; return the bytes processed."""
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
    """Inflate ``data`` repeatedly until ``size`` input bytes are used; return the bytes of output."""
    whole, rest = divmod(size, len(data))
    inflated = sum(len(zlib.decompress(data, bufsize=PLAIN_BYTES)) for _ in range(whole))
    return inflated + len(zlib.decompressobj().decompress(data[:rest]))


@lru_cache(maxsize=4)
def compressed(ratio: float) -> bytes:
    """Return zlib data that inflates to ``ratio`` times its size, within one percent; the same for every call.

    The share of repeated random pieces is found by bisection.
    """
    low, high = 0.0, 1.0
    while True:
        fresh = (low + high) / 2 if ratio > 1 else 1.0
        data = zlib.compress(_pieces(fresh), 6)
        measured = PLAIN_BYTES / len(data)
        if abs(measured / ratio - 1) <= 0.01:
            return data
        low, high = (low, fresh) if measured < ratio else (fresh, high)


def _pieces(fresh: float) -> bytes:
    """Return random bytes: a share ``fresh`` is new, the rest repeats recent pieces."""
    number = PLAIN_BYTES // PIECE
    stream = np.random.Generator(np.random.PCG64DXSM(7))
    pieces = stream.integers(0, 256, (number, PIECE), np.uint8)
    back = stream.integers(1, REACH, number)
    counted = np.floor(np.arange(number + 1) * fresh)
    for place in np.flatnonzero(counted[1:] == counted[:-1]).tolist():
        if place:
            pieces[place] = pieces[place - min(int(back[place]), place)]
    return pieces.tobytes()
