"""In which order an epoch visits samples: keyed permutations, evaluated at any positions without a table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.registry import Registry

#: ``(num_samples, key, positions)`` to sample ids: for each key a permutation of ``[0, num_samples)``.
Shuffle = Callable[[int, int, NDArray[np.int64]], NDArray[np.int64]]

#: Rounds of the Feistel network; small datasets take twice as many, or some orders come three times as often as others.
ROUNDS = 8
SMALL_BITS = 10
#: Positions worked on at once: their words fit the second-level cache.
CHUNK = 1 << 14


def unshuffled(num_samples: int, key: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Visit samples in file order, the same every epoch."""
    return positions


def global_permutation(num_samples: int, key: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Permute all samples, in O(1) memory and time per position, for any ``num_samples`` up to 2**62.

    A Feistel network over the smallest power of two that holds the dataset, with halves as equal as they come, walked
    along its cycles until it lands inside: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002. At
    most half of that domain lies outside, so a position costs less than two passes on average.
    """
    bits = max(2, (num_samples - 1).bit_length())
    rounds = ROUNDS if bits > SMALL_BITS else 2 * ROUNDS
    round_keys = seeds.words(key, np.arange(rounds, dtype=np.int64))
    flat = positions.ravel()
    samples = np.empty(flat.size, np.uint64)
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK].astype(np.uint64)
        part = _feistel(part, bits, round_keys)
        outside = np.flatnonzero(part >= num_samples)
        while outside.size:
            walked = _feistel(part[outside], bits, round_keys)
            part[outside] = walked
            outside = outside[walked >= num_samples]
        samples[start : start + CHUNK] = part
    return samples.astype(np.int64).reshape(positions.shape)


def _feistel(words: NDArray[np.uint64], bits: int, round_keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Permute ``[0, 2**bits)``: halves take turns in being combined with a hash of the other."""
    low_bits = bits // 2
    low = words & np.uint64((1 << low_bits) - 1)
    high = words >> np.uint64(low_bits)
    scratch = np.empty_like(words)
    shifted = np.empty_like(words)
    for number, round_key in enumerate(round_keys):
        source, target, width = (low, high, bits - low_bits) if number % 2 == 0 else (high, low, low_bits)
        np.add(source, round_key, out=scratch)
        np.multiply(scratch, np.uint64(seeds.GOLDEN), out=scratch)
        np.right_shift(scratch, np.uint64(32), out=shifted)
        np.bitwise_xor(scratch, shifted, out=scratch)
        np.multiply(scratch, np.uint64(0xD6E8FEB86659FD93), out=scratch)
        np.right_shift(scratch, np.uint64(64 - width), out=scratch)
        np.bitwise_xor(target, scratch, out=target)
    return (high << np.uint64(low_bits)) | low


SHUFFLES: Registry[Shuffle] = Registry("shuffle", {"none": unshuffled, "global": global_permutation})
