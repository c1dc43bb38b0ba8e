"""Asking again: how often, after how long, and what is noted of it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from rayio import seeds

#: Seconds before the second attempt; each wait after it is up to twice the one before.
FIRST_SECONDS = 0.1
#: No wait is longer.
LONGEST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Budget:
    """Attempts that one request may take in all, and the seed of the jitter between them."""

    attempts: int
    seed: int = 0

    def seconds(self, attempt: int, name: str) -> float:
        """Seconds to wait after a failed attempt (counted from 1): doubled each time, half of it drawn.

        Drawn at the address (seed, "retry", name, attempt), so that readers of different files do not come together.
        """
        whole = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(attempt - 1, 32))
        address = seeds.key(self.seed, "retry", zlib.crc32(name.encode()))
        drawn = float(seeds.uniform(address, np.array([attempt], np.int64))[0])
        return whole * (0.5 + 0.5 * drawn)
