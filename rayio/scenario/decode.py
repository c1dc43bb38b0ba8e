"""Decoding in a scenario: a time that is slept, or work that is carried out on the bytes."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rayio.kinds import DECODES
from rayio.schema.distribution import Distribution, Of
from rayio.schema.fields import Seconds, Section, quantity
from rayio.units import RATE, SECONDS


class UndecodableError(Exception):
    """Samples that a decoder refuses: the number of the first in its batch, and the reason."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number, self.reason = number, reason


class Work(Section):
    """Decoding that the worker carries out on the bytes, with its real duration."""

    #: Formats of samples that it can decode; empty for any.
    formats: ClassVar[tuple[str, ...]] = ()

    rate: Annotated[float | None, quantity(RATE, positive=True, or_none=True)] = Field(
        None,
        description="Bytes of samples per second on one core, for modelled storage: of one pass, or at ratio 2. "
        "`rayio calibrate` fits it.",
    )
    per_sample: Seconds = Field(0.0, description="CPU time of each sample, in addition to its bytes.")
    kind: str

    @property
    def work_per_byte(self) -> float:
        """Return the work of a byte as a multiple of the byte that ``rate`` counts."""
        return 1.0

    def seconds(self, num_samples: float, nbytes: float) -> float:
        """Return the CPU seconds of decoding samples of ``nbytes`` in all."""
        return num_samples * self.per_sample + (nbytes * self.work_per_byte / self.rate if self.rate else 0.0)

    def slowed(self, factor: float) -> Self:
        """Return work that takes ``factor`` times as long."""
        rate = None if self.rate is None else self.rate / factor
        return self.model_copy(update={"rate": rate, "per_sample": round(self.per_sample * factor, 9)})

    def prepare(self) -> None:
        """Prepare decoding before a run begins, so that imports do not count as decoding."""

    def __call__(self, samples: NDArray[np.uint8], nbytes: NDArray[np.int64]) -> int:
        """Decode consecutive samples of these lengths; return the number of decoded bytes.

        Raises:
            UndecodableError: a sample is not what it should be.
        """
        raise NotImplementedError


Decode = Annotated[Distribution | Work, Of(SECONDS, DECODES)]
