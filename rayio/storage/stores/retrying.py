"""Repeated attempts: their number, the pauses between them, and messages about them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from rayio import seeds
from rayio.errors import StorageError

#: Seconds before the second attempt; each further pause is up to twice the one before.
FIRST_SECONDS = 0.1
#: The longest pause (s).
LONGEST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Budget:
    """The largest number of attempts of one request, and the seed of the jitter between them."""

    attempts: int
    seed: int = 0

    def seconds(self, attempt: int, name: str) -> float:
        """Return the seconds to wait after a failed attempt (counted from 1): doubled each time, half of it drawn.

        Drawn at the address (seed, "retry", name, attempt), so that readers of different files retry at different
        times.
        """
        whole = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(attempt - 1, 32))
        address = seeds.key(self.seed, "retry", zlib.crc32(name.encode()))
        drawn = float(seeds.uniform(address, np.array([attempt], np.int64))[0])
        return whole * (0.5 + 0.5 * drawn)

    def pause(self, attempt: int, name: str) -> float | None:
        """Return the seconds to wait after a failed attempt (counted from 1); None after the last one."""
        return None if attempt >= self.attempts else self.seconds(attempt, name)


def given_up(full: str, what: str, service: str, doing: str, tries: str, *, is_busy: bool) -> StorageError:
    """Return the error of a request without attempts left: the answer, the service and the activity."""
    more = "; raise storage.max_attempts, or read with fewer workers" if is_busy else ""
    return StorageError(f"{full}: {what} from {service} while {doing}{tries}{more}")


def in_tries(attempts: int, seconds: float) -> str:
    """Return the number of attempts and their duration as the end of a sentence; empty for one attempt.

    >>> in_tries(3, 1.25)
    ', 3 times in 1.2 s'
    """
    return f", {attempts} times in {seconds:.1f} s" if attempts > 1 else ""
