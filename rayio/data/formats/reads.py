"""The reads of a batch, and the steps of a read that all formats share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.sample import Place
from rayio.data.layout import Batch, Layout, Paths
from rayio.errors import DataError
from rayio.storage.base import Opener, Placed, PlacesOfStep, RequestTable, differs_from_last

#: Batches of up to this many samples are cut without numpy, which costs per call.
FEW = 64


#: Units of requests whose bytes a library keeps as long as the file is open, or not at all (``units`` of formats).
HEAD, NOT_KEPT = -1, -2


#: A thread keeps at most this much memory for records that are taken apart.
SCRATCH_BYTES = 16 << 20
_THREAD, _NOTHING = threading.local(), memoryview(b"")


class Runs(NamedTuple):
    """A batch cut into reads: rows that are consecutive in a file and in the batch are one read."""

    #: Places in the batch, grouped by file, files in ascending order.
    order: NDArray[np.int64]
    #: Start of each run in ``order``, and True for the first run of a file.
    starts: NDArray[np.int64]
    is_first: NDArray[np.bool_]

    @classmethod
    def of(cls, batch: Batch, longest: NDArray[np.int64] | None = None) -> Runs:
        """Return the runs of a batch that is not empty; ``longest`` limits, by sample, the rows of a run."""
        order = np.argsort(batch.files, kind="stable")
        files, index = batch.files[order], batch.index[order]
        new_file = np.concatenate([[True], files[1:] != files[:-1]])
        breaks = (index[1:] != index[:-1] + 1) | (order[1:] != order[:-1] + 1)
        starts = np.flatnonzero(new_file | np.concatenate([[True], breaks]))
        if longest is not None:
            within = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
            starts = np.flatnonzero(within % longest[order] == 0)
        return cls(order, starts, new_file[starts])

    def by_file(self, batch: Batch) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Yield each file with its runs, as places in the batch: first and one past the last."""
        lengths = np.diff(self.starts, append=len(self.order)).tolist()
        places = self.order[self.starts].tolist()
        edges = [*np.flatnonzero(self.is_first).tolist(), len(places)]
        for begin, end in pairwise(edges):
            spans = [(places[run], places[run] + lengths[run]) for run in range(begin, end)]
            yield int(batch.files[places[begin]]), spans


def as_one(
    layout: Layout, files: NDArray[np.int64], index: NDArray[np.int64], nbytes: NDArray[np.int64]
) -> tuple[Batch, Batch]:
    """Return steps, a row each, as one batch, and as a batch in which no two steps share a file.

    The second has each step's runs separately; its file numbers are artificial.
    """
    flat = files.ravel()
    whole = Batch(0, 0, 0, flat, flat, index.ravel(), nbytes.ravel())
    return whole, replace(whole, files=(files + layout.num_files * np.arange(len(files))[:, np.newaxis]).ravel())


def as_runs(
    layout: Layout, files: NDArray[np.int64], index: NDArray[np.int64], nbytes: NDArray[np.int64]
) -> tuple[Runs, Batch]:
    """Return the runs of steps, each step's separately, and the steps as one batch."""
    whole, apart = as_one(layout, files, index, nbytes)
    return Runs.of(apart), whole


def requests_of(
    runs: Runs, shape: tuple[int, ...], nbytes: NDArray[np.int64], places: PlacesOfStep | None = None
) -> RequestTable:
    """Return the requests of the steps whose runs, by :func:`as_one`, are ``runs``; ``shape`` is (steps, batch size).

    ``nbytes`` are the bytes of each run's requests, shape (runs, requests), 0 for none.
    """
    begins = np.searchsorted(runs.order[runs.starts] // shape[1], np.arange(shape[0] + 1))

    def until(of_run: NDArray[np.int64] | NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return sums over the runs before each step, and over all."""
        sums = np.zeros(len(of_run) + 1, np.int64)
        np.cumsum(of_run, out=sums[1:])
        return sums[begins]

    is_made = nbytes > 0
    edges, totals = until(is_made.sum(axis=1)), np.diff(until(nbytes.sum(axis=1)))
    num_opens = np.diff(until(runs.is_first)).tolist()
    return RequestTable(num_opens, nbytes[is_made], edges.tolist(), totals.tolist(), places)


def placed(
    layout: Layout, files: NDArray[np.int64], offsets: NDArray[np.int64]
) -> tuple[Paths, NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of requests by each one's file and offset; those to a file are adjacent."""
    is_new = differs_from_last(files)
    return layout.paths(files[is_new]), np.cumsum(is_new) - 1, offsets


def placed_by_step(layout: Layout, find: Callable[[], tuple[NDArray[np.int64], NDArray[np.int64]]]) -> PlacesOfStep:
    """Return the places of a step's requests; ``find`` returns file and offset of those of all steps, if needed."""
    places = cache(find)

    def of_step(first: int, last: int) -> Placed:
        files, offsets = places()
        return Placed(*placed(layout, files[first:last], offsets[first:last]))

    return of_step


def by_file(batch: Batch) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yield each file with its runs, as places in the batch: first and one past the last."""
    return _few_by_file(batch) if len(batch.samples) <= FEW else Runs.of(batch).by_file(batch)


def _few_by_file(batch: Batch) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yield the same for a few samples, place by place."""
    files, index = batch.files.tolist(), batch.index.tolist()
    spans: list[tuple[int, int]] = []
    before = -1
    for place in sorted(range(len(files)), key=files.__getitem__):
        if spans and files[place] != files[before]:
            yield files[before], spans
            spans = []
        if spans and place == before + 1 and index[place] == index[before] + 1:
            spans[-1] = (spans[-1][0], place + 1)
        else:
            spans.append((place, place + 1))
        before = place
    if spans:
        yield files[before], spans


def whole_places(layout: Layout, files: NDArray[np.int64]) -> tuple[Paths, NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of requests for whole files: paths, each request's file and its offset."""
    return layout.paths(files), np.arange(len(files)), np.zeros_like(files)


def scratch(num_bytes: int) -> memoryview:
    """Return memory of this thread, to be used until the next call; memory that is new costs as much as reading it."""
    memory: memoryview = getattr(_THREAD, "memory", _NOTHING)
    if len(memory) < num_bytes:
        memory = np.empty(num_bytes, np.uint8).data
        if num_bytes <= SCRATCH_BYTES:
            _THREAD.memory = memory
    return memory[:num_bytes]


def check_length(nbytes: int, out: NDArray[np.uint8]) -> None:
    """Refuse a buffer whose length differs from ``nbytes``."""
    if len(out) != nbytes:
        raise ValueError(f"out has {len(out)} bytes, the batch {nbytes}")


def place_of(layout: Layout, batch: Batch, place: int) -> Place:
    """Return the sample at a place in the batch, for errors."""
    return Place(layout.path(int(batch.files[place])), int(batch.samples[place]), int(batch.index[place]))


def opened(opener: Opener, place: Place) -> BinaryIO:
    """Return the opened file of a sample; the error of a missing file names the sample."""
    try:
        return opener(place.path)
    except (DataError, OSError) as error:
        detail = str(error).rpartition(f"{place.path}: ")[2]  # without the path
        reason = "the file is missing" if isinstance(error, FileNotFoundError) else detail
        raise place.error(reason) from error


def window(stream: BinaryIO, position: int, size: int) -> tuple[int, bytes]:
    """Return the start and bytes of a window of a file with ``size`` bytes from ``position`` on.

    Files that count their requests (``rayio.storage.stores.counted``) have a method for it; others are read at the
    position.
    """
    if (find := getattr(stream, "window", None)) is not None:
        start_and_bytes: tuple[int, bytes] = find(position, size)
        return start_and_bytes
    stream.seek(position)
    return position, stream.read(size)


def read_into(stream: BinaryIO, offset: int, buffer: memoryview) -> int:
    """Read until ``buffer`` is full or the file ends; return the bytes read."""
    fetch = getattr(stream, "fetch", None)
    length, wanted = 0, len(buffer)
    while length < wanted:
        rest = buffer[length:] if length else buffer
        if fetch is not None:
            got = fetch(offset + length, rest)
        else:
            stream.seek(offset + length)
            got = stream.readinto(rest)  # type: ignore[attr-defined]
        if not got:
            break
        length += got
    return length
