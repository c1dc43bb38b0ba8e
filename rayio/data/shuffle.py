"""In which order an epoch visits samples: keyed permutations, evaluated at any positions without a table.

They differ in what a reader meets. With ``none`` files are read from end to end, one after the other; with ``file`` and
``block`` in long runs that jump between; with ``buffer`` the reader stays within a window but hops about in it; with
``global`` nearly every sample is in another file than the one before. All use memory for the positions asked of them
and nothing else.
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
    """How many consecutive samples belong together, where a shuffle asks for it."""

    #: Samples of one file.
    file: int = 1
    #: What the shuffle has been told beside its name.
    options: Section = NO_OPTIONS


class Shuffle(Protocol):
    """An order of samples for each key: a permutation of ``[0, num_samples)``, evaluated at any positions.

    One that has options of its own beside ``loader.shuffle`` says so by ``options``, see
    :class:`rayio.scenario.kind.Kind`; it finds them in ``sizes.options``.
    """

    def __call__(self, num_samples: int, key: int, positions: NDArray[np.int64], sizes: Sizes) -> NDArray[np.int64]:
        """The samples at these positions (any shape) of the epoch that has this key."""


#: Rounds of the Feistel network; small domains take twice as many, or some orders come three times as often as others.
ROUNDS = 8
SMALL_BITS = 10
#: What a round multiplies with, and how far it shifts in between.
_FIRST, _SECOND, _HALF = np.uint64(seeds.GOLDEN), np.uint64(0xD6E8FEB86659FD93), np.uint64(32)
#: Positions worked on at once: their words fit the nearest caches, and numpy's cost per call is small beside them.
CHUNK = 1 << 12


class Unshuffled(Kind):
    """Visit samples in file order, the same every epoch."""

    def __call__(self, num_samples: int, key: int, positions: NDArray[np.int64], sizes: Sizes) -> NDArray[np.int64]:
        """The positions themselves."""
        return positions


class GlobalShuffle(Kind):
    """Permute all samples, in O(1) memory and time per position, for any ``num_samples`` up to 2**62."""

    def __call__(self, num_samples: int, key: int, positions: NDArray[np.int64], sizes: Sizes) -> NDArray[np.int64]:
        """A permutation of all samples: neighbours lie anywhere."""
        return _permute(num_samples, key, positions)


class FileShuffle(Kind):
    """Permute files and keep the order within each: every file is read from end to end. One file stays as it is."""

    def __call__(self, num_samples: int, key: int, positions: NDArray[np.int64], sizes: Sizes) -> NDArray[np.int64]:
        """A permutation of files: samples follow each other, but for those at the edges of files."""
        return _permute_runs(num_samples, key, positions, sizes.file)

    def idle(self, scenario: Scenario) -> Iterator[str]:
        """Say that one file leaves nothing to permute."""
        yield from _in_one(scenario, scenario.dataset.samples_per_file)


class BlockOptions(Section):
    """What ``loader`` may say of shuffle block."""

    shuffle_block: Annotated[int | None, whole(1, or_none=True)] = Field(
        None, description="Samples of a block; there is no default."
    )


class BlockShuffle(Kind):
    """Permute blocks of ``shuffle_block`` consecutive samples and keep the order within each.

    Blocks begin at sample 0 and disregard the edges of files; when the dataset is no multiple of a block, its last
    samples are a shorter one. A block as large as the dataset shuffles nothing.
    """

    options = BlockOptions

    def __call__(self, num_samples: int, key: int, positions: NDArray[np.int64], sizes: Sizes) -> NDArray[np.int64]:
        """A permutation of blocks: samples follow each other, but for those at the edges of blocks."""
        return _permute_runs(num_samples, key, positions, self._samples(sizes.options) or 1)

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Say that the number of samples is missing."""
        if self._samples(scenario.loader.shuffle_options) is None:
            yield "loader.shuffle=block: give loader.shuffle_block, a number of samples"

    def idle(self, scenario: Scenario) -> Iterator[str]:
        """Say that one block leaves nothing to permute."""
        yield from _in_one(scenario, self._samples(scenario.loader.shuffle_options) or 1)

    def _samples(self, options: Section) -> int | None:
        return options.shuffle_block if isinstance(options, BlockOptions) else None


class BufferOptions(Section):
    """What ``loader`` may say of shuffle buffer."""

    shuffle_buffer: Annotated[int | None, whole(1, or_none=True)] = Field(
        None, description="Samples that the shuffle buffer holds; there is no default."
    )


class BufferShuffle(Kind):
    """Permute within consecutive windows of ``shuffle_buffer`` samples; the last window is what remains.

    This stands in for a shuffle buffer that is filled in file order. It mixes as far, and a sample comes at most
    ``buffer - 1`` positions early, as from such a buffer. What differs: a real buffer may keep a sample for any length
    of time, here it comes at most ``buffer - 1`` positions late; and no sample crosses from one window to the next.
    Windows are cut from the whole epoch's order before the partition: with ``contiguous`` a rank meets them one after
    the other, with ``strided`` all ranks work in the same one.
    """

    options = BufferOptions

    def __call__(self, num_samples: int, key: int, positions: NDArray[np.int64], sizes: Sizes) -> NDArray[np.int64]:
        """An order in which samples are at most a window away from where they lie."""
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
        else:  # a domain of its own: walking the large one's cycles until they hit a small rest could take for ever
            for chosen, size in ((~in_rest, window), (in_rest, num_samples - whole * window)):
                samples[chosen] += _permute(size, key, places[chosen], tweak[chosen])
        return samples.reshape(positions.shape)

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Say that the number of samples is missing."""
        if self._samples(scenario.loader.shuffle_options) is None:
            yield "loader.shuffle=buffer: give loader.shuffle_buffer, a number of samples"

    def _samples(self, options: Section) -> int | None:
        return options.shuffle_buffer if isinstance(options, BufferOptions) else None


def _in_one(scenario: Scenario, together: int) -> Iterator[str]:
    """Say when all samples are in one of what is permuted."""
    if together >= (samples := derive.num_samples(scenario)):
        yield f"loader.shuffle={scenario.loader.shuffle}: shuffles nothing, all {samples} samples are in one"


def _window_words(key: int, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Draw a word for each window; positions that follow each other share a few windows, drawn once."""
    first, last = (int(numbers.min()), int(numbers.max())) if numbers.size else (0, 0)
    if last - first >= numbers.size:
        return seeds.words(key, numbers)
    return seeds.words(key, np.arange(first, last + 1, dtype=np.int64))[numbers - first]


def _permute_runs(num_samples: int, key: int, positions: NDArray[np.int64], run: int) -> NDArray[np.int64]:
    """Permute runs of ``run`` consecutive samples as wholes.

    Whole runs are permuted among themselves, and the shorter rest, if any, is put before a random one of them or after
    the last: together every order of the runs is possible.
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
    """Permute ``[0, size)``; positions with another ``tweak`` (one word for each, flat) see another permutation.

    A Feistel network over the smallest power of two that holds ``size``, with halves as equal as they come, walked
    along its cycles until it lands inside: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002. At
    most half of that domain lies outside, so a position costs less than two passes on average.
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
    """Permute ``[0, 2**bits)``: halves take turns in being combined with a hash of the other (and of the tweak)."""
    low_bits = bits // 2
    low = words & np.uint64((1 << low_bits) - 1)
    high = words >> np.uint64(low_bits)
    scratch = np.empty_like(words)
    shifted = np.empty_like(words)
    # The last argument is where the result goes. A position costs eight times these seven calls: nothing else counts.
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
