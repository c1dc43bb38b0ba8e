"""Parts of a batch that an access reads one by one, and the list of their requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayio.data.access.contract import Files
from rayio.data.layout import Batch
from rayio.storage.base import Placed, Requests


def part_of(batch: Batch, places: slice | NDArray[np.intp]) -> Batch:
    """Return some samples of a batch."""
    return replace(batch, **{name: getattr(batch, name)[places] for name in ("samples", "files", "index", "nbytes")})


def by_file(batch: Batch, first: int = -1) -> Iterator[tuple[int, slice | NDArray[np.intp]]]:
    """Yield each file and the places of its samples, in order of appearance, with file ``first`` before the others."""
    order = np.argsort(batch.files, kind="stable")
    files, starts = np.unique(batch.files[order], return_index=True)
    groups = np.split(order, starts[1:]) if len(order) else []
    appearing = sorted(zip(files.tolist(), groups, strict=True), key=lambda each: (each[0] != first, each[1][0]))
    for file, places in appearing:
        is_run = places[-1] - places[0] + 1 == len(places)
        yield file, slice(int(places[0]), int(places[-1]) + 1) if is_run else places


def read_part(
    files: Files, opened: Callable[[str], Any], batch: Batch, places: slice | NDArray[np.intp], out: NDArray[np.uint8]
) -> NDArray[np.int64]:
    """Read some samples of a batch with the format into their places of ``out``; return their ids."""
    part, offsets = part_of(batch, places), np.concatenate([[0], np.cumsum(batch.nbytes)])
    if isinstance(places, slice):
        return files.form.read(opened, files.layout, part, out[offsets[places.start] : offsets[places.stop]])
    content = np.empty(part.total_bytes, np.uint8)
    ids = files.form.read(opened, files.layout, part, content)
    edges = [0, *np.cumsum(part.nbytes).tolist()]
    for place, (begin, end) in zip(places.tolist(), pairwise(edges), strict=True):
        out[offsets[place] : offsets[place + 1]] = content[begin:end]
    return ids


def pieces(start: int, stop: int, most: int | None) -> list[tuple[int, int]]:
    """Return the offset and bytes of requests for a range, each of at most so many bytes."""
    if most is None:
        return [(start, stop - start)] if stop > start else []
    return [(at, min(most, stop - at)) for at in range(start, stop, most)]


class Asking:
    """The requests of a batch, as they are added one by one."""

    def __init__(self, files: Files, batch: Batch) -> None:
        self.layout = files.layout
        self.address = (batch.rank, batch.epoch, batch.step)
        #: A file and the number of its requests, for each range.
        self.file: list[tuple[int, int]] = []
        self.offset: list[int] = []
        self.nbytes: list[int] = []
        #: Numbers of the requests before which a file is opened.
        self.opening: list[int] = []

    def add(self, file: int, start: int, stop: int, most: int | None, *, opens: bool) -> None:
        """Add requests for a range of a file, as :func:`pieces` has them; it is opened before the first one."""
        if opens:
            self.opening.append(len(self.nbytes))
        offsets = range(start, stop, most or max(stop - start, 1))
        self.file.append((file, len(offsets)))
        self.offset += offsets
        if offsets:
            self.nbytes += [offsets.step] * (len(offsets) - 1)
            self.nbytes.append(stop - offsets[-1])

    @property
    def requests(self) -> Requests:
        """The requests so far."""
        nbytes = np.array(self.nbytes, np.int64)
        places = partial(_placed, self.layout.path, self.file, self.offset, self.opening)
        return Requests(self.address, len(self.opening), nbytes, places, sum(self.nbytes))


def _placed(path: Callable[[int], str], file: list[tuple[int, int]], offset: list[int], opening: list[int]) -> Placed:
    named = np.array([number for number, requests in file if requests], np.int64)
    numbers, of_range = np.unique(named, return_inverse=True)
    of_request = np.repeat(of_range, [requests for _, requests in file if requests])
    paths = [path(number) for number in numbers.tolist()]
    return Placed(paths, of_request, np.array(offset, np.int64), np.array(opening, np.int64))
