"""Requests of a batch joined for storage where a request costs more than the bytes between two of them."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from rayio.storage.base import Placed, Requests

#: A joined request has at most so many bytes, or those of its largest range and a gap.
MAX_BYTES = 64 << 20


def joined(requests: Requests, gap: int) -> Requests:
    """Return requests in which ranges of a file at most ``gap`` bytes apart are one; unchanged if ``gap`` is 0.

    Files keep their order; the requests to one file are in the order of their offsets.
    """
    if not gap or requests.places is None or not len(requests.nbytes):
        return requests
    placed = Placed(*requests.places())
    if placed.offset is None:
        return requests
    file, offset, nbytes = _ranges(placed.file, placed.offset, requests.nbytes, gap)
    return requests._replace(nbytes=nbytes, places=partial(_places, placed, file, offset), known_bytes=None)


def _ranges(
    file: NDArray[np.int64], offset: NDArray[np.int64], nbytes: NDArray[np.int64], gap: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return file, offset and bytes of the joined requests."""
    _, first, inverse = np.unique(file, return_index=True, return_inverse=True)
    turn = np.argsort(np.argsort(first))[inverse]  # files in the order of their first requests
    order = np.lexsort((offset, turn))
    file, begin, end, turn = file[order], offset[order], (offset + nbytes)[order], turn[order]
    far = int(end.max()) + gap + 1
    reached = np.maximum.accumulate(end + turn * far)  # the furthest end so far, separately for each file
    is_new = np.concatenate([[True], begin[1:] + turn[1:] * far > reached[:-1] + gap])
    starts = np.flatnonzero(is_new)
    stops = np.maximum.reduceat(end, starts)
    largest = np.maximum.reduceat(end - begin, starts)
    if (stops - begin[starts] > np.maximum(MAX_BYTES, largest + gap)).any():
        starts = np.array(_cut(begin, end, starts, gap), np.int64)
        stops = np.maximum.reduceat(end, starts)
    return file[starts], begin[starts], stops - begin[starts]


def _cut(begin: NDArray[np.int64], end: NDArray[np.int64], starts: NDArray[np.int64], gap: int) -> list[int]:
    """Return the starts of requests, more of them where some would be too long."""
    new, is_start = list[int](), set(starts.tolist())
    first = last = largest = 0
    for place, (here, stop) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        most = max(MAX_BYTES, max(largest, stop - here) + gap)
        if place in is_start or max(last, stop) - first > most:
            new.append(place)
            first, last, largest = here, stop, stop - here
        else:
            last, largest = max(last, stop), max(largest, stop - here)
    return new


def _places(placed: Placed, file: NDArray[np.int64], offset: NDArray[np.int64]) -> Placed:
    """Return the places of joined requests; a file is opened before its first one, as often as in the plan."""
    opening = None
    if placed.opening is not None:
        files, first = np.unique(file, return_index=True)
        opening = np.sort(first[np.searchsorted(files, placed.file[placed.opening])])
    return Placed(placed.files, file, offset, opening)
