"""``loader.file_access: in_memory``: all files are read into memory at the start, and then there is no I/O.

CANDLE reads its CSV like this (``pd.read_csv``), and BERT its examples: every rank the same bytes. A rank that reads
before it forks its workers shares them (``held_by: rank``), and so do the ranks of a node with memory that is shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rayio.data.access.contract import Access, Files
from rayio.data.access.memory import all_bytes
from rayio.data.access.parts import Asking, by_file, read_part
from rayio.data.access.whole_file import Content, WholeFileOptions, ask_whole, load, refused
from rayio.data.formats import Format, form_of, layout_of, not_in_one_file
from rayio.data.layout import Batch, Layout
from rayio.kinds import LOADERS
from rayio.schema.fields import Section, choice
from rayio.storage.base import Opener, Requests

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario

#: Most requests of a worker's start: each is planned separately.
MAX_REQUESTS = 1 << 22

#: The files in memory, by number; empty in a model.
Contents = Mapping[int, Content]


class InMemoryOptions(WholeFileOptions):
    """Options of files in memory."""

    held_by: Annotated[str, choice("worker", "rank", "node")] = Field(
        "worker",
        description="Who has the files in memory once: each worker, the workers of a rank, or those of a node.",
    )


class InMemory(Access):
    """Each worker (with ``num_workers: 0`` each rank) reads all files with its first batch, and keeps them.

    Of those that share them (``held_by``) the first one does (``rayio.storage.layers.in_memory``).
    """

    options = InMemoryOptions
    reads_all: ClassVar[bool] = True

    def cannot(self, form: Format, layout: Layout) -> str:
        """Return why files of a format are not read one by one; empty if they are."""
        return not_in_one_file(form)

    def is_joined(self, options: Section) -> bool:
        """Return False if ``request_bytes`` bounds requests."""
        return not (isinstance(options, WholeFileOptions) and options.request_bytes)

    def memory(self, files: Files) -> float:
        """Return the bytes of all files."""
        return all_bytes(files.form, files.layout)

    def holder(self, files: Files) -> str:
        """Return who has the files in memory once."""
        return getattr(files.options, "held_by", "worker")

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Refuse more requests at the start than can be planned."""
        yield from super().contradictions(scenario)
        yield from refused(self, "in_memory", scenario)
        loader = scenario.loader
        held_by = getattr(loader.file_access_options, "held_by", "worker")
        if held_by != "worker" and not LOADERS[loader.kind].has_roles:
            yield (
                f"loader.held_by={held_by}: workers of loader.kind={loader.kind} cannot pass bytes on; use "
                "loader.kind=actors, or loader.held_by=worker"
            )
        layout = layout_of(scenario)
        form = form_of(scenario.dataset.format, layout)
        files = Files(form, layout, scenario.loader.file_access_options)
        size = files.options.request_bytes if isinstance(files.options, WholeFileOptions) else None
        requests = max(files.layout.num_files, self.memory(files) / size if size else 0)
        if requests > MAX_REQUESTS:
            yield (
                f"loader.file_access=in_memory: a worker starts with {requests:.0f} requests; at most {MAX_REQUESTS} "
                "are possible; use fewer and larger files, or loader.file_access=per_sample"
            )

    def requests(self, files: Files, batch: Batch, kept: Contents | None) -> tuple[Requests, Contents | None]:
        """Return the requests for all files with the first batch, then none."""
        asking = Asking(files, batch)
        if kept is None:
            ask_whole(asking, files, np.arange(files.layout.num_files))
        return asking.requests, {} if kept is None else kept

    def read(
        self, files: Files, opener: Opener, batch: Batch, out: NDArray[np.uint8], kept: Contents | None
    ) -> tuple[NDArray[np.int64], Contents | None]:
        """Read all files with the first batch; then take samples from memory with the format."""
        if kept is None:
            kept = {file: load(files, opener, file) for file in range(files.layout.num_files)}
        ids = np.empty(len(batch.samples), np.int64)
        for file, places in by_file(batch):
            ids[places] = read_part(files, kept[file].opened, batch, places, out)
        return ids, kept
