"""Shuffles: the order of an epoch's samples, as keyed permutations evaluated at any positions without a table.

They differ in access pattern. ``none`` reads files from end to end, one after the other; ``file`` and ``block`` read
long runs in random order; ``buffer`` jumps within a window; ``global`` reads nearly every sample from another file
than the one before. Memory is proportional to the positions of a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rayio import kinds, seeds
from rayio.registry import Registry
from rayio.scenario import derive
from rayio.scenario.kind import Kind
from rayio.schema.choice import NO_OPTIONS
from rayio.schema.fields import Section, whole

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario


class Sizes(NamedTuple):
    """Numbers of consecutive samples that a shuffle may keep together."""

    file: int = 1
    options: Section = NO_OPTIONS


class Shuffle(Protocol):
    """A permutation of ``[0, num_samples)`` for each key, evaluated at any positions.

    One that draws with replacement has ``repeats = True``.

    A shuffle with options names their class in ``options``, see :class:`rayio.scenario.kind.Kind`; they are passed in
    ``sizes.options``.
    """

    def __call__(self, num_samples: int, key: int, positions: NDArray[np.int64], sizes: Sizes) -> NDArray[np.int64]:
        """Return the samples at these positions (any shape) of the epoch with this key."""


#: Rounds of the Feistel network; doubled for small domains, where some orders would be three times as frequent.
ROUNDS = 8
SMALL_BITS = 10
#: Multipliers of a round, and the shift between them.
_FIRST, _SECOND, _HALF = np.uint64(seeds.GOLDEN), np.uint64(0xD6E8FEB86659FD93), np.uint64(32)
#: Positions per numpy call: they fit the nearest caches, and numpy's cost per call is small in comparison.
CHUNK = 1 << 12


class Unshuffled(Kind):
    """File order, the same every epoch."""

    def __call__(self, num_samples: int, key: int, positions: NDArray[np.int64], sizes: Sizes) -> NDArray[np.int64]:
        """Return the positions."""
        return positions


class GlobalShuffle(Kind):
    """A permutation of all samples, in O(1) memory and time per position, for any ``num_samples`` up to 2**62."""

    def __call__(self, num_samples: int, key: int, positions: NDArray[np.int64], sizes: Sizes) -> NDArray[np.int64]:
        """Return samples of which neighbours lie anywhere."""
        return _permute(num_samples, key, positions)


class FileShuffle(Kind):
    """A permutation of files; every file is read from end to end. A single file is not shuffled."""

    def __call__(self, num_samples: int, key: int, positions: NDArray[np.int64], sizes: Sizes) -> NDArray[np.int64]:
        """Return samples that follow each other, except at the edges of files."""
        return _permute_runs(num_samples, key, positions, sizes.file)

    def idle(self, scenario: Scenario) -> Iterator[str]:
        """Yield a note if the dataset has a single file."""
        yield from _in_one(scenario, scenario.dataset.samples_per_file)


class BlockOptions(Section):
    """Options of ``shuffle: block``."""

    shuffle_block: Annotated[int | None, whole(1, or_none=True)] = Field(
        None, description="Samples of a block; there is no default."
    )


class BlockShuffle(Kind):
    """A permutation of blocks of ``shuffle_block`` consecutive samples; the order within a block stays.

    Blocks begin at sample 0 and ignore the edges of files; the last block may be shorter. A block as large as the
    dataset shuffles nothing.
    """

    options = BlockOptions

    def __call__(self, num_samples: int, key: int, positions: NDArray[np.int64], sizes: Sizes) -> NDArray[np.int64]:
        """Return samples that follow each other, except at the edges of blocks."""
        return _permute_runs(num_samples, key, positions, self._samples(sizes.options) or 1)

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Yield a message if ``shuffle_block`` is missing."""
        if self._samples(scenario.loader.shuffle_options) is None:
            yield "loader.shuffle=block: give loader.shuffle_block, a number of samples"

    def idle(self, scenario: Scenario) -> Iterator[str]:
        """Yield a note if there is a single block."""
        yield from _in_one(scenario, self._samples(scenario.loader.shuffle_options) or 1)

    def _samples(self, options: Section) -> int | None:
        return options.shuffle_block if isinstance(options, BlockOptions) else None


class BufferOptions(Section):
    """Options of ``shuffle: buffer``."""

    shuffle_buffer: Annotated[int | None, whole(1, or_none=True)] = Field(
        None, description="Samples that the shuffle buffer holds; there is no default."
    )


class BufferShuffle(Kind):
    """A permutation within each consecutive window of ``shuffle_buffer`` samples; the last window may be shorter.

    It models a shuffle buffer filled in file order: it mixes as far, and a sample comes at most ``buffer - 1``
    positions early, as from a real buffer. Differences: a real buffer may keep a sample for any length of time, here it
    comes at most ``buffer - 1`` positions late, and no sample crosses windows. Windows are cut from the epoch's order
    before the partition: with ``contiguous`` a rank reads them one after the other, with ``strided`` all ranks read the
    same one.
    """

    options = BufferOptions

    def __call__(self, num_samples: int, key: int, positions: NDArray[np.int64], sizes: Sizes) -> NDArray[np.int64]:
        """Return samples that are less than a window away from their positions."""
        window = min(self._samples(sizes.options) or 1, num_samples)
        flat = positions.ravel()
        numbers = flat // window
        places = flat - numbers * window
        whole = num_samples // window
        samples = numbers * window
        tweak = _window_words(seeds.key(key, "window"), numbers)
        in_rest = numbers == whole
        if not in_rest.any():
            samples += _permute(window, key, places, tweak)
        else:  # a separate domain: walking the large one's cycles until they hit a small rest could take very long
            for chosen, size in ((~in_rest, window), (in_rest, num_samples - whole * window)):
                samples[chosen] += _permute(size, key, places[chosen], tweak[chosen])
        return samples.reshape(positions.shape)

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Yield a message if ``shuffle_buffer`` is missing."""
        if self._samples(scenario.loader.shuffle_options) is None:
            yield "loader.shuffle=buffer: give loader.shuffle_buffer, a number of samples"

    def _samples(self, options: Section) -> int | None:
        return options.shuffle_buffer if isinstance(options, BufferOptions) else None


def _in_one(scenario: Scenario, together: int) -> Iterator[str]:
    """Yield a note if one unit of the permutation, of ``together`` samples, holds all samples."""
    if together >= (samples := derive.num_samples(scenario)):
        yield f"loader.shuffle={scenario.loader.shuffle}: shuffles nothing, all {samples} samples are in one"


def _window_words(key: int, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a random word for each window; consecutive positions share a few windows, drawn once."""
    first, last = (int(numbers.min()), int(numbers.max())) if numbers.size else (0, 0)
    if last - first >= numbers.size:
        return seeds.words(key, numbers)
    return seeds.words(key, np.arange(first, last + 1, dtype=np.int64))[numbers - first]


def _permute_runs(num_samples: int, key: int, positions: NDArray[np.int64], run: int) -> NDArray[np.int64]:
    """Return samples with whole runs of ``run`` consecutive samples permuted.

    The shorter rest, if any, is inserted before a random run or after the last: every order of the runs is possible.
    """
    run = min(run, num_samples)
    whole, rest = divmod(num_samples, run)
    rest_at = run * (int(seeds.words(seeds.key(key, "rest"), np.zeros(1, np.int64))[0]) % (whole + 1))
    flat = positions.ravel()
    if rest:
        in_rest = (flat >= rest_at) & (flat < rest_at + rest)
        among_whole = np.where(flat >= rest_at + rest, flat - rest, np.where(in_rest, 0, flat))
    else:
        among_whole = flat
    places = among_whole // run
    samples: NDArray[np.int64] = among_whole + (_permute(whole, key, places) - places) * run
    if rest:
        samples = np.where(in_rest, whole * run + flat - rest_at, samples)
    return samples.reshape(positions.shape)


def _permute(
    size: int, key: int, positions: NDArray[np.int64], tweak: NDArray[np.uint64] | None = None
) -> NDArray[np.int64]:
    """Return a permutation of ``[0, size)``; each ``tweak`` (one word per position, flat) selects another permutation.

    A Feistel network over the smallest power of two that holds ``size``, walked along its cycles until the result is
    inside: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002. At most half of that domain lies
    outside, so a position costs less than two passes on average.
    """
    bits = max(2, (size - 1).bit_length())
    rounds = ROUNDS if bits > SMALL_BITS else 2 * ROUNDS
    round_keys = seeds.words(key, np.arange(rounds, dtype=np.int64))
    flat = positions.ravel()
    permuted = np.empty(flat.size, np.uint64)
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK].astype(np.uint64)
        words = None if tweak is None else tweak[start : start + CHUNK]
        permuted[start : start + CHUNK] = _feistel(part, bits, round_keys, words)
    outside = np.flatnonzero(permuted >= size)
    while outside.size:
        still = []
        for start in range(0, outside.size, CHUNK):
            places = outside[start : start + CHUNK]
            part = _feistel(permuted[places], bits, round_keys, None if tweak is None else tweak[places])
            permuted[places] = part
            still.append(places[part >= size])
        outside = np.concatenate(still)
    return permuted.view(np.int64).reshape(positions.shape)


def _feistel(
    words: NDArray[np.uint64], bits: int, round_keys: NDArray[np.uint64], tweak: NDArray[np.uint64] | None
) -> NDArray[np.uint64]:
    """Return a permutation of ``[0, 2**bits)``: each half in turn is mixed with a hash of the other and the tweak."""
    low_bits = bits // 2
    low = words & np.uint64((1 << low_bits) - 1)
    high = words >> np.uint64(low_bits)
    scratch = np.empty_like(words)
    shifted = np.empty_like(words)
    # The last argument is the output. These seven calls, ROUNDS times, are nearly all of the cost of a position.
    for number, round_key in enumerate(round_keys):
        source, target, width = (low, high, bits - low_bits) if number % 2 == 0 else (high, low, low_bits)
        np.add(source, round_key, scratch)
        if tweak is not None:
            np.add(scratch, tweak, scratch)
        np.multiply(scratch, _FIRST, scratch)
        np.right_shift(scratch, _HALF, shifted)
        np.bitwise_xor(scratch, shifted, scratch)
        np.multiply(scratch, _SECOND, scratch)
        np.right_shift(scratch, np.uint64(64 - width), scratch)
        np.bitwise_xor(target, scratch, target)
    return (high << np.uint64(low_bits)) | low


SHUFFLES: Registry[Shuffle] = kinds.SHUFFLES
