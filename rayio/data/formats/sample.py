"""The bytes of a sample, in every format: its id, a checksum and random bytes.

=====  =======  ==================================================================================
bytes  type     meaning
=====  =======  ==================================================================================
0-7    u64, LE  id: 0 to ``num_samples - 1``
8-15   u64, LE  XXH3-64 of the payload, seeded with the dataset's seed and the id
16-    bytes    payload: the raw PCG64-DXSM stream seeded with ``(dataset's seed, "payload", id)``
=====  =======  ==================================================================================

The checksum covers id and seed, so a sample of another dataset or place never passes for the right one. The payload is
incompressible.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from rayio import seeds
from rayio.errors import DataError

HEADER = struct.Struct("<QQ")
#: Payload bytes drawn per call; they fit the processor's cache.
CHUNK_BYTES = 1 << 18
#: Of a compressible payload each stripe has random bytes, then zeros; zlib needs a few bytes for them.
STRIPE_BYTES, STRIPE_COST = 512, 5
#: Bytes of a label (the sample's id), in formats that store labels separately.
LABEL = 8


#: Returns True for the bytes of the sample with this number.
Judge = Callable[[memoryview, int], bool]


class Place(NamedTuple):
    """The place of a sample, to name it in an error."""

    path: str
    sample: int
    row: int

    def error(self, problem: str) -> DataError:
        """Return an error that names this sample and the problem."""
        return DataError(f"{self.path}: sample {self.sample} (row {self.row}): {problem}")


@lru_cache(maxsize=64)
def checksum_seed(seed: int) -> int:
    """Return the checksum seed of sample 0; other samples add their number."""
    return seeds.key(seed, "checksum")


def checksum(payload: memoryview, seed: int, sample: int) -> int:
    """Return the checksum of a sample's payload; :func:`check` computes the same in place."""
    return xxhash.xxh3_64_intdigest(payload, (checksum_seed(seed) + sample) & seeds.MASK)


def fill(out: NDArray[np.uint8], seed: int, sample: int, compressibility: float = 1.0) -> None:
    """Write sample ``sample`` of the dataset with this seed into ``out``, contiguous and at least 16 bytes long.

    With a ``compressibility`` zlib shrinks the payload by this factor: of every stripe only the first bytes are random.
    """
    stream = np.random.PCG64DXSM(seeds.key(seed, "payload", sample))
    for start in range(HEADER.size, len(out), CHUNK_BYTES):
        part = out[start : start + CHUNK_BYTES]
        words = np.asarray(stream.random_raw(-(-len(part) // 8)), dtype="<u8")
        part[:] = words.view(np.uint8)[: len(part)]
    if compressibility > 1:
        payload, keep = out[HEADER.size :], max(1, round(STRIPE_BYTES / compressibility) - STRIPE_COST)
        whole = len(payload) // STRIPE_BYTES * STRIPE_BYTES
        payload[:whole].reshape(-1, STRIPE_BYTES)[:, keep:] = 0
        payload[whole + keep :] = 0
    HEADER.pack_into(out.data, 0, sample, checksum(out.data[HEADER.size :], seed, sample))


@lru_cache(maxsize=64)
def judge(seed: int) -> Judge:
    """Return a function that tells if bytes are a sample of the dataset with this seed, by its number.

    It is :func:`check` without a place to name, for the speed of small samples.
    """
    unpack, digest, start, mask = HEADER.unpack_from, xxhash.xxh3_64_intdigest, checksum_seed(seed), seeds.MASK

    def is_right(sample: memoryview, number: int) -> bool:
        return unpack(sample) == (number, digest(sample[16:], (start + number) & mask))

    return is_right


class Running:
    """:func:`judge` for samples whose bytes arrive in pieces: their checksum is computed while a piece is in cache."""

    __slots__ = ("_digest", "_judge", "_length", "_start")

    def __init__(self, seed: int) -> None:
        self._judge, self._start = judge(seed), checksum_seed(seed)
        self._digest: Any = None
        #: Bytes of the sample so far; negative if they did not arrive in order.
        self._length = -1

    def take(self, offset: int, content: memoryview) -> None:
        """Add bytes from ``offset`` of the sample on; another attempt begins again."""
        if offset == 0 and len(content) >= HEADER.size:
            number, _ = HEADER.unpack_from(content)
            self._digest = xxhash.xxh3_64(content[HEADER.size :], (self._start + number) & seeds.MASK)
        elif offset == self._length:
            self._digest.update(content)
        else:
            offset, content = -1, content[:0]
        self._length = offset + len(content)

    def is_right(self, sample: memoryview, number: int) -> bool:
        """Return True for the bytes of the sample with this number, which may have been taken or not."""
        length, self._length = self._length, -1
        if length != len(sample):
            return self._judge(sample, number)
        return HEADER.unpack_from(sample) == (number, self._digest.intdigest())


def wrong_label(labels: NDArray[np.int64], first: Place, offset: int) -> None:
    """Compare labels, stored from byte ``offset`` on, with the ids of ``first`` and the samples after it.

    Raises:
        DataError: names the first sample with a wrong label, and the label's byte.
    """
    wrong = np.flatnonzero(labels != np.arange(first.sample, first.sample + len(labels)))
    if wrong.size:
        n = int(wrong[0])
        raise Place(first.path, first.sample + n, first.row + n).error(
            f"expected label {first.sample + n} at byte {offset + n * LABEL}, found {labels[n]}: "
            f"the file is corrupted or of another dataset; delete it and generate it again"
        )


def check(sample: memoryview, seed: int, place: Place) -> int:
    """Verify a sample of the dataset with this seed and return its id.

    Raises:
        DataError: another sample, or bytes that do not match their checksum.
    """
    read_id, written = HEADER.unpack_from(sample)
    computed = xxhash.xxh3_64_intdigest(sample[HEADER.size :], (checksum_seed(seed) + read_id) & seeds.MASK)
    if written == computed and read_id == place.sample:
        return int(read_id)
    raise wrong_sample(int(read_id), written, computed, place)


def wrong_sample(read_id: int, written: int, computed: int, place: Place) -> DataError:
    """Return the error for a sample with this id and checksum, whose bytes give another id or checksum."""
    if written == computed and read_id != place.sample:
        return place.error(
            f"expected id {place.sample}, found the sample with id {read_id}: files were swapped or renamed"
        )
    if read_id != place.sample:
        return place.error(
            f"expected id {place.sample}, found id {read_id} with a wrong checksum: "
            f"the file is corrupted or of another dataset; delete it and generate it again"
        )
    return place.error(
        f"expected checksum {written:016x}, its bytes give {computed:016x}: "
        f"the file is corrupted or of another dataset; delete it and generate it again"
    )
