"""Decoding as a scenario says it: a time that is slept, or work that a processor really does on the bytes."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rayio.kinds import DECODES
from rayio.schema.distribution import Distribution, Of
from rayio.schema.fields import Section, quantity
from rayio.units import RATE, SECONDS


class Work(Section):
    """Decoding that is really done, by the worker that has read the batch; it takes what it takes."""

    rate: Annotated[float | None, quantity(RATE, positive=True, or_none=True)] = Field(
        None, description="Bytes of samples per second of one reader: what it costs on modelled storage."
    )
    kind: str

    def prepare(self) -> None:
        """Make ready what decoding takes; it is called before a run begins, so that it does not pass for decoding."""

    def __call__(self, samples: NDArray[np.uint8], nbytes: NDArray[np.int64]) -> int:
        """Decode samples that lie one after the other, each with its length; give the bytes that came out of it."""
        raise NotImplementedError


Decode = Annotated[Distribution | Work, Of(SECONDS, DECODES)]
