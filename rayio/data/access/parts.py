"""Parts of a batch that an access reads one by one, and the list of their requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rayio.data.access.contract import Files
from rayio.data.layout import Batch
from rayio.storage.base import Placed, Requests


def part_of(batch: Batch, places: slice | NDArray[np.intp]) -> Batch:
    """Return some samples of a batch."""
    return replace(batch, **{name: getattr(batch, name)[places] for name in ("samples", "files", "index", "nbytes")})


def by_turn(batch: Batch) -> Iterator[tuple[int, int, int]]:
    """Yield each run of samples of one file: the file, the run's first place in the batch and one past its last."""
    if len(batch.files):
        edges = [0, *(np.flatnonzero(np.diff(batch.files)) + 1).tolist(), len(batch.files)]
        for first, last in pairwise(edges):
            yield int(batch.files[first]), first, last


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
        self.file: list[int] = []
        self.offset: list[int] = []
        self.nbytes: list[int] = []
        #: Numbers of the requests before which a file is opened.
        self.opening: list[int] = []

    def add(self, file: int, requests: list[tuple[int, int]], *, opens: bool) -> None:
        """Add requests to a file, as offsets and bytes; it is opened before the first one."""
        if opens:
            self.opening.append(len(self.nbytes))
        self.file += [file] * len(requests)
        self.offset += [offset for offset, _ in requests]
        self.nbytes += [nbytes for _, nbytes in requests]

    @property
    def requests(self) -> Requests:
        """The requests so far."""
        nbytes = np.array(self.nbytes, np.int64)
        places = partial(_placed, self.layout.path, self.file, self.offset, self.opening)
        return Requests(self.address, len(self.opening), nbytes, places, sum(self.nbytes))


def _placed(path: Callable[[int], str], file: list[int], offset: list[int], opening: list[int]) -> Placed:
    numbers, of_request = np.unique(np.array(file, np.int64), return_inverse=True)
    paths = [path(number) for number in numbers.tolist()]
    return Placed(paths, of_request, np.array(offset, np.int64), np.array(opening, np.int64))
