"""What a shuffle says an epoch's order is; one of another package is held to its word: every sample, each once."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.data.shuffle import SHUFFLES, Sizes
from rayio.errors import ScenarioError

#: Positions that are looked at before a run, in all; so many at a time, and so many that are asked for twice.
MOST, PIECE, AGAIN = 1 << 21, 1 << 16, 256


def samples_at(
    shuffle: str, num_samples: int, seed: int, epoch: int, positions: NDArray[np.int64], sizes: Sizes
) -> NDArray[np.int64]:
    """The samples at these positions (any shape) of an epoch's order.

    Raises:
        ScenarioError: another package's shuffle failed, or gives what are no samples, or one of them twice.
    """
    key = seeds.key(seed, "shuffle", epoch)
    if shuffle in SHUFFLES.built_in:
        return SHUFFLES[shuffle](num_samples, key, positions, sizes)
    with SHUFFLES.answerable(shuffle):
        given = np.asarray(SHUFFLES[shuffle](num_samples, key, positions.copy(), sizes))
    if given.shape != positions.shape or given.dtype.kind not in "iu":
        each = (
            f"asked at {positions.size} positions it gives {given.size} values of {given.dtype}, not a sample for each"
        )
        raise _refusal(shuffle, each)
    samples = given.astype(np.int64)
    if samples.size and (samples.min() < 0 or samples.max() >= num_samples):
        wrong = samples[(samples < 0) | (samples >= num_samples)][0]
        raise _refusal(shuffle, f"epoch {epoch} has sample {wrong}, and there are {num_samples}")
    if np.unique(samples).size != np.unique(positions).size:  # ranks may have the same positions
        raise _twice(shuffle, epoch, samples)
    return samples


@lru_cache(maxsize=64)
def check(shuffle: str, num_samples: int, seed: int, epochs: int, sizes: Sizes) -> None:
    """Refuse another package's shuffle that is none: the first epochs, or parts of the first that lie evenly.

    Raises:
        ScenarioError: it gives no permutation, or answers otherwise when it is asked again.
    """
    if shuffle in SHUFFLES.built_in:
        return
    for epoch in range(max(1, min(epochs, MOST // num_samples))):
        found = [
            samples_at(shuffle, num_samples, seed, epoch, np.arange(first, last, dtype=np.int64), sizes)
            for first, last in _pieces(num_samples)
        ]
        seen = np.concatenate(found)
        if np.unique(seen).size != seen.size:
            raise _twice(shuffle, epoch, seen)
        some = np.arange(min(AGAIN, num_samples), dtype=np.int64)[::-1]
        if (samples_at(shuffle, num_samples, seed, epoch, some, sizes) != seen[some]).any():
            raise _refusal(shuffle, f"epoch {epoch} has other samples at the same positions when it is asked again")


def _pieces(num_samples: int) -> list[tuple[int, int]]:
    """All positions in pieces, or as many pieces as may be, as far apart."""
    number = -(-num_samples // PIECE)
    chosen = range(number) if num_samples <= MOST else [number * n // (MOST // PIECE) for n in range(MOST // PIECE)]
    return [(n * PIECE, min((n + 1) * PIECE, num_samples)) for n in chosen]


def _twice(shuffle: str, epoch: int, samples: NDArray[np.int64]) -> ScenarioError:
    ids, times = np.unique(samples, return_counts=True)
    most = int(times.argmax())
    return _refusal(shuffle, f"epoch {epoch} has sample {ids[most]} {times[most]} times")


def _refusal(shuffle: str, why: str) -> ScenarioError:
    whose = SHUFFLES.whose(shuffle)
    return ScenarioError(
        f"loader.shuffle={shuffle}: {whose} is no permutation: {why}; tell its authors, or use another"
    )
