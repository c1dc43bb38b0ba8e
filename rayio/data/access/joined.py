"""The requests of many steps, computed together where every file or object is one sample."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from rayio.data.access.contract import Access, Files
from rayio.data.layout import Batch, Paths
from rayio.storage.base import Placed, RequestTable, differs_from_last
from rayio.storage.joining import joined


def joined_table(
    access: Access, files: Files, file: NDArray[np.int64], index: NDArray[np.int64], nbytes: NDArray[np.int64],
    gap: int, *, has_places: bool = False,
) -> RequestTable | None:  # fmt: skip
    """Return the joined requests of many steps, perhaps with their places; None where steps may share a file.

    The arrays are those of :meth:`Access.request_table`.
    """
    steps, size = file.shape
    flat = file.ravel()
    if files.layout.samples_per_file != 1 or not flat.size or len(np.unique(flat)) < flat.size:
        return None
    requests, kept = access.requests(files, Batch(0, 0, 0, flat, flat, index.ravel(), nbytes.ravel()), None)
    together = joined(requests, gap)
    if kept is not None or together.places is None:
        return None
    placed = Placed(*together.places())
    if placed.offset is None or len(placed.files) != flat.size:  # a sample has other files too, such as an index
        return None
    if has_places and placed.opening is not None:
        return None
    if isinstance(placed.files, Paths):
        names, numbers = placed.files.numbers.tolist(), flat.tolist()
    else:
        names, numbers = [*placed.files], [*files.layout.paths(flat)]
    step_of = dict(zip(numbers, (np.arange(flat.size) // size).tolist(), strict=True))
    step = np.array([step_of[name] for name in names])[placed.file]
    order = np.argsort(step, kind="stable")  # files of a step stay in their order
    sizes, edges = together.nbytes[order], np.searchsorted(step[order], np.arange(steps + 1))
    sums = np.concatenate([[0], np.cumsum(sizes)])
    places = None
    if has_places and len(order) == flat.size:
        paths, each = _names(placed, placed.file[order]), np.arange(size)
        places = partial(_places_of_files, paths, each, placed.offset[order])
    elif has_places:
        places = partial(_places, placed, placed.file[order], placed.offset[order])
    return RequestTable([size] * steps, sizes, edges.tolist(), np.diff(sums[edges]).tolist(), places)


def _names(placed: Placed, chosen: NDArray[np.int64]) -> list[str]:
    """Return the paths of some files."""
    names = placed.files
    if isinstance(names, Paths):
        return names.layout.names_of(names.numbers[chosen].tolist())
    return [names[number] for number in chosen.tolist()]


def _places_of_files(
    names: list[str], each: NDArray[np.int64], offset: NDArray[np.int64], first: int, last: int
) -> Placed:
    """Return the places of some requests, each to another file."""
    return Placed(names[first:last], each, offset[first:last])


def _places(placed: Placed, file: NDArray[np.int64], offset: NDArray[np.int64], first: int, last: int) -> Placed:
    """Return the places of some requests; those to a file are adjacent."""
    file = file[first:last]
    is_new = differs_from_last(file)
    return Placed(_names(placed, file[is_new]), np.cumsum(is_new) - 1, offset[first:last])
