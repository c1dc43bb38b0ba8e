"""Protobuf messages in bulk: a field is a column over all messages, encoded in one pass of NumPy.

The bytes are those of the official classes, if fields are given in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]

#: The most bytes of padded texts.
PADDED_BYTES = 32 << 20


class Field(NamedTuple):
    """A field of every message."""

    #: Bytes, shape (messages, width); may be a broadcast row.
    data: NDArray[np.uint8]
    #: Number of valid bytes from the left in each message; 0 if the field is missing.
    size: NDArray[np.int64]


class Texts:
    """A table of encoded fields."""

    def __init__(self, fields: Sequence[bytes]) -> None:
        self._size = np.array([len(field) for field in fields], np.int64)
        self._fields = fields
        #: All fields, padded to equal length; None if one is so long that this would take too much memory.
        self._data: NDArray[np.uint8] | None = None
        width = int(self._size.max(initial=0))
        if width * len(fields) <= PADDED_BYTES:
            self._data = _padded(fields, width)

    def sizes(self, codes: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of bytes of the fields with these numbers."""
        sizes: NDArray[np.int64] = self._size[codes]
        return sizes

    def of(self, codes: NDArray[Any], present: Flags | None = None) -> Field:
        """Return the fields with these numbers."""
        size = self._size[codes]
        width = int(size.max(initial=0))
        if self._data is not None:
            return Field(self._data[codes, :width], _where(size, present))
        used, rows = np.unique(codes, return_inverse=True)
        return Field(_padded([self._fields[code] for code in used.tolist()], width)[rows], _where(size, present))


def _padded(fields: Sequence[bytes], width: int) -> NDArray[np.uint8]:
    data = np.frombuffer(b"".join(field.ljust(width, b"\0") for field in fields), np.uint8)
    return data.reshape(len(fields), width)


def parts(widths: NDArray[np.int64], rows: int) -> Iterator[slice]:
    """Iterate over slices of messages, of at most ``rows``, and fewer where long texts need much memory.

    ``widths`` has the bytes of texts of each message: in a :class:`Field` each message takes as much as the longest.

    >>> list(parts(np.array([9, 9, PADDED_BYTES, 9]), 4))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    for begin in range(0, len(widths), rows):
        yield from _halves(widths, begin, min(begin + rows, len(widths)))


def _halves(widths: NDArray[np.int64], begin: int, end: int) -> Iterator[slice]:
    number = end - begin
    if number == 1 or number * int(widths[begin:end].max()) <= PADDED_BYTES:
        yield slice(begin, end)
        return
    yield from _halves(widths, begin, begin + number // 2)
    yield from _halves(widths, begin + number // 2, end)


def number(value: int) -> bytes:
    """Return a number as a protobuf varint: seven bits a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def delimited(tag: bytes, content: bytes) -> bytes:
    """Return a text, bytes or message field."""
    return tag + number(len(content)) + content


def text(tag: bytes, content: str) -> bytes:
    """Return a text field; invalid Unicode becomes a question mark."""
    return delimited(tag, content.encode("utf-8", "replace"))


def constant(messages: int, content: bytes, present: Flags | None = None) -> Field:
    """Return a field with equal content in every message that has it."""
    row = np.frombuffer(content, np.uint8)
    data = np.broadcast_to(row, (messages, len(row)))
    return Field(data, _where(np.full(messages, len(row), np.int64), present))


def varint(tag: bytes, values: NDArray[Any], present: Flags | None = None) -> Field:
    """Return a field of whole numbers of 0 or more."""
    rest = values.astype(np.uint64)
    used = rest if present is None else rest[present]
    width = max(1, -(-int(used.max(initial=0)).bit_length() // 7))
    data = np.empty((len(rest), len(tag) + width), np.uint8)
    data[:, : len(tag)] = np.frombuffer(tag, np.uint8)
    size = np.full(len(rest), len(tag), np.int64)
    for column in range(len(tag), len(tag) + width):
        size += (rest > 0) if column > len(tag) else 1
        low = (rest & np.uint64(0x7F)).astype(np.uint8)
        rest = rest >> np.uint64(7)
        data[:, column] = low | ((rest > 0).astype(np.uint8) << 7)
    return Field(data, _where(size, present))


def fixed(tag: bytes, values: NDArray[Any], present: Flags | None = None) -> Field:
    """Return a field of eight bytes: a whole number or a double, little-endian."""
    return raw(tag, np.ascontiguousarray(values).view(np.uint8).reshape(len(values), 8), present)


def raw(tag: bytes, content: NDArray[np.uint8], present: Flags | None = None) -> Field:
    """Return a field of bytes of equal length, shape (messages, bytes); the tag includes the length."""
    data = np.empty((len(content), len(tag) + content.shape[1]), np.uint8)
    data[:, : len(tag)] = np.frombuffer(tag, np.uint8)
    data[:, len(tag) :] = content
    return Field(data, _where(np.full(len(content), data.shape[1], np.int64), present))


def message(tag: bytes, fields: Sequence[Field], present: Flags | None = None) -> list[Field]:
    """Return fields wrapped into one message field."""
    if present is not None:
        fields = [Field(field.data, _where(field.size, present)) for field in fields]
    return [varint(tag, np.sum([field.size for field in fields], axis=0), present), *fields]


def written(fields: Sequence[Field]) -> tuple[bytes, NDArray[np.int64]]:
    """Return the concatenated bytes of all messages, and the length of each."""
    lengths: NDArray[np.int64] = np.sum([field.size for field in fields], axis=0)
    data, counts = [], []
    for field in fields:
        if width := int(field.size.max(initial=0)):
            data.append(field.data[:, :width])
            counts.append(np.arange(width) < field.size[:, None])
    if not data:
        return b"", lengths
    return np.concatenate(data, axis=1)[np.concatenate(counts, axis=1)].tobytes(), lengths


def _where(size: NDArray[np.int64], present: Flags | None) -> NDArray[np.int64]:
    return size if present is None else np.where(present, size, 0)
