"""Decoding of encoded samples with the libraries that training uses: images to pixels, lines and objects to values.

What comes out goes nowhere, as in ``decode.py``: a run takes the time that it takes.
"""

from __future__ import annotations

import io
import json
from abc import abstractmethod
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.images import pillow
from rayio.scenario.decode import UndecodableError, Work


class Samples(Work):
    """Decoding of each sample as a whole."""

    @abstractmethod
    def decoded(self, sample: memoryview) -> int:
        """Decode a sample; return the bytes that come out."""

    def __call__(self, samples: NDArray[np.uint8], nbytes: NDArray[np.int64]) -> int:
        """Decode each sample; return the bytes that come out."""
        start, total = 0, 0
        for number, size in enumerate(nbytes.tolist()):
            try:
                total += self.decoded(samples.data[start : start + size])
            except Exception as error:  # libraries raise a dozen classes for invalid bytes
                raise UndecodableError(number, f"{self.kind}: {' '.join(str(error).split())}") from error
            start += size
        return total


class Image(Samples):
    """Pillow's decoding of each sample to pixels; larger images than Pillow allows are refused."""

    kind: Literal["image"] = "image"
    formats: ClassVar[tuple[str, ...]] = ("jpeg", "png")

    def prepare(self) -> None:
        """Import Pillow and its decoders."""
        pillow().preinit()

    def decoded(self, sample: memoryview) -> int:
        """Return the bytes of an image's pixels."""
        with pillow().open(io.BytesIO(sample), formats=("JPEG", "PNG")) as opened:
            opened.load()
            return int(opened.width * opened.height * len(opened.getbands()))


class Numbers(Samples):
    """Parsing of each sample, a line of numbers, to doubles with ``numpy.fromstring``."""

    kind: Literal["numbers"] = "numbers"
    formats: ClassVar[tuple[str, ...]] = ("csv", "tsv")

    def decoded(self, sample: memoryview) -> int:
        """Return the bytes of a line's values."""
        line = bytes(sample).replace(b"\t", b",")
        values = np.fromstring(line, sep=",")  # ends before what is no number
        if len(values) != (wanted := line.count(b",") + 1):
            raise ValueError(f"value {len(values)} of {wanted} is no number")
        return int(values.nbytes)


class Json(Samples):
    """Parsing of each sample, an object, with Python's ``json``."""

    kind: Literal["json"] = "json"
    formats: ClassVar[tuple[str, ...]] = ("json", "jsonl")

    def decoded(self, sample: memoryview) -> int:
        """Return the characters of an object's text."""
        return len(json.loads(bytes(sample))["text"])
