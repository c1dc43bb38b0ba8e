"""Asking again: how often, after how long, and what is noted of it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from rayio import seeds
from rayio.errors import StorageError

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

    def pause(self, attempt: int, name: str) -> float | None:
        """Seconds to wait after a failed attempt (counted from 1); None where it was the last one."""
        return None if attempt >= self.attempts else self.seconds(attempt, name)


def given_up(full: str, what: str, service: str, doing: str, tries: str, *, is_busy: bool) -> StorageError:
    """Say in one line that a request was made as often as it may be: of what, who answered what, while doing what."""
    more = "; raise storage.max_attempts, or read with fewer workers" if is_busy else ""
    return StorageError(f"{full}: {what} from {service} while {doing}{tries}{more}")


def in_tries(attempts: int, seconds: float) -> str:
    """Say how often a request was made and for how long, as the end of a half sentence; nothing of a single attempt.

    >>> in_tries(3, 1.25)
    ', 3 times in 1.2 s'
    """
    return f", {attempts} times in {seconds:.1f} s" if attempts > 1 else ""
