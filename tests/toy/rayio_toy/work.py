"""What a reader does with what it has read, and what ranks do once they have met."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rayio.scenario.decode import Work
from rayio.scenario.sync import Sync
from rayio.schema.fields import Positive, Seconds


class Sum(Work):
    """Every byte is added up."""

    kind: Literal["sum"] = "sum"
    times: Positive = Field(1, description="Times that it is done.")

    def __call__(self, samples: NDArray[np.uint8], nbytes: NDArray[np.int64]) -> int:
        for _ in range(self.times):
            samples.sum()
        return self.times * int(nbytes.sum())


class Nap(Sync):
    """Ranks wait for the slowest, and then sleep together."""

    kind: Literal["nap"] = "nap"
    nap: Seconds = Field(description="How long they sleep.")

    def seconds(self, ranks: int) -> float:
        return self.nap
