"""What a sample is made of, in every format: its id, a checksum and random bytes.

=====  =======  ==================================================================================
bytes  type     meaning
=====  =======  ==================================================================================
0-7    u64, LE  id: 0 to ``num_samples - 1``
8-15   u64, LE  XXH3-64 of the payload, seeded with the dataset's seed and the id
16-    bytes    payload: the raw PCG64-DXSM stream seeded with ``(dataset's seed, "payload", id)``
=====  =======  ==================================================================================

Because id and seed take part in the checksum, a sample of another dataset or of another place never passes for the
right one, and the payload does not compress, so no storage system can cheat with it.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from rayio import seeds
from rayio.errors import DataError

HEADER = struct.Struct("<QQ")
#: Payload bytes drawn at once: more would leave the processor's cache.
CHUNK_BYTES = 1 << 18
#: Bytes of a label, which is the sample's id again, in formats that keep labels apart from samples.
LABEL = 8


class Place(NamedTuple):
    """Where a sample should be, to name it in an error."""

    path: str
    sample: int
    #: Place of the sample in the file.
    row: int

    def error(self, found: str) -> DataError:
        """Make the error that says what was found in place of this sample."""
        return DataError(f"{self.path}: sample {self.sample} (row {self.row}): {found}")


@lru_cache(maxsize=64)
def _checksum_seed(seed: int) -> int:
    return seeds.key(seed, "checksum")


def checksum(payload: memoryview, seed: int, sample: int) -> int:
    """Hash a sample's payload for its header; :func:`check` does the same in place."""
    return xxhash.xxh3_64_intdigest(payload, (_checksum_seed(seed) + sample) & seeds.MASK)


def fill(out: NDArray[np.uint8], seed: int, sample: int) -> None:
    """Make sample ``sample`` of the dataset with this seed; ``out``, contiguous and at least 16 long, becomes it."""
    stream = np.random.PCG64DXSM(seeds.key(seed, "payload", sample))
    for start in range(HEADER.size, len(out), CHUNK_BYTES):
        part = out[start : start + CHUNK_BYTES]
        words = np.asarray(stream.random_raw(-(-len(part) // 8)), dtype="<u8")
        part[:] = words.view(np.uint8)[: len(part)]
    HEADER.pack_into(out.data, 0, sample, checksum(out.data[HEADER.size :], seed, sample))


def wrong_label(labels: NDArray[np.int64], first: Place, at: int) -> None:
    """Compare labels, which lie from byte ``at`` on, with the ids of ``first`` and of the samples after it in its file.

    Raises:
        DataError: it names the first sample of which the label is not the id, and the label's byte.
    """
    wrong = np.flatnonzero(labels != np.arange(first.sample, first.sample + len(labels)))
    if wrong.size:
        n = int(wrong[0])
        raise Place(first.path, first.sample + n, first.row + n).error(
            f"expected label {first.sample + n} at byte {at + n * LABEL}, found {labels[n]}: "
            f"the file is corrupted or of another dataset; delete it and generate it again"
        )


def check(sample: memoryview, seed: int, place: Place) -> int:
    """Verify one sample of the dataset with this seed and give the id found in it.

    Raises:
        DataError: another sample, or bytes that do not match their checksum.
    """
    found, written = HEADER.unpack_from(sample)
    computed = xxhash.xxh3_64_intdigest(sample[HEADER.size :], (_checksum_seed(seed) + found) & seeds.MASK)
    if written == computed and found == place.sample:
        return int(found)
    if written == computed:
        raise place.error(
            f"expected id {place.sample}, found the sample with id {found}: files were swapped or renamed"
        )
    if found != place.sample:
        raise place.error(
            f"expected id {place.sample}, found id {found} with a wrong checksum: "
            f"the file is corrupted or of another dataset; delete it and generate it again"
        )
    raise place.error(
        f"expected checksum {written:016x}, its bytes give {computed:016x}: "
        f"the file is corrupted or of another dataset; delete it and generate it again"
    )
