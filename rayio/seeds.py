"""Counter-based randomness: a draw depends only on its address, so every engine, restart and order of arrival agrees.

An address is ``(seed, kind, *numbers)``, for example ``(10, "compute", rank, epoch)``, with an ``index`` below it
(the step, the file). The same address always gives the same draw. The mixing function is the finaliser of SplitMix64
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


class Draws(Protocol):
    """A distribution of times (s) or sizes (bytes), drawn at addresses."""

    def draw(self, address_key: int, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return one value for each index (any shape) below an address; ``address_key`` comes from :func:`key`."""


@lru_cache(maxsize=65536)
def key(seed: int, kind: str, *address: int) -> int:
    """Return an address as 64 bits, equal on every machine and Python version."""
    text = f"{seed}/{kind}/{'/'.join(map(str, address))}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return each 64-bit word scrambled: a bijection in which every input bit changes half of the output bits."""
    x = x ^ (x >> np.uint64(30))
    x = x * np.uint64(0xBF58476D1CE4E5B9)
    x = x ^ (x >> np.uint64(27))
    x = x * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def mix_one(x: int) -> int:
    """Return the lowest 64 bits of one word, scrambled as by :func:`mix`."""
    x &= MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def word(address_key: int, index: int) -> int:
    """Return the word of one index, as drawn by :func:`words`."""
    return mix_one((index + 1) * GOLDEN + address_key)


def words(address_key: int, index: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return one 64-bit word for each index (any shape) below an address; ``address_key`` comes from :func:`key`."""
    counter = (index.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
    return mix(counter + np.uint64(address_key & MASK))


def uniform(address_key: int, index: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return one number strictly between 0 and 1 for each index (any shape) below an address."""
    return (words(address_key, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54
