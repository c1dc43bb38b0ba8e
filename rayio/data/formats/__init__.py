"""One file per format: each says what its library asks of storage, and reads and writes with that library."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.hdf5 import Hdf5
from rayio.data.formats.npz import Npz
from rayio.data.formats.tfrecord import TfRecord
from rayio.data.layout import Batch, Layout
from rayio.registry import Registry
from rayio.storage.base import Opener, Requests, RequestTable

if TYPE_CHECKING:
    from rayio.data.sampler import Block


class Format(Protocol):
    """A way to lay samples into files. Implementations hold no state."""

    @property
    def extension(self) -> str:
        """End of a file's name, with the dot."""

    def file_bytes(self, layout: Layout, files: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the exact size of each of ``files``, in bytes, without writing it."""

    def write(self, file: BinaryIO, layout: Layout, number: int) -> None:
        """Write file ``number`` of the dataset: the same bytes for the same layout, on every machine."""

    def requests(self, layout: Layout, batch: Batch) -> Requests:
        """Give the opens and reads that :meth:`read` issues for this batch."""

    def read(self, opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Read and verify a batch into ``out``, its samples one after the other, and give the ids found in them.

        ``out`` is contiguous and ``batch.total_bytes`` long.

        Raises:
            DataError: a file is missing, truncated, corrupted or another one; it names file, sample and expectation.
            StorageError: the storage system refuses.
        """


def request_table(form: Format, layout: Layout, block: Block) -> RequestTable | None:
    """Give what :meth:`Format.requests` gives for each step of a block (but for its places), or None.

    A format may offer ``request_table(layout, files, index, nbytes)`` (arrays of one row a step), which does it for all
    of them at once, or answers None where that is no faster than step by step.
    """
    at_once = getattr(form, "request_table", None)
    table: RequestTable | None = at_once and at_once(layout, block.files, block.index, block.nbytes)
    return table


FORMATS: Registry[Format] = Registry("format", {"npz": Npz(), "hdf5": Hdf5(), "tfrecord": TfRecord()})
