"""Trace and span ids derived from a run, never drawn: any actor can compute them, and exports repeat them."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from rayio import seeds


def _word(part: str | int) -> bytes:
    """Return a text or number with its type and length, so that lists of parts differ in their bytes."""
    text = str(part).encode()
    return b"%c%d:%s" % (b"i" if isinstance(part, int) else b"s", len(text), text)


def _hashed(num_bytes: int, *parts: str | int) -> int:
    digest = blake2b(b"".join(map(_word, parts)), digest_size=num_bytes)
    return int.from_bytes(digest.digest(), "big")


@lru_cache(maxsize=1 << 16)
def trace_id(run: str, kind: str, *index: int | str) -> int:
    """Return the 128-bit id of a run's trace, never zero: ``trace_id(run, "step", epoch, step)``."""
    return _hashed(16, "trace", run, kind, *index) or 1


class _Words(dict[int, bytes]):
    def __missing__(self, number: int) -> bytes:
        self[number] = word = _word(number)
        return word


def trace_ids(run: str, kind: str, *index: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the :func:`trace_id` of each index, as upper and lower halves: shape (indexes, 2)."""
    base, words = blake2b(b"".join(map(_word, ("trace", run, kind))), digest_size=16), _Words()
    digests = []
    for numbers in zip(*(column.tolist() for column in index), strict=True):
        digest = base.copy()
        digest.update(b"".join([words[number] for number in numbers]))
        digests.append(digest.digest())
    ids = np.frombuffer(b"".join(digests), ">u8").astype(np.uint64).reshape(len(digests), 2)
    ids[(ids == 0).all(axis=1), 1] = 1
    return ids


@lru_cache(maxsize=1 << 12)
def _actor_key(run: str, actor: str) -> int:
    return _hashed(8, "span", run, actor)


def span_id(run: str, actor: str, sequence: int) -> int:
    """Return the 64-bit id, never zero, of an actor's ``sequence``-th span in a run.

    Ids of one actor are distinct for distinct sequences below 2**64, except that zero becomes one.
    """
    mixed = ((sequence + 1) * seeds.GOLDEN + _actor_key(run, actor)) & seeds.MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & seeds.MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & seeds.MASK
    return mixed ^ (mixed >> 31) or 1


def span_ids(run: str, actor: str, sequences: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the :func:`span_id` of each sequence."""
    return np.maximum(seeds.words(_actor_key(run, actor), sequences), np.uint64(1))
