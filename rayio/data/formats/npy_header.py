"""The header of NumPy's npy: written as NumPy does, and checked without its parser where rayio wrote it."""

from __future__ import annotations

import io
import threading
from functools import lru_cache
from typing import BinaryIO

import numpy as np

from rayio.data.formats.sample import Place

#: Bytes of the header of any array that rayio writes.
HEADER_BYTES = 128
#: NumPy parses other headers with Python's parser, which in 3.11 sometimes fails in concurrent threads ("AST
#: constructor recursion depth mismatch").
PARSING = threading.Lock()


@lru_cache(maxsize=256)
def header(descr: str, shape: tuple[int, ...]) -> bytes:
    """Return NumPy's header of an array of this type and shape."""
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, {"descr": descr, "fortran_order": False, "shape": shape})
    return written.getvalue()


def find_array(stream: BinaryIO, place: Place, name: str, descr: str, shape: tuple[int, ...]) -> int:
    """Return the offset of an array's first byte; the stream is at its header, which must have this type and shape.

    Raises:
        DataError: another array.
        Exception: no array; NumPy raises several classes.
    """
    begin = stream.tell()
    if stream.read(HEADER_BYTES) == header(descr, shape):
        return begin + HEADER_BYTES
    stream.seek(begin)
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):
        raise place.error(f"expected npy version (1, 0) in {name}, found {version}")
    with PARSING:
        actual, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if actual != shape or is_fortran or dtype != np.dtype(descr):
        raise place.error(f"expected {name} of shape {shape} and {np.dtype(descr)}, found {actual} and {dtype}")
    return stream.tell()
