"""``tf.train.Example`` with ``x`` and ``y``, in Protobuf's encoding and without Protobuf."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

#: Fields of Example, Features, Feature, and of its kinds: ``example.proto`` and ``feature.proto`` of TensorFlow.
FEATURES, FEATURE, KEY, VALUE, BYTES_LIST, INT64_LIST, ITEMS = 1, 1, 1, 2, 1, 3, 1
#: Wire types of Protobuf.
VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5


def around(row_bytes: int, label: int) -> tuple[bytes, bytes]:
    """Return the encoding of an ``Example`` before and after the bytes of ``x``; the label is at its end."""
    encoded = varint(label)
    before, after = without_label(row_bytes, len(encoded))
    return before, after + encoded


@lru_cache(maxsize=1024)
def without_label(row_bytes: int, label_bytes: int) -> tuple[bytes, bytes]:
    """Return the same for a label of so many bytes, without it."""
    before, length = b"", row_bytes
    for field, key in ((ITEMS, b""), (BYTES_LIST, b""), (VALUE, _delimited(KEY, b"x")), (FEATURE, b"")):
        before = key + _tag(field, length) + before
        length = len(before) + row_bytes
    y = _delimited(ITEMS, bytes(label_bytes))  # packed, as TensorFlow writes it
    after = _delimited(FEATURE, _delimited(KEY, b"y") + _delimited(VALUE, _delimited(INT64_LIST, y)))
    return _tag(FEATURES, length + len(after)) + before, after[:-label_bytes]


def decode(example: memoryview) -> tuple[memoryview | None, int | None]:
    """Return the bytes ``x`` and the number ``y`` of an ``Example``, in any order and among any other features.

    Raises:
        ValueError: not protobuf's wire format.
        TypeError: a field that should hold a message holds a number.
    """
    x: memoryview | None = None
    y: int | None = None
    for features in _items(example, FEATURES):
        for entry in _items(features, FEATURE):
            key = b"".join(bytes(part) for part in _items(entry, KEY))
            for feature in _items(entry, VALUE):
                if key == b"x":
                    for items in _items(feature, BYTES_LIST):
                        x = next(_items(items, ITEMS), None)
                elif key == b"y":
                    for items in _items(feature, INT64_LIST):
                        y = next((_number(value) for number, value in _fields(items) if number == ITEMS), None)
    return x, y


def _items(message: memoryview, wanted: int) -> Iterator[memoryview]:
    for number, value in _fields(message):
        if number == wanted:
            if isinstance(value, int):
                raise TypeError(f"field {number} is a number")
            yield value


def _number(value: int | memoryview) -> int:
    return value if isinstance(value, int) else _readvarint(value, 0)[0]


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    position = 0
    while position < len(message):
        tag, position = _readvarint(message, position)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, position = _readvarint(message, position)
            yield number, value
            continue
        if kind == DELIMITED:
            length, position = _readvarint(message, position)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind} of field {number}")
        if position + length > len(message):
            raise ValueError(f"field {number} ends outside its message")
        yield number, message[position : position + length]
        position += length


def _readvarint(message: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(message[position : position + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, position + place + 1
    raise ValueError("a number has no end")


def varint(value: int) -> bytes:
    """Return a number as Protobuf writes it: 7 bits a byte."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def _tag(field: int, length: int) -> bytes:
    return varint(field << 3 | DELIMITED) + varint(length)


def _delimited(field: int, content: bytes) -> bytes:
    return _tag(field, len(content)) + content
