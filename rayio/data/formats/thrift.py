"""Thrift's compact protocol, as Parquet's descriptions are written in it: numbers take a fixed number of bytes."""

from __future__ import annotations

#: Thrift's types in its compact protocol.
TRUE, FALSE, I32, I64, BINARY, LIST, STRUCT = 1, 2, 5, 6, 8, 9, 12
#: The end of a structure.
END = b"\0"


def varint(value: int, length: int) -> bytes:
    """Return a number in zigzag encoding, in exactly ``length`` bytes."""
    value = value << 1 ^ value >> 63
    return bytes([*((value >> 7 * place & 0x7F) | 0x80 for place in range(length - 1)), value >> 7 * (length - 1)])


def _size(value: int) -> bytes:
    return bytes([*((value >> 7 * place & 0x7F) | 0x80 for place in range(4)), value >> 28])


def i32(value: int) -> bytes:
    """Return a number of 32 bits, as Thrift has it."""
    return varint(value, 5)


def i64(value: int) -> bytes:
    """Return a number of 64 bits, as Thrift has it."""
    return varint(value, 8)


def text(value: bytes) -> bytes:
    """Return bytes after their length, as Thrift has it."""
    return _size(len(value)) + value


def listed(kind: int, number: int) -> bytes:
    """Return the beginning of a list, as Thrift has it."""
    return bytes([0xF0 | kind]) + _size(number)


def field(step: int, kind: int, value: bytes = b"") -> bytes:
    """Return a field whose number is ``step`` above the one before it."""
    return bytes([step << 4 | kind]) + value
