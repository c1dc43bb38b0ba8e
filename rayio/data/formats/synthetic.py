"""synthetic: samples that no file holds. A worker makes them in memory, as models with random input do."""

from __future__ import annotations

from itertools import accumulate
from typing import BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.reads import check_length
from rayio.data.formats.sample import fill
from rayio.data.layout import Batch, Layout
from rayio.scenario.kind import Kind
from rayio.storage.base import Opener, Requests


class Synthetic(Kind):
    """No files, no requests."""

    extension = ".synthetic"
    has_files: ClassVar[bool] = False
    is_proposed: ClassVar[bool] = False
    sizes_vary: ClassVar[bool] = True

    def file_bytes(self, layout: Layout, files: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return zeros."""
        return np.zeros_like(files)

    def write(self, file: BinaryIO, layout: Layout, number: int) -> None:
        """Write nothing."""

    def requests(self, layout: Layout, batch: Batch) -> Requests:
        """Return no requests."""
        return Requests((batch.rank, batch.epoch, batch.step), 0, np.empty(0, np.int64))

    def read(self, opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Make the samples."""
        offsets = [0, *accumulate(batch.nbytes.tolist())]
        check_length(offsets[-1], out)
        for place, sample in enumerate(batch.samples.tolist()):
            fill(out[offsets[place] : offsets[place + 1]], layout.seed, sample, layout.compressibility)
        return batch.samples.copy()
