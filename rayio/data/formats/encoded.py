"""Samples that are encoded: lines of text, images. A sample is what lies in the file, ``sample_bytes`` of it.

Somewhere in it stand its id and a checksum of all its other bytes. What a library makes of it (numbers, pixels) is
decoding, work of the processor after reading: ``loader.decode``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from rayio import seeds
from rayio.data.formats.records import Records
from rayio.data.formats.sample import Judge, Place, checksum, checksum_seed, wrong_sample
from rayio.data.layout import Layout
from rayio.schema.distribution import Constant
from rayio.schema.fields import Section

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario


class Encoded(Records):
    """A format of encoded samples; a file of several has them one after the other."""

    #: Offset and length of the part of a sample that has its id and its checksum.
    lead_at: ClassVar[int] = 0
    lead_bytes: ClassVar[int]

    #: The kind of ``loader.decode`` that decodes such samples.
    decoded_by: ClassVar[str]

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Yield a message if samples should be compressible: text and images are what they are."""
        if (factor := scenario.dataset.compressibility) != 1:
            yield (
                f"dataset.compressibility={factor:g}: samples of dataset.format={scenario.dataset.format} are text or "
                "images, which compress as they do; remove it"
            )

    def idle(self, scenario: Scenario) -> Iterator[str]:
        """Yield a note if samples are read and never decoded."""
        decode = scenario.loader.decode
        if isinstance(decode, Constant) and decode.value == 0:
            form = scenario.dataset.format
            yield f"dataset.format={form}: samples are not decoded; loader.decode={{kind: {self.decoded_by}}} does it"

    def lead(self, sample: int, digest: int) -> bytes:
        """Return the part with the id and the checksum."""
        raise NotImplementedError

    def parse(self, lead: bytes) -> tuple[int, int]:
        """Return id and checksum.

        Raises:
            ValueError: they are not there.
        """
        raise NotImplementedError

    def encode(self, out: NDArray[np.uint8], layout: Layout, sample: int) -> None:
        """Write a sample into ``out``, except for its lead."""
        raise NotImplementedError

    def fill(self, out: NDArray[np.uint8], layout: Layout, sample: int) -> None:
        """Write a sample, then its lead."""
        self.encode(out, layout, sample)
        digest = self._digest(out.data, layout.seed, sample)
        out.data[self.lead_at : self.lead_at + self.lead_bytes] = self.lead(sample, digest)

    def check(self, sample: memoryview, layout: Layout, place: Place) -> int:
        """Verify a sample and return its id."""
        lead = sample[self.lead_at : self.lead_at + self.lead_bytes]
        computed = self._digest(sample, layout.seed, place.sample)
        if lead == self.lead(place.sample, computed):
            return place.sample
        try:
            read_id, written = self.parse(bytes(lead))
            if self.lead(read_id, written) != lead:
                raise ValueError("written otherwise")
        except ValueError as error:
            raise place.error(
                f"expected id {place.sample} and a checksum, found neither: "
                f"the file is corrupted or foreign; delete it and generate it again"
            ) from error
        raise wrong_sample(read_id, written, self._digest(sample, layout.seed, read_id), place)

    def judge(self, layout: Layout) -> Judge:
        """Return a function that tells if bytes are a sample, by its number."""
        return _judge(self.lead, self.lead_at, self.lead_at + self.lead_bytes, layout.seed)

    def _digest(self, sample: memoryview, seed: int, number: int) -> int:
        """Return the checksum of a sample's bytes before and after its lead."""
        digest = checksum(sample[self.lead_at + self.lead_bytes :], seed, number)
        if self.lead_at:
            digest = (digest + xxhash.xxh3_64_intdigest(sample[: self.lead_at])) & seeds.MASK
        return digest


@lru_cache(maxsize=64)
def _judge(lead: Callable[[int, int], bytes], begin: int, end: int, seed: int) -> Judge:
    # A view is compared byte by byte, which takes several times as long as a copy of the lead.
    digest, start, mask = xxhash.xxh3_64_intdigest, checksum_seed(seed), seeds.MASK

    def is_right(sample: memoryview, number: int) -> bool:
        return sample[:end].tobytes() == lead(number, digest(sample[end:], (start + number) & mask))

    def is_right_inside(sample: memoryview, number: int) -> bool:
        computed = digest(sample[end:], (start + number) & mask) + digest(sample[:begin])
        return sample[begin:end].tobytes() == lead(number, computed & mask)

    return is_right_inside if begin else is_right


class EncodedOptions(Section):
    """Options of an encoded format: none, but a sample has a least size."""

    #: The least bytes of a sample.
    least_bytes: ClassVar[int] = 128
