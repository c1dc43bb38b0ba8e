"""What a way to walk files is: the requests in which a batch is read, and what a reader keeps for the next one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio import kinds
from rayio.data.formats import Format
from rayio.data.layout import Batch, Layout
from rayio.registry import Registry
from rayio.scenario.kind import Kind
from rayio.schema.choice import NO_OPTIONS
from rayio.schema.fields import Section
from rayio.storage.base import Opener, Requests, RequestTable


class Files(NamedTuple):
    """The files of a dataset, and the options of the access that walks them."""

    form: Format
    layout: Layout
    options: Section = NO_OPTIONS


class Access(Kind):
    """A way to walk files. It holds no state: what a reader keeps of a dataset between batches is passed as a value.

    ``kept`` is that value: open files, a buffer, a position; None is nothing. It is a cache. A reader that loses it
    asks storage for more, and delivers the same samples. The model keeps what real reading would keep, but for the
    bytes and the handles, so the requests of both are equal.
    """

    def requests(self, files: Files, batch: Batch, kept: Any) -> tuple[Requests, Any]:
        """Return the opens and reads that :meth:`read` issues for a batch, and what is kept after it.

        It may be asked again with the same ``kept``, also for a part of the batch: ``kept`` itself stays as it is.
        """
        raise NotImplementedError

    def request_table(
        self, files: Files, file: NDArray[np.int64], index: NDArray[np.int64], nbytes: NDArray[np.int64]
    ) -> RequestTable | None:
        """Return the :meth:`requests` of each of many steps, without their places.

        The arrays are those of :class:`Batch`, with one row a step. None: there is no short way, or a step's requests
        depend on what is kept of the steps before it.
        """
        return None

    def read(
        self, files: Files, opener: Opener, batch: Batch, out: NDArray[np.uint8], kept: Any
    ) -> tuple[NDArray[np.int64], Any]:
        """Read and verify a batch into ``out`` as :meth:`Format.read` does; return the ids found, and what is kept.

        ``opener(path, file)`` has a file that an earlier call opened serve this one; :attr:`CountedFile.is_kept` keeps
        a file open when the format leaves it.

        Raises:
            DataError: a file is missing, truncated, corrupted or another one.
            StorageError: the storage system refuses.
        """
        raise NotImplementedError

    def close(self, kept: Any) -> None:
        """Close what is kept; nobody uses it any more."""


#: ``loader.file_access``, by name.
ACCESSES: Registry[Access] = kinds.ACCESSES
