"""A shuffle: every epoch begins somewhere else, at a multiple of a number of samples."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rayio.data.shuffle import Sizes
from rayio.scenario.kind import Kind
from rayio.schema.fields import Section, whole


class RotateOptions(Section):
    """What ``loader`` may say of this shuffle."""

    rotate_by: Annotated[int, whole(1)] = Field(1, description="Samples of which an epoch's beginning is a multiple.")


class Rotate(Kind):
    """File order, rotated."""

    options = RotateOptions

    def __call__(self, num_samples: int, key: int, positions: NDArray[np.int64], sizes: Sizes) -> NDArray[np.int64]:
        by = sizes.options.rotate_by if isinstance(sizes.options, RotateOptions) else 1
        rotated: NDArray[np.int64] = (positions + key % (1 << 31) * by) % num_samples
        return rotated
