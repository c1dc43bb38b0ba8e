"""csv and tsv: a sample is a line of numbers without a header, as ``pandas.read_csv(header=None)`` reads it.

The first two numbers are the sample's id and checksum. Then follow values of 8 characters from 0 to 1, as many as fit
into ``sample_bytes`` of text.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats import text
from rayio.data.formats.encoded import Encoded, EncodedOptions
from rayio.data.layout import Layout

#: Characters of an id, of a checksum, and of a value with its separator.
ID, DIGEST, VALUE = 19, 20, 9
_DIGITS = text.table(text.DIGITS)


class Csv(Encoded):
    """One open, one request for each run of lines."""

    extension = ".csv"
    options = EncodedOptions
    sizes_vary = False
    decoded_by = "numbers"
    lead_bytes = ID + 1 + DIGEST + 1
    separator: ClassVar[bytes] = b","
    #: The first two numbers of a line.
    numbers: ClassVar[bytes] = f"%0{ID}d,%0{DIGEST}d,".encode()

    def lead(self, sample: int, digest: int) -> bytes:
        """Return the first two numbers of a line."""
        return self.numbers % (sample, digest)

    def parse(self, lead: bytes) -> tuple[int, int]:
        """Return the first two numbers of a line."""
        sample, digest, _ = lead.split(self.separator)
        return int(sample), int(digest)

    def encode(self, out: NDArray[np.uint8], layout: Layout, sample: int) -> None:
        """Write the values of a line."""
        values = out[self.lead_bytes :]
        text.write_text(values, layout.seed, sample, _DIGITS)
        values[::VALUE], values[1::VALUE] = ord("0"), ord(".")
        values[VALUE - 1 :: VALUE] = self.separator[0]
        if len(values) % VALUE == 1:  # no value is empty
            values[-2] = ord("0")
        values[-1] = ord("\n")


class Tsv(Csv):
    """The same with tabs."""

    extension = ".tsv"
    separator = b"\t"
    numbers = Csv.numbers.replace(Csv.separator, separator)
