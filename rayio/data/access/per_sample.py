"""``loader.file_access: per_sample``: each batch looks its samples up in their files.

Without ``keep_open`` each batch opens its files anew. With it a worker keeps as many files open as its library would: a
file's description is read once, and of each open file the chunk or row group that was read last stays in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rayio.data.access.contract import Access, Files
from rayio.data.access.held import KeptFile
from rayio.data.formats import request_table, units
from rayio.data.formats.reads import HEAD
from rayio.data.layout import Batch
from rayio.scenario.change import Change, with_keys
from rayio.schema.fields import Section, whole
from rayio.storage.base import Opener, Placed, Requests, RequestTable

if TYPE_CHECKING:
    from rayio.scenario.change import Run

#: Open files that are proposed.
KEPT = 64


class PerSampleOptions(Section):
    """Options of reads by index."""

    keep_open: Annotated[int, whole(0)] = Field(
        0, description="Files that a worker keeps open, the latest; with 0 each batch opens its files anew."
    )


class OpenFile(NamedTuple):
    """An open file: the number of its chunk or row group in memory (-1: none), and in real runs handle and bytes."""

    unit: int = -1
    handle: Any = None
    #: Bytes of the description, and of the unit, by offset and length.
    head: dict[tuple[int, int], bytes] = {}  # noqa: RUF012 (never modified)
    content: dict[tuple[int, int], bytes] = {}  # noqa: RUF012


#: Open files by path, the latest last.
OpenFiles = dict[str, OpenFile]


class PerSample(Access):
    """The requests of the format's library, which opens a file once for all samples of a batch in it."""

    options: ClassVar[type[Section]] = PerSampleOptions

    def changes(self, run: Run) -> Iterator[Change]:
        """Yield a change to files that stay open, where batches share them."""
        options, dataset = run.scenario.loader.file_access_options, run.scenario.dataset
        if isinstance(options, PerSampleOptions) and not options.keep_open and dataset.samples_per_file > 1:
            kept = with_keys("loader", file_access_options=options.model_copy(update={"keep_open": KEPT}))
            yield Change(f"keep_open {KEPT}", kind="setting", to=kept, key=f"loader.keep_open={KEPT}")

    def requests(self, files: Files, batch: Batch, kept: OpenFiles | None) -> tuple[Requests, OpenFiles | None]:
        """Return the format's own requests, without those of descriptions and units that are kept."""
        requests = files.form.requests(files.layout, batch)
        if not (most := _most(files)) or requests.places is None or not len(requests.nbytes):
            return requests, kept or None
        visits, is_open = _visits(files, batch, requests), dict(kept or {})
        opening: list[int] = []
        is_made = np.ones(len(requests.nbytes), np.bool_)
        for visit in visits:
            file = is_open.pop(visit.path, None)
            if file is None:
                opening.append(visit.first)
            is_made[visit.first : visit.last] = visit.made(file)
            _keep(is_open, visit.path, OpenFile(visit.unit), most)
        number: NDArray[np.int64] = np.cumsum(is_made) - is_made
        places = partial(_made, requests, is_made, number[opening])
        made = requests._replace(num_opens=len(opening), nbytes=requests.nbytes[is_made], places=places)
        return made._replace(known_bytes=None), is_open

    def request_table(
        self, files: Files, file: NDArray[np.int64], index: NDArray[np.int64], nbytes: NDArray[np.int64]
    ) -> RequestTable | None:
        """Return the format's own table, if no file is kept open."""
        return None if _most(files) else request_table(files.form, files.layout, file, index, nbytes)

    def read(
        self, files: Files, opener: Opener, batch: Batch, out: NDArray[np.uint8], kept: OpenFiles | None
    ) -> tuple[NDArray[np.int64], OpenFiles | None]:
        """Read the batch with the format."""
        most = _most(files)
        requests = files.form.requests(files.layout, batch) if most else None
        if requests is None or requests.places is None or not len(requests.nbytes):
            return files.form.read(opener, files.layout, batch, out), kept or None
        visits, is_open = iter(_visits(files, batch, requests)), dict(kept or {})
        reading: list[tuple[str, KeptFile]] = []

        def done() -> None:
            for path, file in reading:
                _keep(is_open, path, OpenFile(file.unit, file.file, file.head, file.unit_bytes), most)
            reading.clear()

        def opened(path: str) -> Any:
            done()
            known, visit = is_open.pop(path, None), next(visits, None)
            plan = visit.plan if visit is not None and visit.path == path else {}
            if known is None or known.handle.closed:
                file = KeptFile(opener(path), path, plan, -1, {}, {})
            else:
                handle = opener(path, known.handle)
                file = KeptFile(handle, path, plan, known.unit, dict(known.head), known.content)
            reading.append((path, file))
            return file

        ids = files.form.read(opened, files.layout, batch, out)
        done()
        return ids, is_open

    def close(self, kept: OpenFiles) -> None:
        """Close the open files."""
        for file in kept.values():
            if file.handle is not None:
                file.handle.close()


class _Visit(NamedTuple):
    """The requests to one file: their numbers in the batch, their units, offsets and bytes."""

    path: str
    first: int
    last: int
    units: NDArray[np.int64]
    offsets: NDArray[np.int64]
    nbytes: NDArray[np.int64]

    @property
    def unit(self) -> int:
        """The unit that stays in memory."""
        return max(-1, int(self.units[-1]))

    @property
    def plan(self) -> dict[tuple[int, int], int]:
        """The unit of each request, by offset and bytes."""
        places = zip(self.offsets.tolist(), self.nbytes.tolist(), strict=True)
        return dict(zip(places, self.units.tolist(), strict=True))

    def made(self, file: OpenFile | None) -> NDArray[np.bool_]:
        """Return which requests are made, given what is kept of the file."""
        if file is None:
            return np.ones(len(self.units), np.bool_)
        is_made: NDArray[np.bool_] = self.units != HEAD
        if file.unit >= 0:
            is_other = is_made & (self.units != file.unit)
            until = int(is_other.argmax()) if is_other.any() else len(is_made)
            is_made[:until] = False
        return is_made


def _visits(files: Files, batch: Batch, requests: Requests) -> Iterator[_Visit]:
    """Yield the visits to files, in order."""
    assert requests.places is not None
    placed, of_request = Placed(*requests.places()), units(files.form, files.layout, batch, requests)
    assert placed.offset is not None
    edges = [0, *(np.flatnonzero(np.diff(placed.file)) + 1).tolist(), len(placed.file)]
    for first, last in pairwise(edges):
        here = slice(first, last)
        path = placed.files[placed.file[first]]
        yield _Visit(path, first, last, of_request[here], placed.offset[here], requests.nbytes[here])


def _most(files: Files) -> int:
    return files.options.keep_open if isinstance(files.options, PerSampleOptions) else 0


def _keep(is_open: OpenFiles, path: str, file: OpenFile, most: int) -> None:
    """Keep a file as the latest, and close the oldest of too many."""
    is_open[path] = file
    while len(is_open) > most:
        old = is_open.pop(next(iter(is_open)))
        if old.handle is not None:
            old.handle.close()


def _made(requests: Requests, is_made: NDArray[np.bool_], opening: NDArray[np.int64]) -> Placed:
    """Return the places of the requests that are made."""
    assert requests.places is not None
    placed = Placed(*requests.places())
    assert placed.offset is not None
    return Placed(placed.files, placed.file[is_made], placed.offset[is_made], opening)
