"""LZF, the compression of h5py: streams of literals and of runs of one byte, of a length that is known before.

A stream is a sequence of literals (a byte with their number less one, at most 31, then the bytes) and of references
back (three bits of length, offset, and from 9 bytes on another byte of length). Marc Lehmann's library, which h5py has,
reads it. This writer finds only runs of zeros, as samples have them (``dataset.compressibility``). So its streams have
a bound, and are as long as that bound: literals may be cut into more pieces than needed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Most literals of a piece, least and most bytes of a reference, and the bytes of a long one.
LITERALS, LEAST, MOST, REFERENCE = 32, 3, 264, 3
#: Zeros in a row that are worth a reference.
RUN = 8


def bound(literals: NDArray[np.int64], runs: NDArray[np.int64], longest: int) -> NDArray[np.int64]:
    """Return the most bytes of streams with so many literals between so many runs of zeros, each ``longest`` at most.

    Each run begins with a literal zero, and leaves two at most that are too few for a reference.
    """
    references = -(-longest // MOST) * REFERENCE
    most: NDArray[np.int64] = literals + -(-literals // LITERALS) + runs * (references + 2 + 3) + RUN
    return most


def packed(content: NDArray[np.uint8], length: int) -> bytes:
    """Return the stream of ``content`` in exactly ``length`` bytes, which is fewer than its own.

    Raises:
        AssertionError: it does not fit.
    """
    zero = np.concatenate([[False], content == 0, [False]])
    edges = np.flatnonzero(zero[1:] != zero[:-1])
    is_long = edges[1::2] - edges[::2] > RUN
    begins = edges[::2][is_long] + 1  # the first zero is a literal
    ends = edges[1::2][is_long]
    rest = (ends - begins) % MOST
    ends = ends - np.where(rest < LEAST, rest, 0)
    plains = (np.append(begins, len(content)) - np.concatenate([[0], ends])).tolist()
    runs = (ends - begins).tolist()
    spare = length - sum(map(_literal_bytes, plains)) - sum(map(_run_bytes, runs))
    if spare < 0:
        raise AssertionError(f"a chunk of {len(content)} bytes is compressed to {length - spare}, more than {length}")
    _lengthen(plains, runs, spare)
    data, at, parts = content.tobytes(), 0, list[bytes]()
    spare = length - sum(map(_literal_bytes, plains)) - sum(map(_run_bytes, runs))
    for plain, run in zip(plains, [*runs, 0], strict=True):
        alone = _alone(plain, gain := min(spare, _room(plain)))
        spare -= gain
        parts += [bytes([0, byte]) for byte in data[at : at + alone]]
        for first in range(at + alone, at + plain, LITERALS):
            piece = data[first : min(first + LITERALS, at + plain)]
            parts.append(bytes([len(piece) - 1]) + piece)
        parts += _zeros(run)
        at += plain + run
    return b"".join(parts)


def _lengthen(plains: list[int], runs: list[int], spare: int) -> None:
    """Make zeros of runs literals, until all ``spare`` bytes can be filled.

    ``plains`` are the literals before each run, and after the last one.
    """
    room = sum(map(_room, plains))
    for place in range(len(runs)):
        while spare > room and (run := runs[place]):
            plain, taken = plains[place], min(run, (spare - room + 1) // 2)
            left = (run - taken) % MOST
            taken += left if left < LEAST else 0
            plains[place], runs[place] = plain + taken, run - taken
            room += _room(plain + taken) - _room(plain)
            spare -= _literal_bytes(plain + taken) - _literal_bytes(plain) + _run_bytes(run - taken) - _run_bytes(run)


def _literal_bytes(number: int) -> int:
    return number + -(-number // LITERALS)


def _alone(number: int, spare: int) -> int:
    """Return how many of these literals need a separate piece to make ``spare`` bytes more."""
    alone = spare
    while (more := 2 * alone + _literal_bytes(number - alone) - _literal_bytes(number)) < spare:
        alone += spare - more
    return alone


def _room(number: int) -> int:
    """Return the bytes that these literals take more if each is a separate piece."""
    return number - -(-number // LITERALS)


def _run_bytes(number: int) -> int:
    rest = number % MOST
    return number // MOST * REFERENCE + (0 if not rest else 2 if rest < 9 else REFERENCE)


def _zeros(number: int) -> list[bytes]:
    """Return references to the zero just before, for so many more."""
    whole, rest = divmod(number, MOST)
    long = [bytes([7 << 5, MOST - 9, 0])] * whole
    if not rest:
        return long
    return [*long, bytes([rest - 2 << 5, 0]) if rest < 9 else bytes([7 << 5, rest - 9, 0])]
