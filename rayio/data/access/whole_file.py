"""``loader.file_access: whole_file``: a file is read in one go, into memory, before any of its samples is taken.

So do ``np.load(io.BytesIO(path.read_bytes()))``, image files, and most Python datasets with one file a sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rayio.data.access.contract import Access, Files
from rayio.data.access.held import MemoryFile
from rayio.data.access.memory import drawn_sizes
from rayio.data.access.parts import Asking, by_file, pieces, read_part
from rayio.data.formats import Format, form_of, layout_of, not_in_one_file
from rayio.data.layout import Batch, Layout
from rayio.schema.fields import Section, quantity
from rayio.storage.base import Opener, Requests
from rayio.units import BYTES

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario


class WholeFileOptions(Section):
    """Options of reading whole files."""

    request_bytes: Annotated[int | None, quantity(BYTES, positive=True, integer=True, or_none=True)] = Field(
        None, description="Most bytes of a request; none reads a file in one."
    )


class Content(NamedTuple):
    """A file in memory: its number; in real runs also its bytes and the closed file."""

    file: int
    content: memoryview | None = None
    handle: Any = None

    def opened(self, path: str) -> MemoryFile:
        """Return the content as an open file."""
        assert self.content is not None
        return MemoryFile(self.handle, path, self.content)


class WholeFile(Access):
    """A file is opened, read and closed; the last one stays in memory."""

    options = WholeFileOptions

    def cannot(self, form: Format, layout: Layout) -> str:
        """Return why files of a format are not read one by one; empty if they are."""
        return not_in_one_file(form)

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Refuse formats whose files are not read one by one."""
        yield from super().contradictions(scenario)
        yield from refused(self, "whole_file", scenario)

    def memory(self, files: Files) -> float:
        """Return the bytes of the largest file."""
        return float(drawn_sizes(files.form, files.layout).max())

    def is_joined(self, options: Section) -> bool:
        """Return False if ``request_bytes`` bounds requests."""
        return not (isinstance(options, WholeFileOptions) and options.request_bytes)

    def requests(self, files: Files, batch: Batch, kept: Content | None) -> tuple[Requests, Content | None]:
        """Return the requests for each file that is not in memory."""
        asking = Asking(files, batch)
        for file, _ in by_file(batch, first=-1 if kept is None else kept.file):
            if kept is None or kept.file != file:
                ask_whole(asking, files, np.array([file]))
                kept = Content(file)
        return asking.requests, kept

    def read(
        self, files: Files, opener: Opener, batch: Batch, out: NDArray[np.uint8], kept: Content | None
    ) -> tuple[NDArray[np.int64], Content | None]:
        """Read each file that is not in memory, and its samples with the format."""
        ids = np.empty(len(batch.samples), np.int64)
        for file, places in by_file(batch, first=-1 if kept is None else kept.file):
            if kept is None or kept.file != file:
                kept = load(files, opener, file)
            ids[places] = read_part(files, kept.opened, batch, places, out)
        return ids, kept


def refused(access: Access, name: str, scenario: Scenario) -> Iterator[str]:
    """Yield a message if an access cannot walk the files of a scenario's format."""
    layout = layout_of(scenario)
    if reason := access.cannot(form_of(scenario.dataset.format, layout), layout):
        yield f"loader.file_access={name}: {reason}; use loader.file_access=per_sample"


def request_bytes(files: Files) -> int | None:
    """Return the most bytes of a request; None for a whole file."""
    return files.options.request_bytes if isinstance(files.options, WholeFileOptions) else None


def ask_whole(asking: Asking, files: Files, numbers: NDArray[np.int64]) -> None:
    """Add the requests that read these files."""
    sizes = files.form.file_bytes(files.layout, numbers)
    for file, size in zip(numbers.tolist(), sizes.tolist(), strict=True):
        asking.add(file, 0, size, request_bytes(files), opens=True)


def load(files: Files, opener: Opener, file: int) -> Content:
    """Read a file into memory."""
    with opener(files.layout.path(file)) as handle:
        if (known := getattr(handle, "content", None)) is not None:  # another worker has read it
            return Content(file, known, handle)
        size = handle.seek(0, 2)
        content = memoryview(bytearray(size))
        for offset, nbytes in pieces(0, size, request_bytes(files)):
            got = handle.fetch(offset, content[offset : offset + nbytes])  # type: ignore[attr-defined]
            if got < nbytes:
                content = content[: offset + got]
                break
        if (share := getattr(handle, "share", None)) is not None:
            share(content)
    return Content(file, content, handle)
