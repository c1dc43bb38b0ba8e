"""``loader.file_access: per_sample``: each batch opens its files and looks its samples up; nothing is kept."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rayio.data.access.contract import Access, Files
from rayio.data.formats import request_table
from rayio.data.layout import Batch
from rayio.storage.base import Opener, Requests, RequestTable


class PerSample(Access):
    """The requests of the format's library, which opens a file once for all samples of a batch in it."""

    def requests(self, files: Files, batch: Batch, kept: None) -> tuple[Requests, None]:
        """Return the format's own requests."""
        return files.form.requests(files.layout, batch), None

    def request_table(
        self, files: Files, file: NDArray[np.int64], index: NDArray[np.int64], nbytes: NDArray[np.int64]
    ) -> RequestTable | None:
        """Return the format's own table."""
        return request_table(files.form, files.layout, file, index, nbytes)

    def read(
        self, files: Files, opener: Opener, batch: Batch, out: NDArray[np.uint8], kept: None
    ) -> tuple[NDArray[np.int64], None]:
        """Read the batch with the format."""
        return files.form.read(opener, files.layout, batch, out), None
