"""NumPy's npy: the samples of a file as the rows of one array of bytes, as ``numpy.save`` writes it."""

from __future__ import annotations

from typing import BinaryIO

from rayio.data.formats.npy_header import HEADER_BYTES, find_array, header
from rayio.data.formats.reads import window
from rayio.data.formats.records import AGAIN, Records
from rayio.data.formats.sample import Place
from rayio.data.layout import Layout
from rayio.errors import RayioError


class Npy(Records):
    """One open, one request for the header (4 KiB), then one for each run of rows."""

    extension = ".npy"
    head_bytes = HEADER_BYTES
    reads_head = True
    sizes_vary = False

    def head(self, rows: int, nbytes: int) -> bytes:
        """Return NumPy's header."""
        return header("|u1", (rows, nbytes))

    def check_head(self, stream: BinaryIO, layout: Layout, nbytes: int, place: Place) -> int:
        """Verify the header; one that NumPy wrote otherwise is parsed."""
        shape = layout.samples_per_file, nbytes
        start, content = window(stream, 0, HEADER_BYTES)
        if start == 0 and content.startswith(header("|u1", shape)):
            return HEADER_BYTES
        stream.seek(0)
        try:
            return find_array(stream, place, "an array", "|u1", shape)
        except RayioError:
            raise
        except Exception as error:  # numpy raises several classes for invalid bytes
            reason = " ".join(str(error).split())
            raise place.error(f"expected an npy file of shape {shape}, found none ({reason}): {AGAIN}") from error
