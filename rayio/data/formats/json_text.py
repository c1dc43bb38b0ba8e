"""json and jsonl: a sample is an object with its id, a checksum and a text, ``sample_bytes`` long.

A file of ``jsonl`` is an object a line. A file of ``json`` is one document, a list of objects: Python's ``json`` reads
the whole file, however few samples a batch needs.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats import text
from rayio.data.formats.at_once import Frame
from rayio.data.formats.encoded import Encoded, EncodedOptions
from rayio.data.layout import Layout

_LETTERS = text.table(text.LETTERS)
_LEAD = re.compile(rb'\{"id": *(\d+), "checksum": "([0-9a-f]{16})", "text": "')


class JsonLines(Encoded):
    """One open, one request for each run of lines."""

    extension = ".jsonl"
    options = EncodedOptions
    decoded_by = "json"
    lead_bytes = len('{"id": , "checksum": "", "text": "') + 19 + 16
    #: The bytes of a sample after its text.
    end = b'"}\n'

    def lead(self, sample: int, digest: int) -> bytes:
        """Return the object up to its text."""
        return b'{"id": %19d, "checksum": "%016x", "text": "' % (sample, digest)

    def parse(self, lead: bytes) -> tuple[int, int]:
        """Return the object's id and checksum."""
        if (match := _LEAD.fullmatch(lead)) is None:
            raise ValueError("no object with an id and a checksum")
        return int(match[1]), int(match[2], 16)

    def encode(self, out: NDArray[np.uint8], layout: Layout, sample: int) -> None:
        """Write the text of an object."""
        text.write_text(out[self.lead_bytes : -len(self.end)], layout.seed, sample, _LETTERS)
        out.data[-len(self.end) :] = self.end


class Json(JsonLines):
    """One open, one request for the whole file."""

    extension = ".json"
    end = b'"}'
    head_bytes = 2
    reads_whole = True
    is_framed = True

    def after_bytes(self, nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of what follows an object: a comma or a bracket, and a new line."""
        return np.full_like(nbytes, 2)

    def head(self, rows: int, nbytes: int) -> bytes:
        """Return the beginning of the list."""
        return b"[\n"

    def framing(self, layout: Layout) -> Frame:
        """Return a function to what follows an object."""
        number = layout.samples_per_file
        return lambda sample, _: b",\n" if (sample + 1) % number else b"]\n"
