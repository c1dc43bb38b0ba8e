"""The contract of a file access: the requests of a batch, and the state that a reader keeps for the next one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio import kinds
from rayio.data.access.memory import too_much
from rayio.data.formats import Format, form_of, layout_of
from rayio.data.layout import Batch, Layout
from rayio.registry import Registry
from rayio.scenario.kind import Kind
from rayio.scenario.shards import is_by_file
from rayio.schema.choice import NO_OPTIONS
from rayio.schema.fields import Section
from rayio.storage.base import Opener, Requests, RequestTable

if TYPE_CHECKING:
    from rayio.scenario.change import Change, Run
    from rayio.scenario.model import Scenario


class Files(NamedTuple):
    """The files of a dataset, and the options of the access that walks them."""

    form: Format
    layout: Layout
    options: Section = NO_OPTIONS
    #: Samples of a worker's shuffle buffer; 0 without one.
    shuffled: int = 0

    def whole(self, folder: str = "") -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
        """Return the names of all files after ``folder``, their numbers, and their bytes."""
        files = np.arange(self.layout.num_files)
        names = [folder + self.layout.path(file) for file in files.tolist()]
        return names, files, self.form.file_bytes(self.layout, files)


class Access(Kind):
    """A way to walk files. It is stateless: a reader's state between batches is passed as a value.

    ``kept`` is that value: open files, a buffer, a position; None is nothing. It is a cache: without it a reader makes
    more requests and delivers the same samples. The model keeps what real reading would keep, without bytes and
    handles, so the requests of both are equal.
    """

    #: True if a reader's first batch reads all files.
    reads_all: ClassVar[bool] = False

    def cannot(self, form: Format, layout: Layout) -> str:
        """Return why this access cannot walk a format's files; empty if it can."""
        return ""

    def memory(self, files: Files) -> float:
        """Return about how many bytes a reader keeps of the files."""
        return 0.0

    def holder(self, files: Files) -> str:
        """Return who keeps that: "worker", or once for the workers of a "rank" or of a "node"."""
        return "worker"

    def is_joined(self, options: Section) -> bool:
        """Return True if storage may join a batch's requests (``gap``, s3://), False if a key gives their size."""
        return True

    def setting(self, files: Files) -> str:
        """Return the key and value that decide about this memory, for messages."""
        names = chain(ACCESSES.built_in, ACCESSES)  # those of other packages take time to find
        name = next((name for name in names if ACCESSES[name] is self), type(self).__name__)
        return f"loader.file_access={name}"

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Refuse more memory than the nodes have (``cluster.memory``)."""
        loader, memory = scenario.loader, scenario.cluster.memory
        buffer = getattr(loader.shuffle_options, "shuffle_buffer", 0) if is_by_file(scenario) else 0
        layout = layout_of(scenario)
        form = form_of(scenario.dataset.format, layout)
        files = Files(form, layout, loader.file_access_options, buffer or 0)
        each, setting, holder = self.memory(files), self.setting(files), self.holder(files)
        yield from too_much(setting, each, scenario.cluster, loader.max_workers, memory, "cluster.memory", holder)

    def changes(self, run: Run) -> Iterator[Change]:
        """Yield changes of its options that make fewer or larger requests of the same samples."""
        yield from ()

    def requests(self, files: Files, batch: Batch, kept: Any) -> tuple[Requests, Any]:
        """Return the opens and reads that :meth:`read` issues for a batch, and the state after it.

        ``kept`` is not modified, so calls may be repeated, also for a part of the batch.
        """
        raise NotImplementedError

    def request_table(
        self, files: Files, file: NDArray[np.int64], index: NDArray[np.int64], nbytes: NDArray[np.int64]
    ) -> RequestTable | None:
        """Return the :meth:`requests` of each of many steps, without their places.

        The arrays are those of :class:`Batch`, with one row a step. None if there is no fast way, or a step's requests
        depend on earlier steps.
        """
        return None

    def read(
        self, files: Files, opener: Opener, batch: Batch, out: NDArray[np.uint8], kept: Any
    ) -> tuple[NDArray[np.int64], Any]:
        """Read and verify a batch into ``out`` as :meth:`Format.read` does; return the ids read and the new state.

        ``opener(path, file)`` reuses a file that an earlier call opened; :attr:`CountedFile.is_kept` keeps a file open
        when the format closes it.

        Raises:
            DataError: a file is missing, truncated, corrupted or another one.
            StorageError: the storage refuses.
        """
        raise NotImplementedError

    def close(self, kept: Any) -> None:
        """Close the kept files."""


#: ``loader.file_access``, by name.
ACCESSES: Registry[Access] = kinds.ACCESSES
