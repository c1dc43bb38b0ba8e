"""The order of an epoch, by its shuffle; shuffles of other packages are checked: every sample exactly once."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.data.shuffle import SHUFFLES, Sizes
from rayio.errors import ScenarioError

#: Positions checked before a run, in all; per call; and repeated to test that answers stay the same.
MOST, PIECE, AGAIN = 1 << 21, 1 << 16, 256


def samples_at(
    shuffle: str, num_samples: int, seed: int, epoch: int, positions: NDArray[np.int64], sizes: Sizes
) -> NDArray[np.int64]:
    """Return the samples at these positions (any shape) of an epoch's order.

    Raises:
        ScenarioError: another package's shuffle failed, or returned invalid or repeated samples.
    """
    key = seeds.key(seed, "shuffle", epoch)
    if shuffle in SHUFFLES.built_in:
        return SHUFFLES[shuffle](num_samples, key, positions, sizes)
    with SHUFFLES.answerable(shuffle):
        given = np.asarray(SHUFFLES[shuffle](num_samples, key, positions.copy(), sizes))
    if given.shape != positions.shape or given.dtype.kind not in "iu":
        each = (
            f"for {positions.size} positions it returns {given.size} values of {given.dtype}, not one sample for each"
        )
        raise _refusal(shuffle, each)
    samples = given.astype(np.int64)
    if samples.size and (samples.min() < 0 or samples.max() >= num_samples):
        wrong = samples[(samples < 0) | (samples >= num_samples)][0]
        raise _refusal(shuffle, f"epoch {epoch} has sample {wrong}, and there are {num_samples}")
    if (
        not repeats(shuffle) and np.unique(samples).size != np.unique(positions).size
    ):  # ranks may have the same positions
        raise _twice(shuffle, epoch, samples)
    return samples


def repeats(shuffle: str) -> bool:
    """Return True if a shuffle draws with replacement."""
    return bool(getattr(SHUFFLES[shuffle], "repeats", False))


@lru_cache(maxsize=64)
def check(shuffle: str, num_samples: int, seed: int, epochs: int, sizes: Sizes) -> None:
    """Check another package's shuffle in the first epochs, at all positions or at evenly spaced parts.

    Raises:
        ScenarioError: it gives no permutation, or another answer for the same positions.
    """
    if shuffle in SHUFFLES.built_in:
        return
    for epoch in range(max(1, min(epochs, MOST // num_samples))):
        parts = [
            samples_at(shuffle, num_samples, seed, epoch, np.arange(first, last, dtype=np.int64), sizes)
            for first, last in _pieces(num_samples)
        ]
        samples = np.concatenate(parts)
        if not repeats(shuffle) and np.unique(samples).size != samples.size:
            raise _twice(shuffle, epoch, samples)
        some = np.arange(min(AGAIN, num_samples), dtype=np.int64)[::-1]
        if (samples_at(shuffle, num_samples, seed, epoch, some, sizes) != samples[some]).any():
            raise _refusal(shuffle, f"epoch {epoch} has other samples at the same positions in a second call")


def _pieces(num_samples: int) -> list[tuple[int, int]]:
    """Return all positions in pieces, or the allowed number of pieces, evenly spaced."""
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
