"""The checksum of HDF5's metadata, written from its description, so that tests can damage a file and seal it again."""

from __future__ import annotations

import struct

WORD = 0xFFFFFFFF
#: Bob Jenkins, "lookup3", 2006: what a round changes, by what, rotated how far, and what is added to; then the end.
ROUND = (
    ("a", "c", 4, "b"),
    ("b", "a", 6, "c"),
    ("c", "b", 8, "a"),
    ("a", "c", 16, "b"),
    ("b", "a", 19, "c"),
    ("c", "b", 4, "a"),
)
LAST = (("c", "b", 14), ("a", "c", 11), ("b", "a", 25), ("c", "b", 16), ("a", "c", 4), ("b", "a", 14), ("c", "b", 24))


def lookup3(content: bytes) -> int:
    """Hash bytes to 32 bits as HDF5 does for superblocks and object headers."""
    state = dict.fromkeys("abc", (0xDEADBEEF + len(content)) & WORD)
    at = 0
    while True:
        for name, word in zip("abc", struct.unpack("<III", content[at : at + 12].ljust(12, b"\0")), strict=True):
            state[name] = (state[name] + word) & WORD
        at += 12
        if at >= len(content):
            break
        for name, by, rotation, follower in ROUND:
            state[name] = ((state[name] - state[by]) & WORD) ^ _rotated(state[by], rotation)
            state[by] = (state[by] + state[follower]) & WORD
    for name, by, rotation in LAST:
        state[name] = ((state[name] ^ state[by]) - _rotated(state[by], rotation)) & WORD
    return state["c"]


def _rotated(word: int, places: int) -> int:
    return (word << places | word >> (32 - places)) & WORD
